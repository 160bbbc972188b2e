"""What must be true of the file, whatever happened: looked at from outside, against the client's
own history.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hearth.types import frozen
from tests.reliability.client import History
from tests.support.fields import Fields

ENDED = {"completed", "failed", "cancelled"}
_JOBS = (
    "SELECT id AS job_id, idempotency_key AS key, state, task_type, number, "
    "result, request, ended_wall_s FROM jobs ORDER BY number"
)


@frozen
class Row:
    """A job in the file."""

    job_id: str
    key: str
    state: str
    task_type: str | None
    number: int
    result: bytes | None
    request: bytes
    ended_wall_s: float | None


@dataclass(slots=True, kw_only=True)
class Judge:
    """Looks at the file between two lives, and remembers what had ended: that must never change."""

    path: Path
    history: History
    _ended: dict[str, Row] = field(default_factory=dict)

    def look(self) -> dict[str, Row]:
        """The jobs by key: sound, each once, every accepted one there, what had ended as it was.

        Only while nobody has the file open.
        """
        rows = [Row(**row) for row in asked(self.path, _JOBS)]
        kept = {row.key: row for row in rows}
        assert len(kept) == len(rows), "a key with two jobs"
        assert set(kept) <= set(self.history.wanted), "a job that nobody asked for"
        lost = [
            key
            for key, job_id in self.history.accepted.items()
            if key not in kept or kept[key].job_id != job_id
        ]
        assert not lost, f"accepted and lost: {lost}"
        changed = [key for key, row in self._ended.items() if kept[key] != row]
        assert not changed, f"ended, and then changed: {changed}"
        assert all(
            (row.state in ENDED) == (row.ended_wall_s is not None) == (not row.request)
            for row in rows
        )
        self._ended = {row.key: row for row in rows if row.state in ENDED}
        return kept

    def look_at_the_end(self) -> dict[str, Row]:
        """As `look`, when all has been worked off: every job has ended, completed with its own
        result or cancelled.
        """
        kept = self.look()
        assert set(kept) == set(self.history.wanted) == set(self.history.accepted)
        for key, row in kept.items():
            assert row.state in {"completed", "cancelled"}, (key, row.state)
            assert row.state == "cancelled" or key not in self.history.cancelled, (
                f"cancelled, and done all the same: {key}"
            )
            assert row.state == "completed" or key in self.history.unwanted, (
                f"cancelled by nobody: {key}"
            )
            assert row.state == "cancelled" or f'"response": "{key} run '.encode() in (
                row.result or b""
            ), key
        return kept


def asked(path: Path, question: str) -> list[Fields]:
    """Rows of a sound file."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        assert [tuple(row) for row in connection.execute("PRAGMA integrity_check")] == [("ok",)]
        return [dict(row) for row in connection.execute(question)]


def require_order(history: History, arrivals: Sequence[str]) -> None:
    """Inside a task type, jobs came to the model server for the first time in the order in which
    their caller had them accepted.

    The caller of a type asks for one job after the other, so its own order is the order of
    acceptance.
    """
    first = list(dict.fromkeys(arrivals))
    came: dict[str, list[str]] = defaultdict(list)
    for marker in first:
        task_type = history.wanted[marker].task_type
        if task_type is not None:
            came[task_type].append(marker)
    for task_type, markers in came.items():
        wanted = [
            key
            for key, wish in history.wanted.items()
            if wish.task_type == task_type and key in set(markers)
        ]
        assert markers == wanted, f"out of order in {task_type}"
