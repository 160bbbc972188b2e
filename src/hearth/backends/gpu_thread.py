"""Reads a card in a thread of its own, because drivers can take seconds and can hang for ever. The `GpuReader` of a real machine.

One thread, started with the first reading: while a call hangs, every further reading says so at once instead of hanging beside it. The
thread never keeps the process alive.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Protocol

from hearth.errors import GpuFault, GpuUnavailable
from hearth.types import GpuReading

READ_TIMEOUT_S = 10.0
"""Waking a card whose driver keeps no state (persistence mode off) takes seconds."""

_Job = tuple["Future[GpuReading]", Callable[[], GpuReading]]


class GpuCard(Protocol):
    """One make of card; blocks, and is used by one thread only."""

    def read(self) -> GpuReading:
        """The numbers of this moment. Raises GpuUnavailable; the next call begins anew."""

    def close(self) -> None:
        """Give the driver back. Must not raise."""


class GpuThread:
    """The card of this machine: of the given makes the first whose driver is there.

    Args:
        cards: in the order in which they are tried, at every reading. Once one has answered, no later one is: where the driver of a large
            card is unloaded for a moment, the graphics of the processor are still there.
        timeout_s: how long a reading may take.
    """

    def __init__(self, cards: Sequence[GpuCard], *, timeout_s: float = READ_TIMEOUT_S) -> None:
        self._cards = self._asked = tuple(cards)
        self._timeout_s = timeout_s
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pending: Future[GpuReading] | None = None
        self._closed = False

    async def read(self) -> GpuReading:
        """As the port says; takes at most `timeout_s`."""
        if self._closed or (self._pending is not None and not self._pending.done()):
            raise GpuUnavailable(GpuFault.TIMEOUT, "the driver has not answered the last question yet")
        pending: Future[GpuReading] = Future()
        self._pending = pending
        self._jobs.put((pending, self._read))
        if self._thread is None:
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name="gpu reader", daemon=True)
            self._thread.start()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(pending)
        except TimeoutError as error:
            raise GpuUnavailable(GpuFault.TIMEOUT, f"the driver did not answer within {self._timeout_s:g} s") from error

    async def aclose(self) -> None:
        """Give the drivers back as soon as the thread comes to it, without waiting for that."""
        if not self._closed:
            self._closed = True
            self._jobs.put((Future(), self._close))
            self._jobs.put(None)

    def _read(self) -> GpuReading:
        missing: GpuUnavailable | None = None
        for place, card in enumerate(self._asked):
            try:
                reading = card.read()
            except GpuUnavailable as error:
                if error.fault is not GpuFault.NO_DRIVER:
                    raise
                missing = missing or error
            else:
                self._asked = self._asked[: place + 1]
                return reading
        raise missing or GpuUnavailable(GpuFault.NO_DRIVER)

    def _close(self) -> GpuReading:
        for card in self._cards:
            card.close()
        return GpuReading()


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        pending, read = job
        if not pending.set_running_or_notify_cancel():
            continue
        try:
            pending.set_result(read())
        except GpuUnavailable as error:
            pending.set_exception(error)
        except Exception as error:  # noqa: BLE001 - a driver's binding may raise anything; its text may be anything too
            pending.set_exception(GpuUnavailable(GpuFault.OTHER, f"reading the card failed with {type(error).__name__}"))
