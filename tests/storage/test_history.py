"""One row per finished item and per swap, what was learned, and the questions that are asked about them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from hearth.clock import new_id
from hearth.events import BackendWentDown
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, EndedCount, Invocation, Lane, LoggedSwap, Outcome
from tests.storage.conftest import written
from tests.storage.house import WALL
from tests.storage.samples import ended, queued, swap_failed, swapped


async def test_a_row_says_what_the_event_said_with_calendar_instants(store):
    changed = {"task_type": "summary", "outcome": Outcome.FAILED, "reason": "backend_gone", "interrupt_count": 2, "attempts": 3}
    event = ended(7, at=998.0, status=502, cost_usd=0.25, **changed)
    store.invocations.emit(event)
    await written(store)
    (row,) = await store.invocations.find(limit=50)
    known = {"epoch": store.epoch, "chain_id": None, "accepted_wall_s": WALL - 12.0, "ended_wall_s": WALL - 2.0}
    assert row == Invocation(**{each.name: getattr(event, each.name) for each in fields(Invocation) if each.name not in known}, **known)


async def test_an_event_that_is_written_twice_is_one_row(store):
    for event in (ended(1), ended(1, caller="other"), BackendWentDown(at=0.0, reason="refused")):
        store.invocations.emit(event)
    await written(store)
    assert [row.caller for row in await store.invocations.find(limit=50)] == ["webui"]


async def test_a_question_is_answered_with_what_ended_just_before_it(store):
    store.invocations.emit(ended(1))
    assert [row.sequence for row in await store.invocations.find(limit=50)] == [1]


async def test_text_that_no_database_takes_is_escaped_instead_of_lost(store):
    store.invocations.emit(ended(1, model="bad\ud800name\0'; DROP TABLE swaps"))
    await written(store)
    (row,) = await store.invocations.find(limit=50)
    assert row.model == "bad\\ud800name\0'; DROP TABLE swaps"


@pytest.mark.parametrize(
    ("wanted", "sequences"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"limit": 2}, [5, 4]),
        ({"limit": -1}, []),
        ({"caller": "n8n"}, [4, 2]),
        ({"model": "b"}, [5, 4]),
        ({"outcome": Outcome.CANCELLED}, [3]),
        ({"caller": "n8n", "model": "b"}, [4]),
        ({"since_wall_s": WALL - 40.0}, [5, 4, 3, 2]),
        ({"until_wall_s": WALL - 20.0}, [4, 3, 2, 1]),
        ({"caller": "nobody' OR 1=1 --"}, []),
    ],
)
async def test_rows_are_found_by_caller_model_outcome_and_age_latest_first(store, wanted, sequences):
    store.invocations.emit(ended(1, at=950.0))
    store.invocations.emit(ended(2, at=960.0, caller="n8n"))
    store.invocations.emit(ended(3, at=970.0, outcome=Outcome.CANCELLED))
    store.invocations.emit(ended(4, at=980.0, caller="n8n", model="b"))
    store.invocations.emit(ended(5, at=990.0, model="b"))
    await written(store)
    assert [row.sequence for row in await store.invocations.find(**{"limit": 50, **wanted})] == sequences


async def test_a_clock_that_was_set_back_does_not_change_the_order(store, clock):
    store.invocations.emit(ended(1))
    clock.wall_s -= 86_400.0
    store.invocations.emit(ended(2))
    await written(store)
    assert [row.sequence for row in await store.invocations.find(limit=50)] == [2, 1]


async def test_counts_are_by_minute_lane_and_outcome_oldest_first(store):
    assert await store.invocations.counts_since(0.0) == ()
    store.invocations.emit(ended(1, at=100.0))
    store.invocations.emit(ended(2, at=941.0, interrupt_count=2))
    store.invocations.emit(ended(3, at=942.0))
    store.invocations.emit(ended(4, at=945.0, interrupt_count=1, outcome=Outcome.FAILED))
    store.invocations.emit(ended(5, at=1000.0, lane=Lane.INTERNAL))
    await written(store)
    assert await store.invocations.counts_since(WALL - 60.0) == (
        EndedCount(lane=Lane.EXTERNAL, first_wall_s=WALL - 59.0, outcome=Outcome.COMPLETED, items=2, interruptions=2),
        EndedCount(lane=Lane.EXTERNAL, first_wall_s=WALL - 55.0, outcome=Outcome.FAILED, items=1, interruptions=1),
        EndedCount(lane=Lane.INTERNAL, first_wall_s=WALL, outcome=Outcome.COMPLETED, items=1, interruptions=0),
    )


async def test_admissions_are_those_that_the_rate_limits_count(store):
    store.invocations.emit(ended(1, at=900.0, caller="late", total_s=5.0))
    store.invocations.emit(ended(2, at=890.0, caller="early", total_s=5.0, outcome=Outcome.CANCELLED))
    store.invocations.emit(ended(3, at=990.0, caller="old", total_s=500.0))
    store.invocations.emit(ended(4, caller="router", lane=Lane.INTERNAL))
    await written(store)
    assert await store.invocations.admissions_since(WALL - 115.0) == (("early", WALL - 115.0), ("late", WALL - 105.0))


async def test_what_takes_a_while_is_an_admission_before_it_has_ended_and_never_twice(store):
    for sequence, caller in enumerate(("quick", "slow", "slower"), 1):
        store.invocations.emit(queued(sequence, at=900.0, caller=caller))
    store.invocations.emit(queued(4, at=900.0, caller="router", lane=Lane.INTERNAL))
    store.invocations.emit(queued(5, at=900.0, caller="hasty", request_id=new_id(JOB_PREFIX)))
    store.invocations.emit(ended(1, at=900.5, caller="quick", total_s=0.5))
    store.invocations.note_admissions()
    store.invocations.emit(ended(2, at=905.0, caller="slow", total_s=5.0))
    await written(store)
    admitted = await store.invocations.admissions_since(WALL - 115.0)
    assert sorted(admitted) == [(caller, WALL - 100.0) for caller in ("quick", "slow", "slower")]


@pytest.mark.parametrize(
    ("request_id", "counts"),
    [
        *((own, True) for own in ("job_17", f"job_{'f' * 31}", f"job_{'F' * 32}", f"batch_req_{'0' * 33}", f"xjob_{'0' * 32}")),
        *((new_id(prefix), False) for prefix in (JOB_PREFIX, BATCH_JOB_PREFIX)),
    ],
    ids=range(7),
)
async def test_a_request_is_an_admission_whatever_its_caller_calls_it_and_a_start_of_a_job_is_none(store, request_id, counts):
    store.invocations.emit(ended(1, request_id=request_id))
    await written(store)
    assert await store.invocations.admissions_since(WALL - 115.0) == ((("webui", WALL - 10.0),) if counts else ())


async def test_swaps_are_listed_latest_first_with_what_became_of_them_equal_ones_twice(store):
    for event in (swapped(at=990.0), swapped(at=990.0), ended(1), swap_failed()):
        store.swaps.emit(event)
    await written(store)
    failed = LoggedSwap(
        ended_wall_s=WALL, from_models=(), to_model="c:3", swap_s=120.0, vram_mib=None, offloaded=None, failed=True, reason="swap_timeout"
    )
    done = replace(
        failed, ended_wall_s=WALL - 10.0, from_models=("a:1", "b:2"), swap_s=4.0, vram_mib=9000.0, offloaded=True, failed=False, reason=""
    )
    for wanted, found in (
        ((0.0, None, 10), (failed, done, done)),
        ((0.0, None, 1), (failed,)),
        ((0.0, None, -1), ()),
        ((WALL, None, 10), (failed,)),
        ((0.0, WALL - 10.0, 10), (done, done)),
    ):
        since, until, limit = wanted
        assert await store.invocations.swaps(since_wall_s=since, until_wall_s=until, limit=limit) == found


async def test_the_last_document_of_a_name_is_kept(store):
    store.estimates.save("swaps", {"a": 1.5})
    store.estimates.save("swaps", {"a": [2, None, {"b": True}]})
    store.estimates.save("services", {})
    await written(store)
    assert await store.estimates.load("swaps") == {"a": [2, None, {"b": True}]}
    assert await store.estimates.load("services") == {}
    assert await store.estimates.load("unknown") is None


@pytest.mark.parametrize("document", [{"a": object()}, {"a": float("nan")}])
async def test_only_plain_values_are_taken(store, document):
    with pytest.raises((TypeError, ValueError)):
        store.estimates.save("swaps", document)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
async def test_a_document_that_cannot_be_read_counts_as_never_learned(store, text):
    await store.writer.submit(lambda connection: connection.execute("INSERT INTO estimates VALUES ('swaps', ?, 0)", (text,)).rowcount)
    assert await store.estimates.load("swaps") is None
