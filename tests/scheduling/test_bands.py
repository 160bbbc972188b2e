"""Who goes first: bands strictly, then the order of arrival."""

from __future__ import annotations

from itertools import pairwise

from hearth.config.settings import PolicyName
from hearth.types import Priority
from tests.support.shell import Shell, house_settings


def test_an_idle_resident_model_starts_what_arrives_in_the_same_decision():
    house = Shell(resident=("a",))
    house.arrive("a")
    assert house.said == ["start 1 on a"]


def test_internal_bands_go_before_external_work_and_in_their_own_order():
    house = Shell(resident=("a",))
    running = house.internal("a", Priority.CRITICAL)
    house.arrive("a")
    background = house.internal("a", Priority.BACKGROUND)
    normal = house.internal("a", Priority.NORMAL)
    critical = house.internal("a", Priority.CRITICAL)
    for finished, next_one in [(running, critical), (critical, normal), (normal, background), (background, 2)]:
        assert house.finish(finished) == [f"start {next_one} on a"]


def test_within_a_band_the_first_to_arrive_goes_first():
    house = Shell(resident=("a",))
    order = [house.arrive("a") for _ in range(5)]
    for first, second in pairwise(order):
        assert house.finish(first) == [f"start {second} on a"]


def test_a_more_urgent_band_gets_its_swap_although_the_loaded_model_has_less_urgent_work():
    house = Shell(resident=("a",))
    running = house.internal("a")
    house.internal("a", Priority.BACKGROUND)
    house.internal("b", Priority.CRITICAL)
    assert house.finish(running) == ["unload a"]


def test_work_of_no_particular_model_runs_on_whatever_is_in_memory():
    house = Shell(resident=("a",))
    house.arrive(None)
    assert house.said == ["start 1 on a"]


def test_work_of_no_particular_model_brings_the_home_model_to_an_empty_gpu():
    house = Shell(house_settings(home="h"))
    house.arrive(None)
    assert house.said == ["load h"]
    assert house.loaded() == ["start 1 on h"]


def test_work_of_no_particular_model_is_refused_where_there_is_no_home_and_runs_on_a_model_that_is_on_its_way():
    house = Shell()
    house.arrive(None)
    assert house.said == ["fail 1 no_model"]
    house.arrive("b")
    anywhere = house.arrive(None)
    assert house.loaded() == ["start 2 on b"]
    house.arrive("b")
    assert house.finish(2) == [f"start {anywhere} on b"]


def test_fifo_serves_strictly_in_order_of_arrival_whatever_it_costs():
    house = Shell(house_settings(policy=PolicyName.FIFO), resident=("a",))
    running = house.arrive("a")
    house.arrive("b")
    house.arrive("a")
    assert house.finish(running) == ["unload a"]


def test_affinity_finishes_what_the_loaded_model_can_serve_before_it_swaps():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    house.arrive("b")
    third = house.arrive("a")
    assert house.finish(first) == [f"start {third} on a"]
    assert house.finish(third) == ["unload a"]


def test_affinity_swaps_for_the_longest_waiting_model_where_none_can_be_served():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    house.arrive("c")
    house.arrive("b")
    house.finish(running)
    assert house.unloaded() == ["load c"]


def test_a_cancelled_item_leaves_the_line_and_the_next_moves_up():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    second = house.arrive("a")
    third = house.arrive("a")
    assert house.cancel(second) == []
    assert house.finish(running) == [f"start {third} on a"]


def test_a_cancelled_running_item_is_aborted_once_and_its_slot_is_free_only_when_it_has_stopped():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    waiting = house.arrive("a")
    assert house.cancel(running) == [f"abort {running}"]
    assert house.cancel(running) == []
    assert house.stop(running) == [f"start {waiting} on a"]


def test_items_that_are_cancelled_together_are_one_decision_and_each_is_left_as_if_it_were_alone():
    house = Shell(resident=("a",))
    running, waiting, other, last = (house.arrive("a") for _ in range(4))
    assert house.cancel(running, waiting, last) == [f"abort {running}"]
    assert house.cancel(running, waiting, 99) == []
    assert house.stop(running) == [f"start {other} on a"]
    assert set(house.state.entries) == {other}


def test_a_cancelled_item_that_finishes_all_the_same_leaves_quietly():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    house.cancel(running)
    house.finish(running)
    assert not house.state.entries


def test_two_items_start_at_once_on_a_model_with_two_slots_and_no_more():
    house = Shell(house_settings(parallel=2), resident=("a",))
    for _ in range(3):
        house.arrive("a")
    assert set(house.running) == {1, 2}


def test_a_late_report_about_an_attempt_that_is_over_changes_nothing():
    house = Shell(resident=("a",))
    first = house.arrive("a")
    second = house.arrive("a")
    house.finish(first)
    house.running[first] = 1
    assert house.finish(first) == []
    assert set(house.running) == {second}


def test_draining_starts_nothing_and_lets_what_runs_end():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    house.arrive("a")
    house.drain()
    assert house.finish(running) == []
    house.arrive("b")
    assert house.said == []
