"""The store of a simulated house: the real tables and the real group commit, in memory, without the writer's thread.

Where the disk is to fail, it is the real writer that meets it (`failing_disk`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar, cast

from hearth.clock import Clock
from hearth.storage.batches import BatchTable
from hearth.storage.files import FileTable
from hearth.storage.history import Estimates, InvocationLog, Ledger
from hearth.storage.jobs import JobTable
from hearth.storage.table import Reader, Table
from hearth.storage.writer import Failure, StorageHealth, Writer, commit_together
from tests.dst.failing_disk import FailingReader, LoopWriter, Trouble
from tests.jobs.house import Disk, SteadyReader, SteadyWriter
from tests.storage.house import believed

T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The store as one process sees it; `writer` where it can fail."""

    epoch: int
    writer: LoopWriter | None
    jobs: JobTable
    ledger: Ledger
    estimates: Estimates
    invocations: InvocationLog
    files: FileTable
    batches: BatchTable


class WholeDisk(Disk):
    """With all tables, not only that of the jobs; `trouble` is what may go wrong with it."""

    def __init__(self, content: bytes | None = None, trouble: Trouble | None = None) -> None:
        super().__init__(content)
        self.trouble = trouble

    def copy(self) -> Self:
        left = super().copy()
        left.trouble = self.trouble
        return left

    def tables(self, clock: Clock, heard: Callable[[StorageHealth], None]) -> Tables:
        """The tables for the next process; `heard` is told how the store is doing."""
        self.epochs += 1
        failing = None if self.trouble is None else LoopWriter(self, self.trouble, clock=clock, heard=heard)
        writer = failing or cast("Writer", _PostingWriter(self))
        reader = cast("Reader", SteadyReader(self) if self.trouble is None else FailingReader(self, self.trouble))
        calendar = believed(clock)

        def table(kind: type[T]) -> T:
            return kind(writer=writer, reader=reader, clock=clock, calendar=calendar, epoch=self.epochs)

        return Tables(
            epoch=self.epochs,
            writer=failing,
            jobs=table(JobTable),
            ledger=table(Ledger),
            estimates=table(Estimates),
            invocations=table(InvocationLog),
            files=table(FileTable),
            batches=table(BatchTable),
        )


class _PostingWriter(SteadyWriter):
    """With `post`, done at once."""

    def post(self, run: Callable[[sqlite3.Connection], object]) -> None:
        (result,) = commit_together(self._disk.connection, [run])
        if isinstance(result, Failure):
            raise result.error
