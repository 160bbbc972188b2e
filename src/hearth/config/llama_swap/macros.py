"""The macros of llama-swap, and its commands as the lists of words that they are run as."""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST_CHARS = 32 * 1024
"""Of a command or another value, with its macros replaced."""
_MOST_DEPTH = 50
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,63}", re.ASCII)
_MACRO = re.compile(r"\$\{([a-zA-Z0-9_-]+)\}", re.ASCII)
_RESERVED = {"PORT", "MODEL_ID", "PID"}


class Macros:
    """Those of the whole file, and of one model, in the order of the file.

    A macro may use those before it. Raises ValueError for a name that llama-swap refuses.
    """

    def __init__(self, shared: Mapping[str, str], own: Mapping[str, str], model: str) -> None:
        self._values = {**shared, **own}
        self._order = {name: place for place, name in enumerate(self._values)}
        self._model = model
        self._known: dict[str, str] = {}
        for name in self._values:
            if not _NAME.fullmatch(name) or name in _RESERVED:
                raise ValueError(
                    f"macros: {name[:64]!r} is reserved or no name: at most 63 letters, digits,"
                    " '-' and '_'"
                )

    def replaced(self, text: str) -> str:
        """The text with every macro replaced but PORT, PID, and `${env.NAME}`.

        Raises ValueError where one is unknown, or the text grows beyond `MOST_CHARS`.
        """
        return self._replaced(text, len(self._order), 0)

    def _replaced(self, text: str, before: int, depth: int) -> str:
        """With those macros that stand `before` this place in the file."""
        if depth > _MOST_DEPTH:
            raise ValueError(f"macros are nested deeper than {_MOST_DEPTH}")
        parts: list[str] = []
        at = chars = 0
        for match in _MACRO.finditer(text):
            parts += text[at : match.start()], self._value(match[1], before, depth)
            at = match.end()
            chars += len(parts[-2]) + len(parts[-1])
            if chars > MOST_CHARS:
                break
        parts.append(text[at:])
        if chars + len(parts[-1]) > MOST_CHARS:
            raise ValueError(f"is longer than {MOST_CHARS // 1024} KiB with its macros replaced")
        return "".join(parts)

    def _value(self, name: str, before: int, depth: int) -> str:
        if name == "MODEL_ID":
            return self._model
        if name in {"PORT", "PID"}:
            return f"${{{name}}}"
        place = self._order.get(name, before)
        if place < before:
            if name not in self._known:
                self._known[name] = self._replaced(self._values[name], place, depth + 1)
            return self._known[name]
        where = ": it must stand before the macro that uses it" if name in self._order else ""
        raise ValueError(f"has the unknown macro ${{{name}}}{where}")


_PIECE = re.compile(
    r"""(?P<space>[ \t\n]+)
    |'(?P<single>[^']*)'
    |"(?P<double>(?:\\[\s\S]|[^"\\])*)"
    |\\(?P<escaped>[\s\S])
    |(?P<plain>[^ \t\n'"\\]+)""",
    re.VERBOSE,
)
_IN_DOUBLE = re.compile(r'\\(["\\$`]|\n)')


def words_of(command: str) -> list[str]:
    """The words of a command, as a POSIX shell splits them; nothing else that a shell does.

    Lines that begin with `#` are comments, and a backslash at the end of a line goes on with it.
    Raises ValueError where a quote is not closed, or there is no word.
    """
    text = without_comments(command)
    words: list[str] = []
    open_word: str | None = None
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise ValueError("has a quote that is not closed, or ends with a backslash")
        at = piece.end()
        if piece["space"] is not None:
            words += [] if open_word is None else [open_word]
            open_word = None
        else:
            open_word = (open_word or "") + _meaning(piece)
    words += [] if open_word is None else [open_word]
    if not words:
        raise ValueError("has no command")
    return words


def without_comments(command: str) -> str:
    """A command without its lines that are comments, and with lines that end with a backslash
    joined.
    """
    lines: list[str] = []
    for line in command.split("\n"):
        trimmed = line.strip()
        if trimmed.startswith("#"):
            continue
        lines.append(trimmed[:-1] + " " if trimmed.endswith("\\") else line)
    return "\n".join(lines)


def _meaning(piece: re.Match[str]) -> str:
    """Of a piece of a word, without its quotes and backslashes."""
    if piece["double"] is not None:
        return _IN_DOUBLE.sub(lambda match: match[1].strip("\n"), piece["double"])
    if piece["escaped"] is not None:
        return piece["escaped"].strip("\n")
    return piece["single"] if piece["plain"] is None else piece["plain"]
