"""A disk that fails: one commit, or all for a while, at its beginning, in its statements, before its sync or after it.

The real writer works on it, with its queue, its retries and its health; only its thread is missing: the loop does the thread's rounds.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hearth.clock import Clock
from hearth.errors import StorageFault, StorageUnavailable
from hearth.storage.database import Database
from hearth.storage.writer import Backlog, StorageHealth, Writer
from tests.dst.drawing import More
from tests.jobs.house import Disk, SteadyReader
from tests.storage.house import NoUpkeep, disk_error

if TYPE_CHECKING:
    from tests.dst.world import World

T = TypeVar("T")

PERIODS_S = (0.5, 3.0, 12.0)
READS_TOO = 0.3  # in so many of the periods nothing can be read either


class Stage(StrEnum):
    """Where a commit fails."""

    BEGIN = "begin"
    STATEMENT = "statement"
    COMMIT = "commit"
    SYNCED = "synced"  # it is said to have failed, and is found in the file


@dataclass(frozen=True, slots=True)
class Blow:
    """What SQLite says, and where."""

    code: int
    stage: Stage


BLOWS = (
    Blow(sqlite3.SQLITE_BUSY, Stage.BEGIN),
    Blow(sqlite3.SQLITE_READONLY, Stage.STATEMENT),
    Blow(sqlite3.SQLITE_FULL, Stage.STATEMENT),
    Blow(sqlite3.SQLITE_FULL, Stage.COMMIT),
    Blow(sqlite3.SQLITE_IOERR_WRITE, Stage.COMMIT),
    Blow(sqlite3.SQLITE_IOERR_FSYNC, Stage.COMMIT),
    Blow(sqlite3.SQLITE_IOERR_FSYNC, Stage.SYNCED),
    Blow(sqlite3.SQLITE_IOERR_FSYNC, Stage.SYNCED),
)


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


class _Connection:
    """The only one that writes. A transaction that begins on it draws its fate."""

    def __init__(self, raw: sqlite3.Connection, trouble: Trouble) -> None:
        self._raw = raw
        self._trouble = trouble
        self._blow: Blow | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        word = statement.partition(" ")[0]
        if word == "ROLLBACK":
            return self._raw.execute(statement)
        if word == "BEGIN":
            self._blow = self._trouble.next_blow()
        stage = {"BEGIN": Stage.BEGIN, "COMMIT": Stage.COMMIT}.get(word, Stage.STATEMENT)
        self._meet(stage)
        cursor = self._raw.execute(statement, *values)
        if word == "COMMIT":
            self._meet(Stage.SYNCED)
            self._trouble.wrote_at = asyncio.get_running_loop().time()
        return cursor

    def executemany(self, statement: str, values: Any) -> sqlite3.Cursor:
        self._meet(Stage.STATEMENT)
        return self._raw.executemany(statement, values)

    def _meet(self, stage: Stage) -> None:
        if self._blow is not None and self._blow.stage is stage:
            self._trouble.hit()
            self._trouble.silent += stage is Stage.SYNCED
            raise disk_error(self._blow.code)


class _NoReserve:
    is_held = False

    def restore(self) -> None:
        """There is none."""


class _File:
    """What the writer has of a `Database`."""

    def __init__(self, disk: Disk, trouble: Trouble) -> None:
        self.reserve = _NoReserve()
        self.epoch = disk.epochs
        self._raw = disk.connection
        self._connection = _Connection(disk.connection, trouble)

    def connection(self) -> sqlite3.Connection:
        return cast("sqlite3.Connection", self._connection)

    def discard(self) -> None:
        if self._raw.in_transaction:
            self._raw.execute("ROLLBACK")

    def make_room(self) -> bool:
        return False

    def close(self) -> None:
        """The disk outlives the process."""


class LoopWriter(Writer):
    """The real writer on the loop: what is submitted is written in the next turn, what is posted at once while the disk is well."""

    def __init__(self, disk: Disk, trouble: Trouble, *, clock: Clock, heard: Callable[[StorageHealth], None]) -> None:
        super().__init__(cast("Database", _File(disk, trouble)), clock=clock, upkeep=NoUpkeep(), listener=heard)
        self._backlog = Backlog(10_000, gather_s=0.0)
        self._again: asyncio.TimerHandle | None = None
        self._is_due = False
        self._told: deque[Callable[[], object]] = deque()

    def submit(self, run: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        future = super().submit(run)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._round)
        return future

    def post(self, run: Callable[[sqlite3.Connection], object]) -> None:
        super().post(run)
        if self._trouble is None:
            self._round()

    def _round(self) -> None:
        """One of the thread's, which never waits here."""
        self._is_due = False
        if self._backlog.is_closed:
            return
        self._write(self._backlog.take(self._batch, 0.0) or self._probes())
        self._rest()
        if self._trouble is not None:
            self._again = self._loop.call_later(self._retry_s, self._round)

    def _rest(self) -> None:
        if self._again is not None:
            self._again.cancel()

    def _tell(self, what: Callable[[], object]) -> None:
        """In the order of telling, as from a thread, however the loop shuffles."""
        self._told.append(what)
        self._loop.call_soon(self._tell_next)

    def _tell_next(self) -> None:
        self._told.popleft()()

    async def close(self, timeout_s: float) -> bool:
        self._rest()
        self._backlog.close()
        self._run()
        return await super().close(timeout_s)


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
