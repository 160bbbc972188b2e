"""How many jobs wait and how many bytes they keep, without counting them: limits are checked for every job that is accepted.

The numbers stand in a temporary table of the writing connection, in memory; temporary triggers keep them, so that what is rolled back is
rolled back there too. A connection that was opened anew counts once.
"""

from __future__ import annotations

import sqlite3

_READ = "SELECT queued, bytes FROM temp.job_totals"
_ABSENT = "no such table"
_TABLE = "CREATE TEMP TABLE job_totals (queued INTEGER NOT NULL, bytes INTEGER NOT NULL)"
_COUNT = "INSERT INTO temp.job_totals SELECT TOTAL(state = 'queued'), TOTAL(bytes) FROM main.jobs"
_ADDED = (
    "CREATE TEMP TRIGGER job_added AFTER INSERT ON main.jobs BEGIN "
    "UPDATE job_totals SET queued = queued + (new.state = 'queued'), bytes = bytes + new.bytes; END"
)
_CHANGED = (
    "CREATE TEMP TRIGGER job_changed AFTER UPDATE OF state, bytes ON main.jobs BEGIN "
    "UPDATE job_totals SET queued = queued + (new.state = 'queued') - (old.state = 'queued'), bytes = bytes + new.bytes - old.bytes; END"
)
_DELETED = (
    "CREATE TEMP TRIGGER job_deleted AFTER DELETE ON main.jobs BEGIN "
    "UPDATE job_totals SET queued = queued - (old.state = 'queued'), bytes = bytes - old.bytes; END"
)


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Jobs that wait, and bytes of all requests and results, inside the transaction of this moment. Raises sqlite3.Error."""
    try:
        row = connection.execute(_READ).fetchone()
    except sqlite3.OperationalError as error:
        if _ABSENT not in str(error):
            raise
        for statement in (_TABLE, _COUNT, _ADDED, _CHANGED, _DELETED):
            connection.execute(statement)
        row = connection.execute(_READ).fetchone()
    return int(row[0]), int(row[1])
