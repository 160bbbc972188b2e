"""The five checks of the cost-aware policy, in their order; a swap costs 10 s until one was measured."""

from __future__ import annotations

from dataclasses import replace

from hearth.config.settings import CostAwareSettings, GpuSettings, ModelSettings, PolicyName, SchedulingSettings
from tests.support.shell import Shell, house_settings


def house_with(**parameters: float) -> Shell:
    """Model a is in memory since 0 and the parameters are the report's, but for those given."""
    rules = SchedulingSettings(policy=PolicyName.COST_AWARE, cost_aware=CostAwareSettings(**parameters))
    return Shell(house_settings(scheduling=rules), resident=("a",))


def test_what_has_waited_too_long_swaps_within_the_serving_window():
    house = house_with(max_wait_s=4.0)
    house.arrive("b")
    house.at(3.9)
    assert not house.unloading
    house.at(4.0)
    assert house.log[-1] == (4.0, "unload a")


def test_an_empty_gpu_loads_at_once():
    house = Shell(house_settings(scheduling=SchedulingSettings(policy=PolicyName.COST_AWARE)))
    house.arrive("b")
    assert house.said == ["load b"]


def test_a_model_serves_for_as_long_as_the_swap_costs_whoever_waits():
    house = house_with()
    for _ in range(9):
        house.arrive("b")
    house.at(9.9)
    assert not house.unloading
    house.at(10.0)
    assert house.log[-1] == (10.0, "unload a")


def test_a_model_is_in_memory_for_the_least_time_even_where_swaps_are_cheap():
    house = house_with(min_active_s=12.0)
    house.state.estimates.learn_swap("a", "b", 1.0)
    house.arrive("b")
    house.at(11.9)
    assert not house.unloading
    house.at(12.0)
    assert house.unloading == ["a"]


def test_a_queue_that_is_worth_the_swap_swaps_at_once():
    house = house_with()
    house.at(20.0)
    for _ in range(4):
        house.arrive("b")
    assert not house.unloading
    house.arrive("b")
    assert house.said == ["unload a"]


def test_a_lone_item_waits_for_company_and_then_swaps():
    house = house_with()
    house.at(20.0).arrive("b")
    house.at(21.9)
    assert not house.unloading
    house.at(22.0)
    assert house.log[-1] == (22.0, "unload a")


def test_of_two_swaps_that_are_due_the_one_for_who_waits_longer_comes():
    house = house_with()
    left = house.at(20.0).arrive("c")
    house.arrive("b")
    house.arrive("c")
    house.cancel(left)
    house.at(22.0)
    assert house.unloaded() == ["load b"]


def test_the_model_in_memory_serves_while_a_swap_is_deferred():
    house = house_with()
    house.at(20.0).arrive("b")
    assert house.finish(house.arrive("a")) == []
    house.at(22.0)
    assert house.unloading == ["a"]


def test_a_model_with_work_is_left_only_once_it_has_earned_its_place():
    house = house_with()
    running = house.arrive("a")
    for _ in range(9):
        house.arrive("b")
    waiting = house.arrive("a")
    assert house.at(29.9).finish(running) == [f"start {waiting} on a"]
    house.arrive("a")
    assert house.at(30.0).finish(waiting) == ["unload a"]


def test_a_load_that_is_free_of_charge_beside_others_is_not_deferred():
    rules = SchedulingSettings(policy=PolicyName.COST_AWARE)
    house = Shell(house_settings(scheduling=rules, vram_gb=0.0), resident=("a",))
    house.arrive("b")
    assert house.said == ["load b"]


def test_while_the_houses_own_work_is_held_nobody_loads_beside_it():
    """The load would still be under way when the hold ends, and what it is for would pass work of a more urgent band."""
    rules = SchedulingSettings(policy=PolicyName.COST_AWARE, cost_aware=CostAwareSettings(min_active_s=5.0))
    sizes = {"a": ModelSettings(vram_gb=10.0), "b": ModelSettings(vram_gb=18.0)}
    settings = replace(
        house_settings(scheduling=rules, models=sizes), gpu=GpuSettings(home_model="", vram_gb=24.0, task_vram_gb={"small": 4.0})
    )
    house = Shell(settings, resident=("a",))
    house.internal("b")
    house.arrive("b", task_type="small")
    assert house.said == []
    assert house.at(60.0).log[0] == (10.0, "unload a")
