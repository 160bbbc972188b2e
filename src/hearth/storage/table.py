"""What the tables share: questions on a thread of their own, through connections that cannot write,
and the calendar.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from hearth.clock import Clock
from hearth.errors import StorageUnavailable
from hearth.events import ClockConfirmed, ClockDoubted
from hearth.ports import EventSink
from hearth.storage.database import Database
from hearth.storage.opening import BUSY_TIMEOUT_S, DATABASE_ERRORS, connect_reader, unavailable
from hearth.storage.writer import Writer
from hearth.types import DAY_S

T = TypeVar("T")

Values = Mapping[str, object] | tuple[object, ...]
Types = Mapping[str, Callable[[Any], object]]
"""What makes the value of a field from that of its column, where they are not the same."""

KEY_LIFE_S = DAY_S
"""How long an Idempotency-Key stands for its request; as long as that has not ended in any case."""


class Reader:
    """One question at a time, each on a fresh connection: a kept one could hold an old snapshot,
    and the WAL with it, for ever.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hearth-storage-read")
        self._closed = False

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What `ask` makes of the database as of the last commit; rows are `sqlite3.Row`.

        Raises StorageUnavailable.
        """
        if self._closed:
            raise StorageUnavailable("closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, ask)

    def _ask(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StorageUnavailable("closed")
        if not self._database.is_readable:
            raise StorageUnavailable("disk_full", "the database could not be opened yet")
        try:
            with closing(connect_reader(self._database.path, BUSY_TIMEOUT_S)) as connection:
                return ask(connection)
        except DATABASE_ERRORS as error:
            raise unavailable(error) from error

    def close(self) -> None:
        """Answer no more; a question in progress ends by itself, those behind it are refused."""
        self._closed = True
        self._threads.shutdown(wait=False)


LOOK_INTERVAL_S = 60.0
STAMP_INTERVAL_S = 3600.0
CONFIRM_S = DAY_S
"""A clock that still says the same after so long a run is believed."""


class Calendar:
    """Whether the wall clock may be believed when something is to be deleted for its age.

    A clock that is months ahead after an empty CMOS battery makes everything look expired. One that
    is ahead of the last time that was believed by more than `jump_s`, beyond the time that has
    passed while running, is in doubt until it is right again, the owner confirms it, or a day has
    passed. The event loop owns the state; the writer's thread asks `may_delete` only, which reads
    one tuple.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        believed_wall_s: float | None,
        jump_s: float,
        stamp: Callable[[float], None],
    ) -> None:
        """`stamp` keeps a time that is believed, for the next start.

        Without `believed_wall_s` nothing may be deleted until `begin`.
        """
        self._clock = clock
        self._jump_s = jump_s
        self._stamp = stamp
        self._believed = None if believed_wall_s is None else (believed_wall_s, clock.monotonic())
        self._doubted_at: float | None = None
        self._stamped_at = -inf

    def begin(self, believed_wall_s: float) -> None:
        """What the store says, where that could not be read at the start; nothing happens where it
        could.
        """
        if self._believed is None:
            self._believed = (believed_wall_s, self._clock.monotonic())

    def ahead_s(self) -> float:
        """Seconds that the clock is ahead of what it should say; infinite where that is not known
        yet.
        """
        if self._believed is None:
            return inf
        wall_s, monotonic_s = self._believed
        return (self._clock.wall() - wall_s) - (self._clock.monotonic() - monotonic_s)

    def may_delete(self) -> bool:
        """Whether what is old by this clock may be deleted now."""
        return self.ahead_s() <= self._jump_s

    def confirm(self) -> None:
        """The clock is right as it is."""
        self._believed = (self._clock.wall(), self._clock.monotonic())
        self._stamped_at = -inf

    def look(self, events: EventSink) -> None:
        """Take note of what the clock says now, and tell when a doubt begins or ends."""
        if self._believed is None:
            return
        now, ahead_s = self._clock.monotonic(), self.ahead_s()
        if ahead_s > self._jump_s and self._doubted_at is None:
            self._doubted_at = now
            events.emit(ClockDoubted(at=now, ahead_s=ahead_s))
        if self._doubted_at is not None and now - self._doubted_at >= CONFIRM_S:
            self.confirm()
        if self._doubted_at is not None and self.may_delete():
            self._doubted_at = None
            events.emit(ClockConfirmed(at=now))
        # a clock that was set back far is not taken: it may come back
        if abs(self.ahead_s()) > self._jump_s:
            return
        self._believed = (self._clock.wall(), now)  # small differences add up in a long run
        if now - self._stamped_at >= STAMP_INTERVAL_S:
            self._stamped_at = now
            self._stamp(self._clock.wall())

    async def run(self, events: EventSink) -> None:
        """Look again and again until cancelled."""
        while True:
            self.look(events)
            await asyncio.sleep(LOOK_INTERVAL_S)


@dataclass(kw_only=True, eq=False)
class Table:
    """What a table needs. Methods raise StorageUnavailable where the disk is at fault."""

    writer: Writer
    reader: Reader
    clock: Clock
    calendar: Calendar

    @property
    def epoch(self) -> int:
        """The number of this start of the process.

        Ask in a transaction: before the first, a full disk may not have taken it.
        """
        return self.writer.epoch

    async def _write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        """What `run` returns, once that is on the disk; `name` is that of its failpoints."""
        return await self.writer.write(name, run)

    async def _update(self, name: str, statement: str, values: Values) -> bool:
        """Whether the statement changed a row."""
        return await self._write(
            name, lambda connection: connection.execute(statement, values).rowcount > 0
        )

    async def _changed(self, statement: str, *values: object) -> bool:
        """The same, without failpoints."""
        return await self.writer.submit(
            lambda connection: connection.execute(statement, values).rowcount > 0
        )

    def _post(self, statement: str, *values: object) -> None:
        """Have an idempotent statement run some time soon."""
        self.writer.post(lambda connection: connection.execute(statement, values).rowcount)

    async def _select(
        self, make: Callable[[sqlite3.Row], T], question: str, values: Values = ()
    ) -> tuple[T, ...]:
        return await self.reader.read(
            lambda connection: tuple(make(row) for row in connection.execute(question, values))
        )

    async def _first(
        self, make: Callable[[sqlite3.Row], T], question: str, *values: object
    ) -> T | None:
        return next(iter(await self._select(make, question, values)), None)


def record(kind: Callable[..., T], types: Types, row: sqlite3.Row) -> T:
    """A row as a dataclass that has its columns as fields; NULL stays None."""
    values = dict(row)
    return kind(
        **values
        | {name: make(values[name]) for name, make in types.items() if values.get(name) is not None}
    )
