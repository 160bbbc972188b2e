"""Estimated waits: the real scheduler run forward on a copy."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hearth.config.settings import PackingSettings, PolicyName, SchedulingSettings
from hearth.scheduling import inputs
from hearth.scheduling.actions import Action
from hearth.scheduling.estimates import FEW_RUNS
from hearth.scheduling.forecast import HORIZON_ITEMS, forecast, is_rough, slot_is_free
from hearth.scheduling.inputs import Input
from hearth.types import Lane, Sequence, Usage
from tests.scheduling.schedules import POOL, Schedule
from tests.support.cases import for_each
from tests.support.shell import Shell, house_settings

LEARNED = {
    "format": 1,
    "swap_s": [["a", "b", 5.0], ["b", "a", 5.0]],
    "decode_tps": {"a": 10.0, "b": 10.0},
    "output_tokens": [["test", "a", 20.0], ["test", "b", 20.0]],
}


def taught(**settings: Any) -> Shell:
    """A house that has learned: 2 s of output at 10 tokens/s for everybody on a and on b, 5 s for a swap."""
    house = Shell(house_settings(**settings), resident=("a",))
    house.state.estimates.restore(LEARNED)
    return house


@for_each(
    ("policy", "models", "expected"),
    [
        (PolicyName.AFFINITY, "aaaa", {2: 2.0, 3: 4.0, 4: 6.0}),
        (PolicyName.AFFINITY, "aba", {3: 2.0, 2: 9.0}),  # a swap, and what affinity lets go first
        (PolicyName.FIFO, "aba", {2: 7.0, 3: 14.0}),  # both swaps
    ],
)
def test_items_are_expected_one_after_another_with_the_swaps_between_them(policy: PolicyName, models: str, expected: dict[int, float]):
    house = taught(policy=policy)
    for model in models:
        house.arrive(model)
    assert forecast(house.state, house.now) == expected


def test_urgent_work_is_expected_first_and_what_it_interrupts_after_it():
    rules = SchedulingSettings(preempt_min_remaining_s=0.0, preempt_restart_bound_s=0.0)
    house = taught(scheduling=rules)
    running, waiting = house.arrive("a"), house.arrive("a")
    urgent = house.internal("a")
    assert house.stopping == {running}
    assert forecast(house.state, house.now) == {urgent: 0.0, running: 2.0, waiting: 4.0}
    house = taught(scheduling=rules)
    house.arrive("a")
    house.tell(inputs.ModeChanged(active=False))
    urgent = house.internal("a")
    assert forecast(house.state, house.now) == {urgent: 2.0}, "outside active hours"


@for_each(("late_s", "wait_s"), [(0.0, 1.0), (0.5, 1.0), (30.0, 30.0)])
def test_behind_an_answer_that_takes_longer_than_expected_nobody_is_promised_less_than_it_is_late(late_s: float, wait_s: float) -> None:
    house = taught()
    house.arrive("a")
    waiting = house.arrive("a")
    assert forecast(house.state, house.now + 2.0 + late_s)[Sequence(waiting)] == pytest.approx(wait_s)


def test_an_estimate_is_rough_while_a_model_that_is_used_was_hardly_ever_run_or_one_that_is_needed_never_seen_loading():
    house = Shell(resident=("a",))
    for _ in range(FEW_RUNS):
        assert not is_rough(house.state, "a")
        sequence = house.arrive("a")
        assert is_rough(house.state, "a")
        house.finish(sequence)
    last = house.arrive("a")
    assert not is_rough(house.state, "a")
    house.finish(last)
    assert is_rough(house.state, "b")
    house.arrive("b")
    house.swap()
    for number in range(FEW_RUNS + 2, 2 * FEW_RUNS + 2):
        house.finish(number)
        house.arrive("b")
    assert not is_rough(house.state, "b")
    assert is_rough(house.state, "a"), "it was there from the start"


def test_a_load_that_is_under_way_is_expected_to_take_what_is_left_of_it():
    house = taught()
    waiting = house.arrive("b")
    house.at(1.0).unloaded()
    house.at(3.0)
    assert forecast(house.state, house.now)[waiting] == pytest.approx(2.0)


def test_memory_that_is_being_cleared_is_expected_to_go_to_those_whom_it_is_cleared_for():
    house = taught(scheduling=SchedulingSettings(policy=PolicyName.AFFINITY, max_swap_wait_s=20.0, residency_factor=3.0))
    running = house.arrive("a")
    older = house.arrive("a")
    overdue = house.at(0.1).arrive("b")
    assert house.at(30.1).finish(running) == ["unload a"]
    assert forecast(house.state, house.now) == {overdue: 5.0, older: 12.0}


def test_a_free_slot_is_none_for_external_work_shortly_before_an_announced_task():
    house = taught()
    first = house.at(8.0).arrive("a")
    item = house.state.entries[Sequence(first)].item
    house.finish(first)
    house.tell(inputs.Scheduled(task_type="reindex", due_at=1000.0))
    assert slot_is_free(house.state, item)
    house.tell(inputs.Scheduled(task_type="digest", due_at=9.0))
    assert not slot_is_free(house.state, item)
    assert slot_is_free(house.state, replace(item, lane=Lane.INTERNAL))
    newcomer = replace(item, sequence=Sequence(2))
    assert forecast(house.state, house.now, newcomer) == {2: 1.0}


@for_each(
    ("happened", "is_free"),
    [
        ((), True),
        ((inputs.BackendState(up=False),), False),
        ((inputs.DrainRequested(),), False),
        ((inputs.Unloaded(model="a"),), False),
    ],
)
def test_a_slot_is_free_where_work_would_start_at_once(happened: tuple[Input, ...], is_free: bool) -> None:
    house = Shell(resident=("a",))
    first = house.arrive("a")
    item = house.state.entries[first].item
    assert not slot_is_free(house.state, item), "one slot, one at work"
    house.finish(first)
    for fact in happened:
        house.tell(fact)
    assert slot_is_free(house.state, item) is is_free
    assert not slot_is_free(house.state, replace(item, model=None))


def test_no_slot_is_free_behind_somebody_who_waits():
    house = Shell(resident=("a",))
    first = house.internal("a")
    item = house.state.entries[first].item
    house.tell(inputs.ExternalPaused(paused=True))
    house.arrive("b")
    house.finish(first)
    assert not slot_is_free(house.state, item)


@pytest.mark.parametrize(("prefill_max_tokens", "is_free"), [(None, True), (100, False)])
def test_a_second_slot_is_free_at_once_only_where_nobody_waits_for_rounds(prefill_max_tokens: int | None, is_free: bool) -> None:
    packing = PackingSettings(prefill_max_tokens=prefill_max_tokens)
    house = Shell(house_settings(scheduling=SchedulingSettings(packing=packing), parallel=2), resident=("a",))
    running = house.arrive("a")
    assert slot_is_free(house.state, house.state.entries[running].item) is is_free


class Looking(Schedule):
    """Keeps every action; with `ahead`, looks ahead after each decision."""

    def __init__(self, number: int, *, ahead: bool) -> None:
        super().__init__(number)
        self.ahead, self.every = ahead, list[Action]()

    def tell(self, fact: Input) -> list[str]:
        said = super().tell(fact)
        if self.ahead:
            forecast(self.state, self.now)
        return said

    def _note(self, action: Action) -> None:
        super()._note(action)
        self.every.append(action)


def test_looking_ahead_changes_nothing():
    for number in range(POOL):
        both = Looking(number, ahead=False), Looking(number, ahead=True)
        for schedule in both:
            schedule.run()
        told = [(each.every, each.state.estimates.export(), str(vars(each.state.arrivals))) for each in both]
        assert told[0] == told[1], f"schedule {number}"


@pytest.mark.parametrize("fact", [inputs.BackendState(up=False), inputs.DrainRequested()])
def test_nothing_is_foretold_while_nothing_answers_or_starts(fact: Input) -> None:
    house = taught()
    house.arrive("a")
    house.arrive("a")
    house.tell(fact)
    assert forecast(house.state, house.now) == {}


def test_what_stands_far_behind_is_reckoned_from_the_pace_of_those_before():
    house = taught()
    for _ in range(3 * HORIZON_ITEMS):
        last = house.arrive("a")
    newcomer = replace(house.state.entries[last].item, sequence=Sequence(last + 1))
    expected = forecast(house.state, house.now, newcomer)
    assert len(expected) == HORIZON_ITEMS + 1
    assert expected[newcomer.sequence] == pytest.approx(2.0 * 3 * HORIZON_ITEMS, rel=0.02)


def test_where_every_item_needs_a_swap_fewer_are_run_forward():
    house = taught(policy=PolicyName.FIFO)
    for number in range(60):
        last = house.arrive("ab"[number % 2])
    newcomer = replace(house.state.entries[last].item, sequence=Sequence(last + 1))
    expected = forecast(house.state, house.now, newcomer)
    assert len(expected) < 50
    assert expected[newcomer.sequence] == pytest.approx(7.0 * 60, rel=0.05)


def test_what_was_foretold_comes_true_when_nobody_else_comes():
    rng = Random(3)
    for _ in range(20):
        house = taught()
        for _ in range(rng.randint(1, 12)):
            house.arrive(rng.choice("ab"))
        expected = dict(forecast(house.state, house.now))
        assert lived(house) == pytest.approx(expected)


def lived(house: Shell) -> dict[int, float]:
    """Let everything take exactly as long as was learned; when did each waiting item start?"""
    waiting = {entry.item.sequence for entry in house.state.waiting.all_entries()}
    ends = dict.fromkeys(house.running, 2.0)
    started: dict[int, float] = {}
    usage = Usage(output_tokens=20, decode_s=2.0)
    while ends or house.loading or house.unloading:
        if house.unloading:
            house.unloaded()
        elif house.loading:
            house.at(house.now + 5.0)
            house.loaded()
        else:
            sequence = min(ends, key=lambda one: ends[one])
            house.at(ends.pop(sequence))
            house.finish(sequence, usage)
        for sequence in house.running.keys() - ends.keys():
            ends[sequence] = house.now + 2.0
            started[sequence] = house.now
    return {sequence: at for sequence, at in started.items() if sequence in waiting}
