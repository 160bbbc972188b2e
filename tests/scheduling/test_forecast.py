"""Estimated waits: the real scheduler run forward on a copy."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hearth.config.settings import PolicyName, SchedulingSettings
from hearth.scheduling import inputs
from hearth.scheduling.forecast import HORIZON_ITEMS, forecast, slot_is_free
from hearth.types import Lane, Sequence, Usage
from tests.support.shell import Shell, house_settings


def taught(**settings: object) -> Shell:
    """A house that has learned: 2 s of output at 10 tokens/s for everybody on a and on b, 5 s for a swap."""
    house = Shell(house_settings(**settings), resident=("a",))  # type: ignore[arg-type]  # the keywords of house_settings
    for model in ("a", "b"):
        house.state.estimates._decode_tps[model] = 10.0
        house.state.estimates._output_tokens["test", model] = 20.0
    house.state.estimates._swap_s = {("a", "b"): 5.0, ("b", "a"): 5.0}
    return house


def test_items_on_the_loaded_model_follow_one_another():
    house = taught()
    for _ in range(4):
        house.arrive("a")
    assert forecast(house.state, house.now) == {2: 2.0, 3: 4.0, 4: 6.0}


def test_a_swap_and_what_affinity_lets_go_first_are_counted():
    house = taught()
    house.arrive("a")
    other, same = house.arrive("b"), house.arrive("a")
    assert forecast(house.state, house.now) == {same: 2.0, other: 9.0}


def test_fifo_counts_both_swaps():
    house = taught(policy=PolicyName.FIFO)
    house.arrive("a")
    other, same = house.arrive("b"), house.arrive("a")
    assert forecast(house.state, house.now) == {other: 7.0, same: 14.0}


def test_urgent_work_is_expected_first_and_what_it_interrupts_after_it():
    house = taught(scheduling=SchedulingSettings(preempt_min_remaining_s=0.0))
    running, waiting = house.arrive("a"), house.arrive("a")
    urgent = house.internal("a")
    assert house.stopping == {running}
    assert forecast(house.state, house.now) == {urgent: 0.0, running: 2.0, waiting: 4.0}


def test_a_load_that_is_under_way_is_expected_to_take_what_is_left_of_it():
    house = taught()
    waiting = house.arrive("b")
    house.unloaded()
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
    assert slot_is_free(house.state, item)
    house.tell(inputs.Scheduled(task_type="digest", due_at=9.0))
    assert not slot_is_free(house.state, item)
    assert slot_is_free(house.state, replace(item, lane=Lane.INTERNAL))
    newcomer = replace(item, sequence=Sequence(2))
    assert forecast(house.state, house.now, newcomer) == {2: 1.0}


def test_looking_ahead_changes_nothing():
    house = taught()
    for _ in range(5):
        house.arrive("a")
        house.arrive("b")
    before = (len(house.state.waiting), dict(house.state.entries), house.state.residency.swap, house.timer)
    for _ in range(100):
        forecast(house.state, house.now)
    assert (len(house.state.waiting), dict(house.state.entries), house.state.residency.swap, house.timer) == before
    assert house.finish(1) == ["start 3 on a"]


def test_nothing_is_foretold_while_nothing_answers():
    house = taught()
    house.arrive("a")
    house.arrive("a")
    house.tell(inputs.BackendDown())
    assert forecast(house.state, house.now) == {}


def test_what_stands_far_behind_is_reckoned_from_the_pace_of_those_before():
    house = taught()
    for _ in range(3 * HORIZON_ITEMS):
        last = house.arrive("a")
    newcomer = replace(house.state.entries[last].item, sequence=Sequence(last + 1))
    expected = forecast(house.state, house.now, newcomer)
    assert len(expected) == HORIZON_ITEMS + 1
    assert expected[newcomer.sequence] == pytest.approx(2.0 * 3 * HORIZON_ITEMS, rel=0.02)


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
