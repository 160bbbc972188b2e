"""Keeps the long-lived tasks of the gateway alive: each has an owner, and one that breaks is reported and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

from hearth.clock import Clock
from hearth.events import InternalFault
from hearth.ports import EventSink

RESTART_AFTER_S = 1.0


class Supervisor:
    """Holds the only strong references to background tasks, and ends them."""

    def __init__(self, *, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self, name: str, run: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run a task for as long as the gateway lives."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep(name, run), name=name))

    async def _keep(self, name: str, run: Callable[[], Coroutine[None, None, None]]) -> None:
        while True:
            try:
                await run()
            except Exception as error:  # noqa: BLE001 - supervision point: whatever broke, the house goes on and the owner is told
                self._events.emit(InternalFault(at=self._clock.monotonic(), where=name, detail=type(error).__name__))
                if self._stopping:  # it broke while it was ended, and nobody would end it again
                    return
                await asyncio.sleep(RESTART_AFTER_S)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self._stopping = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
