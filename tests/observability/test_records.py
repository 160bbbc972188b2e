"""The fanout of events, and the counts of 24 hours."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from hearth.events import (
    BackendCameUp,
    BackendWentDown,
    Event,
    ItemEnded,
    ItemInterrupted,
    RequestRejected,
)
from hearth.observability.fanout import EventFanout
from hearth.observability.records import Stats24h
from hearth.types import DAY_S, EndedCount, Lane, Outcome
from tests.observability.samples import all_kinds, ended, fact, interrupted, rejected, sample

SECRET = "the prompt that an error text quotes"


class Sink:
    """Notes the instant of each event, then does what it is given with it."""

    def __init__(self, then: Callable[[Event], object] = lambda _: None) -> None:
        self.seen: list[float] = []
        self._then = then

    def emit(self, event: Event) -> None:
        self.seen.append(event.at)
        self._then(event)


class Choosy(Sink):
    """Wants one kind of events only."""

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        return self.emit if kind is BackendWentDown else None


def broken(event: Event) -> None:
    if event.at > 4.0:
        raise KeyboardInterrupt
    raise RuntimeError(SECRET)


def test_every_sink_gets_every_event_it_wants_once_in_order(caplog: pytest.LogCaptureFixture):
    fanout = EventFanout()
    last = Sink()
    guest = Sink()
    choosy = Choosy()
    echo = Sink(
        lambda event: fanout.emit(fact(2.0)) if event.at == 1.0 else fanout.subscribe(guest)
    )
    breaks = Sink(broken)
    for sink in (breaks, Sink(broken), echo, choosy, last, last):
        fanout.subscribe(sink)
    with caplog.at_level(logging.ERROR):
        fanout.emit(fact(1.0))
        fanout.emit(sample(BackendCameUp, at=3.0))
        fanout.emit(fact(4.0))
    assert breaks.seen == echo.seen == last.seen == [1.0, 2.0, 3.0, 4.0], (
        "what a sink emits comes after what it handles, for all"
    )
    assert (guest.seen, choosy.seen) == ([3.0, 4.0], [1.0, 2.0, 4.0]), (
        "who comes during a delivery gets the next event"
    )
    with pytest.raises(KeyboardInterrupt):
        fanout.emit(fact(5.0))
    with pytest.raises(KeyboardInterrupt):
        fanout.emit(fact(6.0))
    assert breaks.seen[-2:] == [5.0, 6.0], "a cancellation passes through and loses no later event"
    assert len(caplog.messages) == 2, "each broken sink is reported once, by type and place"
    assert (
        "event sink Sink raised RuntimeError at "
        f"{__name__}:{broken.__code__.co_firstlineno + 3} on backend_went_down"
    ) in caplog.text
    assert SECRET not in caplog.text


def of(*events: Event) -> Stats24h:
    stats = Stats24h()
    for event in events:
        stats.emit(event)
    return stats


def counted(stats: Stats24h, now: float = 5.0) -> dict[str, int]:
    """What is not zero."""
    return {key: count for key, count in stats.snapshot(now).items() if count}


def test_each_ending_interruption_and_refusal_counts_for_its_lane():
    words = ("completed", "failed", "cancelled", "expired", "interrupted")
    names = [f"{lane}_{word}" for lane in ("internal", "external") for word in words]
    assert Stats24h().snapshot(0.0) == dict.fromkeys([*names, "rejected"], 0)
    for lane in Lane:
        for outcome in Outcome:
            assert counted(of(ended(outcome, lane=lane))) == {f"{lane.value}_{outcome.value}": 1}
    found = of(interrupted(), interrupted(), ended(), rejected())
    assert counted(found) == {"external_interrupted": 2, "external_completed": 1, "rejected": 1}
    assert (
        counted(
            of(
                *(
                    sample(kind)
                    for kind in all_kinds()
                    if kind not in (ItemEnded, ItemInterrupted, RequestRejected)
                )
            )
        )
        == {}
    )


def test_a_count_leaves_at_24_hours_or_a_minute_early_in_bounded_memory():
    for at in (0.0, 59.9, 123_456.789):
        stats = of(ended(at=at))
        assert [
            stats.snapshot(now)["external_completed"]
            for now in (at, at + DAY_S - 0.001, at + DAY_S)
        ] == [1, 1, 0]
    assert of(ended(at=0.0), ended(at=60.0)).snapshot(DAY_S)["external_completed"] == 1
    instants = [number * 7.0 for number in range(20_000)]
    stats = of(*(ended(at=at) for at in instants))
    now = instants[-1]
    assert len(stats._buckets) <= 1441
    stats.emit(ended(at=now - 1.0))  # late, and not lost
    found = stats.snapshot(now)["external_completed"] - 1
    assert (
        sum(at > now - DAY_S + 60.0 for at in instants)
        <= found
        <= sum(at > now - DAY_S for at in instants)
    )


def earlier(
    items: int, *, outcome: Outcome = Outcome.COMPLETED, interruptions: int = 0
) -> EndedCount:
    return EndedCount(
        first_wall_s=0.0,
        lane=Lane.EXTERNAL,
        outcome=outcome,
        items=items,
        interruptions=interruptions,
    )


def test_what_an_earlier_process_counted_is_counted_and_leaves_at_24_hours():
    stats = Stats24h()
    stats.preload(earlier(5, interruptions=2), -3600.0)
    stats.preload(earlier(1, outcome=Outcome.FAILED), -3590.0)
    stats.emit(ended(at=0.0))
    assert counted(stats) == {
        "external_completed": 6,
        "external_failed": 1,
        "external_interrupted": 2,
    }
    assert stats.snapshot(DAY_S - 3600.0)["external_completed"] == 1
