"""What SQLite's result codes mean for the store. Decides no reaction; the other modules of this package do."""

from __future__ import annotations

import sqlite3

from hearth.errors import StorageFault, StorageUnavailable

_FAULTS = {
    sqlite3.SQLITE_FULL: StorageFault.FULL,
    sqlite3.SQLITE_IOERR: StorageFault.IO,
    sqlite3.SQLITE_NOMEM: StorageFault.IO,
    sqlite3.SQLITE_READONLY: StorageFault.READ_ONLY,
    sqlite3.SQLITE_PERM: StorageFault.READ_ONLY,
    sqlite3.SQLITE_BUSY: StorageFault.LOCKED,
    sqlite3.SQLITE_LOCKED: StorageFault.LOCKED,
    sqlite3.SQLITE_PROTOCOL: StorageFault.LOCKED,
    sqlite3.SQLITE_CORRUPT: StorageFault.CORRUPT,
    sqlite3.SQLITE_NOTADB: StorageFault.CORRUPT,
    sqlite3.SQLITE_CANTOPEN: StorageFault.CANNOT_OPEN,
}
_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""A quota and a file size limit look like write errors, and the index of the WAL says SHMSIZE where it cannot grow."""


def fault_of(error: BaseException) -> StorageFault | None:
    """What a SQLite error says about the store; None where it says something about the statement (a constraint, bad SQL).

    Source: https://www.sqlite.org/rescode.html; the low byte of an extended code is its class.
    """
    code = _code(error)
    return None if code is None else _FAULTS.get(code & 0xFF)


def unavailable(error: sqlite3.Error) -> StorageUnavailable:
    """The error that callers see for a SQLite error that no statement of theirs has caused."""
    return StorageUnavailable(fault_of(error) or StorageFault.IO, str(error), needs_space=_code(error) in _SPACE)


def _code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(error, sqlite3.Error) and isinstance(code, int) else None
