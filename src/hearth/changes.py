"""That something has changed, for those who show it: a number that grows, and a way to wait for it. Many changes at once are one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Changes:
    """One counter, any number of watchers, nothing kept for a slow one."""

    def __init__(self) -> None:
        self._number = 0
        self._ended = False
        self._watched = False
        self._changed = asyncio.Event()

    def count(self) -> int:
        """How many there have been."""
        return self._number

    def note(self) -> None:
        """Something has changed."""
        self._number += 1
        if self._watched:
            self._watched = False
            self._changed.set()
            self._changed = asyncio.Event()

    def end(self) -> None:
        """Nothing will change any more: watchers see the last number and stop."""
        self._ended = True
        self.note()

    async def watch(self) -> AsyncIterator[int]:
        """The number each time it has grown, the present one first."""
        seen = -1
        while True:
            if seen != self._number:
                seen = self._number
                yield seen
            elif self._ended:
                return
            else:
                self._watched = True
                await self._changed.wait()


async def next_of(changes: AsyncIterator[int]) -> bool:
    """Wait for the next change of a watch; False when there will be none."""
    try:
        await anext(changes)
    except StopAsyncIteration:
        return False
    return True
