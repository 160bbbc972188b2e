"""The launch lines of `launch_lines.txt`, for every test that starts games."""

from __future__ import annotations

import shlex
from pathlib import Path

_TEXT = Path(__file__).with_suffix(".txt").read_text()

LAUNCHES: tuple[tuple[str, ...], ...] = tuple(
    tuple(block.splitlines()) for block in _TEXT.strip().split("\n\n")[1:]
)
"""Each: what it is, its source, the command line, the key and the title of the game."""


def arguments_of(line: str) -> tuple[str, ...]:
    """As /proc has them."""
    return tuple(shlex.split(line))
