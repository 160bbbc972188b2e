"""Text that is safe where it goes: names are data, whatever a caller or a model server put into them. Pure."""

from __future__ import annotations

NAME_CHARS = 100
_MARKDOWN = frozenset("\\*_~`|>#[]()<:-+.!@")
_ELLIPSIS = "…"


def shown(text: str, limit: int = NAME_CHARS) -> str:
    """A name or a reason on one line: what is not printable (line breaks, ESC, direction overrides) becomes `?`, the end is cut."""
    head = "".join(each if each.isprintable() else "?" for each in text[: limit + 1])
    return head if len(head) <= limit else head[: limit - 1] + _ELLIPSIS


def discord_text(text: str, limit: int) -> str:
    """The text as Discord shows it literally, in at most `limit` UTF-16 units: no markup, mention, link or quote takes effect.

    Discord reads a backslash before punctuation as that character; `@everyone` takes a character of no width as well, since clients
    colour it even where it notifies nobody.
    """
    pieces = [_escaped(each) for each in text]
    if sum(map(_units, pieces)) <= limit:
        return "".join(pieces)
    kept: list[str] = []
    room = limit - _units(_ELLIPSIS)
    for piece in pieces:
        room -= _units(piece)
        if room < 0:
            break
        kept.append(piece)
    return "".join(kept) + _ELLIPSIS


def _escaped(char: str) -> str:
    if char == "@":
        return "\\@\u200b"
    return f"\\{char}" if char in _MARKDOWN else char


def _units(text: str) -> int:
    """Length as Discord's clients count."""
    return sum(2 if ord(each) > 0xFFFF else 1 for each in text)
