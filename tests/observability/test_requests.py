"""Where every request is and how long the last ones took: phases under way, percentiles of an hour,
and what was lost.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hearth import events as ev
from hearth.bootstrap.observers import join_latency
from hearth.observability.families import MODELS
from hearth.observability.requests import (
    KEPT,
    PHASES,
    SPAN_S,
    TTL_S,
    RequestTracker,
    Timeline,
    seconds_of,
)
from hearth.types import Invocation, Lane, Outcome, RequestId, Sequence
from tests.observability.samples import ended, sample
from tests.observability.test_metrics import number
from tests.support.fields import Fields
from tests.support.house import House, body_of
from tests.support.virtual_time import in_virtual_time, sleep_until

MODEL = "home:32b"


def of(kind: type[ev.Event], at: float, sequence: int = 1, model: str = MODEL) -> ev.Event:
    return sample(kind, at=at, sequence=Sequence(sequence), model=model)


def end(at: float = 0.0, sequence: int = 1, **more: Any) -> ev.ItemEnded:
    return ended(at=at, sequence=Sequence(sequence), **more)


def fed(*events: ev.Event) -> RequestTracker:
    tracker = RequestTracker(Timeline())
    for event in events:
        tracker.emit(event)
    return tracker


def places(tracker: RequestTracker) -> dict[int, tuple[str, float]]:
    return {
        int(sequence): (phase, since)
        for sequence, phase, since in tracker.under_way()
        if phase != "total"
    }


def row(
    tracker: RequestTracker, now: float, lane: str = "external", model: str | None = None
) -> Any:
    rows: Any = tracker.shown(now)["last_hour"]
    return next((found for found in rows if (found["lane"], found["model"]) == (lane, model)), None)


LIFE = [
    (of(ev.ItemQueued, 1.0), ("queue_wait", 1.0)),
    (sample(ev.SwapStarted, at=3.0, to_model=MODEL), ("swap_wait", 3.0)),
    (
        sample(ev.SwapFailed, at=4.0, from_models=("old:7b",), to_model=""),
        ("swap_wait", 3.0),
    ),  # one that would not leave says nothing of it
    (sample(ev.SwapCompleted, at=5.0), ("queue_wait", 1.0)),
    (of(ev.ItemDispatched, 5.5), ("first_byte", 5.5)),
    (of(ev.ItemStreaming, 6.0), ("backend", 6.0)),
    (of(ev.ItemInterrupted, 7.0), ("queue_wait", 7.0)),
    (of(ev.ItemDispatched, 8.0), ("first_byte", 8.0)),
    (of(ev.ItemResent, 9.0), ("queue_wait", 9.0)),
    (of(ev.ItemDispatched, 9.1), ("first_byte", 9.1)),
    (of(ev.ItemYielded, 9.2), ("queue_wait", 9.2)),
    (sample(ev.SwapStarted, at=9.5, to_model=MODEL), ("swap_wait", 9.5)),
    (sample(ev.SwapFailed, at=9.7), ("queue_wait", 9.2)),
]


def test_a_request_is_followed_by_phase_and_waits_only_for_its_models_swap():
    tracker = fed()
    for event, place in LIFE:
        tracker.emit(event)
        assert places(tracker) == {1: place}, event
    tracker.emit(end(10.0))
    assert places(tracker) == {}
    swap = sample(ev.SwapStarted, at=2.0, to_model=MODEL)
    tracker = fed(
        of(ev.ItemQueued, 1.0),
        of(ev.ItemQueued, 1.0, 2, "other:7b"),
        swap,
        of(ev.ItemQueued, 3.0, 3),
    )
    assert places(tracker) == {1: ("swap_wait", 2.0), 2: ("queue_wait", 1.0), 3: ("swap_wait", 3.0)}


def test_the_status_counts_what_is_under_way_by_phase_with_the_oldest_of_each():
    tracker = fed(*(of(ev.ItemQueued, float(n), n) for n in (1, 2, 3)), of(ev.ItemDispatched, 4.0))
    shown: Any = tracker.shown(10.0)
    assert shown["under_way"] == {
        "queue_wait": {"requests": 2, "oldest_s": 8.0, "oldest": 2},
        "swap_wait": {"requests": 0, "oldest_s": 0.0, "oldest": None},
        "first_byte": {"requests": 1, "oldest_s": 6.0, "oldest": 1},
        "backend": {"requests": 0, "oldest_s": 0.0, "oldest": None},
        "total": {"requests": 3, "oldest_s": 9.0, "oldest": 1},
    }
    tracker.emit(of(ev.ItemInterrupted, 9.0))
    shown = tracker.shown(10.0)
    assert shown["under_way"]["queue_wait"] == {"requests": 3, "oldest_s": 8.0, "oldest": 2}


def test_percentiles_are_nearest_rank_of_the_last_hour_by_lane_and_model():
    tracker = fed(
        *(end(float(n), queue_s=float(n)) for n in range(1, 101)),
        end(lane=Lane.INTERNAL, queue_s=7.0, model=None),
    )
    expected = {"p50": 50.0, "p95": 95.0, "p99": 99.0}
    assert (
        row(tracker, 100.0)["queue_wait_s"]
        == row(tracker, 100.0, model=MODEL)["queue_wait_s"]
        == expected
    )
    assert row(tracker, 100.0, "internal", "any")["queue_wait_s"] == {
        "p50": 7.0,
        "p95": 7.0,
        "p99": 7.0,
    }
    tracker.emit(end(100.0, queue_s=1000.0))
    assert (row(tracker, 100.0)["queue_wait_s"]["p99"], row(tracker, 100.0)["requests"]) == (
        100.0,
        101,
    )
    tracker = fed(end(10.0, total_s=1.0), end(20.0, total_s=3.0))
    assert [row(tracker, 10.0 + SPAN_S - ago_s)["total_s"]["p50"] for ago_s in (0.001, 0.0)] == [
        1.0,
        3.0,
    ]
    assert row(tracker, 20.0 + SPAN_S) is None, "nothing has ended: no row"
    never_ran = row(
        fed(end(outcome=Outcome.CANCELLED, first_byte_s=None, backend_s=None, swap_s=0.0)), 1.0
    )
    assert [never_ran[f"{phase}_s"] is None for phase in PHASES] == [False, True, True, True, False]


def test_only_the_last_are_kept_by_lane_and_model_and_many_share_a_row():
    tracker = fed(*(end(float(n), queue_s=float(n)) for n in range(KEPT + 10)))
    assert row(tracker, float(KEPT))["requests"] == KEPT
    assert row(tracker, float(KEPT))["queue_wait_s"]["p50"] == 10 + KEPT // 2 - 1
    many = fed(*(end(1.0, model=f"model-{n}") for n in range(MODELS + 30)))
    rows: Any = many.shown(1.0)["last_hour"]
    assert (len(rows), row(many, 1.0, model="other")["requests"]) == (1 + MODELS + 1, 30)


def test_what_is_alive_is_never_lost_and_the_rest_is_dropped_after_60_s():
    tracker = fed(of(ev.ItemQueued, 0.0), of(ev.ItemQueued, 0.0, 2), of(ev.ItemDispatched, 30.0, 2))
    waiting = {Sequence(1)}.__contains__
    nobody = frozenset[Sequence]().__contains__
    assert tracker.forget_lost(30.0 + TTL_S - 0.001, waiting) == []
    (lost,) = tracker.forget_lost(30.0 + TTL_S, waiting)
    assert (lost.sequence, lost.phase, lost.silent_s, lost.caller, tracker.lost) == (
        2,
        "first_byte",
        TTL_S,
        "word",
        1,
    )
    assert list(places(tracker)) == [1]
    assert tracker.forget_lost(30.0 + 2 * TTL_S - 0.001, nobody) == []
    assert [each.sequence for each in tracker.forget_lost(30.0 + 2 * TTL_S, nobody)] == [1]
    assert (tracker.shown(200.0)["lost"], places(tracker)) == (2, {})
    tracker.emit(end(100.0))
    assert row(tracker, 100.0)["requests"] == 1, (
        "the end of one that was given up counts all the same"
    )


def logged(ended_wall_s: float, total_s: float) -> Invocation:
    shared = (
        name
        for name in Invocation.__dataclass_fields__
        if name in ev.ItemEnded.__dataclass_fields__ and name != "sequence"
    )
    known = {name: getattr(ended(), name) for name in shared}
    about: Fields = {
        "request_id": RequestId("req_1"),
        "accepted_wall_s": ended_wall_s - total_s,
        "ended_wall_s": ended_wall_s,
    }
    return Invocation(epoch=1, sequence=Sequence(1), **{**known, **about, "total_s": total_s})


def test_the_hour_begins_before_a_restart_and_ends_an_hour_after_each_request():
    wall_s = 1_000_000.0
    tracker = fed()
    tracker.recall(
        (logged(wall_s + 5.0, 5.0), logged(wall_s - 600.0, 1.0), logged(wall_s - 1800.0, 3.0)),
        now=0.0,
        wall_s=wall_s,
    )
    tracker.emit(end(0.5, total_s=2.0))
    assert row(tracker, 1.0)["requests"] == row(tracker, 1.0, model=MODEL)["requests"] == 4
    assert row(tracker, 1.0)["total_s"] == {"p50": 2.0, "p95": 5.0, "p99": 5.0}
    assert [row(tracker, SPAN_S - ago_s)["requests"] for ago_s in (1800.0, 600.0, 0.0)] == [3, 2, 1]


@in_virtual_time
async def test_the_status_knows_each_phase_and_histograms_agree_with_percentiles():
    house = House("a", "b", resident="a")
    join_latency(house.gateway)
    async with house:

        def under_way() -> dict[str, int]:
            shown: Any = house.worker.get_status()["latency"]
            return {
                phase: part["requests"]
                for phase, part in shown["under_way"].items()
                if part["requests"]
            }

        first = house.submit("a", stream=True, first_byte_s=50.0, service_s=200.0)
        second = house.submit("b", stream=True)
        await sleep_until(49.0)
        assert under_way() == {"first_byte": 1, "queue_wait": 1, "total": 2}
        await sleep_until(150.0)
        assert under_way() == {"backend": 1, "queue_wait": 1, "total": 2}
        await sleep_until(201.0)
        assert under_way() == {"swap_wait": 1, "total": 1}
        await asyncio.gather(body_of(first), body_of(second))
        assert (under_way(), house.events.of(ev.ItemLost)) == ({}, [])
        shown: Any = house.worker.get_status()["latency"]
        for event in house.events.of(ev.ItemEnded):
            (figures,) = (each for each in shown["last_hour"] if each["model"] == event.model)
            for phase, seconds in zip(PHASES, seconds_of(event), strict=True):
                assert (
                    number(
                        house.gateway,
                        f"hearth_{phase}_seconds_sum",
                        lane="external",
                        model=str(event.model),
                    )
                    == seconds
                )
                assert figures[f"{phase}_s"]["p50"] == pytest.approx(seconds, abs=0.001)


@in_virtual_time
async def test_a_request_whose_end_is_never_told_is_lost_once_and_seen_in_the_metrics():
    house = House()
    join_latency(house.gateway)
    async with house:
        house.gateway.events.emit(of(ev.ItemQueued, 0.0, 999))
        await sleep_until(5.0)
        assert number(house.gateway, "hearth_requests_under_way", phase="queue_wait") == 1
        assert number(house.gateway, "hearth_requests_under_way_oldest_seconds", phase="total") == 5
        await sleep_until(2 * TTL_S)
        assert number(house.gateway, "hearth_requests_under_way", phase="total") == 0
        assert number(house.gateway, "hearth_requests_lost_total") == 1
        assert [(event.request_id, event.silent_s) for event in house.events.of(ev.ItemLost)] == [
            ("word", TTL_S)
        ]
        house.events.all.clear()
