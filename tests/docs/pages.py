"""The pages of the documentation as they are written, and what stands in their fences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="([^"]*)"')
_INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """What stands in one fence; `place` is the page and the line of its first line."""

    place: str
    language: str
    title: str
    text: str


def blocks(language: str) -> list[Block]:
    """All fences in a language, page by page."""
    return [block for page in PAGES for block in _blocks(page) if block.language == language]


def inline_code(page: Path) -> list[str]:
    """What stands between single backticks, outside of fences."""
    return _INLINE.findall(_FENCE.sub("", page.read_text("utf-8")))


def _blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in _FENCE.finditer(text):
        language, _, rest = match["info"].partition(" ")
        title = _TITLE.search(rest)
        line = text.count("\n", 0, match.start()) + 2
        place = f"{page.relative_to(ROOT).as_posix()}:{line}"
        yield Block(place=place, language=language, title=title[1] if title else "", text=match["text"])
