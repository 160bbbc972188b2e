"""The store of a simulated house: the real tables and the real group commit, in memory, without the writer's thread."""

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
from hearth.storage.writer import Writer, commit_together
from tests.dst.failing_disk import FailingReader, FailingWriter, Trouble
from tests.jobs.house import Disk, SteadyReader, SteadyWriter
from tests.storage.house import believed

T = TypeVar("T", bound=Table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The store as one process sees it; `writer` where it can fail."""

    epoch: int
    writer: FailingWriter | None
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

    def tables(self, clock: Clock) -> Tables:
        """The tables for the next process."""
        self.epochs += 1
        failing = None if self.trouble is None else FailingWriter(self, self.trouble)
        writer = cast("Writer", failing or _PostingWriter(self))
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
        if isinstance(result, Exception):
            raise result
