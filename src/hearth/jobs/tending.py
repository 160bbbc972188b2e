"""Tasks that outlive whoever began them: held until they end, and a defect in one is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hearth.clock import Clock
from hearth.errors import HearthError
from hearth.events import InternalFault
from hearth.ports import EventSink

T = TypeVar("T")


class Tasks:
    """The tasks of one part."""

    def __init__(self, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it to its end, whether anybody waits for it or not; shield the task where somebody does."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def end(self, within_s: float) -> None:
        """Wait for all of them, and cancel those that take longer."""
        if self._running:
            _, late = await asyncio.wait(tuple(self._running), timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HearthError):
            self._events.emit(InternalFault(at=self._clock.monotonic(), where="jobs", detail=type(error).__name__))
