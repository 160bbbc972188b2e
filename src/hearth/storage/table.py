"""What the tables share: questions on a thread of their own, through connections that cannot write; and rows as dataclasses."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hearth.clock import Clock
from hearth.errors import StorageFault, StorageUnavailable
from hearth.storage.opening import connect_reader, unavailable
from hearth.storage.retention import Calendar
from hearth.storage.writer import Writer

T = TypeVar("T")

Values = Mapping[str, object] | tuple[object, ...]
Types = Mapping[str, Callable[[Any], object]]
"""What makes the value of a field from that of its column, where they are not the same."""

BUSY_TIMEOUT_S = 5.0
KEY_LIFE_S = 86_400.0
"""How long an Idempotency-Key stands for its request; as long as that has not ended in any case."""


class Reader:
    """One question at a time, each on a fresh connection: a kept one could hold an old snapshot, and the WAL with it, for ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hearth-storage-read")
        self._closed = False

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What `ask` makes of the database as of the last commit; rows are `sqlite3.Row`. Raises StorageUnavailable."""
        if self._closed:
            raise StorageUnavailable(StorageFault.CLOSED)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, ask)

    def _ask(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        if self._closed:
            raise StorageUnavailable(StorageFault.CLOSED)
        try:
            with closing(connect_reader(self._path, BUSY_TIMEOUT_S)) as connection:
                return ask(connection)
        except sqlite3.Error as error:
            raise unavailable(error) from error

    def close(self) -> None:
        """Answer no more; a question in progress ends by itself, those behind it are refused."""
        self._closed = True
        self._threads.shutdown(wait=False)


@dataclass(kw_only=True, eq=False)
class Table:
    """What a table needs. `epoch`: the number of this start of the process. Methods raise StorageUnavailable where the disk is at fault."""

    writer: Writer
    reader: Reader
    clock: Clock
    calendar: Calendar
    epoch: int

    async def _update(self, name: str, statement: str, values: Values) -> bool:
        """Whether the statement changed a row, once that is on the disk; `name` is that of its failpoints."""
        return await self.writer.write(name, lambda connection: connection.execute(statement, values).rowcount > 0)

    async def _changed(self, statement: str, *values: object) -> bool:
        """The same, without failpoints."""
        return await self.writer.submit(lambda connection: connection.execute(statement, values).rowcount > 0)

    def _post(self, statement: str, *values: object) -> None:
        """Have an idempotent statement run some time soon."""
        self.writer.post(lambda connection: connection.execute(statement, values).rowcount)

    async def _select(self, make: Callable[[sqlite3.Row], T], question: str, values: Values = ()) -> tuple[T, ...]:
        return await self.reader.read(lambda connection: tuple(make(row) for row in connection.execute(question, values)))

    async def _first(self, make: Callable[[sqlite3.Row], T], question: str, *values: object) -> T | None:
        return next(iter(await self._select(make, question, values)), None)


def record(kind: Callable[..., T], row: sqlite3.Row, types: Types) -> T:
    """A row as a dataclass that has its columns as fields; NULL stays None."""
    values = dict(row)
    return kind(**values | {name: make(values[name]) for name, make in types.items() if values.get(name) is not None})
