"""What SQLite's tables of the history do, beside what any store does (`test_port_history.py`)."""

from __future__ import annotations

import asyncio
import random

import pytest

from hearth.clock import new_id
from hearth.storage import usage
from hearth.types import JOB_PREFIX, Lane
from tests.storage.house import ended, opened, queued, written
from tests.support.recorder import Recorder
from tests.support.stopped_clock import WALL

HOUR = int(WALL // 3600)
DAY = {"last_hour": HOUR, "hours": 24, "width_hours": 1}


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
            found = await store.invocations.used(
                last_hour=HOUR, hours=24, width_hours=width, caller=None
            )
            assert (
                found["total"]["requests"]
                == sum(each["requests"] for each in found["buckets"])
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
    assert (await store.invocations.used(**DAY, caller=None))["total"][
        "requests"
    ] == seen - left + 1


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
