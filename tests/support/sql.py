"""Another program at the file of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any


def run_sql(
    path: Path, statement: str, values: Sequence[object] | Mapping[str, object] = ()
) -> list[Any]:
    """The rows of one statement, on a connection of its own."""
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement, values).fetchall()
