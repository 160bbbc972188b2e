"""Hearth's own policy: whose turn it is, when a model is left, for whom it is held, and when age counts.

A swap costs 10 s until one was measured, and an item takes 5 s until one has run.
"""

from __future__ import annotations

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings, SchedulingSettings
from hearth.scheduling.policies import MOST_TRIPS, UNKNOWN_HOLD_S
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import rare_in_overload, two_agents
from hearth.types import Band
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings

ROUND_TRIP_S = 20.0


def adaptive(*, max_swap_wait_s: float = 120.0) -> Shell:
    """Model a is in memory since 0 and nothing waits."""
    rules = SchedulingSettings(policy=PolicyName.ADAPTIVE, max_swap_wait_s=max_swap_wait_s)
    return Shell(house_settings(scheduling=rules), resident=("a",))


def loop_of(house: Shell, gap_s: float, turns: int = 4) -> None:
    """An agent takes turns of 1 s with a and is back `gap_s` after each; the last turn has just ended."""
    for turn in range(turns):
        sequence = house.arrive("a", caller="agent")
        house.at(house.now + 1.0).finish(sequence)
        if turn < turns - 1:
            house.at(house.now + gap_s)


def left_at(house: Shell, queue: int) -> float:
    """One item waits for b since 0, and always so many for a, which take 5 s each. When is a left?"""
    house.arrive("a")
    house.arrive("b")
    for _ in range(queue):
        house.arrive("a")
    while house.running and house.now < 1000.0:
        house.arrive("a")
        house.at(house.now + 5.0).finish(min(house.running))
    return house.now


@for_each("queue", [1, 4, 40])
def test_a_line_that_does_not_get_shorter_keeps_nobody_longer_than_ten_round_trips(queue: int) -> None:
    assert left_at(adaptive(max_swap_wait_s=30.0), queue) == 10 * ROUND_TRIP_S


def test_age_forces_no_swap_before_the_owner_allows_it():
    assert left_at(adaptive(max_swap_wait_s=250.0), queue=1) == 250.0


def test_a_line_that_gets_shorter_is_served_while_an_item_has_waited_less_than_three_times_what_that_takes():
    house = adaptive(max_swap_wait_s=30.0)
    for _ in range(80):
        house.arrive("c")
    house.at(house.now + 1.0)
    house.swap(10.0)
    began_at = house.now
    house.arrive("b")
    while not house.unloading:
        house.at(house.now + 5.0).finish(min(house.running))
    left = house.state.waiting.up_to(Band.EXTERNAL, "c")
    assert house.now - began_at > 10 * ROUND_TRIP_S
    assert 0 <= house.now - began_at - 3 * (5 * (left + 1) + 20) <= 20


def test_where_nothing_in_memory_has_work_a_rare_item_waits_at_most_twice_its_patience() -> None:
    """Two agents take turns on cheap models, which never have served for three times the 45 s of the rare one."""
    settings = two_agents().settings(SchedulerSettings(), PolicyName.ADAPTIVE)
    records = simulate(two_agents(turns=200), settings, keep_decisions=False).records
    (rare,) = [record for record in records if record.job.model == "rare"]
    assert rare.wait_s is not None
    assert rare.wait_s <= 2 * settings.scheduling.max_swap_wait_s + 60.0


@for_each("seed", range(4))
@for_each("load", [1.4, 2.5])
def test_beside_a_model_in_overload_a_rare_one_waits_ten_trips_and_a_little(load: float, seed: int) -> None:
    """As long as the overload lasts. After it the line of the busy model gets shorter, and the item waits for that instead."""
    workload = rare_in_overload(load=load, seed=seed)
    settings = workload.settings(SchedulerSettings(), PolicyName.ADAPTIVE)
    records = simulate(workload, settings, keep_decisions=False).records
    bound_s = MOST_TRIPS * 48.0 + 45.0 + max(record.job.service_s for record in records)
    overload_ends_at = max(record.arrived for record in records)
    rare = [record for record in records if record.job.model == "rare" and record.arrived < overload_ends_at - bound_s]
    assert rare
    assert max(record.wait_s or 0.0 for record in rare) <= bound_s


def test_nobody_is_waited_for_who_seldom_comes_back():
    house = adaptive()
    for gap_s in (1.0, 50.0, 60.0, 70.0, 1.0):
        loop_of(house, gap_s, turns=2)
        house.at(house.now + 100.0)
    loop_of(house, 2.0, turns=1)
    house.arrive("b")
    assert house.said == ["unload a"]


def test_nobody_is_waited_for_once_an_item_has_waited_four_round_trips():
    house = adaptive(max_swap_wait_s=1000.0)
    loop_of(house, gap_s=2.0)
    house.arrive("b")
    began_at = house.now
    while not house.unloading:
        house.at(house.now + 2.0)
        if not house.unloading:
            turn = house.arrive("a", caller="agent")
            house.at(house.now + 1.0).finish(turn)
    assert 4 * ROUND_TRIP_S < house.now - began_at <= 4 * ROUND_TRIP_S + 3.0


@for_each(("turns", "held_s"), [(1, UNKNOWN_HOLD_S), (4, 5.255), (5, 5.255), (40, 5.255)])
def test_a_hold_ends_by_a_timer_a_little_after_the_longest_likely_gap(turns: int, held_s: float) -> None:
    house = adaptive()
    loop_of(house, gap_s=5.0, turns=turns)
    ended_at = house.now
    house.arrive("b")
    while not house.unloading:
        house.fire()
    assert house.now - ended_at == pytest.approx(held_s)
