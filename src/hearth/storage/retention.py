"""Forgets what is old or too much, a little at a time, so that a start or an idle moment never meets hours of deleting.

The writer calls `step` when it has nothing better to do. Reservations that are still open are never forgotten. Nothing is deleted for
its age while the wall clock is in doubt (`Calendar`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

from hearth.clock import Clock
from hearth.events import ClockConfirmed, ClockDoubted
from hearth.ports import EventSink
from hearth.storage import failpoints
from hearth.storage.usage import forget_hour, roll_up
from hearth.types import MIB


def copy_into(connection: sqlite3.Connection, target: Path) -> None:
    """Write a compact copy, as of now, to a file that does not exist yet (made with 0600; removed again where the copy fails).

    Args:
        connection: a reading one; the target is all that is written (`VACUUM INTO` takes an empty file for it).

    Raises:
        OSError: the target exists, or cannot be made.
        sqlite3.Error: the copy failed.
    """
    target.touch(mode=0o600, exist_ok=False)
    try:
        connection.execute("PRAGMA query_only = OFF")
        connection.execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error:
        target.unlink(missing_ok=True)
        raise


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


LOOK_INTERVAL_S = 60.0
STAMP_INTERVAL_S = 3600.0
CONFIRM_S = DAY_S
"""A clock that still says the same after so long a run is believed."""


class Calendar:
    """Whether the wall clock may be believed when something is to be deleted for its age.

    A clock that is months ahead after an empty CMOS battery or a wrong setting makes everything look expired. The last time that was
    believed is in the store; a clock that is ahead of it by more than `jump_s`, beyond the time that has passed while running, is in
    doubt until it is right again, the owner confirms it, or a day has passed. A clock that was set back deletes nothing too early.

    The event loop owns the state. The writer's thread asks `may_delete` only, which reads one tuple.
    """

    def __init__(self, *, clock: Clock, believed_wall_s: float, jump_s: float, stamp: Callable[[float], None]) -> None:
        """`stamp` keeps a time that is believed, for the next start."""
        self._clock = clock
        self._jump_s = jump_s
        self._stamp = stamp
        self._believed = (believed_wall_s, clock.monotonic())
        self._doubted_at: float | None = None
        self._stamped_at = float("-inf")

    def ahead_s(self) -> float:
        """Seconds that the clock is ahead of what it should say."""
        wall_s, monotonic_s = self._believed
        return (self._clock.wall() - wall_s) - (self._clock.monotonic() - monotonic_s)

    def may_delete(self) -> bool:
        """Whether what is old by this clock may be deleted now."""
        return self.ahead_s() <= self._jump_s

    def confirm(self) -> None:
        """The clock is right as it is."""
        self._believed = (self._clock.wall(), self._clock.monotonic())
        self._stamped_at = float("-inf")

    def look(self, events: EventSink) -> None:
        """Take note of what the clock says now, and tell when a doubt begins or ends."""
        now, ahead_s = self._clock.monotonic(), self.ahead_s()
        if ahead_s > self._jump_s and self._doubted_at is None:
            self._doubted_at = now
            events.emit(ClockDoubted(at=now, ahead_s=ahead_s))
        if self._doubted_at is not None and now - self._doubted_at >= CONFIRM_S:
            self.confirm()
        if self._doubted_at is not None and self.may_delete():
            self._doubted_at = None
            events.emit(ClockConfirmed(at=now))
        if abs(self.ahead_s()) <= self._jump_s:
            self._believe(now)

    def _believe(self, now: float) -> None:
        """Small differences add up in a long run. A clock that was set back far is not taken: it may come back."""
        self._believed = (self._clock.wall(), now)
        if now - self._stamped_at >= STAMP_INTERVAL_S:
            self._stamped_at = now
            self._stamp(self._clock.wall())

    async def run(self, events: EventSink) -> None:
        """Look again and again until cancelled."""
        while True:
            self.look(events)
            await asyncio.sleep(LOOK_INTERVAL_S)


class Retention:
    """Rows older than `retention_days` go; then the oldest of the invocation log, for as long as the data exceeds `max_mib`."""

    def __init__(self, *, retention_days: float, max_mib: float, clock: Clock, calendar: Calendar) -> None:
        self._retention_s = retention_days * DAY_S
        self._max_bytes = max_mib * MIB
        self._clock = clock
        self._calendar = calendar

    def step(self, connection: sqlite3.Connection) -> bool:
        """Add rows up, delete some, or give free pages back, in one short transaction; True while there is more. Raises sqlite3.Error."""
        if _rolled_up(connection):  # first: what is deleted has been counted
            return True
        if self._calendar.may_delete() and self._forget_aged(connection):
            return True
        if _used_bytes(connection) > self._max_bytes and _delete(connection, _OLDEST, {"rows": ROWS_PER_STEP}):
            return True
        return _give_back(connection)

    def _forget_aged(self, connection: sqlite3.Connection) -> bool:
        now = self._clock.wall()
        aged = {"before": now - self._retention_s, "day_before": now - max(self._retention_s, MONEY_S), "rows": ROWS_PER_STEP}
        return any(_delete(connection, statement, aged) for statement in _AGED) or forget_hour(connection, aged["before"])


def _rolled_up(connection: sqlite3.Connection) -> bool:
    connection.execute("BEGIN")
    with connection:  # commits, or takes back what failed
        return roll_up(connection)


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
