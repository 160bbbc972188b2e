"""Parts of options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from hearth.types import Priority

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
TEXT_FILE = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
"""`-` is stdin or stdout."""
PORT = click.IntRange(0, 65535)
POSITIVE = click.FloatRange(0, min_open=True)
PRIORITY = click.Choice([each.name.lower() for each in Priority])
CONFIG = click.option(
    "--config",
    "file",
    type=PATH,
    help="Configuration file; default: the one that `serve` would use.",
)
LIMIT = click.option(
    "--limit",
    metavar="COUNT",
    type=click.IntRange(1, 1000),
    default=50,
    help="At most this many, the latest.",
)
