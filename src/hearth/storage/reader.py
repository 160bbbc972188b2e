"""Questions to the database, on a thread of their own and through connections that cannot write.

Never on the way of a request.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from hearth.clock import Clock
from hearth.errors import StorageFault, StorageUnavailable
from hearth.events import InternalFault, StorageFailed, StorageRecovered
from hearth.ports import EventSink
from hearth.storage.opening import connect_reader, unavailable
from hearth.storage.writer import StorageHealth


class StorageReporter:
    """The listener of a store: one `StorageFailed` per kind of trouble, one `StorageRecovered` when all of it has passed.

    A function that fails by its own doing is a defect of ours; the first one is reported as such.
    """

    def __init__(self, *, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._fault: StorageFault | None = None
        self._dropped = 0
        self._defective = False

    def hear(self, health: StorageHealth) -> None:
        """Take note of how the store is doing."""
        if health.fault is None:
            self._recovered(health)
        elif health.fault is not self._fault and not (self._fault and health.fault is StorageFault.OVERLOADED):
            self._fault = health.fault
            self._events.emit(StorageFailed(at=self._clock.monotonic(), reason=health.fault.value, detail=health.detail))
        if health.failed and not self._defective:
            self._defective = True
            self._events.emit(InternalFault(at=self._clock.monotonic(), where="storage", detail="a row could not be written"))

    def lost(self) -> None:
        """Say that the end came before everything was written."""
        detail = "Hearth stopped before everything was written"
        self._events.emit(StorageFailed(at=self._clock.monotonic(), reason=StorageFault.CLOSED.value, detail=detail))

    def _recovered(self, health: StorageHealth) -> None:
        if self._fault is not None:
            self._fault = None
            dropped, self._dropped = health.dropped - self._dropped, health.dropped
            self._events.emit(StorageRecovered(at=self._clock.monotonic(), dropped=dropped))


T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0


class Reader:
    """One question at a time, each on a fresh connection: a kept one could hold an old snapshot, and the WAL with it, for ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hearth-storage-read")
        self._closed = False

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What `ask` makes of the database as of the last commit; rows are `sqlite3.Row`.

        Raises:
            StorageUnavailable: the file cannot be read, or the store is closed.
        """
        if self._closed:
            raise StorageUnavailable(StorageFault.CLOSED)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, ask)

    def _ask(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StorageUnavailable(StorageFault.CLOSED)
        try:
            with closing(connect_reader(self._path, BUSY_TIMEOUT_S)) as connection:
                return ask(connection)
        except sqlite3.Error as error:
            raise unavailable(error) from error

    def close(self) -> None:
        """Answer no more; a question in progress ends by itself, those behind it are refused."""
        self._closed = True
        self._threads.shutdown(wait=False)
