"""The checks between a path and a database that may be written: every way in which a file can be unfit, and what to tell the owner.

Used by `database` at start, while it holds the instance lock. Never changes a file that it refuses.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from hearth import failpoints
from hearth.clock import Clock
from hearth.errors import StorageBusy, StorageFault, StorageRefused
from hearth.storage.connections import Connect, defects, make_durable
from hearth.storage.faults import fault_of
from hearth.storage.place import ADVICE, sync_directory
from hearth.storage.schema import Migration, migrate, version_of
from hearth.version import __version__

APPLICATION_ID = 0x48525448
"""`HRTH`, in the header of every database of ours (`PRAGMA application_id`)."""
RESTORE = "Restore a backup, or move the file (and its -wal and -shm, if any) away to start with an empty history."


def require_whole(path: Path) -> None:
    """Refuse what is left of a database that lost a part: SQLite would take it for a new one, and lose the rest.

    Raises:
        StorageRefused: the file is empty, or its write-ahead log is there without it.
    """
    wal = path.with_name(path.name + "-wal")
    if path.exists() and path.stat().st_size == 0:
        raise StorageRefused(f"{path} is empty: it was cut off by something else than Hearth. {RESTORE}")
    if not path.exists() and wal.exists() and wal.stat().st_size > 0:
        raise StorageRefused(f"{path} is missing, but {wal} holds a part of it. {RESTORE}")


def create(path: Path, connect: Connect, migrations: Sequence[Migration]) -> None:
    """Make an empty database (0600) of the newest version; it gets its name once it is complete.

    Raises:
        OSError, sqlite3.Error: the disk is at fault; nothing has the name.
        StorageRefused: a migration failed.
    """
    draft = path.with_name(path.name + ".new")
    for leftover in (draft, draft.with_name(draft.name + "-journal")):
        leftover.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(connect(draft, 0.0)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        migrate(connection, migrations)
    failpoints.reach("storage.create.before_rename")
    draft.replace(path)
    sync_directory(path.parent)
    failpoints.reach("storage.create.after_rename")


def inspect(path: Path, connection: sqlite3.Connection, newest: int) -> None:
    """Look before anything is written.

    Raises:
        StorageRefused: another program's database, one of a newer Hearth, or a damaged one.
        sqlite3.Error: it cannot be read, or is not a database.
    """
    version = version_of(connection)
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StorageRefused(f"{path} is a database of another program. {ADVICE}")
    if version > newest:
        raise StorageRefused(
            f"{path} was written by a newer Hearth (schema {version}, this one knows {newest}). Install that version again, "
            "or set `storage.path` to another file."
        )
    found = defects(connection)
    if found:
        raise StorageRefused(f"{path} is damaged: {found}. {RESTORE}")


def begin_epoch(connection: sqlite3.Connection, clock: Clock) -> int:
    """Note this start of the process; its number marks the rows of this process for ever. Raises sqlite3.Error."""
    row = (clock.wall(), __version__)
    connection.execute("BEGIN IMMEDIATE")
    cursor = connection.execute("INSERT INTO process (started_wall_s, version) VALUES (?, ?)", row)
    failpoints.reach("storage.epoch.before_commit")
    connection.execute("COMMIT")
    failpoints.reach("storage.epoch.after_commit")
    return int(cursor.lastrowid or 0)


def believed_wall_s(connection: sqlite3.Connection, epoch: int, clock: Clock) -> float:
    """The latest time that an earlier process took for right; the present one where there is none. Raises sqlite3.Error."""
    question = "SELECT seen_wall_s FROM process WHERE seen_wall_s IS NOT NULL AND epoch < ? ORDER BY epoch DESC LIMIT 1"
    row = connection.execute(question, (epoch,)).fetchone()
    return clock.wall() if row is None else float(row[0])


def make_ready(path: Path, connection: sqlite3.Connection, migrations: Sequence[Migration], clock: Clock) -> int:
    """Check the database, bring it up to date and begin an epoch, which proves that it can be written.

    Returns:
        The epoch of this process.

    Raises:
        StorageRefused, sqlite3.Error: see `inspect`, `connections.make_durable` and `schema.migrate`.
    """
    inspect(path, connection, len(migrations))
    make_durable(connection)
    migrate(connection, migrations)
    return begin_epoch(connection, clock)


_MESSAGES = {
    StorageFault.FULL: "cannot be written: the disk is full. Free some space and start again.",
    StorageFault.READ_ONLY: f"cannot be written: it or its file system is read-only. {ADVICE}",
    StorageFault.CANNOT_OPEN: f"cannot be opened: check the permissions of the file and its directory. {ADVICE}",
    StorageFault.LOCKED: "is locked by another program (a sqlite3 shell?). Close that and start again.",
    StorageFault.CORRUPT: f"is not a sound SQLite database. {RESTORE}",
}

_PASSING = frozenset({StorageFault.FULL, StorageFault.LOCKED})


def refusal(path: Path, error: sqlite3.Error | OSError) -> StorageRefused:
    """What to tell the owner about a disk that said no."""
    fault = fault_of(error)
    known = _MESSAGES.get(fault) if fault is not None else None
    kind = StorageBusy if fault in _PASSING else StorageRefused
    return kind(f"{path} {known} ({error})" if known else f"{path} cannot be used: {error}. Check the disk and start again.")
