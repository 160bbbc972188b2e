"""The history in any store: a row per finished item and per swap, and the questions about them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from hearth.clock import new_id
from hearth.events import BackendWentDown, EnergyMeasured
from hearth.ports import InvocationHistory
from hearth.storage.log_search import MERGED_KINDS
from hearth.types import (
    BATCH_JOB_PREFIX,
    DAY_S,
    JOB_PREFIX,
    EndedCount,
    Invocation,
    Lane,
    LoggedSwap,
    LogSearch,
    ModelUse,
    Outcome,
    RequestId,
    UsageQuery,
)
from tests.storage.house import ended, swap_failed, swapped
from tests.support.fields import Fields
from tests.support.stopped_clock import WALL


async def test_a_row_says_what_the_event_said_and_is_written_once(process):
    changed = {
        "task_type": "summary",
        "outcome": Outcome.FAILED,
        "reason": "backend_gone",
        "interrupt_count": 2,
        "attempts": 3,
    }
    promised = {"wait_bound_s": 4.5, "bound_kept": False}
    waited: Fields = {"engine": "box", "waited_for": {"load": 3.5}, "resumed": "continued"}
    event = ended(
        7,
        at=998.0,
        status=502,
        cost_usd=0.25,
        conversation="a1",
        user="ann",
        **changed,
        **promised,
        **waited,
    )
    for _ in range(2):
        ports = await process()
        for each in (
            event,
            replace(event, caller="other"),
            BackendWentDown(at=0.0, reason="refused"),
        ):
            ports.log.emit(each)
        await ports.written()
    second, first = await (await process()).history.find(limit=50)
    known: Fields = {
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


async def test_text_that_no_database_takes_is_escaped_instead_of_lost(ports):
    ports.log.emit(ended(1, model="bad\ud800name\0'; DROP TABLE swaps"))
    (row,) = await ports.history.find(limit=50)
    assert row.model == "bad\\ud800name\0'; DROP TABLE swaps"


@pytest.mark.parametrize(
    ("wanted", "sequences"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"caller": "n8n"}, [4, 2]),
        ({"model": "b"}, [5, 4]),
        ({"outcome": Outcome.CANCELLED}, [3]),
        ({"user": "ann"}, [3]),
        ({"engine": "box"}, [5]),
        ({"lane": Lane.INTERNAL}, [1]),
        ({"task_type": "digest"}, [2]),
        ({"request_id": "req_2"}, [2]),
        ({"request_id": "req_2", "caller": "open-webui"}, []),
        ({"caller": "n8n", "model": "b"}, [4]),
        ({"caller": "n8n", "model": "b", "outcome": Outcome.CANCELLED}, []),
        ({"since_wall_s": WALL - 40.0}, [5, 4, 3, 2]),
        ({"until_wall_s": WALL - 20.0}, [4, 3, 2, 1]),
        ({"caller": "n8n", "since_wall_s": WALL - 30.0, "until_wall_s": WALL - 20.0}, [4]),
        ({"caller": "n8"}, []),
        ({"caller": "nobody' OR 1=1 --"}, []),
        ({"caller": 'odd"\x1f,'}, []),
    ],
)
async def test_rows_are_found_by_what_they_say_and_by_their_end_latest_first(
    ports, wanted, sequences
):
    ports.log.emit(ended(1, at=950.0, lane=Lane.INTERNAL))
    ports.log.emit(
        ended(2, at=960.0, caller="n8n", task_type="digest", request_id=RequestId("req_2"))
    )
    ports.log.emit(ended(3, at=970.0, outcome=Outcome.CANCELLED, user="ann"))
    ports.log.emit(ended(4, at=980.0, caller="n8n", model="b"))
    ports.log.emit(ended(5, at=990.0, model="b", engine="box"))
    page = await ports.history.search(LogSearch(**wanted), limit=50)
    assert ([row.sequence for row in page.items], page.following) == (sequences, None)
    in_twos = await following(ports.history, LogSearch(**wanted), limit=2)
    assert [row.sequence for row in in_twos] == sequences


@pytest.mark.parametrize("wanted", [LogSearch(), LogSearch(model="b")])
async def test_a_page_ends_where_the_next_begins_also_among_rows_of_one_instant(ports, wanted):
    for number in range(1, 8):
        ports.log.emit(ended(number, model="b", caller=f"caller{number % 3}"))
    found = await following(ports.history, wanted, limit=2)
    assert [row.sequence for row in found] == [7, 6, 5, 4, 3, 2, 1]
    for skip, expected in ((2, [5, 4]), (6, [1]), (7, [])):
        page = await ports.history.search(wanted, limit=2, skip=skip)
        assert [row.sequence for row in page.items] == expected


async def test_rows_of_more_kinds_than_are_merged_are_in_order(ports):
    for number in range(3 * MERGED_KINDS):
        caller = f"c{number % (MERGED_KINDS + 7)}"
        ports.log.emit(ended(number, at=number, model="b", caller=caller))
    found = await following(ports.history, LogSearch(model="b"), limit=40)
    assert [row.sequence for row in found] == list(reversed(range(3 * MERGED_KINDS)))


async def following(
    history: InvocationHistory, wanted: LogSearch, *, limit: int
) -> list[Invocation]:
    """All that match, page by page."""
    found: list[Invocation] = []
    before = None
    while True:
        page = await history.search(wanted, limit=limit, before=before)
        assert len(page.items) <= limit
        found += page.items
        if page.following is None:
            return found
        before = page.following


async def test_a_row_written_after_the_clock_was_set_back_is_the_latest(ports, clock):
    ports.log.emit(ended(5))
    clock.wall_s -= DAY_S
    ports.log.emit(ended(6))
    assert [row.sequence for row in await ports.history.find(limit=2)] == [6, 5]


async def test_counts_are_by_minute_lane_and_outcome_oldest_first(ports):
    assert await ports.history.counts_since(0.0) == ()
    ports.log.emit(ended(1, at=100.0))
    ports.log.emit(ended(2, at=941.0, interrupt_count=2))
    ports.log.emit(ended(3, at=942.0))
    ports.log.emit(ended(4, at=945.0, interrupt_count=1, outcome=Outcome.FAILED))
    ports.log.emit(ended(5, at=1000.0, lane=Lane.INTERNAL))
    await ports.written()
    assert await ports.history.counts_since(WALL - 60.0) == (
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


async def test_admissions_are_those_that_the_rate_limits_count(ports):
    ports.log.emit(ended(1, at=900.0, caller="late", total_s=5.0))
    ports.log.emit(ended(2, at=890.0, caller="early", total_s=5.0, outcome=Outcome.CANCELLED))
    ports.log.emit(ended(3, at=990.0, caller="old", total_s=500.0))
    ports.log.emit(ended(4, caller="router", lane=Lane.INTERNAL))
    ports.log.emit(ended(5, at=900.0, caller="reader", total_s=5.0, counted="embeddings"))
    ports.log.emit(ended(6, at=900.0, caller="reader", total_s=5.0, counted=None))
    await ports.written()
    assert await ports.history.admissions_since(WALL - 115.0) == (
        ("early", WALL - 115.0, "requests"),
        ("late", WALL - 105.0, "requests"),
        ("reader", WALL - 105.0, "embeddings"),
    )


async def test_a_request_is_an_admission_and_a_start_of_a_job_is_none(ports):
    own = (
        "job_17",
        f"job_{'f' * 31}",
        f"job_{'F' * 32}",
        f"batch_req_{'0' * 33}",
        f"xjob_{'0' * 32}",
    )
    for sequence, name in enumerate((*own, new_id(JOB_PREFIX), new_id(BATCH_JOB_PREFIX))):
        ports.log.emit(ended(sequence, request_id=name, caller=name))
    await ports.written()
    assert {caller for caller, _, _ in await ports.history.admissions_since(WALL - 115.0)} == set(
        own
    )


async def test_swaps_are_listed_latest_first_with_what_became_of_them(ports):
    for event in (swapped(at=990.0), swapped(at=990.0), ended(1), swap_failed()):
        ports.log.emit(event)
    await ports.written()
    lost: Fields = {
        "vram_mib": None,
        "offloaded": None,
        "failed": True,
        "reason": "swap_timeout",
    }
    kept: Fields = {
        "vram_mib": 9000.0,
        "offloaded": True,
        "failed": False,
        "reason": "",
        "engine": "ollama",
    }
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
            await ports.history.swaps(since_wall_s=since, until_wall_s=until, limit=limit) == found
        )


# The log added up: each request once, whatever has been added up so far.

HOUR = int(WALL // 3600)
DAY = UsageQuery(last_hour=HOUR, hours=24, width_hours=1)


async def test_requests_are_added_up_by_time_caller_and_model(ports):
    first: Fields = {"caller": "n8n", "engine": "ollama", "queue_s": 4.0, "prompt_tokens": 10}
    ports.log.emit(ended(1, **first, output_tokens=None))
    ports.log.emit(
        ended(2, at=1000.0 - 2 * 3600.0, model=None, outcome=Outcome.EXPIRED, backend_s=None)
    )
    ports.log.emit(ended(3, at=1000.0 - 25 * 3600.0))
    ports.log.emit(swapped())
    await ports.written()
    found = await ports.history.used(DAY)
    counts = {"requests": 2, "failed": 1, "prompt_tokens": 22, "output_tokens": 34, "swaps": 1}
    assert found["total"] == counts | {
        "backend_s": 7.5,
        "swap_s": 4.0,
        "wait_p50_s": 3.5,
        "wait_p95_s": 4.85,
        "tokens_per_s": None,
        "bound_kept_share": None,
        "swap_share": 0.348,
        "energy_wh": None,
        "energy_measured_s": 0.0,
    }
    assert [
        (each["start_wall_s"], each["requests"]) for each in found["buckets"] if each["requests"]
    ] == [(WALL - 7200.0, 1), (WALL, 1)]
    assert {each["caller"]: each["requests"] for each in found["callers"]} == {"n8n": 1, "webui": 1}
    models = {each["model"]: (each["requests"], each["swaps"]) for each in found["models"]}
    assert models == {"llama3.1:8b": (1, 0), None: (1, 0), "c:3": (0, 1)}
    engines = {each["engine"]: (each["requests"], each["swaps"]) for each in found["engines"]}
    assert engines == {"ollama": (1, 1), None: (1, 0)}
    of_one = await ports.history.used(replace(DAY, caller="n8n"))
    assert [each["caller"] for each in of_one["callers"]] == ["n8n"]


async def test_what_each_caller_used_and_when_its_last_item_ended(ports):
    asked = {"last_hour": HOUR, "caller": None}
    assert await ports.history.by_caller(**asked) == {}
    for number, (caller, at) in enumerate(
        [("n8n", 900.0), ("tv", 1000.0 - 2 * DAY_S), ("n8n", 800.0), ("old", 1000.0 - 31 * DAY_S)]
    ):
        row = ended(number, caller=caller, at=at, prompt_tokens=10, output_tokens=5)
        ports.log.emit(row)
    await ports.written()
    none = {"requests": 0, "failed": 0, "prompt_tokens": 0, "output_tokens": 0}
    one = {"requests": 1, "failed": 0, "prompt_tokens": 10, "output_tokens": 5}
    two = {"requests": 2, "failed": 0, "prompt_tokens": 20, "output_tokens": 10}
    n8n = {"24h": two, "30d": two, "last_end_wall_s": WALL - 100.0}
    tv = {"24h": none, "30d": one, "last_end_wall_s": WALL - 2 * DAY_S}
    assert await ports.history.by_caller(**asked) == {"n8n": n8n, "tv": tv}
    assert await ports.history.by_caller(last_hour=HOUR, caller="tv") == {"tv": tv}


@pytest.mark.parametrize(
    ("wanted", "requests", "swaps"),
    [
        ({"caller": "n8n"}, 2, 1),
        ({"owner": "n8n", "caller": "webui"}, 0, 1),
        ({"model": "c:3"}, 2, 1),
        ({"model": "d:4"}, 1, 0),
        ({"engine": "ollama"}, 2, 1),
        ({"engine": "vllm", "caller": "n8n"}, 1, 0),
    ],
)
async def test_usage_is_that_of_a_caller_a_model_or_an_engine(ports, wanted, requests, swaps):
    ports.log.emit(ended(1, caller="n8n", model="c:3", engine="ollama"))
    ports.log.emit(ended(2, caller="n8n", model="d:4", engine="vllm"))
    ports.log.emit(ended(3, model="c:3", engine="ollama"))
    ports.log.emit(swapped())
    await ports.written()
    found = await ports.history.used(replace(DAY, **wanted))
    assert (found["total"]["requests"], found["total"]["swaps"]) == (requests, swaps)


async def test_the_share_of_swaps_is_that_of_the_time_of_all_callers(ports):
    for number, caller in enumerate(("n8n", "webui")):
        ports.log.emit(ended(number, caller=caller, backend_s=8.0))
    ports.log.emit(swapped())
    await ports.written()
    for owner in (None, "n8n", "nobody"):
        found = await ports.history.used(replace(DAY, owner=owner))
        assert (found["total"]["swap_share"], found["buckets"][-1]["swap_share"]) == (0.2, 0.2)
        assert [each["swap_share"] for each in found["callers"] if each["swaps"]] == []


@pytest.mark.parametrize(
    ("change", "tokens_per_s"),
    [
        ({}, 5.0),
        ({"decode_s": 2.0}, 17.0),
        ({"first_byte_s": 7.5}, None),
        ({"first_byte_s": 7.5, "decode_s": 2.0}, 17.0),
        ({"output_tokens": 1}, None),
        ({"attempts": 2}, None),
        ({"attempts": 2, "decode_s": 2.0}, 17.0),
    ],
)
async def test_tokens_a_second_are_of_the_time_in_which_they_were_written(
    ports, change, tokens_per_s
):
    ports.log.emit(ended(1, **{"first_byte_s": 0.7, **change}))
    ports.log.emit(ended(2, output_tokens=None, backend_s=90.0))
    await ports.written()
    assert (await ports.history.used(DAY))["total"]["tokens_per_s"] == tokens_per_s


async def test_a_group_is_told_apart_over_time_and_the_least_are_one(ports):
    for number in range(12):
        for turn in range(20 - number):
            ports.log.emit(ended(100 * number + turn, model=f"m{number}", queue_s=7.0))
    ports.log.emit(ended(9000, at=1000.0 - 3600.0, model="m0"))
    ports.log.emit(swapped())
    await ports.written()
    groups = (await ports.history.used(replace(DAY, group="model")))["groups"]
    assert [(each["model"], each["is_others"]) for each in groups] == [
        *((f"m{number}", False) for number in range(10)),
        (None, True),
    ]
    assert (groups[0]["requests"][-2:], groups[0]["wait_p50_s"][-1]) == ([1, 20], 7.5)
    assert (groups[-1]["requests"][-1], groups[-1]["swaps"][-1]) == (10 + 9, 1)
    (caller,) = (await ports.history.used(replace(DAY, group="caller")))["groups"]
    assert (caller["caller"], caller["requests"][-2:]) == ("webui", [1, 174])
    assert caller["swaps"] == [None] * 24


async def test_energy_is_added_up_by_hour_with_the_time_in_which_it_was_measured(process):
    for hour, energy_j in ((HOUR - 2, 7200.0), (HOUR, 3600.0), (HOUR, 1800.0)):
        ports = await process()
        ports.log.emit(EnergyMeasured(at=0.0, hour=hour, energy_j=energy_j, measured_s=300.0))
        ports.log.emit(EnergyMeasured(at=1.0, hour=hour, energy_j=energy_j, measured_s=100.0))
        await ports.written()
    found = await ports.history.used(DAY)
    assert [(each["energy_wh"], each["energy_measured_s"]) for each in found["buckets"][-4:]] == [
        (None, 0.0),
        (4.0, 400.0),
        (None, 0.0),
        (3.0, 800.0),
    ]
    total = (await ports.history.used(replace(DAY, width_hours=6, hours=24)))["total"]
    assert (total["energy_wh"], total["energy_measured_s"]) == (7.0, 1200.0)


async def test_the_share_of_bounds_that_held_is_of_requests_that_were_told_to_wait(ports):
    for number, kept in enumerate([True, True, False, None]):
        ports.log.emit(ended(number, caller="n8n" if kept else "webui", bound_kept=kept))
    await ports.written()
    found = await ports.history.used(DAY)
    assert found["total"]["bound_kept_share"] == 0.667
    shares = {each["caller"]: each["bound_kept_share"] for each in found["callers"]}
    assert shares == {"n8n": 1.0, "webui": 0.0}


async def test_percentiles_are_interpolated_within_a_range(ports):
    waits = {
        "none": ([], None, None),
        "some": ([7.0] * 10, 7.5, 9.75),
        "long": ([0.0] * 9 + [9000.0], 0.06, 4500.0),
    }
    for first, (caller, (each, *_)) in enumerate(waits.items()):
        for number, wait_s in enumerate(each):
            ports.log.emit(ended(100 * first + number, caller=caller, queue_s=wait_s))
    await ports.written()
    for caller, (_, p50, p95) in waits.items():
        total = (await ports.history.used(replace(DAY, caller=caller)))["total"]
        assert (total["wait_p50_s"], total["wait_p95_s"]) == (p50, p95)


async def test_what_models_did_is_by_minute_without_what_claude_did(ports):
    ports.log.emit(ended(1, at=941.0, model="a", backend_s=2.0))
    ports.log.emit(ended(2, at=942.0, model="a", backend_s=3.0))
    ports.log.emit(ended(3, at=1000.0, model="a", backend_s=4.0))
    ports.log.emit(ended(4, at=1000.0, model="b", backend_s=None))
    ports.log.emit(ended(5, at=1000.0, model="c", backend_s=9.0, cost_usd=0.1))
    await ports.written()
    assert await ports.history.uses_since(WALL - 60.0) == (
        ModelUse(model="a", items=2, backend_s=5.0, ended_wall_s=WALL - 58.0),
        ModelUse(model="a", items=1, backend_s=4.0, ended_wall_s=WALL),
    )
    assert await ports.history.runs_since(0.0) == (), "there was no earlier process"
