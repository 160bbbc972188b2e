"""What is told late: in order, in bounded numbers, and seen by nobody who looks."""

from __future__ import annotations

import asyncio

import pytest

from hearth.events import Event
from hearth.observability.late import AT_ONCE, GATHER_S, LateFanout
from hearth.observability.records import Records
from hearth.types import Outcome
from tests.observability.samples import Instants, ended, fact
from tests.support.virtual_time import in_virtual_time
from tests.worker.house import timers


@in_virtual_time
async def test_events_come_together_a_moment_late_and_in_order():
    sink, loop = Instants(), asyncio.get_running_loop()
    late = LateFanout((sink,))
    began_at = loop.time()
    for number in (1.0, 2.0, 3.0):
        late.emit(fact(number))
    await asyncio.sleep(GATHER_S / 2)
    late.emit(fact(4.0))
    assert sink.seen == []
    await asyncio.sleep(GATHER_S / 2)
    assert (sink.seen, loop.time()) == ([1.0, 2.0, 3.0, 4.0], began_at + GATHER_S)
    late.emit(fact(5.0))
    await asyncio.sleep(GATHER_S)
    assert sink.seen[4:] == [5.0]


@in_virtual_time
async def test_many_at_once_are_not_gathered_without_bound():
    sink = Instants()
    late = LateFanout((sink,))
    for number in range(AT_ONCE + 1):
        late.emit(fact(number))
    assert len(sink.seen) == AT_ONCE
    late.flush()
    assert sink.seen == [*range(AT_ONCE + 1)]


def test_without_a_loop_nothing_is_late():
    sink = Instants()
    LateFanout((sink,)).emit(fact(1.0))
    assert sink.seen == [1.0]


@in_virtual_time
async def test_what_a_sink_emits_or_flushes_meanwhile_keeps_its_place():
    sink = Instants()

    class Meddler(Instants):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if event.at == 1.0:
                late.emit(fact(9.0))
                late.flush()

    late = LateFanout((Meddler(), sink))
    for number in (1.0, 2.0):
        late.emit(fact(number))
    late.flush()
    assert sorted(sink.seen) == [1.0, 2.0, 9.0]
    assert sink.seen.index(2.0) < sink.seen.index(9.0)


@in_virtual_time
async def test_one_sink_hears_of_everything_that_has_waited_before_the_next_one_does():
    heard: list[tuple[str, float]] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def emit(self, event: Event) -> None:
            heard.append((self.name, event.at))

    late = LateFanout((Named("first"), Named("second")))
    for number in (1.0, 2.0):
        late.emit(fact(number))
    late.flush()
    assert heard == [("first", 1.0), ("first", 2.0), ("second", 1.0), ("second", 2.0)]


@in_virtual_time
async def test_more_than_is_gathered_from_within_a_sink_comes_after_what_the_others_have_not_heard_of_yet():
    sink = Instants()

    class Storm(Instants):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if event.at == 1.0:
                for number in range(10, 10 + AT_ONCE):
                    late.emit(fact(number))

    storm = Storm()
    late = LateFanout((storm, sink))
    for number in (1.0, 2.0):
        late.emit(fact(number))
    late.flush()
    assert storm.seen == sink.seen == [1.0, 2.0, *range(10, 10 + AT_ONCE)]


@in_virtual_time
async def test_a_sink_that_raises_misses_only_that_event_and_costs_the_others_nothing(caplog: pytest.LogCaptureFixture):
    sink = Instants()

    class Broken(Instants):
        def emit(self, event: Event) -> None:
            if event.at == 1.0:
                raise ValueError("a prompt")
            super().emit(event)

    broken = Broken()
    late = LateFanout((broken, sink))
    for number in (1.0, 2.0):
        late.emit(fact(number))
    late.flush()
    assert (broken.seen, sink.seen) == ([2.0], [1.0, 2.0])
    assert [record.message.split(" at ")[0] for record in caplog.records] == ["event sink Broken raised ValueError"]


@in_virtual_time
async def test_a_flush_leaves_no_timer_behind():
    late = LateFanout((Instants(),))
    late.emit(fact(1.0))
    late.flush()
    late.flush()
    assert timers() == []


@in_virtual_time
async def test_whoever_reads_a_record_finds_it_complete():
    records = Records()
    records.emit(ended(Outcome.COMPLETED, at=1.0))
    assert records.stats.snapshot(2.0)["external_completed"] == 1
    records.emit(ended(Outcome.FAILED, at=2.0))
    assert len(records.timeline.ended()) == 2
