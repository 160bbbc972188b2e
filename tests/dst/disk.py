"""The store of a simulated house: the real tables and the real group commit, in memory, without the writer's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hearth.clock import Clock
from hearth.storage.batch_lines import BatchLineTable
from hearth.storage.batches import BatchTable
from hearth.storage.files import FileTable
from hearth.storage.invocation_log import InvocationLog
from hearth.storage.jobs import JobTable
from hearth.storage.ledger import Ledger
from hearth.storage.reader import Reader
from hearth.storage.transaction import Failure, commit_together
from hearth.storage.writer import Writer
from tests.jobs.house import Disk, SteadyReader, SteadyWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The store as one process sees it."""

    epoch: int
    jobs: JobTable
    ledger: Ledger
    invocations: InvocationLog
    files: FileTable
    batches: BatchTable
    lines: BatchLineTable


class WholeDisk(Disk):
    """With all tables, not only that of the jobs."""

    def tables(self, clock: Clock) -> Tables:
        """The tables for the next process."""
        self.epochs += 1
        writer, reader = cast("Writer", _PostingWriter(self)), cast("Reader", SteadyReader(self))
        return Tables(
            epoch=self.epochs,
            jobs=JobTable(writer=writer, reader=reader, clock=clock, epoch=self.epochs),
            ledger=Ledger(writer=writer, reader=reader, clock=clock, epoch=self.epochs),
            invocations=InvocationLog(writer=writer, reader=reader, clock=clock, epoch=self.epochs),
            files=FileTable(writer=writer, reader=reader, clock=clock, epoch=self.epochs),
            batches=BatchTable(writer=writer, reader=reader, clock=clock),
            lines=BatchLineTable(writer=writer, reader=reader, clock=clock),
        )


class _PostingWriter(SteadyWriter):
    """With `post`, done at once."""

    def post(self, run: Callable[[sqlite3.Connection], object]) -> None:
        (result,) = commit_together(self._disk.connection, [run])
        if isinstance(result, Failure):
            raise result.error
