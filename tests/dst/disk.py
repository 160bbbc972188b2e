"""The store of a simulated house: the real tables and the real group commit, in memory, without the
writer's thread.

Its disk may fail: one commit, or all for a while, before anything is written or after all of it
was. What the real writer does then has tests of its own (`tests/storage`); here a commit fails at
once, and what was posted is tried again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self, TypeVar, cast

from hearth.errors import StorageUnavailable
from hearth.storage.writer import Statement, commit_together
from tests.storage.memory import Disk, SteadyReader, SteadyWriter
from tests.support.virtual_time import loop_s

T = TypeVar("T")

RETRY_S = 1.0
# what becomes of a commit; `synced`: it is said to have failed, and is found in the file
Blow = Literal["refused", "synced"]


@dataclass(slots=True, eq=False)
class Trouble:
    """What is wrong with the disk now, and what was."""

    lasting: Blow | None = None  # every commit meets it
    single: tuple[Blow, int] | None = None  # one commit meets it, after so many others
    reads_fail: bool = False  # questions fail as well
    hits: list[float] = field(default_factory=list)  # the instants at which something failed
    wrote_at: float = -1.0  # when a commit succeeded last
    silent: int = 0

    def repair(self) -> None:
        self.lasting = None
        self.single = None
        self.reads_fail = False

    def next_blow(self) -> Blow | None:
        """What the commit that begins now meets."""
        if self.lasting is not None or self.single is None:
            return self.lasting
        blow, before = self.single
        self.single = (blow, before - 1) if before else None
        return None if before else blow

    def hit(self) -> StorageUnavailable:
        self.hits.append(loop_s())
        return StorageUnavailable("io_error")

    def failed_between(self, since: float, until: float) -> bool:
        return any(since <= at <= until for at in self.hits)


class FailingWriter(SteadyWriter):
    """`submit` is done or refused in the next turn; what is posted is tried until it is taken."""

    def __init__(self, disk: Disk, trouble: Trouble) -> None:
        super().__init__(disk)
        self._trouble = trouble
        self._again: asyncio.TimerHandle | None = None
        self._gathered: list[tuple[Statement, asyncio.Future[object]]] = []

    async def submit(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._round)
        future = asyncio.get_running_loop().create_future()
        self._gathered.append((run, future))
        return cast("T", await future)

    def _round(self) -> None:
        """What comes in one turn goes together."""
        gathered = self._gathered
        self._gathered = []
        try:
            results = self._commit(*(run for run, _ in gathered))[-len(gathered) :]
        except StorageUnavailable as error:
            results = [StorageUnavailable(error.fault) for _ in gathered]
        for result, (_, future) in zip(results, gathered, strict=True):
            if isinstance(result, Exception) and not future.done():
                future.set_exception(result)
            elif not future.done():
                future.set_result(result)

    def post(self, run: Callable[[sqlite3.Connection], object]) -> None:
        super().post(run)
        self._flush()

    def close(self) -> None:
        """Try once more."""
        if self._again is not None:
            self._again.cancel()
        if self._posted:
            with suppress(StorageUnavailable):
                self._commit()

    def _flush(self) -> None:
        if self._again is not None:
            self._again.cancel()
        try:
            if self._posted:
                self._commit()
        except StorageUnavailable:
            self._again = asyncio.get_running_loop().call_later(RETRY_S, self._flush)

    def _commit(self, *statements: Statement) -> list[object]:
        """With what was posted before. Raises StorageUnavailable."""
        blow = self._trouble.next_blow()
        trouble = self._trouble
        if blow == "refused":
            raise trouble.hit()
        results = commit_together(self._disk.connection, [*self._posted, *statements])
        self._posted.clear()
        trouble.wrote_at = loop_s()
        if blow == "synced":
            trouble.silent += 1
            raise trouble.hit()
        return results


class FailingReader(SteadyReader):
    """Fails with the disk; as with the real one, others go on before there is an answer."""

    def __init__(self, disk: Disk, trouble: Trouble) -> None:
        super().__init__(disk)
        self._trouble = trouble

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        await asyncio.sleep(0)
        if self._trouble.reads_fail:
            raise self._trouble.hit()
        return await super().read(ask)


class _PostingWriter(SteadyWriter):
    """With `post`, done at once."""

    def post(self, run: Callable[[sqlite3.Connection], object]) -> None:
        (result,) = commit_together(self._disk.connection, [run])
        if isinstance(result, Exception):
            raise result


class FailingDisk(Disk):
    """`trouble` is what may go wrong with it."""

    def __init__(self, content: bytes | None = None, trouble: Trouble | None = None) -> None:
        super().__init__(content)
        self.trouble = trouble

    def copy(self) -> Self:
        left = super().copy()
        left.trouble = self.trouble
        return left

    def _connected(self) -> tuple[SteadyWriter, SteadyReader]:
        if self.trouble is None:
            return _PostingWriter(self), SteadyReader(self)
        return FailingWriter(self, self.trouble), FailingReader(self, self.trouble)
