"""What status routes see of the scheduler."""

from __future__ import annotations

from dataclasses import asdict

from hearth.scheduling import snapshot
from hearth.scheduling.waiting import Place
from hearth.types import Band, Lane, Priority
from tests.support.shell import Shell, house_settings


def a_busy_house() -> Shell:
    house = Shell(house_settings(parallel=2), resident=("a",))
    house.arrive("a")
    house.at(1.0).arrive("a")
    house.arrive("b")
    house.arrive("a")
    house.internal("b", Priority.BACKGROUND)
    house.internal("b", Priority.CRITICAL)
    return house


def test_running_items_are_listed_the_longest_running_first():
    views = snapshot.running(a_busy_house().state)
    assert [(view.sequence, view.model, view.attempts, view.dispatched_at) for view in views] == [(1, "a", 1, 0.0), (2, "a", 1, 1.0)]


def test_an_item_that_was_told_to_stop_still_counts_as_running_and_says_so():
    house = a_busy_house()
    assert {view.place for view in snapshot.running(house.state)} == {Place.STOPPING}


def test_waiting_items_are_listed_by_band_and_arrival_and_no_more_than_asked_for():
    state = a_busy_house().state
    assert [(view.sequence, view.model, view.attempts) for view in snapshot.waiting(state, Lane.INTERNAL, 10)] == [(6, "b", 0), (5, "b", 0)]
    assert [view.sequence for view in snapshot.waiting(state, Lane.EXTERNAL, 1)] == [3]


def test_an_interrupted_item_is_listed_first_of_its_lane_with_its_count():
    house = a_busy_house()
    house.first_byte(2, forwarded=False)
    assert [view.first_byte_at for view in snapshot.running(house.state)] == [None, 1.0]
    house.stop(2)
    first = snapshot.waiting(house.state, Lane.EXTERNAL, 1)[0]
    assert (first.sequence, first.band, first.interrupts) == (2, Band.INTERRUPTED, 1)
    assert (first.dispatched_at, first.first_byte_at) == (None, None)


def test_residents_are_listed_the_latest_loaded_first_with_what_they_do():
    house = Shell(house_settings(vram_gb=0), resident=("a",))
    house.at(2.0).arrive("b")
    house.loaded(vram_mib=512.0)
    house.arrive("b")
    common = {"phase": "ready", "parallel": 1}
    assert [asdict(view) for view in snapshot.residents(house.state)] == [
        common | {"model": "b", "running": 1, "waiting": 1, "reserved_mib": 512.0, "loaded_at": 2.0},
        common | {"model": "a", "running": 0, "waiting": 0, "reserved_mib": None, "loaded_at": 0.0},
    ]
