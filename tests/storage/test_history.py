"""One row per finished item and per swap, what was learned, what was spent; the questions asked
about them, and what is forgotten.
"""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from typing import Any

import pytest

from hearth.clock import new_id
from hearth.events import BackendWentDown, ClockConfirmed, ClockDoubted
from hearth.job_types import StoreLimits
from hearth.storage import history
from hearth.storage.history import ROWS_PER_STEP, SLACK_PAGES, keeping
from hearth.storage.store import Store
from hearth.types import (
    BATCH_JOB_PREFIX,
    DAY_S,
    JOB_PREFIX,
    EndedCount,
    Invocation,
    Lane,
    LoggedSwap,
    Outcome,
)
from tests.jobs.house import job
from tests.storage.house import (
    WALL,
    StoppedClock,
    believed,
    ended,
    open_database,
    opened,
    queued,
    swap_failed,
    swapped,
    written,
)
from tests.support.recorder import Recorder


async def test_a_row_says_what_the_event_said_and_is_written_once(tmp_path, clock):
    changed = {
        "task_type": "summary",
        "outcome": Outcome.FAILED,
        "reason": "backend_gone",
        "interrupt_count": 2,
        "attempts": 3,
    }
    event = ended(7, at=998.0, status=502, cost_usd=0.25, **changed)
    for _ in range(2):
        async with opened(tmp_path / "hearth.db", clock) as store:
            for each in (
                event,
                replace(event, caller="other"),
                BackendWentDown(at=0.0, reason="refused"),
            ):
                store.invocations.emit(each)
    async with opened(tmp_path / "hearth.db", clock) as store:
        second, first = await store.invocations.find(limit=50)
    known: dict[str, Any] = {
        "epoch": 1,
        "chain_id": None,
        "accepted_wall_s": WALL - 12.0,
        "ended_wall_s": WALL - 2.0,
    }
    assert first == Invocation(
        **{
            each.name: getattr(event, each.name)
            for each in fields(Invocation)
            if each.name not in known
        },
        **known,
    )
    assert second == replace(first, epoch=2)


async def test_text_that_no_database_takes_is_escaped_instead_of_lost(
    store,
):
    store.invocations.emit(ended(1, model="bad\ud800name\0'; DROP TABLE swaps"))
    (row,) = await store.invocations.find(limit=50)
    assert row.model == "bad\\ud800name\0'; DROP TABLE swaps"


async def test_rows_are_found_by_caller_model_outcome_and_age_latest_first(store, clock):
    store.invocations.emit(ended(1, at=950.0))
    store.invocations.emit(ended(2, at=960.0, caller="n8n"))
    store.invocations.emit(ended(3, at=970.0, outcome=Outcome.CANCELLED))
    store.invocations.emit(ended(4, at=980.0, caller="n8n", model="b"))
    store.invocations.emit(ended(5, at=990.0, model="b"))
    for wanted, sequences in (
        ({}, [5, 4, 3, 2, 1]),
        ({"limit": 2}, [5, 4]),
        ({"limit": 2, "skip": 2}, [3, 2]),
        ({"skip": 5}, []),
        ({"limit": -1}, []),
        ({"caller": "n8n"}, [4, 2]),
        ({"model": "b"}, [5, 4]),
        ({"outcome": Outcome.CANCELLED}, [3]),
        ({"caller": "n8n", "model": "b"}, [4]),
        ({"since_wall_s": WALL - 40.0}, [5, 4, 3, 2]),
        ({"until_wall_s": WALL - 20.0}, [4, 3, 2, 1]),
        ({"caller": "nobody' OR 1=1 --"}, []),
    ):
        assert [
            row.sequence for row in await store.invocations.find(**{"limit": 50, **wanted})
        ] == sequences, wanted
    clock.wall_s -= DAY_S
    store.invocations.emit(ended(6))
    assert [row.sequence for row in await store.invocations.find(limit=2)] == [6, 5]


async def test_counts_are_by_minute_lane_and_outcome_oldest_first(store):
    assert await store.invocations.counts_since(0.0) == ()
    store.invocations.emit(ended(1, at=100.0))
    store.invocations.emit(ended(2, at=941.0, interrupt_count=2))
    store.invocations.emit(ended(3, at=942.0))
    store.invocations.emit(ended(4, at=945.0, interrupt_count=1, outcome=Outcome.FAILED))
    store.invocations.emit(ended(5, at=1000.0, lane=Lane.INTERNAL))
    await written(store)
    assert await store.invocations.counts_since(WALL - 60.0) == (
        EndedCount(
            lane=Lane.EXTERNAL,
            first_wall_s=WALL - 59.0,
            outcome=Outcome.COMPLETED,
            items=2,
            interruptions=2,
        ),
        EndedCount(
            lane=Lane.EXTERNAL,
            first_wall_s=WALL - 55.0,
            outcome=Outcome.FAILED,
            items=1,
            interruptions=1,
        ),
        EndedCount(
            lane=Lane.INTERNAL,
            first_wall_s=WALL,
            outcome=Outcome.COMPLETED,
            items=1,
            interruptions=0,
        ),
    )


async def test_admissions_are_those_that_the_rate_limits_count(store):
    store.invocations.emit(ended(1, at=900.0, caller="late", total_s=5.0))
    store.invocations.emit(
        ended(2, at=890.0, caller="early", total_s=5.0, outcome=Outcome.CANCELLED)
    )
    store.invocations.emit(ended(3, at=990.0, caller="old", total_s=500.0))
    store.invocations.emit(ended(4, caller="router", lane=Lane.INTERNAL))
    store.invocations.emit(ended(5, at=900.0, caller="reader", total_s=5.0, counted="embeddings"))
    store.invocations.emit(ended(6, at=900.0, caller="reader", total_s=5.0, counted=None))
    await written(store)
    assert await store.invocations.admissions_since(WALL - 115.0) == (
        ("early", WALL - 115.0, "requests"),
        ("late", WALL - 105.0, "requests"),
        ("reader", WALL - 105.0, "embeddings"),
    )


async def test_what_takes_a_while_is_an_admission_before_it_has_ended_and_never_twice(store):
    for sequence, caller in enumerate(("quick", "slow", "slower"), 1):
        store.invocations.emit(queued(sequence, at=900.0, caller=caller))
    store.invocations.emit(queued(4, at=900.0, caller="router", lane=Lane.INTERNAL))
    store.invocations.emit(queued(5, at=900.0, caller="hasty", request_id=new_id(JOB_PREFIX)))
    store.invocations.emit(queued(6, at=900.0, caller="reader", counted="embeddings"))
    store.invocations.emit(queued(7, at=900.0, caller="rider", counted=None))
    store.invocations.emit(ended(1, at=900.5, caller="quick", total_s=0.5))
    store.invocations.note_admissions()
    store.invocations.emit(ended(2, at=905.0, caller="slow", total_s=5.0))
    await written(store)
    admitted = await store.invocations.admissions_since(WALL - 115.0)
    took = [(caller, WALL - 100.0, "requests") for caller in ("quick", "slow", "slower")]
    assert sorted(admitted) == sorted([*took, ("reader", WALL - 100.0, "embeddings")])


async def test_a_request_is_an_admission_and_a_start_of_a_job_is_none(
    store,
):
    own = (
        "job_17",
        f"job_{'f' * 31}",
        f"job_{'F' * 32}",
        f"batch_req_{'0' * 33}",
        f"xjob_{'0' * 32}",
    )
    for sequence, name in enumerate((*own, new_id(JOB_PREFIX), new_id(BATCH_JOB_PREFIX))):
        store.invocations.emit(ended(sequence, request_id=name, caller=name))
    await written(store)
    assert {
        caller for caller, _, _ in await store.invocations.admissions_since(WALL - 115.0)
    } == set(own)


async def test_swaps_are_listed_latest_first_with_what_became_of_them(store):
    for event in (swapped(at=990.0), swapped(at=990.0), ended(1), swap_failed()):
        store.invocations.emit(event)
    await written(store)
    lost: dict[str, Any] = {
        "vram_mib": None,
        "offloaded": None,
        "failed": True,
        "reason": "swap_timeout",
    }
    kept: dict[str, Any] = {"vram_mib": 9000.0, "offloaded": True, "failed": False, "reason": ""}
    failed = LoggedSwap(ended_wall_s=WALL, from_models=(), to_model="c:3", swap_s=120.0, **lost)
    done = LoggedSwap(
        ended_wall_s=WALL - 10.0, from_models=("a:1", "b:2"), to_model="c:3", swap_s=4.0, **kept
    )
    for since, until, limit, found in (
        (0.0, None, 10, (failed, done, done)),
        (0.0, None, 1, (failed,)),
        (0.0, None, -1, ()),
        (WALL, None, 10, (failed,)),
        (0.0, WALL - 10.0, 10, (done, done)),
    ):
        assert (
            await store.invocations.swaps(since_wall_s=since, until_wall_s=until, limit=limit)
            == found
        )


async def test_the_last_document_of_a_name_is_kept_and_damage_is_never_learned(
    store,
):
    store.estimates.save("swaps", {"a": 1.5})
    store.estimates.save("swaps", {"a": [2, None, {"b": True}]})
    store.estimates.save("services", {})
    for document in ({"a": object()}, {"a": float("nan")}):
        with pytest.raises((TypeError, ValueError)):
            store.estimates.save("swaps", document)
    for text in ("", "{", "[1]", "null"):
        await store.writer.submit(
            lambda sql, text=text: (
                sql.execute("REPLACE INTO estimates VALUES ('odd', ?, 0)", (text,)).rowcount
            )
        )
        assert await store.estimates.load("odd") is None, text
    assert await store.estimates.load("swaps") == {"a": [2, None, {"b": True}]}
    assert await store.estimates.load("services") == {}
    assert await store.estimates.load("unknown") is None


# Money is set aside before it is spent, and every reservation ends exactly once.


async def booked(store: Store, *, days_later: int = 0) -> float:
    """US dollars of one day, paid or set aside."""
    start_s = WALL + days_later * DAY_S
    return sum(
        usd
        for *_, usd in await store.ledger.booked(start_wall_s=start_s, end_wall_s=start_s + DAY_S)
    )


async def reserve(
    store: Store, name: str, usd: float = 1.0, at_wall_s: float = WALL, lane: Lane = Lane.EXTERNAL
) -> bool:
    return await store.ledger.reserve(
        name, caller="n8n", model="claude", reserved_usd=usd, at_wall_s=at_wall_s, lane=lane
    )


@pytest.mark.parametrize("first", [("settle", 0.25), ("release", 0.0)])
@pytest.mark.parametrize("second", ["settle", "release"])
async def test_a_reservation_counts_until_it_is_settled_or_released_and_ends_once(
    store, first, second
):
    how, cost = first
    name = f"{how}-{second}"
    end = {
        "settle": lambda: store.ledger.settle(name, 0.25),
        "release": lambda: store.ledger.release(name),
    }
    before = await booked(store)
    await reserve(store, name)
    assert not await reserve(store, name, 5.0)
    assert not await store.ledger.settle("ghost", 1.0)
    assert not await store.ledger.release("ghost")
    assert await booked(store) == before + 1.0
    assert await end[how]()
    assert not await end[second]()
    assert await booked(store) == before + cost


async def test_what_is_no_amount_of_money_is_refused(store):
    await reserve(store, "b")
    for usd in (-0.01, float("nan"), float("inf")):
        for refused in (reserve(store, "a", usd), store.ledger.settle("b", usd)):
            with pytest.raises(ValueError, match="amount"):
                await refused


async def test_a_spend_falls_into_exactly_one_of_adjoining_days(store, clock):
    clock.wall_s = WALL + DAY_S + 1.0
    await reserve(store, "midnight", at_wall_s=WALL + DAY_S)
    clock.advance(3600.0)
    await store.ledger.settle("midnight", 0.5)
    assert [await booked(store, days_later=days) for days in range(3)] == [0.0, 0.5, 0.0]


async def test_a_start_counts_what_dead_processes_left_as_spent(tmp_path, clock):
    async with opened(tmp_path / "hearth.db", clock) as first:
        await reserve(first, "orphan", 4.0)
        await reserve(first, "paid", 2.0, lane=Lane.INTERNAL)
        await first.ledger.settle("paid", 1.5)
    async with opened(tmp_path / "hearth.db", clock) as second:
        told = await second.ledger.booked(start_wall_s=WALL, end_wall_s=WALL + DAY_S)
        assert sorted(told) == [
            ("orphan", "n8n", Lane.EXTERNAL, 4.0),
            ("paid", "n8n", Lane.INTERNAL, 1.5),
        ]
        assert not await second.ledger.settle("orphan", 1.0)
        await reserve(second, "mine", 1.0)
        assert await second.ledger.settle_orphans() == 0
        assert await second.ledger.settle("mine", 0.5)


# The log added up: each request once, whatever has been added up so far.

HOUR = int(WALL // 3600)
DAY = {"last_hour": HOUR, "hours": 24, "width_hours": 1}


async def test_requests_are_added_up_by_time_caller_and_model(store):
    store.invocations.emit(
        ended(1, caller="n8n", queue_s=4.0, prompt_tokens=10, output_tokens=None)
    )
    store.invocations.emit(
        ended(2, at=1000.0 - 2 * 3600.0, model=None, outcome=Outcome.EXPIRED, backend_s=None)
    )
    store.invocations.emit(ended(3, at=1000.0 - 25 * 3600.0))
    store.invocations.emit(swapped())
    await written(store)
    found = await store.invocations.used(**DAY, caller=None)
    counts = {"requests": 2, "failed": 1, "prompt_tokens": 22, "output_tokens": 34, "swaps": 1}
    assert found["total"] == counts | {
        "backend_s": 7.5,
        "swap_s": 4.0,
        "wait_p50_s": 3.5,
        "wait_p95_s": 4.85,
        "swap_share": 0.348,
    }
    assert [
        (each["start_wall_s"], each["requests"]) for each in found["buckets"] if each["requests"]
    ] == [(WALL - 7200.0, 1), (WALL, 1)]
    assert {each["caller"]: each["requests"] for each in found["callers"]} == {"n8n": 1, "webui": 1}
    models = {each["model"]: (each["requests"], each["swaps"]) for each in found["models"]}
    assert models == {"llama3.1:8b": (1, 0), None: (1, 0), "c:3": (0, 1)}
    of_one = await store.invocations.used(**DAY, caller="n8n")
    assert [each["caller"] for each in of_one["callers"]] == ["n8n"]


async def test_percentiles_are_interpolated_within_a_range(store):
    waits = {
        "none": ([], None, None),
        "some": ([7.0] * 10, 7.5, 9.75),
        "long": ([0.0] * 9 + [9000.0], 0.06, 4500.0),
    }
    for first, (caller, (each, *_)) in enumerate(waits.items()):
        for number, wait_s in enumerate(each):
            store.invocations.emit(ended(100 * first + number, caller=caller, queue_s=wait_s))
    await written(store)
    for caller, (_, p50, p95) in waits.items():
        total = (await store.invocations.used(**DAY, caller=caller))["total"]
        assert (total["wait_p50_s"], total["wait_p95_s"]) == (p50, p95)


async def test_every_request_counts_once_however_much_was_added_up(
    store,
):
    draw, seen = random.Random(1), 0
    for _ in range(6):
        for _ in range(draw.randrange(1, 900)):
            seen += 1
            store.invocations.emit(
                ended(seen, at=1000.0 - draw.random() * 80_000.0, caller=draw.choice("ab"))
            )
        await store.writer.submit(history.roll_up)
        for width in (1, 6, 24):
            found = await store.invocations.used(
                last_hour=HOUR, hours=24, width_hours=width, caller=None
            )
            assert (
                found["total"]["requests"]
                == sum(each["requests"] for each in found["buckets"])
                == seen
            )
            assert sum(each["requests"] for each in found["callers"]) == seen
    while await store.writer.submit(history.roll_up):
        pass
    left = (
        await store.writer.submit(lambda connection: connection.execute(history._NEXT).fetchone())
    )[0]
    await store.writer.submit(
        lambda connection: connection.execute("DELETE FROM invocation_log").rowcount
    )
    store.invocations.emit(ended(9000))
    await written(store)
    assert (await store.invocations.used(**DAY, caller=None))["total"][
        "requests"
    ] == seen - left + 1


# Forgetting, by age and by size, a little at a time.

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
    steps, before = 0, count(connection)
    while step(connection):
        assert not connection.in_transaction
        assert before - count(connection) <= ROWS_PER_STEP
        steps, before = steps + 1, count(connection)
    return steps


def test_rows_go_in_many_small_steps_when_they_are_too_old_and_not_before(connection):
    seed(connection, rows=20_000, days_old=91, first=0)
    seed(connection, rows=4, days_old=89, first=30_000)
    assert run(connection) >= 20_000 // ROWS_PER_STEP
    assert count(connection) == 4
    assert one(connection, "SELECT COUNT(*) FROM usage_hours") == 0


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
    assert left["new"] > 4_000
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


def test_old_swaps_and_closed_reservations_go_and_open_ones_stay(
    connection,
):
    connection.execute(
        "INSERT INTO swaps VALUES (1, 1, 1, ?, '[]', 'a', 1.0, NULL, NULL, 0, '')",
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
    clock, sink, stamps = StoppedClock(wall_s=WALL + 60 * DAY_S), Recorder(), list[float]()
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
    clock, sink, stamps = StoppedClock(wall_s=0.0), Recorder(), list[float]()
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
        await store.jobs.add(job("job_1"), StoreLimits(max_queued=10, max_bytes=1 << 20))
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
