"""The whole store as one thing to open and close.

The only module of this package that `bootstrap` needs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

from hearth.clock import Clock
from hearth.config.settings import StorageSettings
from hearth.errors import StorageFault, StorageUnavailable
from hearth.events import InternalFault, StorageFailed, StorageRecovered, WalDamaged
from hearth.ports import EventSink
from hearth.storage.batches import BatchTable
from hearth.storage.calendar import Calendar
from hearth.storage.database import Database, copy_into
from hearth.storage.documents import DocumentTable
from hearth.storage.files import FileTable
from hearth.storage.invocations import InvocationLog
from hearth.storage.jobs import JobTable
from hearth.storage.ledger import LedgerTable
from hearth.storage.opening import BUSY_TIMEOUT_S, Connect, connect_writer
from hearth.storage.page_check import PageCheck
from hearth.storage.retention import keeping
from hearth.storage.table import Reader, Table
from hearth.storage.writer import StorageHealth, StoreWriter
from hearth.types import DAY_S, JsonDict

T = TypeVar("T", bound=Table)

CLOCK_JUMP_S = 7 * DAY_S
_NOTE_TIME = "UPDATE process SET seen_wall_s = ? WHERE epoch = ?"


class Store:
    """An open store, or one that is opened as soon as a full disk has room; have `calendar.run` and
    `page_check.run` run beside the gateway.

    It reports each kind of trouble with the disk once, and its end; and the first function that
    failed by its own doing.
    """

    def __init__(
        self,
        database: Database,
        settings: StorageSettings,
        *,
        clock: Clock,
        events: EventSink,
        clock_jump_s: float = CLOCK_JUMP_S,
    ) -> None:
        calendar = Calendar(
            clock=clock,
            believed_wall_s=database.believed_wall_s,
            jump_s=clock_jump_s,
            stamp=lambda wall_s: writer.post(
                lambda connection: connection.execute(_NOTE_TIME, (wall_s, database.epoch)).rowcount
            ),
        )
        upkeep = keeping(
            retention_days=settings.retention_days,
            max_mib=settings.max_mib,
            clock=clock,
            calendar=calendar,
        )
        writer = StoreWriter(database, clock=clock, upkeep=upkeep, listener=self.report)
        reader = Reader(database)
        self._clock = clock
        self._events = events
        self._database = database
        self._is_begun = False
        self._fault: StorageFault | None = None
        self._dropped = 0
        self._defective = False
        self._last_fault: JsonDict | None = None
        self.calendar = calendar
        self.writer = writer
        self.reader = reader
        self.page_check = PageCheck(database.path, clock=clock, note=self._note_damage)

        def table(kind: type[T]) -> T:
            return kind(writer=writer, reader=reader, clock=clock, calendar=calendar)

        self.jobs = table(JobTable)
        self.batches = table(BatchTable)
        self.files = table(FileTable)
        self.invocations = table(InvocationLog)
        self.documents = table(DocumentTable)
        self.ledger = table(LedgerTable)

    @classmethod
    async def open(
        cls,
        path: Path,
        settings: StorageSettings,
        *,
        clock: Clock,
        events: EventSink,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        connect: Connect = connect_writer,
        clock_jump_s: float = CLOCK_JUMP_S,
    ) -> Store:
        """Open the database, start the writer and count what earlier processes left reserved as
        spent.

        On a full disk all of this is done once there is room. Do not cancel it: the lock would stay
        with a database that nobody closes. Raises StorageRefused, StorageUnavailable.
        """
        database = await asyncio.to_thread(
            Database.open,
            path,
            reserve_mib=settings.reserve_mib,
            clock=clock,
            busy_timeout_s=busy_timeout_s,
            connect=connect,
        )
        store = cls(database, settings, clock=clock, events=events, clock_jump_s=clock_jump_s)
        store.writer.start()
        store._begin()
        try:
            await store.ledger.settle_orphans()
        except StorageUnavailable as error:
            if not error.needs_space:
                await store.writer.close(busy_timeout_s)
                store.reader.close()
                raise
            store.ledger.settle_orphans_later()
        return store

    def _begin(self) -> None:
        """Take note of what the database says, once it is open."""
        if self._is_begun or self._database.believed_wall_s is None:
            return
        self._is_begun = True
        self.calendar.begin(self._database.believed_wall_s)
        found = self._database.log_found
        if found.unreadable:
            event = WalDamaged(
                at=self._clock.monotonic(),
                unreadable_frames=found.unreadable,
                readable_frames=found.readable,
                certain=found.certain,
                copy=str(self._database.damaged_copy or ""),
            )
            self._events.emit(event)

    def _note_damage(self, found: str) -> None:
        """Have nothing written while the pages are damaged; a row that changes nothing finds
        out.
        """
        if found != self._database.damage:
            self._database.damage = found
            self.writer.post(lambda connection: connection.total_changes)

    def report(self, health: StorageHealth) -> None:
        """Take note of how the store is doing, and emit what is new about that."""
        now = self._clock.monotonic()
        fault = health.fault
        self._begin()
        if fault is None and self._fault is not None:
            self._fault = None
            self._events.emit(StorageRecovered(at=now, dropped=health.dropped - self._dropped))
            self._dropped = health.dropped
        elif fault is not None:
            self._last_fault = {"reason": fault, "at_wall": round(self._clock.wall(), 3)}
            if fault != self._fault and not (self._fault and fault == "overloaded"):
                self._fault = fault
                self._events.emit(StorageFailed(at=now, reason=fault, detail=health.detail))
        if health.failed and not self._defective:
            self._defective = True
            self._events.emit(
                InternalFault(at=now, where="storage", detail="a row could not be written")
            )

    def trouble(self) -> str:
        """Why nothing can be written now, empty where it can."""
        return self.writer.health.fault or ""

    def shown(self) -> JsonDict:
        """The store as the status shows it: `state` is `ok` or the fault, `last_fault` the latest
        since the start, also when over.

        `wal_frames_unreadable` is what was found damaged at the start, `damaged_copy` the file
        beside the database that keeps it.
        """
        health = self.writer.health
        copy = self._database.damaged_copy
        return {
            "state": health.fault or "ok",
            "waiting_rows": health.waiting,
            "dropped": health.dropped,
            "reserve_held": health.reserve_held,
            "last_fault": self._last_fault,
            "clock_in_doubt": self._is_begun and not self.calendar.may_delete(),
            "wal_frames_unreadable": self._database.log_found.unreadable,
            "damaged_copy": None if copy is None else copy.name,
        }

    async def back_up(self, target: Path) -> None:
        """Write a compact copy to a file (0600) that does not exist yet.

        Raises OSError, and StorageUnavailable: nothing is left of it.
        """
        await self.reader.read(lambda connection: copy_into(connection, target))

    async def close(self, timeout_s: float) -> bool:
        """Write what waits and close the file; False where something could not be written within
        about `timeout_s` seconds.
        """
        flushed = await self.writer.close(timeout_s)
        self.reader.close()
        if not flushed:
            self.report(
                StorageHealth(fault="closed", detail="Hearth stopped before everything was written")
            )
        return flushed
