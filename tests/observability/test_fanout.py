"""The fanout: order, subscriptions, and one sink's defect staying its own."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from hearth.events import BackendCameUp, BackendWentDown, Event
from hearth.observability.metrics.counters import Metrics
from hearth.observability.records import Stats24h
from hearth.observability.sinks import EventFanout
from hearth.observability.timeline import Timeline
from tests.observability.samples import Instants, all_kinds, fact, sample
from tests.support.cases import for_each

SECRET = "the prompt that an error text quotes"


class Broken(Instants):
    def emit(self, event: Event) -> None:
        super().emit(event)
        raise RuntimeError(SECRET)


class Echo(Instants):
    """Answers the first event with another one, as an alert rule may."""

    def __init__(self, fanout: EventFanout) -> None:
        super().__init__()
        self.fanout = fanout

    def emit(self, event: Event) -> None:
        super().emit(event)
        if event.at == 1.0:
            self.fanout.emit(fact(2.0))


def test_every_sink_gets_every_event_in_order():
    first, second = Instants(), Instants()
    fanout = EventFanout([first])
    fanout.subscribe(second)
    for number in (1.0, 2.0, 3.0):
        fanout.emit(fact(number))
    assert first.seen == second.seen == [1.0, 2.0, 3.0]


def test_a_sink_that_subscribes_twice_gets_each_event_once():
    sink = Instants()
    fanout = EventFanout([sink])
    fanout.subscribe(sink)
    fanout.emit(fact(1.0))
    assert sink.seen == [1.0]


def test_an_event_emitted_while_another_is_delivered_comes_after_it_for_everyone():
    fanout, last = EventFanout(), Instants()
    echo = Echo(fanout)
    fanout.subscribe(echo)
    fanout.subscribe(last)
    fanout.emit(fact(1.0))
    assert echo.seen == last.seen == [1.0, 2.0]


def test_a_sink_that_comes_during_a_delivery_gets_the_next_event():
    class Host(Instants):
        def emit(self, event: Event) -> None:
            super().emit(event)
            fanout.subscribe(guest)

    host, guest = Host(), Instants()
    fanout = EventFanout([host])
    fanout.emit(fact(1.0))
    fanout.emit(fact(2.0))
    assert (host.seen, guest.seen) == ([1.0, 2.0], [2.0])


def test_a_sink_that_raises_disturbs_nobody_and_keeps_getting_events():
    before, broken, after = Instants(), Broken(), Instants()
    fanout = EventFanout([before, broken, after])
    fanout.emit(fact(1.0))
    fanout.emit(fact(2.0))
    assert before.seen == broken.seen == after.seen == [1.0, 2.0]


def test_a_broken_sink_is_reported_once_by_type_and_place(caplog: pytest.LogCaptureFixture):
    fanout = EventFanout([Broken(), Broken()])
    with caplog.at_level(logging.ERROR):
        for number in (1.0, 2.0, 3.0):
            fanout.emit(fact(number))
    assert len(caplog.messages) == 2
    assert f"event sink Broken raised RuntimeError at {__name__}:{Broken.emit.__code__.co_firstlineno + 2} " in caplog.messages[0]
    assert "backend_went_down" in caplog.messages[0]
    assert SECRET not in caplog.text


def test_a_cancellation_inside_a_sink_passes_through_and_loses_no_later_event():
    class Interrupted(Instants):
        def emit(self, event: Event) -> None:
            if not self.seen:
                super().emit(event)
                raise KeyboardInterrupt
            super().emit(event)

    sink = Interrupted()
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
    fanout.emit(BackendCameUp(at=2.0, version="", down_s=1.0))
    fanout.subscribe(late)
    fanout.emit(fact(3.0))
    assert (choosy.seen, late.seen, every.seen) == ([1.0, 3.0], [3.0], [1.0, 2.0, 3.0])


@for_each("kind", all_kinds())
def test_our_own_sinks_come_to_the_same_through_either_way_in(kind: type[Event]):
    said = sample(kind)
    for make, state in (
        (Stats24h, lambda sink: sink.snapshot(5.0)),
        (Metrics, lambda sink: sink.metrics()),
        (Timeline, lambda sink: (sink.ended(), sink.interruptions(5.0), sink.depths(5.0), [span.kind for span in sink.spans(5.0)])),
    ):
        plain, chosen = make(), make()
        plain.emit(said)
        take = chosen.handler_of(kind)
        if take is not None:
            take(said)
        assert state(plain) == state(chosen)
