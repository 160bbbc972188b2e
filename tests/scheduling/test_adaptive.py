"""Hearth's own policy: whose turn it is, when a model is left, for whom it is held, and when age counts.

A swap costs 10 s until one was measured, and an item takes 5 s until one has run.
"""

from __future__ import annotations

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings, SchedulingSettings
from hearth.scheduling.core import Scheduler
from hearth.scheduling.policies.adaptive import HOLD_SHARE, LATE, LATE_S, MOST_TRIPS, UNKNOWN_HOLD_S, UNKNOWN_SHARE
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import rare_in_overload, two_agents
from hearth.types import Band, Priority
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


def test_the_model_that_answers_most_callers_per_second_is_next():
    house = adaptive()
    running = house.arrive("a")
    house.arrive("b")
    for _ in range(3):
        house.arrive("c")
    house.at(5.0).finish(running)
    house.at(6.0)
    assert house.unloaded() == ["load c"]


def test_a_cheap_swap_goes_before_a_dear_one():
    house = adaptive()
    house.state.estimates.learn_swap("", "c", 1.0)
    running = house.arrive("a")
    house.arrive("b")
    house.arrive("c")
    house.finish(running)
    house.at(1.0)
    assert house.unloaded() == ["load c"]


def test_the_model_in_memory_is_served_first():
    house = adaptive()
    running = house.arrive("a")
    house.arrive("b")
    waiting = house.arrive("a")
    assert house.at(5.0).finish(running) == [f"start {waiting} on a"]


def crowd_for_b(house: Shell, waiting_for_a: int, crowd: int, a_runs_s: float = 60.0) -> int:
    """Some wait for a, and a crowd for b, whose items and swaps are short. Returns the running item of a."""
    for model, seconds in (("a", a_runs_s), ("b", 0.1)):
        house.state.estimates.restore({"format": 1, "run_s": {model: seconds}})
        house.state.estimates.learn_swap("", model, 5.0)
    running = house.arrive("a", caller="long")
    for _ in range(waiting_for_a):
        house.arrive("a", caller="long")
    for _ in range(crowd):
        house.arrive("b")
    return running


def test_a_model_with_long_work_is_left_for_a_crowd_with_short_work():
    house = adaptive()
    running = crowd_for_b(house, waiting_for_a=3, crowd=8, a_runs_s=100.0)
    assert house.at(100.0).finish(running) == ["unload a"]


def test_it_is_not_left_for_a_few_who_can_wait_as_well():
    house = adaptive()
    house.at(100.0)
    running = crowd_for_b(house, waiting_for_a=3, crowd=1, a_runs_s=20.0)
    assert house.at(130.0).finish(running) == ["start 2 on a"]


def test_it_is_not_left_before_it_has_earned_its_place():
    house = adaptive()
    running = crowd_for_b(house, waiting_for_a=3, crowd=8)
    assert house.at(99.0).finish(running) == ["start 2 on a"]


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


@pytest.mark.parametrize("turns", [200])
def test_where_nothing_in_memory_has_work_a_rare_item_waits_at_most_twice_its_patience(turns: int) -> None:
    """Two agents take turns on cheap models, which never have served for three times the 45 s of the rare one."""
    settings = two_agents().settings(SchedulerSettings(), PolicyName.ADAPTIVE)
    records = simulate(two_agents(turns=turns), settings, Scheduler(settings), keep_decisions=False).records
    (rare,) = [record for record in records if record.job.model == "rare"]
    assert rare.wait_s is not None
    assert rare.wait_s <= 2 * settings.scheduling.max_swap_wait_s + 60.0


@for_each("seed", range(4))
@for_each("load", [1.4, 2.5])
def test_beside_a_model_in_overload_a_rare_one_waits_ten_trips_and_a_little(load: float, seed: int) -> None:
    """As long as the overload lasts. After it the line of the busy model gets shorter, and the item waits for that instead."""
    workload = rare_in_overload(load=load, seed=seed)
    settings = workload.settings(SchedulerSettings(), PolicyName.ADAPTIVE)
    records = simulate(workload, settings, Scheduler(settings), keep_decisions=False).records
    bound_s = MOST_TRIPS * 48.0 + 45.0 + max(record.job.service_s for record in records)
    overload_ends_at = max(record.arrived for record in records)
    rare = [record for record in records if record.job.model == "rare" and record.arrived < overload_ends_at - bound_s]
    assert rare
    assert max(record.wait_s or 0.0 for record in rare) <= bound_s


def test_an_agent_between_two_turns_is_waited_for():
    house = adaptive()
    loop_of(house, gap_s=2.0)
    house.arrive("b")
    house.at(house.now + 2.0)
    assert not house.unloading
    turn = house.arrive("a", caller="agent")
    assert house.said == [f"start {turn} on a"]


def test_an_agent_that_stays_away_is_waited_for_only_a_little_longer_than_it_ever_took():
    house = adaptive()
    loop_of(house, gap_s=2.0)
    house.arrive("b")
    house.at(house.now + 2.1)
    assert not house.unloading
    house.at(house.now + 0.1)
    assert house.unloading == ["a"]


def test_nobody_is_waited_for_who_takes_long():
    house = adaptive()
    loop_of(house, gap_s=HOLD_SHARE * ROUND_TRIP_S + 1.0)
    house.arrive("b")
    assert house.said == ["unload a"]


def test_nobody_is_waited_for_who_seldom_comes_back():
    house = adaptive()
    for gap_s in (1.0, 50.0, 60.0, 70.0, 1.0):
        loop_of(house, gap_s, turns=2)
        house.at(house.now + 100.0)
    loop_of(house, 2.0, turns=1)
    house.arrive("b")
    assert house.said == ["unload a"]


def test_a_single_comeback_proves_less_than_several():
    for turns, is_held in ((2, False), (5, True)):
        house = adaptive()
        loop_of(house, gap_s=4.0, turns=turns)
        house.arrive("b")
        house.arrive("b")
        assert (not house.unloading) is is_held


def test_nobody_is_waited_for_while_many_wait():
    house = adaptive()
    loop_of(house, gap_s=2.0)
    house.arrive("b")
    assert not house.unloading
    for _ in range(6):
        house.arrive("b")
    assert house.unloading == ["a"]


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


def test_a_caller_of_whom_nothing_is_known_gets_a_moment():
    house = adaptive()
    house.finish(house.arrive("a"))
    house.arrive("b")
    assert not house.unloading
    house.at(UNKNOWN_HOLD_S)
    assert house.unloading == ["a"]


def test_two_gaps_that_may_be_chance_earn_no_hold():
    house = adaptive()
    loop_of(house, gap_s=5.0, turns=3)
    house.arrive("b")
    assert house.unloading == ["a"]


def test_one_gap_is_enough_where_the_hold_is_but_a_moment():
    house = adaptive()
    loop_of(house, gap_s=0.1, turns=2)
    house.arrive("b")
    assert house.timer == pytest.approx(house.now + 0.1 * LATE + LATE_S)


def test_that_moment_is_shorter_where_swaps_are_cheap():
    house = adaptive()
    house.state.estimates.learn_swap("a", "b", 1.0)
    house.state.estimates.learn_swap("b", "a", 1.0)
    house.finish(house.arrive("a"))
    house.arrive("b")
    assert house.timer == pytest.approx(UNKNOWN_SHARE * 2.0)


def test_a_caller_that_waits_for_something_else_gets_none():
    """What it waits for is the very thing that the hold would keep from it."""
    house = adaptive()
    running = house.arrive("a")
    house.arrive("b")
    assert house.finish(running) == ["unload a"]


def test_a_hold_for_the_houses_own_work_is_not_used_by_others():
    house = adaptive()
    house.finish(house.arrive("a", caller="router"))
    house.internal("b", Priority.CRITICAL)
    assert house.arrive("a") not in house.running
    house.at(UNKNOWN_HOLD_S)
    assert house.unloading == ["a"]


def test_a_hold_does_not_delay_a_model_for_which_there_is_room():
    rules = SchedulingSettings(policy=PolicyName.ADAPTIVE)
    house = Shell(house_settings(scheduling=rules, vram_gb=0.0), resident=("a",))
    house.finish(house.arrive("a"))
    house.arrive("b")
    assert house.said == ["load b"]


@for_each(("turns", "held_s"), [(1, UNKNOWN_HOLD_S), (4, 5.255), (5, 5.255), (40, 5.255)])
def test_a_hold_ends_by_a_timer_a_little_after_the_longest_likely_gap(turns: int, held_s: float) -> None:
    house = adaptive()
    loop_of(house, gap_s=5.0, turns=turns)
    ended_at = house.now
    house.arrive("b")
    while not house.unloading:
        house.fire()
    assert house.now - ended_at == pytest.approx(held_s)
