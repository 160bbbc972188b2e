"""Tasks of the event loop: how they are kept running and ended, and what wakes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress

from hearth.clock import Clock
from hearth.events import InternalFault
from hearth.ports import EventSink

RESTART_AFTER_S = 1.0


class WakeableSleep:
    """Belongs to the one task that pauses; `ring` ends the pause that is, or the next one."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()
        self.ring = self._rung.set

    async def pause(self, pause_s: float) -> None:
        await wait_at_most(pause_s, self._rung)
        self._rung.clear()


async def wait_at_most(seconds: float, event: asyncio.Event) -> None:
    """Wait until the event is set, or so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class ChangeCounter:
    """One counter, any number of watchers, nothing kept for a slow one."""

    def __init__(self) -> None:
        self._number = 0
        self._ended = False
        self._changed = asyncio.Event()

    def count(self) -> int:
        return self._number

    def note(self) -> None:
        self._number += 1
        self._changed.set()

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
                self._changed.clear()
                await self._changed.wait()


async def next_of(changes: AsyncIterator[int]) -> bool:
    return await anext(changes, None) is not None


async def all_ended(
    tasks: Sequence[asyncio.Task[None]], grace_s: float, hurry: asyncio.Event | None
) -> None:
    """Wait until the tasks have ended, for `grace_s` at most and no longer than until `hurry` is
    set.
    """
    if not tasks:
        return
    running = asyncio.ensure_future(asyncio.wait(tasks))
    hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
    try:
        await asyncio.wait((running, hurried), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        hurried.cancel()


async def cancel_all(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = tuple(tasks)
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


class Supervisor:
    """Holds the only strong references to background tasks, starts those again that fail, and ends
    all.
    """

    def __init__(self, *, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self, name: str, run: Callable[[], Coroutine[None, None, None]]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep(name, run), name=name))

    async def _keep(self, name: str, run: Callable[[], Coroutine[None, None, None]]) -> None:
        while True:
            try:
                await run()
            except Exception as error:  # noqa: BLE001 - whatever broke, the gateway goes on
                self._events.emit(
                    InternalFault(
                        at=self._clock.monotonic(), where=name, detail=type(error).__name__
                    )
                )
                if self._stopping:  # it broke while it was ended, and nobody would end it again
                    return
                await asyncio.sleep(RESTART_AFTER_S)

    async def stop(self) -> None:
        self._stopping = True
        tasks = self._tasks
        self._tasks = []
        await cancel_all(tasks)
