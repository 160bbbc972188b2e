"""What is forgotten, by age and by size, a little at a time, and when the clock may be believed."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hearth.events import ClockConfirmed, ClockDoubted
from hearth.job_types import StoreLimits
from hearth.storage.retention import SLACK_PAGES, keeping
from hearth.storage.usage import ROWS_PER_STEP
from hearth.types import DAY_S
from tests.jobs.house import job
from tests.storage.house import believed, ended, open_database, opened, written
from tests.support.recorder import Recorder
from tests.support.stopped_clock import WALL, StoppedClock

SEED = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :rows)
INSERT INTO invocation_log (
  epoch, sequence, request_id, caller, lane, model, accepted_wall_s, ended_wall_s,
  queue_s, swap_s, total_s, attempts, interrupt_count, outcome, reason
)
SELECT 0, :first + i, 'req_' || hex(zeroblob(16)), :caller, 'external', 'llama3.1:8b', :at, :at,
  0.0, 0.0, 1.0, 1, 0, 'completed', :reason
FROM n
"""


@pytest.fixture
def connection(tmp_path) -> Iterator[sqlite3.Connection]:
    with closing(open_database(tmp_path / "hearth.db")) as database:
        yield database.connection()


def seed(
    connection: sqlite3.Connection,
    *,
    rows: int,
    days_old: float,
    first: int = 0,
    caller: str = "webui",
    reason: str = "",
) -> None:
    connection.execute(
        SEED,
        {
            "rows": rows,
            "first": first,
            "at": WALL - days_old * DAY_S,
            "caller": caller,
            "reason": reason,
        },
    )


def one(connection: sqlite3.Connection, question: str) -> int:
    return int(connection.execute(question).fetchone()[0])


def count(connection: sqlite3.Connection, table: str = "invocation_log") -> int:
    return one(connection, f"SELECT COUNT(*) FROM {table}")


def run(
    connection: sqlite3.Connection, *, retention_days: float = 90.0, max_mib: float = 512.0
) -> int:
    """Steps until there is nothing more to do."""
    clock = StoppedClock()
    step = keeping(
        retention_days=retention_days, max_mib=max_mib, clock=clock, calendar=believed(clock)
    )
    steps = 0
    before = count(connection)
    while step(connection):
        assert not connection.in_transaction
        assert before - count(connection) <= ROWS_PER_STEP
        steps = steps + 1
        before = count(connection)
    return steps


def test_rows_go_in_many_small_steps_when_they_are_too_old_and_not_before(connection):
    seed(connection, rows=20_000, days_old=91, first=0)
    seed(connection, rows=4, days_old=89, first=30_000)
    assert run(connection) >= 20_000 // ROWS_PER_STEP
    assert count(connection) == 4
    assert one(connection, "SELECT COUNT(*) FROM usage") == 0


def test_the_file_shrinks_when_much_is_forgotten(connection):
    seed(connection, rows=2_500, days_old=100, reason="x" * 4000)
    assert one(connection, "PRAGMA page_count") > 2 * SLACK_PAGES
    assert run(connection) < 20
    assert one(connection, "PRAGMA page_count") <= SLACK_PAGES + 100


def test_beyond_its_size_the_oldest_rows_go_first_until_nothing_is_left(connection):
    seed(connection, rows=3_000, days_old=2, caller="old")
    seed(connection, rows=9_000, days_old=1, first=10_000, caller="new")
    run(connection, max_mib=1.0)
    used = (
        "SELECT (p.page_count - f.freelist_count) * 4096 FROM pragma_page_count p, "
        "pragma_freelist_count f"
    )
    assert one(connection, used) <= 1 << 20
    left = dict(
        connection.execute("SELECT caller, COUNT(*) FROM invocation_log GROUP BY caller").fetchall()
    )
    assert left["new"] > 2_000
    assert "old" not in left
    run(connection, max_mib=0.0)
    assert count(connection) == 0


def test_what_files_keep_does_not_push_out_the_log(connection):
    seed(connection, rows=100, days_old=1)
    file = (
        "INSERT INTO files (caller, purpose, filename, state, bytes, created_wall_s) "
        "VALUES ('me', 'batch', '', 'ready', ?, ?)"
    )
    connection.execute(file, (2 << 20, WALL))
    connection.execute(
        "INSERT INTO file_parts (file, place, data) VALUES (1, 0, zeroblob(?))", (2 << 20,)
    )
    run(connection, max_mib=1.0)
    assert count(connection) == 100


def test_old_swaps_and_closed_reservations_go_and_open_ones_stay(connection):
    connection.execute(
        "INSERT INTO swaps VALUES (1, 1, 1, ?, '[]', 'a', 1.0, NULL, NULL, 0, '', NULL)",
        (WALL - 100 * DAY_S,),
    )
    names = (
        ("open", "reserved", 100),
        ("paid", "settled", 100),
        ("free", "released", 4),
        ("today", "settled", 0.5),
        ("1", "settled", 1.5),
    )
    for name, state, days_old in names:
        values = (name, state, WALL - days_old * DAY_S)
        connection.execute(
            (
                "INSERT INTO ledger VALUES (?, 1, 'webui', 'claude', 1.0, NULL, ?, ?, NULL, "
                "'external')"
            ),
            values,
        )
    run(connection, retention_days=0.01)
    assert count(connection, "swaps") == 0
    assert {name for (name,) in connection.execute("SELECT id FROM ledger")} == {
        "open",
        "today",
        "1",
    }


@pytest.mark.parametrize("ends_by", ["the owner", "a day", "the right time"])
def test_a_clock_that_jumps_ahead_deletes_nothing_until_it_is_believed(connection, ends_by):
    seed(connection, rows=3, days_old=89)
    clock = StoppedClock(wall_s=WALL + 60 * DAY_S)
    sink = Recorder()
    stamps = list[float]()
    calendar = believed(clock, wall_s=WALL, stamp=stamps.append)
    step = keeping(retention_days=90.0, max_mib=512.0, clock=clock, calendar=calendar)
    step(connection)
    calendar.look(sink)
    clock.advance(0.9 * DAY_S)
    calendar.look(sink)
    step(connection)
    assert count(connection) == 3
    assert [event.ahead_s for event in sink.of(ClockDoubted)] == [60 * DAY_S]
    assert stamps == []
    if ends_by == "the owner":
        calendar.confirm()
    elif ends_by == "a day":
        clock.advance(0.1 * DAY_S)
    else:
        clock.wall_s = WALL + 0.9 * DAY_S
    calendar.look(sink)
    step(connection)
    assert count(connection) == (3 if ends_by == "the right time" else 0)
    assert [type(event) for event in sink.all] == [ClockDoubted, ClockConfirmed]
    assert stamps == [clock.wall()]


def test_a_clock_that_was_set_back_and_returns_is_not_doubted():
    clock = StoppedClock(wall_s=0.0)
    sink = Recorder()
    stamps = list[float]()
    calendar = believed(clock, wall_s=WALL, stamp=stamps.append)
    calendar.look(sink)
    assert stamps == []
    clock.wall_s = WALL + 3600.0
    calendar.look(sink)
    assert (sink.all, stamps) == ([], [WALL + 3600.0])


async def test_a_start_with_a_clock_months_ahead_forgets_only_when_confirmed(tmp_path, clock):
    path = tmp_path / "hearth.db"
    async with opened(path, clock) as store:
        store.invocations.emit(ended(1))
        await store.jobs.accept(job("job_1"), StoreLimits(max_queued=10, max_bytes=1 << 20))
        await store.jobs.cancel("job_1", math.inf)
        number = await store.files.begin("me")
        await store.files.append(number, 0, b"x", 1 << 20)
        await store.files.seal(number, file_id="file-1", filename="", life_s=30 * DAY_S)
        store.calendar.look(Recorder())
    clock.advance(3600.0)
    clock.wall_s += 120 * DAY_S

    async def left() -> tuple[Any, ...]:
        await store.jobs.forget(clock.wall() - 7 * DAY_S)
        while await store.files.sweep():
            pass
        clock.advance(301.0)
        await written(store)
        found = (
            await store.jobs.find("job_1"),
            await store.files.find("file-1"),
            *await store.invocations.find(limit=50),
        )
        return (*(each is not None for each in found), store.shown()["clock_in_doubt"])

    async with opened(path, clock) as store:
        assert await left() == (True, True, True, True)
        store.calendar.confirm()
        assert await left() == (False, False, False)
