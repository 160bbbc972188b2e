"""Loading beforehand what the last caller is sure to ask for next, while the house is idle."""

from __future__ import annotations

from typing import Any

from hearth.config.settings import PolicyName, SchedulingSettings
from hearth.scheduling import inputs
from hearth.scheduling.home import SETTLE_S
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings


def relay(*, gap_s: float = 5.0, home: str = "", turns: int = 9, policy: PolicyName = PolicyName.ADAPTIVE) -> Shell:
    """An agent that uses a and b in turn, `gap_s` after each answer; its last answer, from a, has just come."""
    house = Shell(house_settings(scheduling=SchedulingSettings(policy=policy), home=home), resident=("a",))
    for turn in range(turns):
        _ask(house, "ab"[turn % 2])
        if turn < turns - 1:
            _think(house, gap_s)
    house.log.clear()
    return house


def _ask(house: Shell, model: str) -> None:
    """The agent asks and is answered, however many holds and swaps that takes."""
    sequence = house.arrive(model, caller="agent")
    while sequence not in house.running:
        if house.unloading or house.loading:
            _swap(house)
        else:
            house.fire()
    house.at(house.now + 1.0).finish(sequence)


def _swap(house: Shell) -> None:
    while house.unloading:
        house.unloaded()
    if house.loading:
        house.at(house.now + 2.0).loaded()


def _think(house: Shell, gap_s: float) -> None:
    until = house.now + gap_s
    while house.now < until:
        house.at(min(until, house.timer or until))
        if house.unloading or house.loading:
            _swap(house)


def test_the_model_that_always_comes_next_is_loaded_while_its_caller_thinks():
    house = relay()
    house.at(house.now + SETTLE_S)
    assert house.unloading == ["a"]
    assert house.unloaded() == ["load b"]
    house.at(house.now + 2.0).loaded()
    sequence = house.arrive("b", caller="agent")
    assert house.said == [f"start {sequence} on b"]


@for_each(
    ("case", "after_s"),
    [
        ({}, SETTLE_S - 0.01),  # the next request of a loop could still be there
        ({"turns": 5}, 20.0),  # three steps are needed to be sure
        ({"gap_s": 40.0, "home": "a"}, 29.0),  # home is due first
        ({"policy": PolicyName.AFFINITY}, 10.0),
    ],
)
def test_nothing_is_loaded_where_that_is_too_early_or_not_sure(case: dict[str, Any], after_s: float):
    house = relay(**case)
    house.at(house.now + after_s)
    assert not house.unloading


def test_a_caller_that_goes_on_as_it_likes_is_not_guessed_at():
    house = relay()
    for model in "acacaca":
        house.at(house.now + 0.01)
        _ask(house, model)
    house.at(house.now + 10.0)
    assert not house.unloading


def test_home_comes_back_if_the_caller_stays_away():
    house = relay(home="a")
    ended_at = house.now
    house.at(ended_at + SETTLE_S)
    house.unloaded()
    house.at(house.now + 2.0).loaded()
    house.at(ended_at + 30.0)
    assert house.unloading == ["b"]
    assert house.unloaded() == ["load a"]
    assert house.loaded() == []
    assert house.timer is None


def test_nothing_is_loaded_twice_in_one_idle_time():
    house = relay()
    house.at(house.now + SETTLE_S)
    house.unloaded()
    house.load_failed()
    house.at(house.now + 20.0)
    assert not house.loading


def test_nothing_is_loaded_when_an_announced_task_is_near():
    house = relay()
    house.tell(inputs.Scheduled(task_type="digest", due_at=house.now + 60.0))
    house.at(house.now + 10.0)
    assert not house.unloading
    house.at(house.now + 50.0).tell(inputs.TimerFired())
    assert not house.unloading, "by now its caller is later than it ever was"


def test_an_arrival_for_the_old_model_wins_over_what_was_expected():
    house = relay()
    house.at(house.now + SETTLE_S)
    sequence = house.arrive("a", caller="somebody")
    assert house.unloaded() == ["load a"]
    assert house.loaded() == [f"start {sequence} on a"]
