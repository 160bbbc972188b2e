"""A copy of the store while the gateway runs, and the way back while it does not."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from hearth.errors import StorageRefused
from hearth.storage.database import BUSY_TIMEOUT_S
from hearth.storage.opening import (
    InstanceLock,
    connect_reader,
    inspect,
    prepare_directory,
    refusal,
    shipped_migrations,
    sync_directory,
)
from hearth.storage.retention import copy_into


def back_up(path: Path, target: Path) -> None:
    """Write what the database holds now to `target` (0600), replaced as a whole or not at all. Raises StorageRefused."""
    draft = target.with_name(target.name + ".new")
    _copy(path, draft)
    draft.replace(target)
    sync_directory(target.absolute().parent)


def restore(copy: Path, path: Path) -> Path | None:
    """Put a copy in the place of the database; returns where the former one is now.

    Raises:
        StorageBusy: a gateway runs on it.
        StorageRefused: the copy is damaged, of another program or of a newer Hearth, or the disk is at fault. The database is unchanged.
    """
    prepare_directory(path)
    lock = InstanceLock(path)
    try:
        draft = path.with_name(path.name + ".new")
        _copy(copy, draft)
        former = _move_aside(path)
        draft.replace(path)
        sync_directory(path.absolute().parent)
    finally:
        lock.release()
    return former


def _copy(path: Path, draft: Path) -> None:
    draft.unlink(missing_ok=True)
    if not path.is_file():
        raise StorageRefused(f"there is no file {path}")
    try:
        with closing(connect_reader(path, BUSY_TIMEOUT_S)) as connection:
            inspect(path, connection, len(shipped_migrations()))
            copy_into(connection, draft)
        with draft.open("rb") as copied:
            os.fsync(copied.fileno())
    except sqlite3.Error as error:
        raise refusal(path, error) from error
    except OSError as error:
        raise StorageRefused(f"{draft} cannot be written: {error.strerror or error}") from error


def _move_aside(path: Path) -> Path | None:
    """First the database, then its log: between the two a start is refused (`require_whole`), so that neither is taken for a whole one."""
    if not path.exists():
        return None
    numbers = (f".{number}" if number else "" for number in range(1000))
    aside = next(each for each in (path.with_name(f"{path.name}.before-restore{number}") for number in numbers) if not each.exists())
    path.rename(aside)
    log = path.with_name(path.name + "-wal")
    if log.exists():
        log.rename(aside.with_name(aside.name + "-wal"))
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    return aside
