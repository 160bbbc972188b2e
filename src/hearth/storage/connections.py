"""How SQLite is opened: the one connection that writes and checkpoints, and any number that can only read.

Two connections that write or checkpoint at once can corrupt a WAL database (SQLite 3.7.0 to 3.51.2, https://www.sqlite.org/wal.html,
"The WAL-reset bug"), so nobody but `database` asks for a writing one, and memory-mapped I/O stays off.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from hearth.errors import StorageRefused

WAL_LIMIT_BYTES = 16 << 20
"""What the WAL is cut back to after a reader has held it open for long."""

Connect = Callable[[Path, float], sqlite3.Connection]
"""Opens an existing database for writing; the number is the busy timeout in seconds."""


def connect_writer(path: Path, busy_timeout_s: float, factory: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """A connection in autocommit mode that may move between threads but is never used by two at once. Raises sqlite3.Error."""
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
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=busy_timeout_s, isolation_level=None)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA query_only = ON")
    return connection


def make_durable(connection: sqlite3.Connection) -> None:
    """Set what every writing connection needs: WAL, a sync per commit, no memory mapping.

    Raises:
        StorageRefused: the file system cannot do WAL (network shares).
        sqlite3.Error: the disk is at fault.
    """
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StorageRefused(f"this file system cannot hold the database safely (journal mode {mode}): set `storage.path` to a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")


def defects(connection: sqlite3.Connection) -> str:
    """What `quick_check` finds wrong, in a few lines; empty for a sound database. Raises sqlite3.Error."""
    lines = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
    return "" if lines == ["ok"] else "; ".join(lines)
