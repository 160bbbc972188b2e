"""What all jobs and files together keep, counted as they change: to count a hundred thousand rows
for each job would take longer than accepting it.

The totals are a table of the writing connection's own, kept by triggers, so that what is rolled
back is not counted either.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

from hearth.errors import QueueFull

_KEPT = """
    SELECT
      TOTAL(queued),
      TOTAL(
        CASE
          WHEN lane > :lane
            OR (lane = :lane AND (:lane = 'external' OR priority <= :priority))
          THEN queued
        END
      ),
      TOTAL(CASE caller WHEN :caller THEN queued END),
      TOTAL(bytes) + (SELECT TOTAL(bytes) FROM files),
      TOTAL(CASE caller WHEN :caller THEN bytes END)
        + (SELECT TOTAL(bytes) FROM files WHERE caller = :caller)
    FROM temp.job_totals
"""
# one by one: `executescript` would commit the transaction that this happens in
_BEGIN = (
    """
        CREATE TEMP TABLE job_totals (
          caller TEXT,
          lane TEXT,
          priority INTEGER,
          queued INTEGER NOT NULL,
          bytes INTEGER NOT NULL,
          PRIMARY KEY (caller, lane, priority)
        )
    """,
    """
        INSERT INTO temp.job_totals
        SELECT caller, lane, priority, TOTAL(state = 'queued'), TOTAL(bytes)
        FROM main.jobs
        GROUP BY 1, 2, 3
    """,
    """
        CREATE TEMP TRIGGER job_added AFTER INSERT ON main.jobs
        BEGIN
          INSERT INTO job_totals
          VALUES (new.caller, new.lane, new.priority, new.state = 'queued', new.bytes)
          ON CONFLICT DO UPDATE SET
            queued = queued + excluded.queued,
            bytes = bytes + excluded.bytes;
        END
    """,
    """
        CREATE TEMP TRIGGER job_changed AFTER UPDATE OF state, bytes ON main.jobs
        BEGIN
          UPDATE job_totals SET
            queued = queued + (new.state = 'queued') - (old.state = 'queued'),
            bytes = bytes + new.bytes - old.bytes
          WHERE caller = new.caller AND lane = new.lane AND priority = new.priority;
        END
    """,
    """
        CREATE TEMP TRIGGER job_deleted AFTER DELETE ON main.jobs
        BEGIN
          UPDATE job_totals SET
            queued = queued - (old.state = 'queued'),
            bytes = bytes - old.bytes
          WHERE caller = old.caller AND lane = old.lane AND priority = old.priority;
        END
    """,
)


class Kept(NamedTuple):
    """Jobs that wait, those of them that start before a new one, and bytes of requests, results and
    files; `own_`: of one caller.
    """

    queued: int
    ahead: int
    own_queued: int
    bytes: int
    own_bytes: int

    def require_room(self, size: int, max_bytes: int, own_max_bytes: int | None) -> None:
        """Raises QueueFull where so many more bytes of the caller's do not fit."""
        if own_max_bytes is not None and self.own_bytes + size > own_max_bytes:
            raise QueueFull(
                "this caller has used its share of the store; delete files, or jobs that have"
                " ended (DELETE /llm/jobs/ID?forget=true)",
                remedy="jobs.caller_share_pct of jobs.max_stored_mib",
            )
        if self.bytes + size > max_bytes:
            raise QueueFull(
                "the store is full; delete jobs or files that are not needed",
                remedy="jobs.max_stored_mib",
            )


def kept(
    connection: sqlite3.Connection, caller: str, lane: str = "external", priority: int = 0
) -> Kept:
    """What the store keeps inside the transaction of this moment, beside a new job of this caller.

    Raises sqlite3.Error.
    """
    asked = {"caller": caller, "lane": lane, "priority": priority}
    return Kept(*map(int, _of_totals(connection, _KEPT, asked)))


def queued(connection: sqlite3.Connection) -> int:
    """How many jobs wait, as `kept` has it."""
    return int(_of_totals(connection, "SELECT TOTAL(queued) FROM temp.job_totals", {})[0])


def _of_totals(
    connection: sqlite3.Connection, question: str, asked: Mapping[str, object]
) -> tuple[float, ...]:
    try:
        return tuple(connection.execute(question, asked).fetchone())
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
    # a new connection, or one whose first transaction was rolled back
    for statement in _BEGIN:
        connection.execute(statement)
    return _of_totals(connection, question, asked)
