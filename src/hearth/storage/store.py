"""The whole store as one thing to open and close. The only module of this package that `bootstrap` needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from hearth.clock import Clock
from hearth.config.settings import StorageSettings
from hearth.errors import StorageUnavailable
from hearth.storage.batches import BatchLineTable, BatchTable
from hearth.storage.database import BUSY_TIMEOUT_S, Database
from hearth.storage.files import FileTable
from hearth.storage.history import Estimates, InvocationLog, Ledger, SwapLog
from hearth.storage.jobs import JobTable
from hearth.storage.opening import Connect, connect_writer
from hearth.storage.reader import Reader
from hearth.storage.retention import DAY_S, Calendar, Retention, copy_into
from hearth.storage.writer import StorageHealth, Writer

CLOCK_JUMP_S = 7 * DAY_S
_SEEN = "UPDATE process SET seen_wall_s = ? WHERE epoch = ?"


class Store:
    """An open store.

    Attributes:
        invocations, swaps: event sinks, the first with queries about both; all others: see their modules.
        epoch: number of this start of the process on this file.
        calendar: whether the wall clock is believed; have its `run` run beside the gateway.
    """

    def __init__(
        self,
        database: Database,
        settings: StorageSettings,
        *,
        clock: Clock,
        listener: Callable[[StorageHealth], None],
        clock_jump_s: float = CLOCK_JUMP_S,
    ) -> None:
        calendar = Calendar(clock=clock, believed_wall_s=database.believed_wall_s, jump_s=clock_jump_s, stamp=self._stamp)
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
        self.invocations = InvocationLog(writer=writer, reader=reader, clock=clock, epoch=self.epoch)
        self.swaps = SwapLog(writer=writer, clock=clock, epoch=self.epoch)
        self.ledger = Ledger(writer=writer, reader=reader, clock=clock, epoch=self.epoch)
        self.jobs = JobTable(writer=writer, reader=reader, clock=clock, calendar=calendar, epoch=self.epoch)
        self.files = FileTable(writer=writer, reader=reader, clock=clock, calendar=calendar, epoch=self.epoch)
        self.batches = BatchTable(writer=writer, reader=reader, clock=clock, calendar=calendar)
        self.batch_lines = BatchLineTable(writer=writer, reader=reader, clock=clock)
        self.estimates = Estimates(writer=writer, reader=reader, clock=clock)

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

        The file is checked on another thread. Do not cancel it: the lock would stay with a database that nobody closes.

        Args:
            clock_jump_s: a wall clock that is further ahead than this is in doubt (`Calendar`).

        Raises:
            StorageRefused: see `Database.open`.
            StorageUnavailable: the disk failed right after that.
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

    def _stamp(self, wall_s: float) -> None:
        self.writer.post(lambda connection: connection.execute(_SEEN, (wall_s, self.epoch)).rowcount)

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
            "state": "ok" if health.fault is None else health.fault.value,
            "waiting_rows": health.waiting,
            "dropped": health.dropped,
            "reserve_held": health.reserve_held,
            "last_fault": self._last_fault,
            "clock_in_doubt": not self.calendar.may_delete(),
        }

    async def back_up(self, target: Path) -> None:
        """Write a compact copy of the database as of now to a file that does not exist yet (0600). The live file must not be copied.

        Raises:
            OSError: the target exists, or cannot be made.
            StorageUnavailable: the copy failed; nothing is left of it.
        """
        await self.reader.read(lambda connection: copy_into(connection, target))

    async def close(self, timeout_s: float) -> bool:
        """Write what waits and close the file; False where something could not be written within about `timeout_s` seconds."""
        flushed = await self.writer.close(timeout_s)
        self.reader.close()
        return flushed
