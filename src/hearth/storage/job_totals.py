"""How many jobs of each caller wait and how many bytes they keep, without counting them: limits are checked for every job.

The numbers stand in a temporary table of the writing connection, in memory; temporary triggers keep them, so that what is rolled back is
rolled back there too. A connection that was opened anew counts once.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

_READ = (
    "SELECT TOTAL(queued), TOTAL(bytes), TOTAL(CASE caller WHEN :caller THEN queued END), "
    "TOTAL(CASE caller WHEN :caller THEN bytes END) FROM temp.job_totals"
)
_ABSENT = "no such table"
_TABLE = "CREATE TEMP TABLE job_totals (caller TEXT PRIMARY KEY, queued INTEGER NOT NULL, bytes INTEGER NOT NULL)"
_COUNT = "INSERT INTO temp.job_totals SELECT caller, TOTAL(state = 'queued'), TOTAL(bytes) FROM main.jobs GROUP BY caller"
_ADDED = (
    "CREATE TEMP TRIGGER job_added AFTER INSERT ON main.jobs BEGIN "
    "INSERT INTO job_totals VALUES (new.caller, new.state = 'queued', new.bytes) "
    "ON CONFLICT (caller) DO UPDATE SET queued = queued + excluded.queued, bytes = bytes + excluded.bytes; END"
)
_CHANGED = (
    "CREATE TEMP TRIGGER job_changed AFTER UPDATE OF state, bytes ON main.jobs BEGIN "
    "UPDATE job_totals SET queued = queued + (new.state = 'queued') - (old.state = 'queued'), bytes = bytes + new.bytes - old.bytes "
    "WHERE caller = new.caller; END"
)
_DELETED = (
    "CREATE TEMP TRIGGER job_deleted AFTER DELETE ON main.jobs BEGIN "
    "UPDATE job_totals SET queued = queued - (old.state = 'queued'), bytes = bytes - old.bytes "
    "WHERE caller = old.caller; END"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTotals:
    """Jobs that wait, and bytes of requests and results: of all callers, and of one."""

    queued: int
    bytes: int
    own_queued: int
    own_bytes: int


def totals(connection: sqlite3.Connection, caller: str) -> JobTotals:
    """The totals inside the transaction of this moment. Raises sqlite3.Error."""
    asked = {"caller": caller}
    try:
        row = connection.execute(_READ, asked).fetchone()
    except sqlite3.OperationalError as error:
        if _ABSENT not in str(error):
            raise
        for statement in (_TABLE, _COUNT, _ADDED, _CHANGED, _DELETED):
            connection.execute(statement)
        row = connection.execute(_READ, asked).fetchone()
    return JobTotals(queued=int(row[0]), bytes=int(row[1]), own_queued=int(row[2]), own_bytes=int(row[3]))
