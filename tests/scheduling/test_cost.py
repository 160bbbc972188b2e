"""What a decision costs must not depend on how many wait: counted in function calls, so that no slow machine can fail it."""

from __future__ import annotations

import sys

from hearth.config.settings import PackingMode, PackingSettings, PolicyName, SchedulerSettings, SchedulingSettings
from hearth.types import Lane, Priority
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings

DECISIONS = 20


def calls_of(settings: SchedulerSettings, depth: int, lane: Lane = Lane.EXTERNAL) -> int:
    """Function calls, built-in ones included, of twenty arrivals and ends with `depth` items waiting."""
    house = Shell(settings, resident=("a",), judged=False)
    for number in range(depth):
        house.arrive("abc"[number % 3], lane=lane, priority=Priority.BACKGROUND, prompt_tokens=number % 90)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event.endswith("call")

    sys.setprofile(count)
    try:
        for _ in range(DECISIONS):
            _one_of_each(house)
    finally:
        sys.setprofile(None)
    return calls


def _one_of_each(house: Shell) -> None:
    house.arrive("a")
    if house.unloading:
        house.swap()
    house.finish(min(house.running))
    if house.unloading:
        house.swap()


@for_each("policy", list(PolicyName))
def test_a_decision_costs_the_same_with_a_hundred_times_as_many_waiting(policy: PolicyName) -> None:
    assert calls_of(house_settings(policy=policy), 6_000) <= 1.5 * calls_of(house_settings(policy=policy), 60)


def test_a_round_and_a_queue_that_ages_cost_the_same_with_a_hundred_times_as_many_waiting() -> None:
    packing = PackingSettings(mode=PackingMode.PACK, lookahead=16)
    packed = house_settings(scheduling=SchedulingSettings(packing=packing), parallel=3)
    assert calls_of(packed, 6_000) <= 1.5 * calls_of(packed, 60)
    assert calls_of(house_settings(), 6_000, Lane.INTERNAL) <= 1.5 * calls_of(house_settings(), 60, Lane.INTERNAL)
