"""The database file of one running Hearth: its lock, its reserve, the only connection that ever
writes to it, and copies of it.

Once it is open, only the writer's thread may touch `connection`, `discard` and `reserve`. Never
repairs, replaces or empties a file.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
import sqlite3
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path

from hearth.clock import Clock
from hearth.errors import StorageBusy, StorageFault, StorageRefused, StorageUnavailable
from hearth.storage.opening import (
    BUSY_TIMEOUT_S,
    DATABASE_ERRORS,
    Connect,
    Migrations,
    begin_epoch,
    connect_reader,
    connect_writer,
    create,
    defects,
    fault_of,
    inspect,
    lacks_space,
    lock_instance,
    make_durable,
    migrate,
    prepare_directory,
    refusal,
    require_whole,
    shipped_migrations,
    sync,
    unavailable,
)
from hearth.storage.wal import WalAudit, audit, beside
from hearth.types import MIB

HEADROOM = 4
"""The reserve is made again only where this many times its size is free, so that it is not spent
and made in turns.
"""


class Reserve:
    """A file beside the database that holds nothing but its space (0 MiB: none).

    Failing to make it is no error, but shows in `is_held`.
    """

    def __init__(self, path: Path, mib: float) -> None:
        self.path = beside(path, ".reserve")
        self._bytes = int(mib * MIB)

    @property
    def is_held(self) -> bool:
        return self.path.exists()

    def restore(self) -> None:
        """Put the space aside where that leaves enough for everybody else; does nothing where it is
        held already.
        """
        if self._bytes == 0 or self.is_held:
            return
        try:
            if self._free_bytes() >= HEADROOM * self._bytes:
                self.path.touch(0o600, exist_ok=False)
                with self.path.open("r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, self._bytes)
        except OSError:
            self.path.unlink(missing_ok=True)

    def spend(self) -> bool:
        """Give the space to whoever needs it; True where there was some to give."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self.path.parent).free


class Database:
    """The database of one process.

    Attributes:
        epoch: numbers this start of the process, and in a row says which process wrote it. 0 while
            the disk was too full to note it, which `connection` does once there is room.
        believed_wall_s: the latest time that an earlier process took for right; that of this start
            where there was none. None while `epoch` is 0.
        is_readable: whether the schema is the newest; may be so before `epoch` is known.
        log_found: what the last process left in the write-ahead log.
        damaged_copy: where database and log are kept if the log was damaged.
        damage: what a check found wrong with the pages; while that stands, nothing is written.
    """

    def __init__(
        self,
        path: Path,
        *,
        reserve_mib: float,
        clock: Clock,
        busy_timeout_s: float,
        connect: Connect,
        migrations: Migrations,
    ) -> None:
        self.path = path
        self.busy_timeout_s = busy_timeout_s
        self.reserve = Reserve(path, reserve_mib)
        self.epoch = 0
        self.believed_wall_s: float | None = None
        self.is_readable = False
        self.log_found = WalAudit()
        self.damaged_copy: Path | None = None
        self.damage = ""
        self._clock = clock
        self._connect = connect
        self._migrations = migrations
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._log_was_read = False
        self._inspected = (0, 0)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        reserve_mib: float,
        clock: Clock,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        connect: Connect = connect_writer,
        migrations: Migrations | None = None,
    ) -> Database:
        """Open the database, or make it, at the newest schema version; on a full disk, later.

        Raises StorageRefused with a message for the owner.
        """
        database = cls(
            path.absolute(),
            reserve_mib=reserve_mib,
            clock=clock,
            busy_timeout_s=busy_timeout_s,
            connect=connect,
            migrations=shipped_migrations() if migrations is None else migrations,
        )
        try:
            database._begin()
        except (OSError, *DATABASE_ERRORS) as error:
            if lacks_space(error):
                database.discard()
                return database
            database.close()
            raise refusal(path, error) from error
        except StorageRefused:
            database.close()
            raise
        return database

    def _begin(self) -> None:
        """Raises StorageRefused, OSError, one of DATABASE_ERRORS; may be tried again after a full
        disk.
        """
        prepare_directory(self.path)
        if self._lock is None:
            self._lock = lock_instance(self.path)
        require_whole(self.path)
        try:
            self._prepare()
        except (OSError, *DATABASE_ERRORS) as error:
            if not (lacks_space(error) and self.make_room()):
                raise
            self.discard()
            self._prepare()
        self.reserve.restore()

    def _prepare(self) -> None:
        if not self.path.exists():
            create(self.path, self._connect, self._migrations)
        self._look_at_log()
        self._connection = self._connect(self.path, self.busy_timeout_s)
        identity = self._identify()
        if self._inspected != identity:  # it reads all of the file, and need not be done again
            inspect(self.path, self._connection, len(self._migrations))
            self._inspected = identity
        make_durable(self._connection)
        migrate(self._connection, self._migrations)
        self.is_readable = True
        if self.log_found.has_old_commits:
            # A reader in a shell may keep it; then the next start finds them again.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self.path.chmod(0o600)
        epoch, self.believed_wall_s = begin_epoch(self._connection, self._clock)
        self._identity = identity
        self.epoch = epoch

    def _look_at_log(self) -> None:
        """SQLite drops what it cannot read, and its next checkpoint writes over both files."""
        if not self._log_was_read:  # what a connection of ours has left says nothing of that
            self.log_found = audit(self.path)
            self._log_was_read = True
        if self.log_found.unreadable and self.damaged_copy is None:
            self.damaged_copy = set_aside(self.path)

    def _identify(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_dev, found.st_ino

    def connection(self) -> sqlite3.Connection:
        """The writing connection; opened again, and the database checked, where it was discarded.

        Raises StorageUnavailable.
        """
        if self.epoch == 0:
            self._begin_late()
        # SQLite goes on writing to a file that was deleted or replaced, and all of it would be lost
        # with the process.
        in_place = False
        with suppress(OSError):
            in_place = self._identify() == self._identity
        if not in_place:
            raise StorageUnavailable(
                "file_moved", f"{self.path} was moved or deleted; put it back, or restart Hearth"
            )
        if self.damage:
            raise StorageUnavailable("corrupt", self.damage)
        if self._connection is not None:
            return self._connection
        with ExitStack() as on_failure:
            try:
                connection = self._connect(self.path, self.busy_timeout_s)
                on_failure.callback(_abandon, connection)
                make_durable(connection)
                found = defects(connection)
            except DATABASE_ERRORS as error:
                raise unavailable(error) from error
            except StorageRefused as error:
                raise StorageUnavailable("cannot_open", error.message) from error
            if found:
                self.damage = found  # to find it again takes long; `PageCheck` does
                raise StorageUnavailable("corrupt", found)
            on_failure.pop_all()
        self._connection = connection
        return connection

    def _begin_late(self) -> None:
        """Open what could not be opened at the start, where the disk was full.

        Raises StorageUnavailable.
        """
        try:
            self._begin()
        except (OSError, *DATABASE_ERRORS) as error:
            self.discard()
            needs_space = lacks_space(error)
            fault: StorageFault = "disk_full" if needs_space else fault_of(error) or "io_error"
            raise StorageUnavailable(fault, str(error), needs_space=needs_space) from error
        except StorageRefused as error:
            self.discard()
            is_passing = isinstance(error, StorageBusy)
            raise StorageUnavailable(
                "locked" if is_passing else "cannot_open", error.message
            ) from error

    def make_room(self) -> bool:
        """On a full disk: give up the reserve, and use it to fold the write-ahead log into the
        database; True where that freed space.
        """
        if self._lock is None:
            return False  # the reserve may be another process's
        spent = self.reserve.spend()
        before = self._log_bytes()
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return spent or self._log_bytes() < before

    def _log_bytes(self) -> int:
        log = beside(self.path, "-wal")
        return log.stat().st_size if log.exists() else 0

    def discard(self) -> None:
        """Give up a connection that the disk has failed: what it believes to be written may not be
        (a failed sync is not repeated).
        """
        _abandon(self._connection)
        self._connection = None

    def close(self) -> None:
        """Close the file and let go of the lock; nothing else may be called afterwards."""
        self.discard()
        if self._lock is not None:
            os.close(self._lock)


def _abandon(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        with suppress(sqlite3.Error):
            connection.close()


def set_aside(path: Path) -> Path | None:
    """Copy a database and its log to files of new names (0600); None where there is no log.

    One and the same log is copied once. Raises OSError: then there is no copy.
    """
    log = beside(path, "-wal")
    if not log.exists():
        return None
    for number in count(1):
        copy = path.with_name(f"{path.name}.damaged-{number}")
        copied_log = beside(copy, "-wal")
        if not copied_log.exists():
            break
        if filecmp.cmp(log, copied_log, shallow=False):
            return copy
    needed_bytes = path.stat().st_size + log.stat().st_size
    # tried again and again, half a copy would be all that the disk does
    if shutil.disk_usage(path.parent).free < needed_bytes:
        text = f"no room for a copy of the damaged database ({needed_bytes / MIB:.0f} MiB)"
        raise OSError(errno.ENOSPC, text, str(copy))
    draft = beside(copy, "-wal.new")
    try:
        _copy_bytes(path, copy)
        _copy_bytes(log, draft)
        draft.rename(copied_log)  # the copy is complete once its log has its name
        sync(path.parent)
    except OSError:
        for file in (copied_log, draft, copy):
            file.unlink(missing_ok=True)
        raise
    return copy


def _copy_bytes(source: Path, target: Path) -> None:
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    shutil.copyfile(source, target)
    sync(target)


def copy_into(connection: sqlite3.Connection, target: Path) -> None:
    """Write a compact copy, as of now, to a file that does not exist yet (0600), through a reading
    connection.

    Raises OSError where the file exists or cannot be made, sqlite3.Error where the copy failed:
    nothing is left of it.
    """
    target.touch(mode=0o600, exist_ok=False)
    try:
        connection.execute("PRAGMA query_only = OFF")
        connection.execute("VACUUM INTO ?", (str(target),))
    except DATABASE_ERRORS:
        target.unlink(missing_ok=True)
        raise


def back_up(path: Path, target: Path) -> None:
    """Write what the database holds now to `target` (0600), replaced as a whole or not at all.

    Raises StorageRefused.
    """
    draft = beside(target, ".new")
    _copy(path, draft)
    draft.replace(target)
    sync(target.absolute().parent)


def restore(copy: Path, path: Path) -> Path | None:
    """Put a copy in the place of the database; returns where the former one is now.

    Raises StorageBusy where a gateway runs on it, StorageRefused for a copy that may not be opened
    and where the disk is at fault.
    """
    try:
        prepare_directory(path)
        lock = lock_instance(path)
    except OSError as error:
        raise refusal(path, error) from error
    try:
        draft = beside(path, ".new")
        _copy(copy, draft)
        former = _move_aside(path)
        draft.replace(path)
        sync(path.absolute().parent)
    finally:
        os.close(lock)
    return former


def _copy(path: Path, draft: Path) -> None:
    draft.unlink(missing_ok=True)
    if not path.is_file():
        raise StorageRefused(f"there is no file {path}")
    try:
        with closing(connect_reader(path, BUSY_TIMEOUT_S)) as connection:
            inspect(path, connection, len(shipped_migrations()))
            copy_into(connection, draft)
        sync(draft)
    except DATABASE_ERRORS as error:
        raise refusal(path, error) from error
    except OSError as error:
        raise StorageRefused(f"{draft} cannot be written: {error.strerror or error}") from error


def _move_aside(path: Path) -> Path | None:
    """First the database, then its log: between the two a start is refused (`require_whole`), so
    that neither is taken for a whole one.
    """
    if not path.exists():
        return None
    numbers = (f".{number}" if number else "" for number in range(1000))
    aside = next(
        each
        for each in (path.with_name(f"{path.name}.before-restore{number}") for number in numbers)
        if not each.exists()
    )
    path.rename(aside)
    log = beside(path, "-wal")
    if log.exists():
        log.rename(beside(aside, "-wal"))
    beside(path, "-shm").unlink(missing_ok=True)
    return aside
