"""The 24 hour counters: a window that really slides, in bounded memory."""

from __future__ import annotations

import tracemalloc

from hearth.observability.records import BUCKET_S, DAY_S, Stats24h
from hearth.types import EndedCount, Lane, Outcome
from tests.observability.samples import all_kinds, ended, interrupted, rejected, sample
from tests.support.cases import for_each


def counted(stats: Stats24h) -> dict[str, int]:
    """What is not zero after the first second."""
    return {key: count for key, count in stats.snapshot(1.0).items() if count}


def test_a_new_window_shows_every_count_as_zero():
    assert Stats24h().snapshot(0.0) == {
        "internal_completed": 0,
        "internal_failed": 0,
        "internal_cancelled": 0,
        "internal_expired": 0,
        "internal_interrupted": 0,
        "external_completed": 0,
        "external_failed": 0,
        "external_cancelled": 0,
        "external_expired": 0,
        "external_interrupted": 0,
        "rejected": 0,
    }


@for_each("lane", list(Lane))
@for_each("outcome", list(Outcome))
def test_each_ending_counts_for_its_lane_and_outcome_only(lane: Lane, outcome: Outcome):
    stats = Stats24h()
    stats.emit(ended(outcome, lane=lane))
    assert counted(stats) == {f"{lane.value}_{outcome.value}": 1}


def test_interruptions_and_rejections_count_beside_the_endings():
    stats = Stats24h()
    for event in (interrupted(), interrupted(), ended(), rejected()):
        stats.emit(event)
    assert counted(stats) == {"external_interrupted": 2, "external_completed": 1, "rejected": 1}


def test_other_events_do_not_count():
    stats = Stats24h()
    for kind in all_kinds():
        if kind.__name__ not in {"ItemEnded", "ItemInterrupted", "RequestRejected"}:
            stats.emit(sample(kind))
    assert set(stats.snapshot(5.0).values()) == {0}


@for_each("at", [0.0, 59.9, 100.0, 123_456.789])
def test_an_event_on_its_own_leaves_at_exactly_24_hours(at: float):
    stats = Stats24h()
    stats.emit(ended(at=at))
    assert stats.snapshot(at + DAY_S - 0.001)["external_completed"] == 1
    assert stats.snapshot(at + DAY_S)["external_completed"] == 0


def test_the_counter_does_not_count_since_the_start():
    stats = Stats24h()
    for hour in range(72):
        stats.emit(ended(at=hour * 3600.0))
    assert stats.snapshot(71 * 3600.0 + 1.0)["external_completed"] == 24


def test_busy_minutes_are_never_counted_too_long_and_at_most_a_minute_too_short():
    stats = Stats24h()
    instants = [number * 7.0 for number in range(20_000)]
    for at in instants:
        stats.emit(ended(at=at))
    assert len(stats._buckets) <= DAY_S / BUCKET_S + 1
    now = instants[-1]
    counted = stats.snapshot(now)["external_completed"]
    assert sum(at > now - DAY_S + BUCKET_S for at in instants) <= counted <= sum(at > now - DAY_S for at in instants)


def test_an_event_that_arrives_late_is_not_lost():
    stats = Stats24h()
    stats.emit(ended(at=100.0))
    stats.emit(ended(at=99.0))
    assert stats.snapshot(101.0)["external_completed"] == 2


def test_reading_does_not_change_the_counts():
    stats = Stats24h()
    stats.emit(ended(at=0.0))
    assert [stats.snapshot(10.0)["external_completed"] for _ in range(3)] == [1, 1, 1]


def test_memory_is_bounded_however_long_it_runs():
    stats = Stats24h()
    event_times = [day * DAY_S + minute * 60.0 for day in range(4) for minute in range(0, 1440, 2)]
    for at in event_times[:1440]:
        stats.emit(ended(at=at))
    tracemalloc.start()
    try:
        for at in event_times[1440:]:
            stats.emit(ended(at=at))
        grown_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert stats.snapshot(event_times[-1])["external_completed"] == 720
    assert grown_bytes < 1_000_000


def earlier(items: int, *, outcome: Outcome = Outcome.COMPLETED, interruptions: int = 0) -> EndedCount:
    return EndedCount(first_wall_s=0.0, lane=Lane.EXTERNAL, outcome=outcome, items=items, interruptions=interruptions)


def test_what_an_earlier_process_counted_is_counted_and_leaves_at_24_hours():
    stats = Stats24h()
    stats.preload(earlier(5, interruptions=2), -3600.0)
    stats.preload(earlier(1, outcome=Outcome.FAILED), -3590.0)
    stats.emit(ended(at=0.0))
    assert counted(stats) == {"external_completed": 6, "external_failed": 1, "external_interrupted": 2}
    assert stats.snapshot(DAY_S - 3600.0)["external_completed"] == 1


def test_a_whole_earlier_day_keeps_to_the_bound_of_the_buckets():
    stats = Stats24h()
    for minute in range(1440):
        stats.preload(earlier(1), minute * BUCKET_S - DAY_S)
    assert [stats.snapshot(at)["external_completed"] for at in (-0.5, 0.0, 60.0 * BUCKET_S)] == [1440, 1439, 1379]
