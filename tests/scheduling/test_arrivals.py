"""What is learned of callers: which gaps count, apart for whom, and that memory stays bounded."""

from __future__ import annotations

from math import inf

from hearth.config.settings import PolicyName
from hearth.scheduling import inputs
from hearth.scheduling.arrivals import GAPS, MAX_HABITS, RECENT, STEPS, Arrivals
from tests.support.shell import Shell, house_settings


def turn(known: Arrivals, caller: str, model: str, at: float, run_s: float = 1.0) -> None:
    """An item comes to an idle model, runs at once, and ends."""
    known.arrived(caller, model, at)
    known.came_back(caller, model, at)
    known.left(caller)
    known.ended(caller, model, at + run_s)


def gaps_of(known: Arrivals, model: str) -> list[list[float]]:
    return [list(habit.gaps) for habit in known.habits(model)]


def test_a_gap_runs_from_a_callers_last_end_to_its_next_item() -> None:
    known = Arrivals()
    for at in (0.0, 4.0, 10.0):
        turn(known, "agent", "a", at)
    assert gaps_of(known, "a") == [[3.0, 5.0]]


def test_callers_have_gaps_of_their_own() -> None:
    known = Arrivals()
    for caller, at in (("x", 0.0), ("y", 2.0), ("x", 6.0), ("y", 20.0)):
        turn(known, caller, "a", at)
    assert gaps_of(known, "a") == [[17.0], [5.0]]


def test_what_a_caller_does_while_it_waits_for_something_else_is_learned_apart() -> None:
    known = Arrivals()
    turn(known, "x", "a", 0.0)
    turn(known, "x", "a", 3.0)
    known.arrived("x", "b", 5.0)
    turn(known, "x", "a", 6.0)
    assert gaps_of(known, "a") == [[]], "with b open, nothing is known yet"
    assert [habit.waits for habit in known.habits("a")] == [True]


def test_a_comeback_that_another_answer_may_have_set_off_counts_as_none() -> None:
    known = Arrivals()
    known.arrived("x", "b", 0.0)
    turn(known, "x", "a", 0.0)
    known.left("x")
    known.ended("x", "b", 8.0)
    turn(known, "x", "a", 8.5)
    known.arrived("x", "b", 9.0)
    turn(known, "x", "a", 9.5)
    assert gaps_of(known, "a") == [[inf]]


def test_the_steps_of_the_caller_that_was_answered_last_are_told() -> None:
    known = Arrivals()
    for index in range(6):
        turn(known, "relay", "ab"[index % 2], 10.0 * index)
    turn(known, "other", "c", 70.0)
    assert known.next_steps() == []
    turn(known, "relay", "a", 80.0)
    assert [(step.model, step.gap_s) for step in known.next_steps()] == [("b", 9.0)] * 3


def test_an_item_beside_another_of_its_caller_is_no_step() -> None:
    known = Arrivals()
    turn(known, "x", "a", 0.0)
    known.arrived("x", "b", 5.0)
    known.arrived("x", "c", 5.0)
    known.left("x")
    known.left("x")
    turn(known, "x", "a", 9.0)
    assert [step.model for step in known.next_steps()] == ["b", "a"]


def test_memory_is_bounded_whatever_happens() -> None:
    known = Arrivals()
    for index in range(6 * MAX_HABITS):
        turn(known, f"caller-{index // 2}", "a", float(index))
    for index in range(3 * GAPS):
        turn(known, "regular", "a", 10_000.0 + index)
    sizes = [len(value) for value in vars(known).values() if isinstance(value, dict)]
    assert max(sizes) == MAX_HABITS
    assert len(known.habits("a")) == RECENT
    assert len(gaps_of(known, "a")[0]) == GAPS
    assert len(known.next_steps()) == STEPS


def test_what_a_forecast_is_given_is_the_same_knowledge_and_learns_nothing() -> None:
    known = Arrivals()
    turn(known, "x", "a", 0.0)
    shadow = known.unlearning()
    assert shadow.habits("a") == known.habits("a")
    assert not shadow.learns


def test_callers_are_watched_only_while_a_policy_reads_of_them() -> None:
    house = Shell(house_settings(policy=PolicyName.AFFINITY), resident=("a",))
    house.finish(house.arrive("a"))
    assert house.state.arrivals.habits("a") == []
    running, waiting = house.arrive("a"), house.arrive("a")
    house.tell(inputs.PolicyChanged(settings=house_settings(policy=PolicyName.ADAPTIVE)))
    house.at(3.0).finish(running)
    assert [habit.waits for habit in house.state.arrivals.habits("a")] == [True], "the caller's other item came before the change"
    house.cancel(waiting)
    house.tell(inputs.PolicyChanged(settings=house_settings(policy=PolicyName.FIFO)))
    assert house.state.arrivals.habits("a") == [], "what is not kept up to date is forgotten"
