"""A copy of the database while it is in use. Copying the live file by other means may miss or tear what the write-ahead log holds.

Runs on the reader's thread; `store` is its only user.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path


def copy_into(connection: sqlite3.Connection, target: Path) -> None:
    """Write a compact copy, as of now, to a file that does not exist yet (made with 0600; removed again where the copy fails).

    Args:
        connection: a reading one; the target is all that is written (`VACUUM INTO` takes an empty file for it).

    Raises:
        OSError: the target exists, or cannot be made.
        sqlite3.Error: the copy failed.
    """
    target.touch(mode=0o600, exist_ok=False)
    try:
        connection.execute("PRAGMA query_only = OFF")
        connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error:
        target.unlink(missing_ok=True)
        raise
