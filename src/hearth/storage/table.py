"""What the tables share: changes go through the writer's thread, questions to a thread of their
own, through connections that cannot write.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from hearth.clock import Clock
from hearth.errors import StorageUnavailable
from hearth.storage.calendar import Calendar
from hearth.storage.database import Database
from hearth.storage.opening import BUSY_TIMEOUT_S, DATABASE_ERRORS, connect_reader, unavailable
from hearth.storage.writer import StoreWriter
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


@dataclass(kw_only=True, eq=False)
class Table:
    """What a table needs. Methods raise StorageUnavailable where the disk is at fault."""

    writer: StoreWriter
    reader: Reader
    clock: Clock
    calendar: Calendar

    @property
    def epoch(self) -> int:
        """The number of this start of the process.

        Ask in a transaction: before the first, a full disk may not have taken it.
        """
        return self.writer.epoch

    async def _write(self, run: Callable[[sqlite3.Connection], T], name: str = "") -> T:
        """What `run` returns, once that is on the disk; `name` is that of its failpoints."""
        return await (self.writer.write(name, run) if name else self.writer.submit(run))

    async def _update(self, statement: str, values: Values, name: str = "") -> bool:
        """Whether the statement changed a row."""
        return await self._write(
            lambda connection: connection.execute(statement, values).rowcount > 0, name
        )

    def _post(self, statement: str, values: Values) -> None:
        """Have an idempotent statement run some time soon."""
        self.writer.post(lambda connection: connection.execute(statement, values).rowcount)

    async def _select(
        self, make: Callable[[sqlite3.Row], T], question: str, values: Values = ()
    ) -> tuple[T, ...]:
        return await self.reader.read(
            lambda connection: tuple(make(row) for row in connection.execute(question, values))
        )

    async def _first(
        self, make: Callable[[sqlite3.Row], T], question: str, values: Values
    ) -> T | None:
        return next(iter(await self._select(make, question, values)), None)


def record(kind: Callable[..., T], types: Types, row: sqlite3.Row) -> T:
    """A row as a dataclass that has its columns as fields; NULL stays None."""
    values = dict(row)
    return kind(
        **values
        | {name: make(values[name]) for name, make in types.items() if values.get(name) is not None}
    )


def insert_into(table: str, columns: Collection[str]) -> str:
    """The statement that adds a row, its values by the names of their columns."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES (:{', :'.join(columns)})"
