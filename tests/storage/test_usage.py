"""The log added up: each request once, whatever has been added up so far."""

from __future__ import annotations

import random

import pytest

from hearth.storage import usage
from hearth.types import Outcome
from tests.storage.conftest import written
from tests.storage.house import WALL
from tests.storage.samples import ended, swapped

HOUR = int(WALL // 3600)
DAY = {"last_hour": HOUR, "hours": 24, "width_hours": 1}


async def test_requests_are_added_up_by_time_caller_and_model(store):
    store.invocations.emit(ended(1, caller="n8n", queue_s=4.0, prompt_tokens=10, output_tokens=None))
    store.invocations.emit(ended(2, at=1000.0 - 2 * 3600.0, model=None, outcome=Outcome.EXPIRED, backend_s=None))
    store.invocations.emit(ended(3, at=1000.0 - 25 * 3600.0))
    store.swaps.emit(swapped())
    await written(store)
    found = await store.invocations.used(**DAY, caller=None)
    assert found["total"] == {
        "requests": 2,
        "failed": 1,
        "prompt_tokens": 22,
        "output_tokens": 34,
        "swaps": 1,
        "backend_s": 7.5,
        "swap_s": 4.0,
        "wait_p50_s": 3.5,
        "wait_p95_s": 4.85,
        "swap_share": 0.348,
    }
    assert [(each["start_wall_s"], each["requests"]) for each in found["buckets"] if each["requests"]] == [(WALL - 7200.0, 1), (WALL, 1)]
    assert {each["caller"]: each["requests"] for each in found["callers"]} == {"n8n": 1, "webui": 1}
    assert {each["model"]: (each["requests"], each["swaps"]) for each in found["models"]} == {
        "llama3.1:8b": (1, 0),
        None: (1, 0),
        "c:3": (0, 1),
    }
    of_one = await store.invocations.used(**DAY, caller="n8n")
    assert [each["caller"] for each in of_one["callers"]] == ["n8n"]


@pytest.mark.parametrize(("waits", "p50", "p95"), [([], None, None), ([7.0] * 10, 7.5, 9.75), ([0.0] * 9 + [9000.0], 0.06, 4500.0)])
async def test_percentiles_are_interpolated_within_a_range(store, waits, p50, p95):
    for number, wait_s in enumerate(waits):
        store.invocations.emit(ended(number, queue_s=wait_s))
    await written(store)
    total = (await store.invocations.used(**DAY, caller=None))["total"]
    assert (total["wait_p50_s"], total["wait_p95_s"]) == (p50, p95)


async def test_every_request_counts_once_however_much_has_been_added_up(store):
    draw, seen = random.Random(1), 0
    for _ in range(6):
        for _ in range(draw.randrange(1, 900)):
            seen += 1
            store.invocations.emit(ended(seen, at=1000.0 - draw.random() * 80_000.0, caller=draw.choice("ab")))
        await store.writer.submit(usage.roll_up)
        for width in (1, 6, 24):
            found = await store.invocations.used(last_hour=HOUR, hours=24, width_hours=width, caller=None)
            assert found["total"]["requests"] == sum(each["requests"] for each in found["buckets"]) == seen
            assert sum(each["requests"] for each in found["callers"]) == seen


async def test_ids_that_begin_anew_in_an_emptied_log_are_counted_too(store):
    for number in range(usage.ROWS_PER_STEP):
        store.invocations.emit(ended(number))
    assert await store.writer.submit(usage.roll_up)
    await store.writer.submit(lambda connection: connection.execute("DELETE FROM invocation_log").rowcount)
    store.invocations.emit(ended(9000))
    await written(store)
    assert (await store.invocations.used(**DAY, caller=None))["total"]["requests"] == usage.ROWS_PER_STEP + 1
