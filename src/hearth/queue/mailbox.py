"""Facts on their way to the one who decides upon them: in the order in which they were reported, one at a time.

Decides nothing. While somebody runs it, a fact is decided upon at once, within `post`: a turn of the event loop costs more than most
decisions. What is reported during a decision waits for its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from hearth.scheduling.inputs import Input


class Mailbox:
    """First in, first out.

    Args:
        decide: takes a fact and the instant before which it must not be said to have happened; must not raise.
    """

    def __init__(self, decide: Callable[[Input, float], None]) -> None:
        self._decide = decide
        self._facts: deque[tuple[Input, float]] = deque()
        self._came = asyncio.Event()
        self._ready = False
        """`run` runs and no decision is under way; nothing waits then."""

    def post(self, fact: Input, *, not_before: float = 0.0) -> None:
        """Report a fact. `not_before` is the due instant of a timer that may run early."""
        self._facts.append((fact, not_before))
        if self._ready:
            self._empty()
        else:
            self._came.set()

    async def take_one(self) -> None:
        """Wait for one fact and have it decided upon; for those who do not `run`."""
        while not self._facts:
            self._came.clear()
            await self._came.wait()
        self._decide(*self._facts.popleft())

    async def run(self) -> None:
        """Have each fact decided upon as it comes, until cancelled."""
        try:
            self._empty()
            await asyncio.get_running_loop().create_future()
        finally:
            self._ready = False

    def _empty(self) -> None:
        self._ready = False
        while self._facts:
            self._decide(*self._facts.popleft())
        self._ready = True
