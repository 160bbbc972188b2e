"""Many functions, one transaction, one sync: the group commit. Runs on whatever thread calls it and knows nothing of futures.

Used by `writer` alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from hearth import failpoints
from hearth.storage.faults import fault_of, unavailable

Statement = Callable[[sqlite3.Connection], object]
"""Reads and writes inside a transaction that it neither begins nor ends; returns plain values, no cursors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A function failed by its own doing; what it did is undone."""

    error: Exception


def commit_together(connection: sqlite3.Connection, statements: Sequence[Statement]) -> list[object]:
    """Run all functions in order in one transaction; where one fails by its own doing, again with each behind its own savepoint.

    Returns:
        One result per function, `Failure` for those that raised. By then everything else is on the disk.

    Raises:
        StorageUnavailable: the disk, not a function, is at fault. No function's effect is promised; after an error at the COMMIT itself
            the transaction may nevertheless turn out to be there when the file is opened again.
    """
    try:
        try:
            return _committed(connection, [partial(statement, connection) for statement in statements])
        except Exception as error:
            if fault_of(error) is not None:
                raise
            connection.execute("ROLLBACK")
            return _committed(connection, [partial(_attempt, connection, statement) for statement in statements])
    except sqlite3.Error as error:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise unavailable(error) from error


def _committed(connection: sqlite3.Connection, calls: Sequence[Callable[[], object]]) -> list[object]:
    connection.execute("BEGIN IMMEDIATE")
    results = [call() for call in calls]
    failpoints.reach("storage.group.before_commit")
    connection.execute("COMMIT")
    failpoints.reach("storage.group.after_commit")
    return results


def _attempt(connection: sqlite3.Connection, statement: Statement) -> object:
    connection.execute("SAVEPOINT one")
    try:
        result = statement(connection)
    except Exception as error:  # supervision point: one defective function must not cost the others their commit
        if fault_of(error) is not None:
            raise
        connection.execute("ROLLBACK TO one")
        result = Failure(error=error)
    connection.execute("RELEASE one")
    return result
