"""Requests of a caller that come in one after the other, in the order in which they were made."""

from __future__ import annotations

import asyncio
from collections import deque


class CallerTurns:
    """Whose turn it is, for each caller. Two requests that wait for one free place would both find
    it, and one of them would be refused.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}

    def enter(self, caller: str) -> asyncio.Future[None]:
        """Done once it is this request's turn, which lasts until `leave`."""
        turn = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(caller, deque())
        line.append(turn)
        if line[0] is turn:
            turn.set_result(None)
        return turn

    def leave(self, caller: str, turn: asyncio.Future[None]) -> None:
        """End a turn, or do without it."""
        line = self._lines[caller]
        line.remove(turn)
        if not line:
            del self._lines[caller]
        elif not line[0].done():
            line[0].set_result(None)
