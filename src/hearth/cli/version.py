"""`hearth version`: what to put into a bug report."""

from __future__ import annotations

import platform

import click

from hearth.types import __version__


@click.command
def version() -> None:
    """Print the version."""
    click.echo(f"hearth {__version__} (Python {platform.python_version()}, {platform.system()} {platform.machine()})")
