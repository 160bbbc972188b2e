"""The whole store as one thing to open and close. The only module of this package that `bootstrap` needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hearth.clock import Clock
from hearth.config.settings import StorageSettings
from hearth.errors import StorageFault, StorageUnavailable
from hearth.events import InternalFault, StorageFailed, StorageRecovered
from hearth.ports import EventSink
from hearth.storage.batches import BatchTable
from hearth.storage.database import BUSY_TIMEOUT_S, Database
from hearth.storage.files import FileTable
from hearth.storage.history import Estimates, InvocationLog, Ledger, SwapLog
from hearth.storage.jobs import JobTable
from hearth.storage.opening import Connect, connect_writer
from hearth.storage.retention import DAY_S, Calendar, Retention, copy_into
from hearth.storage.table import Reader, Table
from hearth.storage.writer import StorageHealth, Writer

T = TypeVar("T", bound=Table)

CLOCK_JUMP_S = 7 * DAY_S
_SEEN = "UPDATE process SET seen_wall_s = ? WHERE epoch = ?"


class StorageReporter:
    """Listens to a store: reports each kind of trouble once, and its end; and the first function that failed by its own doing."""

    def __init__(self, *, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._fault: StorageFault | None = None
        self._dropped = 0
        self._defective = False

    def hear(self, health: StorageHealth) -> None:
        """Take note of how the store is doing."""
        now = self._clock.monotonic()
        if health.fault is None and self._fault is not None:
            self._fault = None
            dropped, self._dropped = health.dropped - self._dropped, health.dropped
            self._events.emit(StorageRecovered(at=now, dropped=dropped))
        elif health.fault is not None and health.fault is not self._fault and not (self._fault and health.fault is StorageFault.OVERLOADED):
            self._failed(health.fault, health.detail)
        if health.failed and not self._defective:
            self._defective = True
            self._events.emit(InternalFault(at=now, where="storage", detail="a row could not be written"))

    def lost(self) -> None:
        """Say that the end came before everything was written."""
        self._failed(StorageFault.CLOSED, "Hearth stopped before everything was written")

    def _failed(self, fault: StorageFault, detail: str) -> None:
        self._fault = fault
        self._events.emit(StorageFailed(at=self._clock.monotonic(), reason=fault.value, detail=detail))


class Store:
    """An open store. `epoch` is the number of this start of the process on this file; have `calendar.run` run beside the gateway."""

    def __init__(
        self,
        database: Database,
        settings: StorageSettings,
        *,
        clock: Clock,
        listener: Callable[[StorageHealth], None],
        clock_jump_s: float = CLOCK_JUMP_S,
    ) -> None:
        calendar = Calendar(
            clock=clock,
            believed_wall_s=database.believed_wall_s,
            jump_s=clock_jump_s,
            stamp=lambda wall_s: writer.post(lambda connection: connection.execute(_SEEN, (wall_s, database.epoch)).rowcount),
        )
        upkeep = Retention(retention_days=settings.retention_days, max_mib=settings.max_mib, clock=clock, calendar=calendar)
        writer = Writer(database, clock=clock, upkeep=upkeep, listener=self._hear)
        reader = Reader(database.path)
        self._clock = clock
        self._listener = listener
        self._last_fault: dict[str, object] | None = None
        self.epoch = database.epoch
        self.calendar = calendar
        self.writer = writer
        self.reader = reader

        def table(kind: type[T]) -> T:
            return kind(writer=writer, reader=reader, clock=clock, calendar=calendar, epoch=database.epoch)

        self.invocations, self.swaps, self.ledger = table(InvocationLog), table(SwapLog), table(Ledger)
        self.estimates, self.files, self.batches, self.jobs = table(Estimates), table(FileTable), table(BatchTable), table(JobTable)

    @classmethod
    async def open(
        cls,
        path: Path,
        settings: StorageSettings,
        *,
        clock: Clock,
        listener: Callable[[StorageHealth], None],
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        connect: Connect = connect_writer,
        clock_jump_s: float = CLOCK_JUMP_S,
    ) -> Store:
        """Open the database, start the writer and count what earlier processes left reserved as spent.

        Do not cancel it: the lock would stay with a database that nobody closes. Raises StorageRefused, StorageUnavailable.
        """
        database = await asyncio.to_thread(
            Database.open, path, reserve_mib=settings.reserve_mib, clock=clock, busy_timeout_s=busy_timeout_s, connect=connect
        )
        store = cls(database, settings, clock=clock, listener=listener, clock_jump_s=clock_jump_s)
        store.writer.start()
        try:
            await store.ledger.settle_orphans()
        except StorageUnavailable:
            await store.close(busy_timeout_s)
            raise
        return store

    @property
    def health(self) -> StorageHealth:
        """How the store is doing now."""
        return self.writer.health

    def _hear(self, health: StorageHealth) -> None:
        if health.fault is not None:
            self._last_fault = {"reason": health.fault.value, "at_wall": round(self._clock.wall(), 3)}
        self._listener(health)

    def trouble(self) -> str:
        """Why nothing can be written now, empty where it can."""
        return "" if self.health.fault is None else self.health.fault.value

    def shown(self) -> dict[str, object]:
        """The store as the status shows it: `state` is `ok` or the fault, `last_fault` the latest since the start, also when over."""
        health = self.health
        return {
            "state": self.trouble() or "ok",
            "waiting_rows": health.waiting,
            "dropped": health.dropped,
            "reserve_held": health.reserve_held,
            "last_fault": self._last_fault,
            "clock_in_doubt": not self.calendar.may_delete(),
        }

    async def back_up(self, target: Path) -> None:
        """Write a compact copy to a file (0600) that does not exist yet. Raises OSError, and StorageUnavailable: nothing is left of it."""
        await self.reader.read(lambda connection: copy_into(connection, target))

    async def close(self, timeout_s: float) -> bool:
        """Write what waits and close the file; False where something could not be written within about `timeout_s` seconds."""
        flushed = await self.writer.close(timeout_s)
        self.reader.close()
        return flushed
