"""What the writer does in idle moments: it adds the log up, then forgets what is old or too much, a
little at a time.
"""

from __future__ import annotations

import sqlite3

from hearth.clock import Clock
from hearth.storage import failpoints
from hearth.storage.calendar import Calendar
from hearth.storage.usage import PERIODS_HOURS, ROWS_PER_STEP, roll_up
from hearth.storage.writer import Upkeep
from hearth.types import DAY_S, HOUR_S, MIB

MONEY_S = 3 * DAY_S
"""What was spent is kept for at least this long: the budget of the day is read from it."""
PAGES_PER_STEP = 256
SLACK_PAGES = 1024
"""Free pages that the file keeps for the rows to come; giving all of them back would be to ask for
them again at once.
"""


def _delete(table: str, which: str) -> str:
    return f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} {which} LIMIT :rows)"


_AGED = (
    _delete("invocation_log", "WHERE ended_wall_s < :before ORDER BY ended_wall_s"),
    _delete("swaps", "WHERE ended_wall_s < :before ORDER BY ended_wall_s"),
    _delete("ledger", "WHERE reserved_wall_s < :day_before AND state <> 'reserved'"),
)
_OLDEST = _delete("invocation_log", "ORDER BY id")
_FORGET_ENERGY = "DELETE FROM energy_hours WHERE hour < :hour"
_FORGET_PERIOD = """
    DELETE FROM usage
    WHERE hours = :length
      AND period = (SELECT MIN(period) FROM usage WHERE hours = :length)
      AND (period + 1) * :length <= :hour
"""
_KEPT_BYTES = "SELECT (SELECT TOTAL(bytes) FROM jobs) + (SELECT TOTAL(bytes) FROM files)"


def keeping(*, retention_days: float, max_mib: float, clock: Clock, calendar: Calendar) -> Upkeep:
    """Rows older than `retention_days` go, but no open reservation; then the oldest of the log,
    while the data exceeds `max_mib`.
    """
    retention_s = retention_days * DAY_S

    def step(connection: sqlite3.Connection) -> bool:
        connection.execute("BEGIN")
        with connection:  # commits, or takes back what failed
            if roll_up(connection):  # first: what is deleted has been counted
                return True
        now = clock.wall()
        aged = {
            "before": now - retention_s,
            "day_before": now - max(retention_s, MONEY_S),
            "rows": ROWS_PER_STEP,
        }
        if calendar.may_delete():
            if any(_deleted(connection, statement, aged) for statement in _AGED):
                return True
            if _forgot_usage(connection, int(aged["before"] / HOUR_S)):
                return True
        is_too_much = _used_bytes(connection) > max_mib * MIB
        if is_too_much and _deleted(connection, _OLDEST, aged):
            return True
        return _give_back(connection)

    return step


def _forgot_usage(connection: sqlite3.Connection, hour: int) -> bool:
    """Forget the oldest period of each length that ended before an hour (since 1970)."""
    connection.execute(_FORGET_ENERGY, {"hour": hour})
    gone = [
        connection.execute(_FORGET_PERIOD, {"length": length, "hour": hour}).rowcount
        for length in PERIODS_HOURS
    ]
    return any(gone)


def _deleted(connection: sqlite3.Connection, statement: str, values: dict[str, float]) -> bool:
    failpoints.reach("storage.retention.before_delete")
    deleted = connection.execute(statement, values).rowcount
    if deleted:
        failpoints.reach("storage.retention.after_delete")
    return deleted > 0


def _used_bytes(connection: sqlite3.Connection) -> int:
    """What jobs and files keep has a limit of its own, and must not push out the log."""
    pages = _number(connection, "PRAGMA page_count") - _free_pages(connection)
    return pages * _number(connection, "PRAGMA page_size") - _number(connection, _KEPT_BYTES)


def _give_back(connection: sqlite3.Connection) -> bool:
    free = _free_pages(connection)
    if free <= SLACK_PAGES:
        return False
    pages = min(PAGES_PER_STEP, free - SLACK_PAGES)
    # as a script: it yields one empty row per page, and `execute` would stop after the first
    connection.executescript(f"PRAGMA incremental_vacuum({pages})")
    return _free_pages(connection) < free


def _free_pages(connection: sqlite3.Connection) -> int:
    return _number(connection, "PRAGMA freelist_count")


def _number(connection: sqlite3.Connection, question: str) -> int:
    return int(connection.execute(question).fetchone()[0])
