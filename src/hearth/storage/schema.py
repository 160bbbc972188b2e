"""Brings the schema of a database to the newest version, one numbered step at a time. Knows no table.

The version is SQLite's `user_version`, set in the transaction that it describes. Used by `database` at start.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files

from hearth import failpoints
from hearth.errors import StorageRefused
from hearth.storage.faults import fault_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step: SQL that brings version `number` - 1 to `number`."""

    number: int
    name: str
    sql: str


def shipped_migrations() -> tuple[Migration, ...]:
    """The steps that come with Hearth (`migrations/NNNN_name.sql`), in order."""
    folder = files("hearth.storage.migrations")
    sources = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return tuple(
        Migration(number=int(entry.name[:4]), name=entry.name.removesuffix(".sql"), sql=entry.read_text(encoding="utf-8"))
        for entry in sources
    )


def version_of(connection: sqlite3.Connection) -> int:
    """The schema version of a database; 0 for an empty one. Raises sqlite3.Error."""
    row = connection.execute("PRAGMA user_version").fetchone()
    return int(row[0])


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Apply the steps that are missing, each in a transaction of its own.

    Raises:
        StorageRefused: a step failed; the database is as the step before left it.
        sqlite3.Error: the disk, not the step, is at fault.
    """
    for step in migrations[version_of(connection) :]:
        failpoints.reach("storage.migrate.before_step")
        try:
            connection.executescript(f"BEGIN IMMEDIATE;\n{step.sql}\n;PRAGMA user_version = {step.number};\nCOMMIT;")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            if fault_of(error) is not None:
                raise
            raise StorageRefused(f"migration {step.name} failed: {error}. The database is unchanged; please report this.") from error
        failpoints.reach("storage.migrate.after_step")
