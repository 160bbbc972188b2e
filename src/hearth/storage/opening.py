"""Between a path and a database that may be written: where it lies, its schema, its connections,
and every way in which it can be unfit. Never changes a file that it refuses.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from importlib.resources import files
from pathlib import Path

from hearth.clock import Clock
from hearth.errors import StorageBusy, StorageFault, StorageRefused, StorageUnavailable
from hearth.storage import failpoints
from hearth.storage.wal import beside
from hearth.types import __version__


def storable(text: str) -> str:
    """Texts from callers may hold lone surrogates, which no database takes; they are escaped."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_FAULTS: dict[int, StorageFault] = {
    sqlite3.SQLITE_FULL: "disk_full",
    sqlite3.SQLITE_IOERR: "io_error",
    sqlite3.SQLITE_NOMEM: "io_error",
    sqlite3.SQLITE_READONLY: "read_only",
    sqlite3.SQLITE_PERM: "read_only",
    sqlite3.SQLITE_BUSY: "locked",
    sqlite3.SQLITE_LOCKED: "locked",
    sqlite3.SQLITE_PROTOCOL: "locked",
    sqlite3.SQLITE_CORRUPT: "corrupt",
    sqlite3.SQLITE_NOTADB: "corrupt",
    sqlite3.SQLITE_CANTOPEN: "cannot_open",
}
_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""A quota and a file size limit look like write errors, and the index of the WAL says SHMSIZE where
it cannot grow.
"""


DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""What a question to a database may raise. A damaged one makes SQLite quote bytes that are no text,
and Python then raises the latter instead of the error.
"""


def fault_of(error: BaseException) -> StorageFault | None:
    """What a SQLite error says about the store; None where it says something about the statement (a
    constraint, bad SQL).

    Source: https://www.sqlite.org/rescode.html; the low byte of an extended code is its class.
    """
    if isinstance(error, UnicodeDecodeError):
        return "corrupt"
    return (
        _FAULTS.get(error.sqlite_errorcode & 0xFF)
        if isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorcode")
        else None
    )


def lacks_space(error: BaseException) -> bool:
    """Whether freeing space on the disk may help."""
    if isinstance(error, OSError):
        return error.errno in {errno.ENOSPC, errno.EDQUOT}
    return getattr(error, "sqlite_errorcode", None) in _SPACE


def unavailable(error: sqlite3.Error | UnicodeDecodeError) -> StorageUnavailable:
    """The error that callers see for a SQLite error that no statement of theirs has caused."""
    return StorageUnavailable(
        fault_of(error) or "io_error", str(error), needs_space=lacks_space(error)
    )


Migrations = Sequence[tuple[str, str]]
"""Name and SQL of each step; the first brings an empty database to version 1."""


def shipped_migrations() -> Migrations:
    """The steps that come with Hearth (`migrations/NNNN_name.sql`), in order.

    A file that was released is never edited.
    """
    steps = sorted((files("hearth.storage") / "migrations").iterdir(), key=lambda step: step.name)
    return [
        (step.name.removesuffix(".sql"), step.read_text(encoding="utf-8"))
        for step in steps
        if step.name.endswith(".sql")
    ]


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a database; 0 for an empty one. Raises sqlite3.Error."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def migrate(connection: sqlite3.Connection, migrations: Migrations) -> None:
    """Apply the steps that are missing, each in a transaction of its own; raises StorageRefused
    where a step, not the disk, is at fault.
    """
    done = version_of(connection)
    for number, (name, sql) in enumerate(migrations[done:], done + 1):
        failpoints.reach("storage.migrate.before_step")
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE;\n{sql}\n;PRAGMA user_version = {number};\nCOMMIT;"
            )
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if fault_of(error) is not None:
                raise
            raise StorageRefused(
                f"migration {name} failed: {error}. The database is unchanged; please report this."
            ) from error
        failpoints.reach("storage.migrate.after_step")


ADVICE = "Set `storage.path` to a file in a directory that Hearth may write."


def database_path(configured: str, environ: Mapping[str, str]) -> Path:
    """The file that `storage.path` names (`~/` is the user's home);
    `$XDG_STATE_HOME/hearth/hearth.db` where it is empty.

    Source: XDG Base Directory Specification 0.8 (state is what should persist, but is not important
    enough for the data directory).
    """
    if configured:
        return (
            _home(environ) / configured.removeprefix("~/")
            if configured.startswith("~/")
            else Path(configured)
        )
    state = Path(environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = _home(environ) / ".local" / "state"
    return state / "hearth" / "hearth.db"


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "~").expanduser()


def prepare_directory(path: Path) -> None:
    """Make the file's directory (0700) where there is none.

    Raises StorageRefused where it cannot be made or written, OSError where the disk is full.
    """
    directory = path.parent
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if lacks_space(error):
            raise
        raise StorageRefused(
            f"{directory} cannot be created: {error.strerror}. {ADVICE}"
        ) from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StorageRefused(f"{directory} cannot be written. {ADVICE}")


def tighten_own_directory(configured: str, path: Path) -> None:
    """Close the default directory to other users; one that the owner chose stays as it is.

    Raises StorageRefused: it is somebody else's.
    """
    directory = path.parent
    if configured or not directory.is_dir() or directory.stat().st_mode & 0o077 == 0:
        return
    try:
        directory.chmod(0o700)
    except OSError as error:
        raise StorageRefused(
            f"{directory} is accessible to other users, and its mode cannot be changed:"
            f" {error.strerror}. {ADVICE}"
        ) from error


def open_directory(configured: str, path: Path) -> tuple[str, ...]:
    """What to tell the owner where a directory of their choice is open to other users."""
    directory = path.parent
    if (
        not configured
        or not directory.is_dir()
        or not (mode := directory.stat().st_mode & 0o777) & 0o077
    ):
        return ()
    text = f"is accessible to other users of this machine (mode {mode:o}): chmod 700 {directory}"
    return (f"storage.path: {directory} {text}",)


def sync(path: Path) -> None:
    """Make what a file holds durable, or the names in a directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_instance(path: Path) -> int:
    """Take the lock of a process that uses the database: an advisory one on a file beside it, which
    the kernel takes back at the end.

    Close the descriptor to give it back. The file stays: removing it would let two processes lock
    two files of one name. Raises StorageBusy where another process holds it, StorageRefused where
    the file cannot be made, OSError where the disk is full.
    """
    lock = beside(path, ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if lacks_space(error):
            raise
        raise StorageRefused(f"{lock} cannot be written: {error.strerror}. {ADVICE}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 32).decode(errors="replace").strip()
        os.close(descriptor)
        by = f"process {holder}" if holder.isdecimal() else "another process"
        raise StorageBusy(
            f"{path} is in use by {by}. Stop it, or give this Hearth a `storage.path` of its own."
        ) from error
    with suppress(OSError):  # the number is for a message only, and a full disk has no room for it
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


BUSY_TIMEOUT_S = 5.0
_PRAGMAS = (
    "synchronous = FULL",
    "foreign_keys = ON",
    "mmap_size = 0",
    "temp_store = MEMORY",
    "trusted_schema = OFF",
    # what the WAL is cut back to after a reader has held it open for long
    f"journal_size_limit = {16 << 20}",
)

Connect = Callable[[Path, float], sqlite3.Connection]
"""Opens an existing database for writing; the number is the busy timeout in seconds."""


def connect_writer(
    path: Path, busy_timeout_s: float, factory: type[sqlite3.Connection] = sqlite3.Connection
) -> sqlite3.Connection:
    """A connection in autocommit mode that may move between threads but is never used by two at
    once. Raises sqlite3.Error.
    """
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        factory=factory,
    )
    connection.row_factory = sqlite3.Row
    return connection


def connect_reader(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """A connection that can neither write nor checkpoint. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA query_only = ON")
    return connection


def make_durable(connection: sqlite3.Connection) -> None:
    """Set what every writing connection needs; raises StorageRefused where the file system cannot
    do WAL (network shares).
    """
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageRefused(
            f"this file system cannot hold the database safely (journal mode {mode}):"
            " set `storage.path` to a local disk"
        )
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def defects(connection: sqlite3.Connection) -> str:
    """What `quick_check` finds wrong, in a few lines; empty for a sound database.

    Raises one of DATABASE_ERRORS.
    """
    connection.text_factory = bytes  # what is damaged is quoted, and need not be text
    try:
        rows = connection.execute("PRAGMA quick_check(3)").fetchall()
    finally:
        connection.text_factory = str
    lines = [row[0].decode("utf-8", "replace") for row in rows]
    return "" if lines == ["ok"] else "; ".join(lines)


APPLICATION_ID = 0x48525448
"""`HRTH`, in the header of every database of ours (`PRAGMA application_id`)."""
RESTORE = (
    "Restore a backup, or move the file (and its -wal and -shm, if any) away to start with an empty"
    " history."
)


def require_whole(path: Path) -> None:
    """Raises StorageRefused for what is left of a database that lost a part: SQLite would take it
    for a new one, and lose the rest.
    """
    wal = beside(path, "-wal")
    if path.exists() and path.stat().st_size == 0:
        raise StorageRefused(f"{path} is empty: another program truncated it. {RESTORE}")
    if not path.exists() and wal.exists() and wal.stat().st_size > 0:
        raise StorageRefused(f"{path} is missing, but {wal} holds a part of it. {RESTORE}")


def create(path: Path, connect: Connect, migrations: Migrations) -> None:
    """Make an empty database (0600) of the newest version; it gets its name once it is complete."""
    draft = beside(path, ".new")
    _remove_draft(draft)
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with closing(connect(draft, 0.0)) as connection:
            # nobody sees it before all of it is synced below
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            migrate(connection, migrations)
        sync(draft)
    except (OSError, *DATABASE_ERRORS):
        _remove_draft(draft)  # what there was of it may be all the room of a full disk
        raise
    failpoints.reach("storage.create.before_rename")
    draft.replace(path)
    sync(path.parent)
    failpoints.reach("storage.create.after_rename")


def _remove_draft(draft: Path) -> None:
    for leftover in (draft, beside(draft, "-journal")):
        leftover.unlink(missing_ok=True)


def inspect(path: Path, connection: sqlite3.Connection, newest: int) -> None:
    """Look before anything is written; raises StorageRefused for another program's database, a
    newer Hearth's, or a damaged one.
    """
    version = version_of(connection)
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StorageRefused(f"{path} is a database of another program. {ADVICE}")
    if version > newest:
        raise StorageRefused(
            f"{path} was written by a newer Hearth (schema {version}, this one knows {newest})."
            " Install that version again, or set `storage.path` to another file."
        )
    found = defects(connection)
    if found:
        raise StorageRefused(f"{path} is damaged: {found}. {RESTORE}")


def begin_epoch(connection: sqlite3.Connection, clock: Clock) -> tuple[int, float]:
    """Note this start of the process, which proves that the database can be written.

    Returns its number, and the latest time that an earlier process took for right, the present one
    where there is none.
    """
    connection.execute("BEGIN IMMEDIATE")
    seen = connection.execute(
        "SELECT seen_wall_s FROM process WHERE seen_wall_s IS NOT NULL ORDER BY epoch DESC"
    ).fetchone()
    row = (clock.wall(), __version__)
    epoch = connection.execute(
        "INSERT INTO process (started_wall_s, version) VALUES (?, ?)", row
    ).lastrowid
    failpoints.reach("storage.epoch.before_commit")
    connection.execute("COMMIT")
    failpoints.reach("storage.epoch.after_commit")
    return epoch or 0, clock.wall() if seen is None else float(seen[0])


_MESSAGES = {
    "disk_full": "cannot be written: the disk is full. Free some space and try again.",
    "read_only": f"cannot be written: it or its file system is read-only. {ADVICE}",
    "cannot_open": "cannot be opened: check the permissions of the file and its directory."
    f" {ADVICE}",
    "locked": "is locked by another program (a sqlite3 shell?). Close that and start again.",
    "corrupt": f"is not a valid SQLite database. {RESTORE}",
}

_PASSING = frozenset({"disk_full", "locked"})


def refusal(path: Path, error: sqlite3.Error | UnicodeDecodeError | OSError) -> StorageRefused:
    """What to tell the owner about a disk that said no."""
    fault = fault_of(error)
    known = _MESSAGES.get(fault) if fault is not None else None
    kind = StorageBusy if fault in _PASSING else StorageRefused
    # SQLite quotes the damaged part of the schema, which is no text then.
    reason = "malformed schema" if isinstance(error, UnicodeDecodeError) else error
    return kind(
        f"{path} {known} ({reason})"
        if known
        else f"{path} cannot be used: {error}. Check the disk and start again."
    )
