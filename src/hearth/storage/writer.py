"""The one thread that writes. Functions go in from the event loop, futures come back once their
commit is on the disk.

Never makes the loop wait for the disk, never interrupts a statement, never dies of a defect or a
fault: what cannot be written now is refused (`submit`) or kept and tried again (`post`).
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from hearth.clock import Clock
from hearth.errors import StorageFault, StorageUnavailable
from hearth.storage import failpoints
from hearth.storage.database import Database
from hearth.storage.opening import DATABASE_ERRORS, fault_of, unavailable
from hearth.types import frozen

T = TypeVar("T")
Statement = Callable[[sqlite3.Connection], object]
"""Reads and writes inside a transaction that it neither begins nor ends; returns plain values, no
cursors.
"""
Upkeep = Callable[[sqlite3.Connection], bool]
"""Does a little in an idle moment, in transactions of its own; True while there is more to do.

May raise sqlite3.Error.
"""

GATHER_S = 0.2
"""Writes that nobody waits for are gathered for this long: one synced commit for many rows, and one
wake-up of the writer.
"""
RETRY_S = 2.0
"""Between two attempts to write what nobody waits for, while the disk fails; whatever is submitted
meanwhile tries at once.
"""
UPKEEP_INTERVAL_S = 300.0
TOGETHER = 256
"""Functions in one transaction."""
HARMLESS = frozenset({"locked", "disk_full", "file_moved"})
"""After these the connection is as good as before; after any other it is opened anew."""


@dataclass(slots=True, kw_only=True, eq=False)
class Write:
    """A function to run on the database; `future` is None where nobody waits for it."""

    run: Statement
    future: asyncio.Future[object] | None


class Backlog:
    """First in, first out; at most `capacity` writes.

    One that somebody waits for is never held up, and takes the others with it.
    """

    def __init__(self, capacity: int, *, gather_s: float = GATHER_S) -> None:
        self._capacity = capacity
        self._gather_s = gather_s
        self._awaited = 0
        self._left_behind = 0  # by the last `take`
        self._writes: deque[Write] = deque()
        self._changed = threading.Condition()
        self._fresh = False  # something waits that was not tried before
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, write: Write) -> bool:
        """Queue a write; False where there is no room, or no more are taken."""
        with self._changed:
            if self.is_closed or len(self._writes) >= self._capacity:
                return False
            self._writes.append(write)
            self._fresh = True
            self._awaited += write.future is not None
            if write.future is not None or len(self._writes) in {1, self._capacity}:
                self._changed.notify()
            return True

    def take(self, limit: int, timeout_s: float | None) -> list[Write] | None:
        """The oldest, at most `limit`, once one is new or the time is up, when there may be none;
        None once closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._fresh or self.is_closed, timeout_s)
            if self._fresh and len(self._writes) < limit:
                self._changed.wait_for(
                    lambda: self._awaited or self.is_closed or len(self._writes) >= self._capacity,
                    self._gather_s,
                )
            if self.is_closed and not self._writes:
                return None
            return self._popped(limit)

    def _popped(self, limit: int) -> list[Write]:
        taken = [self._writes.popleft() for _ in range(min(limit, len(self._writes)))]
        self._awaited -= sum(write.future is not None for write in taken)
        self._left_behind = len(self._writes)
        self._fresh = bool(self._writes)
        return taken

    def put_back(self, writes: list[Write]) -> list[Write]:
        """Return the writes of the last `take`, which could not be done, to the front, but for
        those that somebody waits for.

        Returns those, and the ones that waited behind them at that `take`: all would meet the same
        fate, and must learn of it now.
        """
        with self._changed:
            tried = [*writes, *self._popped(self._left_behind)]
            self._left_behind = 0
            self._fresh = self._awaited > 0
            self._writes.extendleft(write for write in reversed(tried) if write.future is None)
            return [write for write in tried if write.future is not None]

    def close(self) -> None:
        """Take no more writes; what is queued can still be taken out."""
        with self._changed:
            self.is_closed = True
            self._changed.notify()

    def clear(self) -> list[Write]:
        with self._changed:
            return self._popped(len(self._writes))


def commit_together(
    connection: sqlite3.Connection, statements: Sequence[Statement]
) -> list[object]:
    """Run all functions in order in one transaction; where one fails by its own doing, again with
    each behind its own savepoint.

    Returns one result per function, the exception of each that raised; by then everything else is
    on the disk.

    Raises StorageUnavailable where the disk is at fault: no function's effect is promised, but
    after an error at the COMMIT itself the transaction may turn out to be there when the file is
    opened again.
    """
    # The inner `try` is for a function that fails by its own doing, the outer one for a disk that
    # does, which the second run may meet as well.
    try:
        try:
            return _committed(connection, statements)
        except Exception as error:
            if fault_of(error) is not None:
                raise
            # a savepoint for each costs time, and hardly ever does a function fail
            connection.execute("ROLLBACK")
            alone = [partial(_attempted, statement) for statement in statements]
            return _committed(connection, alone)
    except DATABASE_ERRORS as error:
        with suppress(*DATABASE_ERRORS):
            connection.execute("ROLLBACK")
        raise unavailable(error) from error


def _committed(connection: sqlite3.Connection, statements: Sequence[Statement]) -> list[object]:
    connection.execute("BEGIN IMMEDIATE")
    results = [statement(connection) for statement in statements]
    failpoints.reach("storage.group.before_commit")
    connection.execute("COMMIT")
    failpoints.reach("storage.group.after_commit")
    return results


def _attempted(statement: Statement, connection: sqlite3.Connection) -> object:
    connection.execute("SAVEPOINT one")
    try:
        result = statement(connection)
    # supervision point: one defective function must not cost the others their commit
    except Exception as error:
        if fault_of(error) is not None:
            raise
        connection.execute("ROLLBACK TO one")
        result = error
    connection.execute("RELEASE one")
    return result


@frozen
class StorageHealth:
    """How the store is doing.

    Attributes:
        fault: why nothing can be written, None when it can; OVERLOADED while more comes than can
        be. `detail` says more, to the owner. waiting: functions not written yet; since the start,
        `dropped` are posted ones that found no room, `failed` those that raised. reserve_held:
        whether the reserve for a full disk is there.
    """

    fault: StorageFault | None = None
    detail: str = ""
    waiting: int = 0
    dropped: int = 0
    failed: int = 0
    reserve_held: bool = True


class StoreWriter:
    """Group commit on a thread of its own: everything that has piled up while one transaction is
    being synced goes into the next one.

    A posted function may be run again after a failed attempt whose outcome is unknown: it must be
    idempotent.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        upkeep: Upkeep,
        listener: Callable[[StorageHealth], None],
        capacity: int = 10_000,
        retry_s: float = RETRY_S,
    ) -> None:
        """Build it on the event loop that futures and listener belong to; nothing is written before
        `start`.

        Args:
            listener: called on the loop with every change of the fault (the first loss is one) and
            of the reserve; must not raise. capacity: functions that may wait.
        """
        self._database = database
        self._clock = clock
        self._upkeep = upkeep
        self._listener = listener
        self._backlog = Backlog(capacity)
        self._retry_s = retry_s
        self._trouble: StorageUnavailable | None = None
        self._dropped = 0
        self._failed = 0
        self._overloaded = False
        self._upkeep_at = clock.monotonic()
        self._reserve_held = database.reserve.is_held
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[bool] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="hearth-storage", daemon=True)

    def start(self) -> None:
        """Begin to write what was and will be queued."""
        self._thread.start()

    def submit(self, run: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Run a function in a transaction, also where the future is cancelled; it resolves with the
        result once that is on the disk.

        It fails with StorageUnavailable when the disk does (ask again; after a fault at the commit
        itself it may have been done), else with whatever the function raised.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if not self._backlog.add(Write(run=run, future=cast("asyncio.Future[object]", future))):
            future.set_exception(
                StorageUnavailable(
                    "overloaded", "too many writes are waiting, or Hearth is stopping"
                )
            )
        return future

    async def write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        """`submit`, between the failpoints of this name. Raises what the future fails with."""
        written = await self.submit(failpoints.before_commit(name, run))
        failpoints.reach(f"{name}.after_commit")
        return written

    def post(self, run: Statement) -> None:
        """Run an idempotent function some time soon; it is dropped and counted where too many wait
        already. Call it on the loop.
        """
        if not self._backlog.add(Write(run=run, future=None)):
            self._dropped += 1
            if not self._overloaded:
                self._overloaded = True
                self._listener(self.health)

    @property
    def epoch(self) -> int:
        return self._database.epoch

    @property
    def health(self) -> StorageHealth:
        trouble = self._trouble
        if trouble is None and self._overloaded:
            trouble = StorageUnavailable(
                "overloaded", "the disk is too slow for the writes that wait"
            )
        return StorageHealth(
            fault=trouble.fault if trouble else None,
            detail=trouble.message if trouble else "",
            waiting=len(self._backlog),
            dropped=self._dropped,
            failed=self._failed,
            reserve_held=self._reserve_held,
        )

    async def close(self, timeout_s: float) -> bool:
        """Write what waits and end; False where something is lost: the disk failed, or took longer
        than `timeout_s`.
        """
        self._backlog.close()
        done, _ = await asyncio.wait({self._ended}, timeout=timeout_s)
        lost = self._backlog.clear()
        _resolve(lost, [StorageUnavailable("closed") for _ in lost])
        return bool(done) and not lost and self._ended.result()

    def _run(self) -> None:
        flushed = True
        while (writes := self._backlog.take(TOGETHER, self._patience_s())) is not None:
            # without work, a write that changes nothing asks whether the disk is well again
            if self._trouble is not None and not writes:
                writes = [Write(run=self._probe, future=None)]
            flushed = not writes or self._write(writes)
            if self._backlog.is_closed and not flushed:
                break
            self._tend()
        self._database.close()
        self._call_in_loop(lambda: self._ended.set_result(flushed))

    def _patience_s(self) -> float:
        return (
            self._retry_s
            if self._trouble is not None
            else max(0.0, self._upkeep_at - self._clock.monotonic())
        )

    def _probe(self, connection: sqlite3.Connection) -> int:
        return connection.execute(
            "UPDATE process SET version = version WHERE epoch = ?", (self._database.epoch,)
        ).rowcount

    def _write(self, writes: list[Write]) -> bool:
        try:
            results = self._commit(writes)
        except StorageUnavailable as error:
            waiting = self._backlog.put_back(writes)
            self._note(error)
            if waiting:
                self._call_in_loop(partial(_resolve, waiting, [error.again() for _ in waiting]))
            return False
        failed = sum(
            write.future is None and isinstance(result, Exception)
            for write, result in zip(writes, results, strict=True)
        )
        self._failed += failed
        if failed and self._failed == failed:
            self._report()
        self._note(None)
        if any(write.future is not None for write in writes):
            self._call_in_loop(partial(_resolve, writes, results))
        return True

    def _commit(self, writes: list[Write]) -> list[object]:
        """A second attempt follows only where SQLite has certainly rolled the first one back: a
        full disk, on the same connection.
        """
        try:
            return self._attempt(writes)
        except StorageUnavailable as error:
            if not (error.needs_space and self._database.make_room()):
                raise
            self._upkeep_at = self._clock.monotonic()
            self._reserve_changed()
            if error.fault != "disk_full":
                raise
            return self._attempt(writes)

    def _attempt(self, writes: list[Write]) -> list[object]:
        try:
            return commit_together(self._database.connection(), [write.run for write in writes])
        except StorageUnavailable as error:
            if error.fault not in HARMLESS:
                self._database.discard()
            raise

    def _tend(self) -> None:
        """One step of the upkeep, when it is due and the disk is well; when all is done, the
        reserve is put aside again.
        """
        if self._trouble is not None or self._clock.monotonic() < self._upkeep_at:
            return
        try:
            if self._upkeep(self._database.connection()):
                return
        except StorageUnavailable as error:
            self._note(error)
        except DATABASE_ERRORS as error:
            self._database.discard()
            self._note(unavailable(error))
        self._upkeep_at = self._clock.monotonic() + UPKEEP_INTERVAL_S
        self._database.reserve.restore()
        self._reserve_changed()

    def _reserve_changed(self) -> None:
        held = self._database.reserve.is_held
        if held is not self._reserve_held:
            self._reserve_held = held
            self._report()

    def _note(self, trouble: StorageUnavailable | None) -> None:
        before = self.health.fault
        self._trouble = trouble
        if trouble is None and len(self._backlog) == 0:
            self._overloaded = False
        if self.health.fault != before:
            self._report()

    def _report(self) -> None:
        self._call_in_loop(partial(self._listener, self.health))

    def _call_in_loop(self, what: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(what)


def _resolve(writes: Sequence[Write], results: Sequence[object]) -> None:
    for write, result in zip(writes, results, strict=True):
        if write.future is None or write.future.done():
            continue
        if isinstance(result, Exception):
            write.future.set_exception(result)
        else:
            write.future.set_result(result)
