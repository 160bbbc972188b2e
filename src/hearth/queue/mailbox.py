"""What the scheduler has yet to decide upon."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from hearth.scheduling.inputs import Arrived, Input
from hearth.types import QueueItem

Decide: TypeAlias = Callable[[Input, float], None]
"""Takes a fact and the earliest instant at which it may have happened. Must not raise."""


class Mailbox:
    """Facts, decided upon one at a time, first in, first out; those posted before `run` wait."""

    def __init__(self) -> None:
        self._facts: deque[tuple[Input, float]] = deque()
        self._decide: Decide | None = None
        """Set while `run` runs and no decision is under way; nothing waits then."""

    @property
    def arriving(self) -> list[QueueItem]:
        """Accepted items that no decision has seen yet."""
        return [fact.item for fact, _ in self._facts if isinstance(fact, Arrived)]

    def post(self, fact: Input, *, not_before: float = 0.0) -> None:
        """Report a fact. `not_before` is the due instant of a timer that may run early."""
        self._facts.append((fact, not_before))
        if self._decide is not None:
            self._empty(self._decide)

    async def run(self, decide: Decide) -> None:
        """Until cancelled."""
        try:
            self._empty(decide)
            await asyncio.get_running_loop().create_future()
        finally:
            self._decide = None

    def _empty(self, decide: Decide) -> None:
        # what a decision itself reports is decided upon after it, never within it
        self._decide = None
        while self._facts:
            decide(*self._facts.popleft())
        self._decide = decide
