"""What the tests of the store share: a clock that stands still, an opened store or writer, a disk
that fails on command, and events.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from hearth.clock import Clock
from hearth.config.settings import StorageSettings
from hearth.events import ItemEnded, ItemQueued, SwapCompleted, SwapFailed
from hearth.ports import EventSink
from hearth.storage.calendar import Calendar
from hearth.storage.database import Database
from hearth.storage.opening import Connect, connect_writer
from hearth.storage.store import Store
from hearth.storage.writer import StorageHealth, StoreWriter, Upkeep
from hearth.types import DAY_S, Lane, Outcome, RequestId, Sequence
from tests.support.fields import Fields
from tests.support.recorder import Recorder
from tests.support.sql import run_sql
from tests.support.stopped_clock import StoppedClock


def believed(
    clock: Clock,
    *,
    wall_s: float | None = None,
    stamp: Callable[[float], None] = lambda wall_s: None,
) -> Calendar:
    """A clock that was last believed at `wall_s`, now where None, and is in doubt where it is a
    week ahead.
    """
    return Calendar(
        clock=clock,
        believed_wall_s=clock.wall() if wall_s is None else wall_s,
        jump_s=7 * DAY_S,
        stamp=stamp,
    )


class Fuse:
    """Counts the operations of the connections that burn it, and fails the Nth one, before or after
    it took effect.
    """

    def __init__(self, code: int = sqlite3.SQLITE_IOERR, *, after: bool = False) -> None:
        self.code = code
        self.after = after
        self.left: int | None = None
        self.lasting = False
        self.fired = 0

    def arm(self, operation: int, *, lasting: bool = False) -> None:
        self.left = operation
        self.lasting = lasting

    def fail_always(self) -> None:
        self.arm(1, lasting=True)

    def repair(self) -> None:
        self.left = None

    def burn(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left == 0 or (self.lasting and self.left < 0):
            self.fired += 1
            raise disk_error(self.code)

    def connect(self, path: Path, busy_timeout_s: float) -> sqlite3.Connection:
        fuse = self

        class Burning(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                if not fuse.after:
                    fuse.burn()
                cursor = super().execute(*arguments)
                if fuse.after:
                    fuse.burn()
                return cursor

        return connect_writer(path, busy_timeout_s, Burning)


def disk_error(code: int) -> sqlite3.OperationalError:
    """An error as the sqlite3 module raises it."""
    error = sqlite3.OperationalError(f"made to fail with {code}")
    error.sqlite_errorcode = code
    return error


class Reports:
    """What a writer says of its health; `well`: the last of it was that."""

    def __init__(self) -> None:
        self.all: list[StorageHealth] = []
        self.well = asyncio.Event()

    def __call__(self, health: StorageHealth) -> None:
        self.all.append(health)
        (self.well.set if health.fault is None else self.well.clear)()


@asynccontextmanager
async def opened(
    path: Path, clock: Clock, *, events: EventSink | None = None, connect: Connect = connect_writer
) -> AsyncIterator[Store]:
    """One start and end of the process on a file."""
    store = await Store.open(
        path,
        StorageSettings(reserve_mib=0),
        clock=clock,
        events=events or Recorder(),
        connect=connect,
    )
    yield store
    await store.close(5.0)


async def written(store: Store) -> None:
    """Returns when everything posted so far is in the file."""
    await store.writer.submit(lambda connection: None)


def open_database(
    path: Path, *, connect: Connect = connect_writer, reserve_mib: float = 0.0, **more: Any
) -> Database:
    return Database.open(
        path,
        reserve_mib=reserve_mib,
        clock=StoppedClock(),
        busy_timeout_s=0.02,
        connect=connect,
        **more,
    )


def make_newer(path: Path) -> None:
    """A database of a newer Hearth."""
    open_database(path).close()
    run_sql(path, "PRAGMA user_version = 999")


def overwritten(path: Path, table: str = "ledger") -> None:
    """By another program, while the database is open."""
    ((page,),) = run_sql(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 2048)


def make_another_programs(path: Path) -> None:
    """A database of another program."""
    run_sql(path, "CREATE TABLE recipe (id)")


@asynccontextmanager
async def writing(
    path: Path,
    *,
    connect: Connect = connect_writer,
    reserve_mib: float = 0.0,
    upkeep: Upkeep = lambda connection: False,
    listener: Callable[[StorageHealth], None] = lambda health: None,
    clock: StoppedClock | None = None,
    capacity: int = 10_000,
    retry_s: float = 30.0,
) -> AsyncIterator[StoreWriter]:
    """A writer on a database with the table `note (id, text)`."""
    database = open_database(path, connect=connect, reserve_mib=reserve_mib)
    database.connection().execute(
        "CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, text TEXT)"
    )
    writer = StoreWriter(
        database,
        clock=clock or StoppedClock(),
        upkeep=upkeep,
        listener=listener,
        capacity=capacity,
        retry_s=retry_s,
    )
    writer.start()
    try:
        yield writer
    finally:
        await writer.close(30.0)


def note(number: int, text: str = "") -> Callable[[sqlite3.Connection], int]:
    """Insert a note; fails where its number is taken."""
    return lambda connection: (
        connection.execute("INSERT INTO note VALUES (?, ?)", (number, text)).rowcount
    )


def same_note(number: int) -> Callable[[sqlite3.Connection], int]:
    """Insert a note where its number is free: idempotent, as everything that is posted."""
    return lambda connection: (
        connection.execute("INSERT OR IGNORE INTO note VALUES (?, '')", (number,)).rowcount
    )


def notes(path: Path) -> list[int]:
    """The numbers that another program sees in the file."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [row[0] for row in connection.execute("SELECT id FROM note ORDER BY id")]


# Events as the gateway emits them.

_ITEM: Fields = {"lane": Lane.EXTERNAL, "model": "llama3.1:8b", "task_type": None}
_ENDED: Fields = _ITEM | {
    "at": 1000.0,
    "caller": "webui",
    "outcome": Outcome.COMPLETED,
    "reason": "",
    "attempts": 1,
    "interrupt_count": 0,
    "queue_s": 2.5,
    "swap_s": 1.5,
    "first_byte_s": 0.5,
    "backend_s": 7.5,
    "total_s": 10.0,
    "prompt_tokens": 12,
    "output_tokens": 34,
    "status": 200,
}


def ended(sequence: int, **changes: Any) -> ItemEnded:
    return ItemEnded(
        sequence=Sequence(sequence),
        **_ENDED | {"request_id": RequestId(f"req_{sequence}")} | changes,
    )


def queued(sequence: int, **changes: Any) -> ItemQueued:
    return ItemQueued(
        sequence=Sequence(sequence),
        **_ITEM | {"request_id": RequestId(f"req_{sequence}"), "position": 0} | changes,
    )


def swapped(at: float = 1000.0) -> SwapCompleted:
    return SwapCompleted(
        at=at,
        from_models=("a:1", "b:2"),
        to_model="c:3",
        swap_s=4.0,
        vram_mib=9000.0,
        offloaded=True,
        engine="ollama",
        cooldown_s=0.5,
        drain_s=0.0,
        unload_s=1.0,
        load_s=3.0,
    )


def swap_failed(at: float = 1000.0) -> SwapFailed:
    return SwapFailed(
        at=at,
        from_models=(),
        to_model="c:3",
        swap_s=120.0,
        reason="swap_timeout",
        detail="no answer",
    )
