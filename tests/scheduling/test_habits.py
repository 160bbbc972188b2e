"""What is learned of callers and of idle times: what is loaded while nothing waits, and that memory stays bounded."""

from __future__ import annotations

from math import inf
from typing import Any

from hearth.config.settings import PolicyName, SchedulingSettings
from hearth.scheduling import inputs
from hearth.scheduling.estimates import GAPS, MAX_HABITS, RECENT, STEPS, Arrivals
from hearth.scheduling.home import LATE, LATE_S, MIN_ENDS, SETTLE_S
from hearth.types import Priority
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings


def turn(known: Arrivals, caller: str, model: str, at: float, run_s: float = 1.0) -> None:
    """An item comes to an idle model, runs at once, and ends."""
    known.arrived(caller, model, at)
    known.came_back(caller, model, at)
    known.left(caller)
    known.ended(caller, model, at + run_s)


def gaps_of(known: Arrivals, model: str) -> list[list[float]]:
    return [list(habit.gaps) for habit in known.habits(model)]


@for_each(
    ("turns", "gaps"),
    [
        ([("x", 0.0), ("x", 4.0), ("x", 10.0)], [[3.0, 5.0]]),  # from a caller's last end to its next item
        ([("x", 0.0), ("y", 2.0), ("x", 6.0), ("y", 20.0)], [[17.0], [5.0]]),  # to each its own
    ],
)
def test_a_gap_runs_from_a_callers_last_end_to_its_next_item(turns: list[tuple[str, float]], gaps: list[list[float]]) -> None:
    known = Arrivals()
    for caller, at in turns:
        turn(known, caller, "a", at)
    assert gaps_of(known, "a") == gaps


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
    assert known.next_steps() == [("b", 9.0)] * 3


def test_an_item_beside_another_of_its_caller_is_no_step() -> None:
    known = Arrivals()
    turn(known, "x", "a", 0.0)
    known.arrived("x", "b", 5.0)
    known.arrived("x", "c", 5.0)
    known.left("x")
    known.left("x")
    turn(known, "x", "a", 9.0)
    assert [model for model, _ in known.next_steps()] == ["b", "a"]


def test_memory_is_bounded_whatever_happens() -> None:
    known = Arrivals()
    for index in range(6 * MAX_HABITS):
        turn(known, f"caller-{index // 2}", "a", float(index))
    for index in range(3 * GAPS):
        turn(known, "regular", "a", 10_000.0 + index)
    assert max(len(value) for value in vars(known).values() if isinstance(value, dict)) == MAX_HABITS
    assert (len(known.habits("a")), len(gaps_of(known, "a")[0]), len(known.next_steps())) == (RECENT, GAPS, STEPS)


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


def swapped(house: Shell, seconds: float) -> None:
    """The swap under way ends, and the one that may begin with that; each load takes so long."""
    for _ in range(2):
        while house.unloading:
            house.unloaded()
        if house.loading:
            house.at(house.now + seconds).loaded()


# When the home model comes back.


def after_idle_times(*ends: tuple[float, str, Priority | None], setting_s: float = 120.0) -> Shell:
    """The home model is h, and c has just answered once more. After each answer of c before, some seconds later somebody asked for a
    model, the house's own work where it has a priority. A load takes 10 s."""
    house = Shell(house_settings(home="h", restore_home_delay_s=setting_s))
    asked(house, "c")
    for gap_s, model, priority in ends:
        house.at(house.now + gap_s)
        asked(house, model, priority)
        if model != "c":
            asked(house, "c")
    return house


def asked(house: Shell, model: str, priority: Priority | None = None) -> None:
    swapped(house, 10.0)
    sequence = house.arrive(model) if priority is None else house.internal(model, priority)
    swapped(house, 10.0)
    house.finish(sequence)


FOR_HOME, URGENT_FOR_HOME, BACK = (60.0, "h", None), (60.0, "h", Priority.CRITICAL), (60.0, "c", None)


@for_each(
    ("ends", "setting_s", "home_in_s"),
    [
        ([FOR_HOME] * MIN_ENDS, 120.0, 0.0),  # it was always asked for next
        ([FOR_HOME] * (MIN_ENDS - 1), 120.0, 120.0),  # too few teach nothing
        ([(4.0, "c", None), (90.0, "h", None)] * MIN_ENDS, 120.0, 4.0 * LATE + LATE_S),  # after those who are soon back
        ([(100.0, "c", None), FOR_HOME] * MIN_ENDS, 30.0, 0.0),  # the owner allows too little to wait for those who come back
        ([*[BACK] * 3, URGENT_FOR_HOME] * 3, 120.0, 0.0),  # urgent work counts more than others who come back
        ([*[BACK] * 3, FOR_HOME] * 3, 120.0, 60.0 * LATE + LATE_S),
        ([FOR_HOME] * 40 + [BACK] * 40, 120.0, 60.0 * LATE + LATE_S),  # new habits replace old ones
        # those who would come into the load of the home model count for the rest of it
        ([(2.0, "c", None), *[(10.0, "h", Priority.CRITICAL)] * 2] * 4, 120.0, 0.0),
    ],
)
def test_the_home_model_comes_when_those_who_ended_idle_times_would_have_waited_least(ends, setting_s: float, home_in_s: float):
    house = after_idle_times(*ends, setting_s=setting_s)
    assert house.unloading == (["c"] if home_in_s == 0 else [])
    assert home_in_s == 0 or house.timer == house.now + home_in_s


def test_external_work_that_is_paused_ends_no_idle_time():
    house = after_idle_times(*[FOR_HOME] * (MIN_ENDS - 1))
    house.tell(inputs.ExternalPaused(paused=True))
    house.at(house.now + 5.0).arrive("h")
    assert len(house.state.estimates.idle_ends(("c",))) == MIN_ENDS - 1


def test_a_model_that_the_owner_has_loaded_stays_for_the_whole_setting():
    house = after_idle_times(*[FOR_HOME] * MIN_ENDS)
    swapped(house, 10.0)
    house.tell(inputs.ModelOrdered(model="c", comes=True))
    swapped(house, 10.0)
    assert house.timer == house.now + 120.0


# Loading beforehand what the last caller is sure to ask for next.


def relay(*, gap_s: float = 5.0, home: str = "", turns: int = 9, policy: PolicyName = PolicyName.ADAPTIVE) -> Shell:
    """An agent that uses a and b in turn, `gap_s` after each answer; its last answer, from a, has just come."""
    house = Shell(house_settings(scheduling=SchedulingSettings(policy=policy), home=home), resident=("a",))
    for number in range(turns):
        asks(house, "ab"[number % 2])
        until = house.now + gap_s if number < turns - 1 else house.now
        while house.now < until:
            house.at(min(until, house.timer or until))
            swapped(house, 2.0)
    return house


def asks(house: Shell, model: str) -> None:
    """The agent asks and is answered, however many holds and swaps that takes."""
    sequence = house.arrive(model, caller="agent")
    while sequence not in house.running:
        if house.unloading or house.loading:
            swapped(house, 2.0)
        else:
            house.fire()
    house.at(house.now + 1.0).finish(sequence)


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
        asks(house, model)
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
    assert (house.loaded(), house.timer) == ([], None)


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
