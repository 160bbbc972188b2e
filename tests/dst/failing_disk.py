"""A disk that fails: one commit, or all for a while, before anything is written or after all of it was.

What the real writer does then has tests of its own (`tests/storage`); here a commit fails at once, and what was posted is tried again.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar, cast

from hearth.errors import StorageFault, StorageUnavailable
from hearth.storage.writer import Statement, commit_together
from tests.dst.drawing import More
from tests.jobs.house import Disk, SteadyReader, SteadyWriter

if TYPE_CHECKING:
    from tests.dst.world import World

T = TypeVar("T")

PERIODS_S = (0.5, 3.0, 12.0)
READS_TOO = 0.3  # in so many of the periods nothing can be read either
RETRY_S = 1.0


class Blow(Enum):
    """What becomes of a commit."""

    REFUSED = auto()
    SYNCED = auto()  # it is said to have failed, and is found in the file


BLOWS = (*[Blow.REFUSED] * 3, Blow.SYNCED)


@dataclass(slots=True, eq=False)
class Trouble:
    """What is wrong with the disk now, and what was."""

    lasting: Blow | None = None  # every commit meets it
    reads_fail: bool = False  # questions fail as well
    hits: list[float] = field(default_factory=list)  # the instants at which something failed
    wrote_at: float = -1.0  # when a commit succeeded last
    silent: int = 0
    _single: Blow | None = None
    _commits_before: int = 0

    def once(self, blow: Blow, commits_before: int) -> None:
        """After so many commits, one fails."""
        self._single, self._commits_before = blow, commits_before

    def repair(self) -> None:
        self.lasting, self._single, self.reads_fail = None, None, False

    def next_blow(self) -> Blow | None:
        """What the commit that begins now meets."""
        if self.lasting is not None or self._single is None:
            return self.lasting
        self._commits_before -= 1
        if self._commits_before >= 0:
            return None
        blow, self._single = self._single, None
        return blow

    def hit(self) -> None:
        self.hits.append(asyncio.get_running_loop().time())

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
        gathered, self._gathered = self._gathered, []
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
        blow, trouble = self._trouble.next_blow(), self._trouble
        if blow is Blow.REFUSED:
            trouble.hit()
            raise StorageUnavailable(StorageFault.IO)
        results = commit_together(self._disk.connection, [*self._posted, *statements])
        self._posted.clear()
        trouble.wrote_at = asyncio.get_running_loop().time()
        if blow is Blow.SYNCED:
            trouble.hit()
            trouble.silent += 1
            raise StorageUnavailable(StorageFault.IO)
        return results


class FailingReader(SteadyReader):
    """Fails with the disk; as with the real one, others go on before there is an answer."""

    def __init__(self, disk: Disk, trouble: Trouble) -> None:
        super().__init__(disk)
        self._trouble = trouble

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        await asyncio.sleep(0)
        if self._trouble.reads_fail:
            self._trouble.hit()
            raise StorageUnavailable(StorageFault.IO)
        return await super().read(ask)


@dataclass(slots=True, eq=False)
class Breaker:
    """Breaks the disk of a world, and mends it. `lasted`: how often it was broken for a while."""

    world: World
    trouble: Trouble
    lasted: int = 0
    _mended_at: float = 0.0

    async def breaks(self) -> None:
        """One commit is about to fail, or nothing can be written for a while; and somebody may want something of the disk."""
        rng, trouble = self.world.rng, self.trouble
        blow = rng.choice(BLOWS)
        if rng.random() < 0.4:
            trouble.once(blow, rng.choice((0, 0, 1, 3)))
        elif trouble.lasting is None:
            trouble.lasting, trouble.reads_fail = blow, rng.random() < READS_TOO
            self.lasted += 1
            period_s = rng.choice(PERIODS_S)
            self._mended_at = self.world.now + period_s
            self.world.go(self._mend_after(period_s))
        if rng.random() < 0.5:
            await rng.choice(self._wishes())()

    def _wishes(self) -> list[Callable[[], Awaitable[None]]]:
        overnight = self.world.overnight
        batches = [overnight.batch, overnight.cancel_batch] if More.BATCHES in self.world.more else []
        return [overnight.job, overnight.cancel_job, *batches]

    async def _mend_after(self, period_s: float) -> None:
        await asyncio.sleep(period_s)
        self.trouble.repair()

    async def well(self) -> None:
        """Until a process can start on it: whoever starts it tries until then."""
        if self.trouble.lasting is not None:
            await asyncio.sleep(self._mended_at - self.world.now)
        self.trouble.repair()
