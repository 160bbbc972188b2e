"""`hearth config`: see what the gateway would read, before it does. Changes nothing, needs no running gateway. Called by `hearth.cli`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hearth.cli.config_file import FoundConfig, find_config
from hearth.config.loading import load_gateway_config
from hearth.config.rendering import as_yaml
from hearth.config.schema import schema_text
from hearth.config.settings import Settings

_FILE = click.argument("file", type=click.Path(path_type=Path), required=False)


@click.group
def config() -> None:
    """Check and show the configuration."""


@config.command
@_FILE
def check(file: Path | None) -> None:
    """Say whether FILE (or the file that `serve` would use) is usable; list every problem if not."""
    found = _found(file)
    settings = load_gateway_config(found.path).settings
    click.echo(f"{found.why}: ok ({_counts(settings)})")


@config.command
@_FILE
def show(file: Path | None) -> None:
    """Print the settings in force with FILE (or the file that `serve` would use), defaults included, secrets shortened."""
    found = _found(file)
    settings = load_gateway_config(found.path).settings
    click.echo(f"# {found.why}\n{as_yaml(settings).rstrip()}")


@config.command
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    click.echo(schema_text().rstrip())


def _found(file: Path | None) -> FoundConfig:
    return find_config(file, environ=os.environ, directory=Path.cwd())


def _counts(settings: Settings) -> str:
    counted = {
        "keys": settings.auth.keys,
        "models": settings.models,
        "task types": settings.priority_map,
        "callers with own limits": settings.rate_limits.callers,
        "announcements": settings.scheduling.announcements,
    }
    return ", ".join(f"{name}: {len(entries)}" for name, entries in counted.items())
