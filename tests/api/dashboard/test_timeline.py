"""The last hour: spans of memory, work and swaps out of events, and what stays bounded."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hearth import events
from hearth.events import Event
from hearth.observability.requests import ENDED_KEPT, JOIN_S, SPAN_S, RequestTracker, Timeline
from hearth.types import (
    Invocation,
    Lane,
    LoggedSwap,
    Outcome,
    ProcessRun,
    RequestId,
    Sequence,
)
from tests.observability.samples import sample
from tests.support.fields import Fields


def about(number: int) -> Fields:
    return {
        "sequence": Sequence(number),
        "request_id": RequestId(f"req_{number}"),
        "caller": "n8n",
        "model": "a",
        "lane": Lane.EXTERNAL,
    }


def event(name: str, at: float, number: int | None = None, **fields: Any) -> Event:
    kind: type[Event] = getattr(events, name)
    return sample(kind, at=at, **({} if number is None else about(number)) | fields)


queued, started, ended = (
    partial(event, name) for name in ("ItemQueued", "ItemDispatched", "ItemEnded")
)
drifted = partial(event, "ResidencyDrifted", appeared=("a",), vanished=())


def heard(*happened: Event) -> Timeline:
    timeline = Timeline()
    requests = RequestTracker(timeline)
    for each in happened:
        requests.emit(each)
        timeline.emit(each)
    return timeline


def shown(timeline: Timeline, now: float) -> list[tuple[str, str, float, float | None]]:
    return [(span.model, span.kind, span.began_at, span.ended_at) for span in timeline.spans(now)]


SWAP_STARTED = event("SwapStarted", 12, to_model="b", from_models=("a",))
SWAP_COMPLETED = event("SwapCompleted", 20, to_model="b", from_models=("a",), swap_s=10.0)
SWAP_FAILED = event("SwapFailed", 15, to_model="b", from_models=("a",), swap_s=3.0)
LOAD_CUT = event("LoadCut", 15, to_model="b", from_models=("a",), swap_s=3.0)
THREE = [queued(0, 1), queued(0, 2), queued(0, 3)]


@pytest.mark.parametrize(
    ("happened", "spans"),
    [
        ([*THREE, started(1, 1), started(3, 2), ended(5, 1), ended(8, 2)], [("a", "busy", 1, 8)]),
        # What goes on after a moment is one stretch, what begins after a pause another.
        (
            [*THREE, started(1, 1), ended(2, 1), started(2 + JOIN_S, 2), ended(6, 2)],
            [("a", "busy", 1, 6)],
        ),
        (
            [*THREE, started(1, 1), ended(2, 1), started(20, 3)],
            [("a", "busy", 1, 2), ("a", "busy", 20, None)],
        ),
        # A swap spans the unloading too, and residency begins where it ends.
        (
            [drifted(0), SWAP_STARTED, SWAP_COMPLETED],
            [("a", "resident", 0, 12), ("b", "swap", 10, 20), ("b", "resident", 20, None)],
        ),
        ([SWAP_STARTED, SWAP_FAILED], [("b", "failed", 12, 15)]),
        ([SWAP_STARTED, LOAD_CUT], [("b", "cut", 12, 15)]),
        (
            [drifted(0), drifted(7, appeared=("b",), vanished=("a",))],
            [("a", "resident", 0, 7), ("b", "resident", 7, None)],
        ),
    ],
)
def test_spans_say_what_was_in_memory_worked_or_was_swapped(happened, spans):
    assert shown(heard(*happened), 30) == spans


def test_memory_is_brought_in_line_with_what_is_really_there():
    timeline = heard(drifted(5, appeared=("gone",)))
    timeline.settle({"here": 2.0}, 9.0)
    timeline.settle({"here": 2.0}, 10.0)
    assert sorted(shown(timeline, 11)) == [
        ("gone", "resident", 5, 9.0),
        ("here", "resident", 2.0, None),
    ]


def test_depths_keep_the_most_and_the_last_of_each_step_by_lane():
    internal = queued(2, 3, lane=Lane.INTERNAL), started(11, 3, lane=Lane.INTERNAL)
    first, second = heard(
        queued(0, 1), queued(1, 2), internal[0], started(3, 1), ended(4, 2), internal[1]
    ).depths(20)
    assert (first.external, first.external_last, first.internal, first.internal_last) == (
        2,
        0,
        1,
        1,
    )
    assert (second.external, second.internal, second.internal_last) == (0, 0, 0)
    # ends the work; the item waits again
    timeline = heard(queued(0, 1), started(10, 1), event("ItemInterrupted", 15, 1), queued(25, 2))
    assert shown(timeline, 30) == [("a", "busy", 10, 15)]
    assert [(mark.at, mark.model, mark.caller) for _, mark in timeline.interruptions(30)] == [
        (15, "a", "n8n")
    ]
    assert timeline.depths(30)[-1].external_last == 2
    timeline = heard(
        queued(0, 1), started(1, 1), event("ItemResent", 2, 1), started(3, 1), ended(4, 1)
    )
    assert (timeline.depths(5)[-1].external_last, len(timeline.ended)) == (0, 1)


def test_what_is_older_than_an_hour_is_forgotten_and_nothing_grows():
    each_s = 10.0
    lives = (
        (queued(n * each_s, n), started(n * each_s + 1, n), ended(n * each_s + 2, n))
        for n in range(6000)
    )
    timeline = heard(*(event for life in lives for event in life))
    now = 60_000.0
    assert all(
        span.ended_at is not None and span.ended_at > now - SPAN_S for span in timeline.spans(now)
    )
    assert len(timeline.spans(now)) == 360
    assert len(timeline.depths(now)) <= SPAN_S / 10 + 1
    assert len(timeline.ended) == ENDED_KEPT


TIMES: Fields = {
    "accepted_wall_s": 1000.0,
    "ended_wall_s": 1010.0,
    "queue_s": 5.0,
    "swap_s": 0.0,
    "first_byte_s": 1.0,
}
MORE: Fields = {
    "backend_s": 4.0,
    "total_s": 10.0,
    "attempts": 1,
    "interrupt_count": 0,
    "status": 200,
}
INVOCATION = Invocation(
    epoch=1,
    outcome=Outcome.COMPLETED,
    reason="",
    task_type=None,
    prompt_tokens=1,
    output_tokens=1,
    **about(7),
    **TIMES,
    **MORE,
)
SWAP = LoggedSwap(
    ended_wall_s=1006.0,
    from_models=(),
    to_model="a",
    swap_s=3.0,
    vram_mib=None,
    offloaded=None,
    failed=False,
    reason="",
)


STUCK = replace(
    SWAP,
    ended_wall_s=1008.0,
    from_models=("b",),
    to_model="",
    swap_s=0.0,
    failed=True,
    reason="swap_failed",
)
OVERLAPPING = [
    INVOCATION,
    replace(INVOCATION, ended_wall_s=1009.0, backend_s=1.0),
    replace(INVOCATION, backend_s=8.0),
]


@pytest.mark.parametrize(
    ("swaps", "invocations", "wall_s", "spans"),
    [
        (
            [STUCK, SWAP],
            [INVOCATION],
            1020.0,
            [("a", "swap", 103.0, 106.0), ("a", "busy", 106.0, 110.0)],
        ),
        ([], OVERLAPPING, 1020.0, [("a", "busy", 102.0, 110.0)]),  # one span to its last end
        # the calendar was set back
        (
            [SWAP],
            [INVOCATION],
            1010.0 - 7200.0,
            [("a", "busy", 116.0, 120.0), ("a", "swap", 117.0, 120.0)],
        ),
    ],
)
def test_an_hour_that_an_earlier_process_saw_is_recalled_from_the_log(
    swaps, invocations, wall_s, spans
):
    timeline = Timeline()
    timeline.recall(swaps, invocations, (), now=120.0, wall_s=wall_s)
    assert shown(timeline, 120.0) == spans
    assert [each.request_id for _, each in timeline.ended] == ["req_7"] * len(invocations)
    assert wall_s > 0 or [each.at for _, each in timeline.ended] == [120.0]


def test_waits_of_an_earlier_process_are_recalled_step_by_step():
    waited = replace(INVOCATION, ended_wall_s=1055.0, total_s=45.0, queue_s=25.0)  # from 1010
    gave_up = replace(waited, total_s=40.0, backend_s=None, lane=Lane.INTERNAL)  # 1015 to 1055
    timeline = Timeline()
    timeline.recall([], [gave_up, waited], (), now=120.0, wall_s=1070.0)
    depths = [
        (each.step, each.external, each.external_last, each.internal, each.internal_last)
        for each in timeline.depths(120.0)
    ]
    assert depths == [(6, 1, 1, 1, 1), (8, 0, 0, 1, 1), (10, 0, 0, 0, 0)]


@pytest.mark.parametrize(
    ("runs", "gaps"),
    [
        ([], [(-3480.0, 120.0)]),
        ([(1000.0, 1010.0)], [(-3480.0, 100.0), (110.0, 120.0)]),
        ([(0.0, 1005.0), (1008.0, 1020.0)], [(-3480.0, -900.0), (105.0, 108.0)]),
        ([(-9000.0, 1005.0), (1004.0, 1018.0)], [(118.0, 120.0)]),
        ([(1000.0, 9000.0)], [(-3480.0, 100.0)]),  # the calendar was set back
    ],
)
def test_where_no_process_ran_the_hour_has_a_gap(runs, gaps):
    known = [ProcessRun(started_wall_s=began, seen_wall_s=seen) for began, seen in runs]
    timeline = Timeline()
    timeline.recall([], [], known, now=120.0, wall_s=1020.0)
    assert timeline.gaps(120.0) == gaps
    assert timeline.gaps(120.0 + SPAN_S) == []
