"""Calls that are made so many in a turn of the event loop, so that thousands of them at once let
everybody else in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class TurnLimiter:
    """Makes calls in their order: at once, or where more than `most` come in one turn of the loop,
    in the next ones.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0
        self._waiting: deque[Callable[[], None]] = deque()
        self._turn: asyncio.Handle | None = None

    def call(self, callback: Callable[[], None]) -> None:
        """Call it now, or soon."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._next)
        if self._made < self._most:
            self._made += 1
            callback()
        else:
            self._waiting.append(callback)

    def _next(self) -> None:
        self._made = 0
        self._turn = None
        for _ in range(min(self._most, len(self._waiting))):
            self.call(self._waiting.popleft())
