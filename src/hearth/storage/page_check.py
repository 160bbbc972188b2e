"""Whether the pages of the database are still whole, looked at now and then while it is in use."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from hearth.clock import Clock
from hearth.storage.opening import (
    BUSY_TIMEOUT_S,
    DATABASE_ERRORS,
    connect_reader,
    defects,
    fault_of,
)

CHECK_INTERVAL_S = 3600.0
INSTRUCTIONS = 100_000
"""Of SQLite's machine between two looks whether the check is to end: some milliseconds."""
MAX_SHARE = 0.01
"""Of a processor's time, on average. A check reads all of the file."""


class PageCheck:
    """Looks on a thread and a connection of its own, so that neither reader nor writer waits."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock,
        note: Callable[[str], None],
        interval_s: float = CHECK_INTERVAL_S,
        look: Callable[[sqlite3.Connection], str] = defects,
    ) -> None:
        """`note` is called on the loop with what each look has found, empty where all is well."""
        self._path = path
        self._clock = clock
        self._note = note
        self._interval_s = interval_s
        self._look = look
        self._connection: sqlite3.Connection | None = None
        self._is_ending = False

    async def run(self) -> None:
        """Look every hour until cancelled; less often where that takes long."""
        loop = asyncio.get_running_loop()
        pause_s = self._interval_s
        self._is_ending = False
        threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="hearth-storage-check")
        try:
            while True:
                await asyncio.sleep(pause_s)
                began_at = self._clock.monotonic()
                found = await loop.run_in_executor(threads, self._found)
                if found is not None:
                    self._note(found)
                took_s = self._clock.monotonic() - began_at
                pause_s = max(self._interval_s, took_s / MAX_SHARE)
        finally:
            self._end()
            threads.shutdown(wait=False)

    def _found(self) -> str | None:
        """What is wrong; None where that could not be found out now."""
        try:
            with closing(connect_reader(self._path, BUSY_TIMEOUT_S)) as connection:
                self._connection = connection
                connection.set_progress_handler(lambda: self._is_ending, INSTRUCTIONS)
                return self._look(connection)
        except DATABASE_ERRORS as error:
            return str(error) if fault_of(error) == "corrupt" else None
        finally:
            self._connection = None

    def _end(self) -> None:
        """End a check that is under way: at its next look, or within one long instruction."""
        self._is_ending = True
        connection = self._connection
        if connection is not None:
            with suppress(sqlite3.Error):  # it has just been closed
                connection.interrupt()
