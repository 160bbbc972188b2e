"""What can go wrong with the disk. `StorageRefused` ends a start, `StorageUnavailable` ends one attempt.

Raised by this package only; callers see the messages, so they say what to do.
"""

from __future__ import annotations

import sqlite3
from enum import StrEnum

from hearth.errors import HearthError


class Fault(StrEnum):
    """Why the store cannot be used."""

    FULL = "disk_full"
    IO = "io_error"
    READ_ONLY = "read_only"
    LOCKED = "locked"
    CORRUPT = "corrupt"
    CANNOT_OPEN = "cannot_open"
    MOVED = "file_moved"
    OVERLOADED = "overloaded"
    CLOSED = "closed"


class StorageError(HearthError):
    """The store failed."""

    reason = "storage"


class StorageRefused(StorageError):
    """The store cannot be opened, and Hearth does not start without it."""

    reason = "storage_refused"


class StorageUnavailable(StorageError):
    """The store cannot be written or read at the moment.

    Attributes:
        needs_space: True where freeing space on the disk may help.
    """

    status = 503
    retryable = True
    reason = "storage_unavailable"

    def __init__(self, fault: Fault, detail: str = "", *, needs_space: bool = False) -> None:
        self.fault = fault
        self.detail = detail
        self.needs_space = needs_space
        text = f"The store is not available ({fault.value.replace('_', ' ')})"
        super().__init__(f"{text}: {detail}" if detail else text)

    def again(self) -> StorageUnavailable:
        """The same trouble for somebody else: an exception that is raised twice would mix their tracebacks."""
        return StorageUnavailable(self.fault, self.detail, needs_space=self.needs_space)


_FAULTS = {
    sqlite3.SQLITE_FULL: Fault.FULL,
    sqlite3.SQLITE_IOERR: Fault.IO,
    sqlite3.SQLITE_NOMEM: Fault.IO,
    sqlite3.SQLITE_READONLY: Fault.READ_ONLY,
    sqlite3.SQLITE_PERM: Fault.READ_ONLY,
    sqlite3.SQLITE_BUSY: Fault.LOCKED,
    sqlite3.SQLITE_LOCKED: Fault.LOCKED,
    sqlite3.SQLITE_PROTOCOL: Fault.LOCKED,
    sqlite3.SQLITE_CORRUPT: Fault.CORRUPT,
    sqlite3.SQLITE_NOTADB: Fault.CORRUPT,
    sqlite3.SQLITE_CANTOPEN: Fault.CANNOT_OPEN,
}
_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
"""A quota and a file size limit look like write errors, and the index of the WAL says SHMSIZE where it cannot grow."""


def fault_of(error: BaseException) -> Fault | None:
    """What a SQLite error says about the store; None where it says something about the statement (a constraint, bad SQL).

    Source: https://www.sqlite.org/rescode.html; the low byte of an extended code is its class.
    """
    code = _code(error)
    return None if code is None else _FAULTS.get(code & 0xFF)


def unavailable(error: sqlite3.Error) -> StorageUnavailable:
    """The error that callers see for a SQLite error that no statement of theirs has caused."""
    return StorageUnavailable(fault_of(error) or Fault.IO, str(error), needs_space=_code(error) in _SPACE)


def _code(error: BaseException) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return code if isinstance(error, sqlite3.Error) and isinstance(code, int) else None
