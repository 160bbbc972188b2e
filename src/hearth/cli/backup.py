"""`hearth backup` and `hearth restore`: the store as one file."""

from __future__ import annotations

import os
from pathlib import Path

import click

from hearth.cli import CommandFailed, Unusable
from hearth.cli.config import find_config
from hearth.config.loading import load_gateway_config
from hearth.storage.backup import back_up
from hearth.storage.backup import restore as restore_store
from hearth.storage.opening import database_path
from hearth.types import MIB

_FILE = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="The gateway's configuration file, which names the store.")


def _store(config: Path | None) -> Path:
    path, why = find_config(config)
    storage = load_gateway_config(path).settings.storage
    if not storage.enabled:
        raise CommandFailed(f"there is no store: storage.enabled is off in {why}")
    return database_path(storage.path, os.environ)


@click.command
@_FILE
@_CONFIG
@click.option("--force", is_flag=True, help="Replace FILE.")
def backup(file: Path, config: Path | None, *, force: bool) -> None:
    """Copy the store to FILE while the gateway runs."""
    store = _store(config)
    if file.exists() and not force:
        raise Unusable(f"{file} exists: name another file, or replace it with --force")
    back_up(store, file)
    click.echo(f"{store} copied to {file} ({file.stat().st_size / MIB:.1f} MiB). It holds prompts and answers of jobs: keep it private.")


@click.command
@_FILE
@_CONFIG
def restore(file: Path, config: Path | None) -> None:
    """Put a copy of the store back.

    Stop the gateway first. The former store is kept beside it.
    """
    store = _store(config)
    former = restore_store(file, store)
    click.echo(f"{file} is now {store}{f'; the former store is {former}' if former else ''}.")
    click.echo("Jobs that waited when the copy was made run again, even if they have ended since.")
