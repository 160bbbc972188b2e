"""Forgets what is old or too much, a little at a time, so that a start or an idle moment never meets hours of deleting.

The writer calls `step` when it has nothing better to do. Reservations that are still open are never forgotten.
"""

from __future__ import annotations

import sqlite3

from hearth import failpoints
from hearth.clock import Clock
from hearth.types import MIB

DAY_S = 86_400.0
MONEY_S = 3 * DAY_S
"""What was spent is kept for at least this long: the budget of the day is read from it."""
ROWS_PER_STEP = 500
PAGES_PER_STEP = 256
SLACK_PAGES = 1024
"""Free pages that the file keeps for the rows to come; giving all of them back would be to ask for them again at once."""

_AGED = (
    "DELETE FROM invocation_log WHERE id IN (SELECT id FROM invocation_log WHERE ended_wall_s < :before ORDER BY ended_wall_s LIMIT :rows)",
    "DELETE FROM swaps WHERE id IN (SELECT id FROM swaps WHERE ended_wall_s < :before ORDER BY ended_wall_s LIMIT :rows)",
    "DELETE FROM ledger WHERE id IN (SELECT id FROM ledger WHERE reserved_wall_s < :day_before AND state <> 'reserved' LIMIT :rows)",
)
_OLDEST = "DELETE FROM invocation_log WHERE id IN (SELECT id FROM invocation_log ORDER BY id LIMIT :rows)"


class Retention:
    """Rows older than `retention_days` go; then the oldest of the invocation log, for as long as the data exceeds `max_mib`."""

    def __init__(self, *, retention_days: float, max_mib: float, clock: Clock) -> None:
        self._retention_s = retention_days * DAY_S
        self._max_bytes = max_mib * MIB
        self._clock = clock

    def step(self, connection: sqlite3.Connection) -> bool:
        """Delete some rows in one short transaction, or give some free pages back; True while there is more. Raises sqlite3.Error."""
        if self._forget_aged(connection):
            return True
        if _used_bytes(connection) > self._max_bytes and _delete(connection, _OLDEST, {"rows": ROWS_PER_STEP}):
            return True
        return _give_back(connection)

    def _forget_aged(self, connection: sqlite3.Connection) -> bool:
        now = self._clock.wall()
        aged = {"before": now - self._retention_s, "day_before": now - max(self._retention_s, MONEY_S), "rows": ROWS_PER_STEP}
        return any(_delete(connection, statement, aged) for statement in _AGED)


def _delete(connection: sqlite3.Connection, statement: str, parameters: dict[str, float]) -> bool:
    failpoints.reach("storage.retention.before_delete")
    deleted = connection.execute(statement, parameters).rowcount
    if deleted:
        failpoints.reach("storage.retention.after_delete")
    return deleted > 0


def _used_bytes(connection: sqlite3.Connection) -> int:
    """What jobs and files keep has a limit of its own, and must not push out the log."""
    pages = _number(connection, "page_count") - _number(connection, "freelist_count")
    kept = int(connection.execute("SELECT (SELECT TOTAL(bytes) FROM jobs) + (SELECT TOTAL(bytes) FROM files)").fetchone()[0])
    return pages * _number(connection, "page_size") - kept


def _give_back(connection: sqlite3.Connection) -> bool:
    """The vacuum runs as a script: it yields one empty row per page, and `execute` would stop after the first."""
    free = _number(connection, "freelist_count")
    if free <= SLACK_PAGES:
        return False
    connection.executescript(f"PRAGMA incremental_vacuum({min(PAGES_PER_STEP, free - SLACK_PAGES)})")
    return _number(connection, "freelist_count") < free


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
