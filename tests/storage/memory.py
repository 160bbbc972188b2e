"""The store in memory: the real tables and the real group commit, without the writer's thread.

Houses in virtual time run on it; the tests of the store's ports run on it and on the real store.
"""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple, Self, TypeVar, cast
from weakref import finalize

from hearth.clock import Clock
from hearth.errors import StorageUnavailable
from hearth.storage.batches import BatchTable
from hearth.storage.documents import DocumentTable
from hearth.storage.files import FileTable
from hearth.storage.invocations import InvocationLog
from hearth.storage.jobs import JobTable
from hearth.storage.ledger import LedgerTable
from hearth.storage.opening import shipped_migrations
from hearth.storage.table import Reader, Table
from hearth.storage.writer import StoreWriter, commit_together
from tests.storage.house import believed

T = TypeVar("T")
AnyTable = TypeVar("AnyTable", bound=Table)


class Tables(NamedTuple):
    """The store as one process sees it."""

    epoch: int
    writer: SteadyWriter
    jobs: JobTable
    batches: BatchTable
    files: FileTable
    invocations: InvocationLog
    documents: DocumentTable
    ledger: LedgerTable


class Disk:
    """A database in memory that lives through several processes, for as long as anybody holds it.

    Attributes:
        broken: every access fails; broken_writes: whatever is to be written; silent: a commit is
        made, and reported as failed. latency_s, read_latency_s: how long every commit or question
        takes.
    """

    def __init__(self, content: bytes | None = None) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.connection.row_factory = sqlite3.Row
        # on whichever thread lets go of the last of its users
        finalize(self, self.connection.close)
        self.connection.deserialize(content or _migrated())
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.broken = self.broken_writes = self.silent = False
        self.latency_s = self.read_latency_s = 0.0
        self.epochs = 0

    def tables(self, clock: Clock) -> Tables:
        """The tables as the next process sees them."""
        self.epochs += 1
        writer, reader = self._connected()
        calendar = believed(clock)

        def table(kind: type[AnyTable]) -> AnyTable:
            return kind(
                writer=cast("StoreWriter", writer),
                reader=cast("Reader", reader),
                clock=clock,
                calendar=calendar,
            )

        return Tables(
            epoch=self.epochs,
            writer=writer,
            jobs=table(JobTable),
            batches=table(BatchTable),
            files=table(FileTable),
            invocations=table(InvocationLog),
            documents=table(DocumentTable),
            ledger=table(LedgerTable),
        )

    def _connected(self) -> tuple[SteadyWriter, SteadyReader]:
        return SteadyWriter(self), SteadyReader(self)

    def copy(self) -> Self:
        """What a process that dies at this instant leaves behind."""
        other = type(self)(self.connection.serialize())
        other.epochs = self.epochs
        return other

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        """For a look at what is on the disk."""
        return list(map(tuple, self.connection.execute(question)))


@functools.cache
def _migrated() -> bytes:
    """An empty database of the newest version; a copy takes a tenth of the time."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for _, sql in shipped_migrations():
            connection.executescript(sql)
        return connection.serialize()


class SteadyWriter:
    """`submit` and `write` of the real writer, done by the time the delay is over; what is posted
    is done with what is submitted next.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.epoch = disk.epochs
        self._posted: list[Callable[[sqlite3.Connection], object]] = []

    def post(self, run: Callable[[sqlite3.Connection], object]) -> None:
        self._posted.append(run)

    def close(self) -> None:
        """Try once more what was posted."""

    async def write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        del name
        return await self.submit(run)

    async def submit(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if self._disk.broken:
            raise StorageUnavailable("io_error")
        await asyncio.sleep(self._disk.latency_s)
        if self._disk.broken_writes:
            raise StorageUnavailable("locked")
        *_, result = commit_together(self._disk.connection, [*self._posted, run])
        if self._disk.silent:
            raise StorageUnavailable("io_error")
        self._posted.clear()
        if isinstance(result, Exception):
            raise result
        return cast("T", result)


class SteadyReader:
    """`read` of the real reader."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        if self._disk.broken:
            raise StorageUnavailable("io_error")
        await asyncio.sleep(self._disk.read_latency_s)
        return ask(self._disk.connection)
