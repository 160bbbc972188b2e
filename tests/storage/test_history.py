"""What SQLite's tables of the history do, beside what any store does (`test_port_history.py`)."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from hearth.clock import new_id
from hearth.storage import usage
from hearth.storage.opening import migrate, shipped_migrations
from hearth.types import JOB_PREFIX, Lane, UsageQuery
from tests.storage.house import ended, opened, queued, written
from tests.support.recorder import Recorder
from tests.support.stopped_clock import WALL

HOUR = int(WALL // 3600)
DAY = UsageQuery(last_hour=HOUR, hours=24, width_hours=1)


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


async def test_every_request_counts_once_however_much_was_added_up(store):
    draw = random.Random(1)
    seen = 0
    for _ in range(6):
        for _ in range(draw.randrange(1, 900)):
            seen += 1
            store.invocations.emit(
                ended(
                    seen,
                    at=1000.0 - draw.random() * 80_000.0,
                    caller=draw.choice("ab"),
                    bound_kept=seen % 4 > 0,
                )
            )
        await store.writer.submit(usage.roll_up)
        for width in (1, 6, 24):
            found = await store.invocations.used(replace(DAY, hours=48, width_hours=width))
            assert (
                found["total"]["requests"]
                == sum(each["requests"] or 0 for each in found["buckets"])
                == seen
            )
            assert sum(each["requests"] for each in found["callers"]) == seen
            kept = seen - seen // 4
            assert found["total"]["bound_kept_share"] == round(kept / seen, 3)
    while await store.writer.submit(usage.roll_up):
        pass
    left = (
        await store.writer.submit(lambda connection: connection.execute(usage._NEXT).fetchone())
    )[0]
    await store.writer.submit(
        lambda connection: connection.execute("DELETE FROM invocation_log").rowcount
    )
    store.invocations.emit(ended(9000))
    await written(store)
    assert (await store.invocations.used(DAY))["total"]["requests"] == seen - left + 1


async def test_callers_are_added_up_once_however_much_was_added_up_before(store):
    draw = random.Random(2)
    ends: dict[str, float] = {}
    asked = {"last_hour": HOUR, "caller": None}
    requests = {"24h": 0, "30d": 0}
    for number in range(1, 1_501):
        caller, ago_s = draw.choice("abc"), draw.random() * 160_000.0
        store.invocations.emit(ended(number, at=1000.0 - ago_s, caller=caller, prompt_tokens=2))
        ends[caller] = max(ends.get(caller, 0.0), WALL - ago_s)
        requests["30d"] += 1
        requests["24h"] += int((WALL - ago_s) // 3600) > HOUR - 24
        if number % 500 == 0:
            await written(store)
            found = await store.invocations.by_caller(**asked)
            assert {name: each["last_end_wall_s"] for name, each in found.items()} == (
                pytest.approx(ends)
            )
            for window, count in requests.items():
                assert sum(each[window]["requests"] for each in found.values()) == count
                assert sum(each[window]["prompt_tokens"] for each in found.values()) == 2 * count
            await store.writer.submit(usage.roll_up)
    await store.writer.submit(
        lambda connection: connection.execute("DELETE FROM invocation_log").rowcount
    )
    found = await store.invocations.by_caller(**asked)
    hours = {caller: end // 3600 * 3600 for caller, end in ends.items()}
    assert {name: each["last_end_wall_s"] for name, each in found.items()} == hours


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
async def test_a_document_that_is_damaged_is_an_empty_one(store, text):
    await store.writer.submit(
        lambda connection: (
            connection.execute("INSERT INTO estimates VALUES ('odd', ?, 0)", (text,)).rowcount
        )
    )
    assert await store.documents.load("odd") == {}
    assert await store.documents.load("none") is None


async def test_only_dead_processes_leave_reservations_without_an_owner(tmp_path, clock):
    async with opened(tmp_path / "hearth.db", clock) as store:
        await store.ledger.reserve(
            "mine", caller="n8n", model="claude", reserved_usd=1.0, at_wall_s=WALL
        )
        assert await store.ledger.settle_orphans() == 0


async def test_a_process_ran_until_it_ended_or_was_last_heard_of(tmp_path, clock):
    path = tmp_path / "hearth.db"
    async with opened(path, clock) as store:  # killed: its last row is all that is known
        store.invocations.emit(ended(1, at=clock.monotonic() + 50.0))
        await written(store)
        assert await store.invocations.runs_since(0.0) == ()
    clock.advance(100.0)
    async with opened(path, clock) as store:
        looking = asyncio.create_task(store.calendar.run(Recorder()))
        await asyncio.sleep(0)
        clock.advance(30.0)
        looking.cancel()
        await asyncio.wait({looking})
        await written(store)
    clock.advance(100.0)
    async with opened(path, clock) as store:
        first, second = await store.invocations.runs_since(0.0)
        assert (first.started_wall_s, first.seen_wall_s) == (WALL, WALL + 50.0)
        assert (second.started_wall_s, second.seen_wall_s) == (WALL + 100.0, WALL + 130.0)
        assert await store.invocations.runs_since(WALL + 60.0) == (second,)


async def test_where_hearth_did_not_run_nothing_is_known_of_the_time(tmp_path, clock):
    path = tmp_path / "hearth.db"
    async with opened(path, clock) as store:
        store.invocations.emit(ended(1))
        await written(store)
        clock.advance(1800.0)
        store.calendar.look(Recorder())  # that it ran until now
        await written(store)
    clock.advance(3 * 3600.0)
    async with opened(path, clock) as store:
        clock.advance(600.0)
        asked = replace(DAY, last_hour=int(clock.wall() // 3600), hours=6, group="model")
        found: Any = await store.invocations.used(asked)
        shown = [(each["known_s"], each["requests"]) for each in found["buckets"]]
        assert shown == [
            (0.0, None),
            (0.0, None),
            (1800.0, 1),
            (0.0, None),
            (0.0, None),
            (600.0, 0),
        ]
        assert found["groups"][0]["requests"] == [None, None, 1, None, None, 0]
        forgotten = replace(asked, kept_since_wall_s=clock.wall())
        found = await store.invocations.used(forgotten)
        assert found["buckets"][-1]["requests"] is None


def test_what_was_added_up_before_engines_were_known_is_kept(tmp_path):
    steps = shipped_migrations()
    before = next(i for i, (name, _) in enumerate(steps) if name.endswith("usage_by_engine"))
    with closing(sqlite3.connect(tmp_path / "hearth.db", isolation_level=None)) as connection:
        migrate(connection, steps[:before])
        rows = ", ".join(
            f"({hour}, 'n8n', 'a:1', 3, 1, 10, 20, 5.0, {', '.join('0' * 14)}, 2, 1)"
            for hour in (HOUR, HOUR + 1, HOUR + 6)
        )
        connection.execute(f"INSERT INTO usage_hours VALUES {rows}")
        migrate(connection, steps)
        columns = "hours, period, engine, requests, output_tokens, bounded"
        found = connection.execute(f"SELECT {columns} FROM usage ORDER BY 1, 2").fetchall()
    assert found == [
        *((1, hour, "", 3, 20, 2) for hour in (HOUR, HOUR + 1, HOUR + 6)),
        (6, HOUR // 6, "", 6, 40, 4),
        (6, HOUR // 6 + 1, "", 3, 20, 2),
        (24, HOUR // 24, "", 9, 60, 6),
    ]
