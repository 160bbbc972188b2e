"""The terminal: one place that decides about colour and width, and that text is never markup. Called by the commands that draw."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console

_PIPE_WIDTH = 120


def console_for(stream: TextIO, *, environ: Mapping[str, str]) -> Console:
    """A console that writes plain text where `stream` is no terminal or `NO_COLOR` is set and not empty (no-color.org).

    Without a terminal, lines are up to 120 columns wide, or `COLUMNS`.
    """
    plain = bool(environ.get("NO_COLOR"))
    width = None if stream.isatty() else int_or(environ.get("COLUMNS"), _PIPE_WIDTH)
    return Console(file=stream, width=width, color_system=None if plain else "auto", markup=False, emoji=False, highlight=False)


def int_or(text: str | None, default: int) -> int:
    """`text` as a positive decimal number, else `default`."""
    return int(text) if text and text.isdecimal() and int(text) > 0 else default


def program() -> str:
    """This command as this shell finds it: `hearth` where PATH leads here, else the path that it was called by."""
    called, found = Path(sys.argv[0]), shutil.which("hearth")
    if called.name != "hearth" or (found is not None and Path(found).resolve() == called.resolve()):
        return "hearth"
    return str(called)
