"""Small documents of plain JSON by name: what was learned, and of which budgets the owner knows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import suppress

from hearth.ports import Documents
from hearth.storage import failpoints
from hearth.storage.table import Table
from hearth.types import JsonDict, JsonMapping

_SAVE = """
    INSERT INTO estimates (name, document, saved_wall_s)
    VALUES (?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET
      document = excluded.document,
      saved_wall_s = excluded.saved_wall_s
"""


class DocumentTable(Table, Documents):
    """Documents by name; a later one replaces an earlier one."""

    def save(self, name: str, document: JsonMapping) -> None:
        self.writer.post(failpoints.before_commit("estimates", self._saving(name, document)))

    async def keep(self, name: str, document: JsonMapping) -> None:
        await self._write(self._saving(name, document))

    def _saving(self, name: str, document: JsonMapping) -> Callable[[sqlite3.Connection], int]:
        row = (name, json.dumps(document, allow_nan=False), self.clock.wall())
        return lambda connection: connection.execute(_SAVE, row).rowcount

    async def load(self, name: str) -> JsonDict | None:
        question = "SELECT document FROM estimates WHERE name = ?"
        text = await self._first(lambda row: str(row[0]), question, (name,))
        if text is None:
            return None
        document = None
        with suppress(ValueError):
            document = json.loads(text)
        return document if isinstance(document, dict) else {}
