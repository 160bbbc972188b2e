"""A pause that ends early when somebody rings: a task that looks now and then, and at once after a reload."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Alarm:
    """Belongs to the one task that pauses."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the pause that is, or the next one."""
        self._rung.set()

    async def pause(self, pause_s: float) -> None:
        """For so long, or until it rings."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._rung.wait()
        self._rung.clear()
