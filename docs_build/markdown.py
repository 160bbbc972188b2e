"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PAGE = re.compile(r"`?docs/([a-z-]+\.md)`?")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what is in its cells is Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(each) for each in line) + " |" for line in lines)


def code(text: object) -> str:
    """Text as it is typed."""
    return f"`{text}`"


def one_of(choices: Sequence[object]) -> str:
    """The choices as they are typed, the last one after an "or"."""
    *others, last = map(code, choices)
    return f"{', '.join(others)} or {last}" if others else last


def linked(text: str) -> str:
    """Names of pages, such as `docs/jobs.md`, as links from a page of the reference."""
    return _PAGE.sub(r"[\1](../\1)", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
