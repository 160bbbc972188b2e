"""Questions to the database, on a thread of their own and through connections that cannot write.

Never on the way of a request. Used by the parts of this package that answer queries.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from hearth.errors import StorageFault, StorageUnavailable
from hearth.storage.connections import connect_reader
from hearth.storage.faults import unavailable

T = TypeVar("T")

BUSY_TIMEOUT_S = 5.0


class Reader:
    """One question at a time, each on a fresh connection: a kept one could hold an old snapshot, and the WAL with it, for ever."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hearth-storage-read")
        self._closed = False

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        """What `ask` makes of the database as of the last commit; rows are `sqlite3.Row`.

        Raises:
            StorageUnavailable: the file cannot be read, or the store is closed.
        """
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
