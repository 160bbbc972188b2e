"""Takes the Markdown code fence off an answer that was to be bare JSON.

Sans-IO: text in pieces of any size in, the same text without the fence out. Only a fence around the whole text is taken off. Called by
`telling`.
"""

from __future__ import annotations

import re

_OPENING = re.compile(r"\s*```[A-Za-z0-9]*[ \t]*\r?\n")
_MAYBE_OPENING = re.compile(r"\s*(?:`{1,2}|```[A-Za-z0-9]*[ \t]*\r?)?")
_FENCE = "```"


class Unfenced:
    """One text; `feed` its pieces, then `end`."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False
        self._fenced = False

    def feed(self, piece: str) -> str:
        """What of the text is certain by now."""
        self._held += piece
        if not self._begun:
            if _MAYBE_OPENING.fullmatch(self._held):
                return ""
            self._begin()
        return self._certain()

    def end(self) -> str:
        """The rest of the text."""
        rest, self._held = self._held, ""
        return "" if self._fenced and rest.strip() == _FENCE else rest

    def _begin(self) -> None:
        self._begun = True
        opening = _OPENING.match(self._held)
        if opening is not None:
            self._fenced = True
            self._held = self._held[opening.end() :]

    def _certain(self) -> str:
        if not self._fenced:
            said, self._held = self._held, ""
            return said
        said = self._held.rstrip().rstrip("`").rstrip()
        self._held = self._held[len(said) :]
        return said
