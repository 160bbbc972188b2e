"""The fanout of events, and the counts of 24 hours."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from hearth.events import BackendCameUp, BackendWentDown, Event
from hearth.observability.records import BUCKET_S, DAY_S, EventFanout, Stats24h
from hearth.types import EndedCount, Lane, Outcome
from tests.observability.samples import Instants, all_kinds, ended, fact, interrupted, rejected, sample
from tests.support.cases import for_each

SECRET = "the prompt that an error text quotes"


class Sink(Instants):
    """Does what it is given with each event after noting it."""

    def __init__(self, then: Callable[[Event], object] = lambda _: None) -> None:
        super().__init__()
        self.then = then

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.then(event)


def broken(event: Event) -> None:
    raise RuntimeError(SECRET)


def test_every_sink_gets_every_event_once_in_order_also_where_one_raises_or_subscribes_twice():
    first, breaks, last = Sink(), Sink(broken), Sink()
    fanout = EventFanout([first, breaks])
    fanout.subscribe(last)
    fanout.subscribe(first)
    for number in (1.0, 2.0, 3.0):
        fanout.emit(fact(number))
    assert first.seen == breaks.seen == last.seen == [1.0, 2.0, 3.0]


def test_an_event_emitted_while_another_is_delivered_comes_after_it_for_everyone():
    fanout, last = EventFanout(), Sink()
    echo = Sink(lambda event: fanout.emit(fact(2.0)) if event.at == 1.0 else None)
    fanout.subscribe(echo)
    fanout.subscribe(last)
    fanout.emit(fact(1.0))
    assert echo.seen == last.seen == [1.0, 2.0]


def test_a_sink_that_comes_during_a_delivery_gets_the_next_event():
    guest = Sink()
    host = Sink(lambda _: fanout.subscribe(guest))
    fanout = EventFanout([host])
    fanout.emit(fact(1.0))
    fanout.emit(fact(2.0))
    assert (host.seen, guest.seen) == ([1.0, 2.0], [2.0])


def test_a_broken_sink_is_reported_once_by_type_and_place(caplog: pytest.LogCaptureFixture):
    fanout = EventFanout([Sink(broken), Sink(broken)])
    with caplog.at_level(logging.ERROR):
        for number in (1.0, 2.0, 3.0):
            fanout.emit(fact(number))
    assert len(caplog.messages) == 2
    assert f"event sink Sink raised RuntimeError at {__name__}:{broken.__code__.co_firstlineno + 1} " in caplog.messages[0]
    assert "backend_went_down" in caplog.messages[0]
    assert SECRET not in caplog.text


def test_a_cancellation_inside_a_sink_passes_through_and_loses_no_later_event():
    def interrupt(event: Event) -> None:
        if event.at == 1.0:
            raise KeyboardInterrupt

    sink = Sink(interrupt)
    fanout = EventFanout([sink])
    with pytest.raises(KeyboardInterrupt):
        fanout.emit(fact(1.0))
    fanout.emit(fact(2.0))
    assert sink.seen == [1.0, 2.0]


class Choosy(Instants):
    """Wants one kind of events only."""

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        return self.emit if kind is BackendWentDown else None


def test_a_selective_sink_gets_what_it_wants_and_is_spared_the_rest():
    choosy, late, every = Choosy(), Choosy(), Instants()
    fanout = EventFanout((choosy, every))
    fanout.emit(fact(1.0))
    fanout.emit(sample(BackendCameUp, at=2.0))
    fanout.subscribe(late)
    fanout.emit(fact(3.0))
    assert (choosy.seen, late.seen, every.seen) == ([1.0, 3.0], [3.0], [1.0, 2.0, 3.0])


# The 24 hour counters: a window that really slides, in bounded memory.


def counted(stats: Stats24h, now: float = 1.0) -> dict[str, int]:
    """What is not zero."""
    return {key: count for key, count in stats.snapshot(now).items() if count}


def of(*events: Event) -> Stats24h:
    stats = Stats24h()
    for event in events:
        stats.emit(event)
    return stats


def test_each_ending_interruption_and_refusal_counts_for_its_lane_and_nothing_else_does():
    names = [
        f"{lane}_{what}" for lane in ("internal", "external") for what in ("completed", "failed", "cancelled", "expired", "interrupted")
    ]
    assert Stats24h().snapshot(0.0) == dict.fromkeys([*names, "rejected"], 0)
    for lane in Lane:
        for outcome in Outcome:
            assert counted(of(ended(outcome, lane=lane))) == {f"{lane.value}_{outcome.value}": 1}
    assert counted(of(interrupted(), interrupted(), ended(), rejected())) == {
        "external_interrupted": 2,
        "external_completed": 1,
        "rejected": 1,
    }
    others = [kind for kind in all_kinds() if kind.__name__ not in {"ItemEnded", "ItemInterrupted", "RequestRejected"}]
    assert counted(of(*map(sample, others)), 5.0) == {}


@for_each("at", [0.0, 59.9, 100.0, 123_456.789])
def test_an_event_on_its_own_leaves_at_exactly_24_hours(at: float):
    stats = of(ended(at=at))
    assert [stats.snapshot(now)["external_completed"] for now in (at, at, at + DAY_S - 0.001, at + DAY_S)] == [1, 1, 1, 0]


def test_busy_minutes_are_never_counted_too_long_and_at_most_a_minute_too_short_in_bounded_memory():
    instants = [number * 7.0 for number in range(20_000)]
    stats = of(*(ended(at=at) for at in instants))
    assert len(stats._buckets) <= DAY_S / BUCKET_S + 1
    now = instants[-1]
    stats.emit(ended(at=now - 1.0))  # late, and not lost
    found = stats.snapshot(now)["external_completed"] - 1
    assert sum(at > now - DAY_S + BUCKET_S for at in instants) <= found <= sum(at > now - DAY_S for at in instants)


def earlier(items: int, *, outcome: Outcome = Outcome.COMPLETED, interruptions: int = 0) -> EndedCount:
    return EndedCount(first_wall_s=0.0, lane=Lane.EXTERNAL, outcome=outcome, items=items, interruptions=interruptions)


def test_what_an_earlier_process_counted_is_counted_and_leaves_at_24_hours():
    stats = Stats24h()
    stats.preload(earlier(5, interruptions=2), -3600.0)
    stats.preload(earlier(1, outcome=Outcome.FAILED), -3590.0)
    stats.emit(ended(at=0.0))
    assert counted(stats) == {"external_completed": 6, "external_failed": 1, "external_interrupted": 2}
    assert stats.snapshot(DAY_S - 3600.0)["external_completed"] == 1
    stats = Stats24h()
    for minute in range(1440):
        stats.preload(earlier(1), minute * BUCKET_S - DAY_S)
    assert [stats.snapshot(at)["external_completed"] for at in (-0.5, 0.0, 60.0 * BUCKET_S)] == [1440, 1439, 1379]
