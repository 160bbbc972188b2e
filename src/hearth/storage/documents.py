"""Small documents of plain JSON by name: what was learned, and of which budgets the owner knows."""

from __future__ import annotations

import json
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
        row = (name, json.dumps(document, allow_nan=False), self.clock.wall())
        self.writer.post(
            failpoints.before_commit(
                "estimates", lambda connection: connection.execute(_SAVE, row).rowcount
            )
        )

    async def load(self, name: str) -> JsonDict | None:
        question = "SELECT document FROM estimates WHERE name = ?"
        document = None
        with suppress(ValueError):
            text = await self._first(lambda row: str(row[0]), question, (name,))
            document = json.loads(text or "null")
        return document if isinstance(document, dict) else None
