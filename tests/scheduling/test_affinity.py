"""Ageing that may force a swap (rule 5), and settling, which keeps a swap from being wasted (rule 11)."""

from __future__ import annotations

from hearth.config.settings import PolicyName, SchedulingSettings
from hearth.scheduling import inputs
from hearth.types import Priority
from tests.support.shell import Shell, house_settings

SOON = SchedulingSettings(policy=PolicyName.AFFINITY, max_swap_wait_s=20.0, residency_factor=3.0)


def overloaded() -> tuple[Shell, int]:
    """Model a never runs dry and b waits since t = 0; a was loaded at t = 0. Returns the running item of a."""
    house = Shell(house_settings(scheduling=SOON), resident=("a",))
    running = house.arrive("a")
    house.arrive("b")
    house.arrive("a")
    return house, running


def test_an_overdue_item_forces_a_swap_once_the_loaded_model_has_earned_its_keep():
    house, running = overloaded()
    assert house.at(30.0).finish(running) == ["unload a"]
    assert house.unloaded() == ["load b"]


def test_a_model_that_was_dear_to_load_serves_three_times_that_although_the_next_one_is_cheap():
    """Else the dear one is loaded again and again for a few items each, and most of the time goes into that."""
    house, running = overloaded()
    house.state.estimates.learn_swap("x", "a", 20.0)
    house.state.estimates.learn_swap("a", "b", 2.0)
    assert house.at(59.0).finish(running) == ["start 3 on a"]
    assert house.at(60.0).finish(3) == ["unload a"]


def test_an_item_that_is_not_overdue_yet_forces_nothing():
    house, running = overloaded()
    assert house.at(19.0).finish(running) == ["start 3 on a"]


def test_of_two_overdue_items_the_older_one_forces_its_swap():
    house, running = overloaded()
    house.at(1.0).arrive("c")
    house.at(30.0).finish(running)
    assert house.unloaded() == ["load b"]


def test_an_overdue_item_waits_until_the_loaded_model_has_served_three_times_the_cost_of_the_swap():
    house, running = overloaded()
    assert house.at(29.9).finish(running) == ["start 3 on a"]


def test_the_measured_cost_of_a_swap_from_unload_to_load_replaces_the_assumed_one():
    house = Shell(house_settings(scheduling=SOON), resident=("a",))
    house.finish(house.arrive("a"))
    house.arrive("b")
    house.at(0.5).unloaded()
    house.at(2.0).loaded()
    assert house.state.estimates.swap_s("a", "b") == 2.0


def test_ageing_never_crosses_bands():
    house = Shell(house_settings(scheduling=SOON), resident=("a",))
    running = house.internal("a")
    house.arrive("b")
    waiting = house.internal("a")
    assert house.at(100.0).finish(running) == [f"start {waiting} on a"]


def test_fifo_never_ages():
    house = Shell(house_settings(policy=PolicyName.FIFO), resident=("a",))
    running = house.arrive("a")
    first = house.arrive("a")
    house.arrive("b")
    assert house.at(1000.0).finish(running) == [f"start {first} on a"]


def test_overload_does_not_collapse_into_swapping():
    """Two models, more work than fits: swaps stay bounded by the residency that each must earn."""
    house = Shell(
        house_settings(scheduling=SchedulingSettings(policy=PolicyName.AFFINITY, max_swap_wait_s=5.0, residency_factor=3.0)),
        resident=("a",),
    )
    for _ in range(150):
        house.arrive("a")
        house.arrive("b")
    loads = 0
    while house.state.entries:
        if house.unloading:
            loads += 1
            house.swap(10.0)
        house.at(house.now + 1.0).finish(min(house.running))
    assert loads <= 300 / 30 + 2


def test_memory_that_was_cleared_for_a_model_is_for_that_model():
    """Among all that wait, the queue of the model that had to go is the older one."""
    house = Shell(house_settings(scheduling=SOON), resident=("a",))
    running = house.arrive("a")
    for _ in range(3):
        house.arrive("a")
    house.at(0.1).arrive("b")
    assert house.at(30.1).finish(running) == ["unload a"]
    assert house.unloaded() == ["load b"]


def test_memory_that_was_cleared_for_nobody_any_more_is_for_whoever_is_next():
    house = Shell(house_settings(scheduling=SOON), resident=("a",))
    running = house.arrive("a")
    house.arrive("a")
    left = house.arrive("b")
    house.at(30.1).finish(running)
    house.cancel(left)
    house.arrive("b")
    assert house.unloaded() == ["load a"]


def test_a_loaded_model_serves_a_waiter_before_it_may_be_swapped_away():
    house = Shell(house_settings(policy=PolicyName.FIFO), resident=("a",))
    running = house.arrive("a")
    older = house.arrive("b")
    house.arrive("c")
    house.finish(running)
    house.unloaded()
    house.cancel(older)
    newer = house.arrive("b")
    assert house.loaded() == [f"start {newer} on b"]


def test_a_loaded_model_whose_waiters_have_all_left_may_be_swapped_away_at_once():
    house = Shell()
    only = house.arrive("b")
    house.arrive("c")
    house.cancel(only)
    assert house.loaded() == ["unload b"]


def test_settling_yields_to_a_strictly_more_urgent_band():
    house = Shell()
    house.internal("b", Priority.BACKGROUND)
    house.internal("c", Priority.CRITICAL)
    assert house.loaded() == ["unload b"]


def test_settling_does_not_yield_to_the_same_band():
    house = Shell(house_settings(policy=PolicyName.FIFO))
    first = house.internal("b")
    house.internal("c")
    assert house.loaded() == [f"start {first} on b"]


def test_a_loaded_model_is_kept_for_its_waiter_while_an_announced_task_holds_that_back():
    house = Shell()
    house.arrive("c")
    house.at(1.0).loaded()
    house.finish(1)
    house.arrive("b")
    house.tell(inputs.Scheduled(task_type="digest", due_at=30.0))
    house.unloaded()
    assert house.at(26.0).loaded() == []
    house.arrive("c", max_tokens=40)
    assert house.said == []
    house.at(30.0)
    assert house.log[-1] == (30.0, "start 2 on b")


def test_a_load_under_way_is_finished_although_something_more_urgent_needs_another_model():
    house = Shell()
    house.arrive("b")
    house.internal("c", Priority.CRITICAL)
    assert house.said == []
    assert house.loaded() == ["unload b"]
    assert house.unloaded() == ["load c"]
