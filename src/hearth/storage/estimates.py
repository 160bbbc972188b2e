"""What the scheduler has learned (swap and service times) and the like, kept across restarts as small JSON documents by name.

Knows nothing of their content; what cannot be read counts as never learned.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from hearth import failpoints
from hearth.clock import Clock
from hearth.storage.reader import Reader
from hearth.storage.writer import Writer

_SAVE = (
    "INSERT INTO estimates (name, document, saved_wall_s) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET document = excluded.document, saved_wall_s = excluded.saved_wall_s"
)


class Estimates:
    """Documents by name; a later one replaces an earlier one."""

    def __init__(self, *, writer: Writer, reader: Reader, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    def save(self, name: str, document: Mapping[str, object]) -> None:
        """Keep a document of plain JSON values some time soon. Raises TypeError or ValueError for anything else."""
        row = (name, json.dumps(document, allow_nan=False), self._clock.wall())
        self._writer.post(failpoints.before_commit("estimates", lambda connection: connection.execute(_SAVE, row).rowcount))

    async def load(self, name: str) -> dict[str, object] | None:
        """The document last saved, None where there is none that can be read. Raises StorageUnavailable."""
        return await self._reader.read(lambda connection: _load(connection, name))


def _load(connection: sqlite3.Connection, name: str) -> dict[str, object] | None:
    row = connection.execute("SELECT document FROM estimates WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    try:
        document = json.loads(row["document"])
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
