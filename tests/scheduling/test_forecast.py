"""Estimated waits: the real scheduler run forward on a copy."""

from __future__ import annotations

from random import Random

import pytest

from hearth.scheduling.actions import Action
from hearth.scheduling.estimates import FEW_RUNS
from hearth.scheduling.forecast import (
    HORIZON_ITEMS,
    MAX_DECISIONS,
    MAX_WORK,
)
from hearth.scheduling.inputs import Input
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence, Usage
from tests.scheduling.crowd import Crowd
from tests.scheduling.shell import Shell
from tests.scheduling.test_schedules import POOL, Schedule
from tests.scheduling.worked import happen, settings_of
from tests.support.fields import Fields

LEARNED = {
    "format": 1,
    "swap_s": [["a", "b", 5.0], ["b", "a", 5.0]],
    "decode_tps": {"a": 10.0, "b": 10.0},
    "output_tokens": [["test", "a", 20.0], ["test", "b", 20.0]],
}
AT_ONCE = "preempt_min_remaining_s=0 preempt_restart_bound_s=0"


def taught(settings: str = "", story: str = "") -> Shell:
    """It has learned: 2 s of output at 10 tokens/s for everybody on a and on b, 5 s for a swap."""
    shell = Shell(settings_of(settings), resident=("a",))
    shell.device.estimates.restore(LEARNED)
    happen(shell, story)
    return shell


def asked(shell: Shell, model: str | None = "a", lane: Lane = Lane.EXTERNAL) -> QueueItem:
    """One that the scheduler has not seen."""
    known: Fields = {
        "sequence": Sequence(9999),
        "request_id": RequestId("r"),
        "caller": "test",
        "arrived_at": shell.now,
    }
    return QueueItem(lane=lane, priority=Priority.NORMAL, model=model, **known)


@pytest.mark.parametrize(
    ("settings", "story", "expected"),
    [
        ("", "4*ext a", {2: 2.0, 3: 4.0, 4: 6.0}),
        ("", "ext a; ext b; ext a", {3: 2.0, 2: 9.0}),  # a swap, and what affinity lets go first
        ("policy=fifo", "ext a; ext b; ext a", {2: 7.0, 3: 14.0}),  # both swaps
        # first what is urgent, then what that has interrupted
        (AT_ONCE, "2*ext a; int a", {3: 0.0, 1: 2.0, 2: 4.0}),
        (AT_ONCE, "ext a; quiet; int a", {2: 2.0}),
        # what takes longer than expected takes as much again as it is late, and at least half of
        # what was expected
        ("", "2*ext a; at 2", {2: 1.0}),
        ("", "2*ext a; at 2.5", {2: 1.0}),
        ("", "2*ext a; at 32", {2: 30.0}),
        ("", "ext b; at 1; unloaded; at 3", {1: 2.0}),  # what is left of a load
        # the same holds for a load, of which at least half the swap is expected whatever the unload
        # took
        ("", "ext b; at 1; unloaded; at 5", {1: 2.0}),
        ("", "2*ext b; at 1; unloaded; at 9", {1: 4.0, 2: 6.0}),
        ("", "ext b; at 1; unloaded; at 125", {1: 120.0}),
        ("", "ext b; at 20; unloaded; at 21", {1: 1.5}),
        ("", "ext b; at 20", {1: 2.5}),
        # memory is cleared for one
        (
            "max_swap_wait_s=20 residency_factor=3",
            "2*ext a; at 0.1; ext b; at 30.1; end 1",
            {3: 5.0, 2: 12.0},
        ),
        # a home model that is not installed is not waited for
        ("home_model=h", "vanishes a; appears e; listed e; ext e kind=embed; ext any", {2: 0.0}),
        ("", "2*ext a; down", {}),
        ("", "2*ext a; drain", {}),
    ],
)
def test_items_are_expected_one_after_another_with_what_is_between_them(
    settings: str, story: str, expected: dict[int, float]
):
    shell = taught(settings, story)
    assert shell.forecasts.forecast(shell.now).starts == pytest.approx(expected)


@pytest.mark.parametrize(
    ("settings", "story", "model", "expected_s", "bound_s"),
    [
        ("", "ext a", "a", 0.0, 0.0),  # to start at once is no wait
        ("", "ext a; at 1", "a", 1.0, 3.0),
        # a run that has taken longer than the 2 s that were expected
        ("", "ext a; at 30", "a", 28.0, 57.0),
        ("", "ext a; at 30", "a", 1.0, 30.0),
        ("", "ext a; at 30", "b", 1.0, 30.0),  # whose model has to go
        ("", "ext a; at 30", None, 1.0, 30.0),
        ("vram_gb=0", "ext a; ext b; loaded; at 30; end 2; ext b", "b", 1.0, 3.0),
        # a load that was to take 5 s
        ("", "ext b; at 1; unloaded; at 4", "b", 1.0, 3.0),
        ("", "ext b; at 1; unloaded; at 40", "b", 1.0, 39.0),
    ],
)
def test_a_bound_is_never_less_than_what_a_late_run_or_load_has_taken(
    settings: str, story: str, model: str | None, expected_s: float, bound_s: float
):
    shell = taught(settings, story)
    new = asked(shell, model)
    assert shell.forecasts.wait_bound_s(new, expected_s, shell.now) == pytest.approx(bound_s)


def test_an_estimate_is_rough_while_its_model_is_hardly_known():
    shell = Shell(settings_of(""), resident=("a",))
    for _ in range(FEW_RUNS):
        assert not shell.forecasts.is_rough("a")
        sequence = shell.arrive("a")
        assert shell.forecasts.is_rough("a")
        shell.finish(sequence)
    last = shell.arrive("a")
    assert not shell.forecasts.is_rough("a")
    shell.finish(last)
    assert shell.forecasts.is_rough("b")
    shell.arrive("b")
    shell.swap()
    for number in range(FEW_RUNS + 2, 2 * FEW_RUNS + 2):
        shell.finish(number)
        shell.arrive("b")
    assert not shell.forecasts.is_rough("b")
    assert shell.forecasts.is_rough("a"), "it was there from the start"


@pytest.mark.parametrize(
    ("settings", "story", "model", "is_free", "for_internal"),
    [
        ("", "", "a", True, True),
        ("", "", None, False, False),
        ("", "ext a", "a", False, False),  # one slot, one at work
        *(("", what, "a", False, False) for what in ("down", "drain", "vanishes a")),
        ("", "int a; pause; ext b; end 1", "a", False, False),  # behind somebody who waits
        ("", "pause", "a", False, True),
        ("", "at 8; task reindex 1000", "a", True, True),
        ("", "at 8; task digest 9", "a", False, True),
        ("parallel=2", "ext a", "a", True, True),
        ("parallel=2 packing.prefill_max_tokens=100", "ext a", "a", False, False),  # rounds
    ],
)
def test_a_slot_is_free_where_work_would_start_at_once(
    settings: str, story: str, model: str | None, is_free: bool, for_internal: bool
):
    shell = taught(settings, story)
    found = [
        shell.forecasts.starts_at_once(asked(shell, model, lane))
        for lane in (Lane.EXTERNAL, Lane.INTERNAL)
    ]
    assert found == [is_free, for_internal]


class Looking(Schedule):
    """Keeps every action; with `ahead`, looks ahead after each decision."""

    def __init__(self, number: int, *, ahead: bool) -> None:
        super().__init__(number)
        self.ahead = ahead
        self.every = list[Action]()

    def tell(self, fact: Input) -> list[str]:
        said = super().tell(fact)
        if self.ahead:
            self.forecasts.forecast(self.now)
        return said

    def _note(self, action: Action) -> None:
        super()._note(action)
        self.every.append(action)


def test_looking_ahead_changes_nothing():
    for number in range(POOL):
        both = Looking(number, ahead=False), Looking(number, ahead=True)
        for schedule in both:
            schedule.run()
        told = [
            (each.every, each.device.estimates.export(), str(vars(each.gateway.arrivals)))
            for each in both
        ]
        assert told[0] == told[1], f"schedule {number}"


@pytest.mark.parametrize(
    ("settings", "story", "told", "wait_s"),
    [
        (
            "",
            f"{3 * HORIZON_ITEMS}*ext a",
            range(HORIZON_ITEMS + 1, HORIZON_ITEMS + 2),
            2.0 * 3 * HORIZON_ITEMS,
        ),
        # where every item needs a swap fewer are run forward
        ("policy=fifo", "ext a; ext b; " * 30, range(50), 7.0 * 60),
        ("", "at 8; task digest 9", [1], 1.0),
    ],
)
def test_what_stands_far_behind_is_reckoned_from_the_pace_of_those_before(
    settings: str, story: str, told: range, wait_s: float
):
    shell = taught(settings, story.strip("; "))
    expected = shell.forecasts.forecast(shell.now, asked(shell)).starts
    assert len(expected) in told
    assert expected[Sequence(9999)] == pytest.approx(wait_s, rel=0.05)


def test_a_forecast_among_a_hundred_models_ends_when_its_work_is_done():
    shell = Crowd(100, policy="adaptive", size_gb=3.0)
    found = shell.forecasts.forecast(shell.now, asked(shell, "m7"))
    assert found.decisions < MAX_DECISIONS
    assert MAX_WORK <= found.work < MAX_WORK + 12 * 100, "at most the last decision goes beyond"
    assert len(found.starts) > 10
    assert found.starts[Sequence(9999)] > max(
        wait_s for sequence, wait_s in found.starts.items() if sequence != 9999
    )


def test_what_was_foretold_comes_true_when_nobody_else_comes():
    rng = Random(3)
    for _ in range(20):
        shell = taught()
        for _ in range(rng.randint(1, 12)):
            shell.arrive(rng.choice("ab"))
        expected = shell.forecasts.forecast(shell.now).starts
        assert lived(shell) == pytest.approx(expected)


def lived(shell: Shell) -> dict[int, float]:
    """Let everything take exactly as long as was learned; when did each waiting item start?"""
    waiting = {entry.item.sequence for entry in shell.gateway.waiting.all_entries()}
    ends = dict.fromkeys(shell.running, 2.0)
    started: dict[int, float] = {}
    while ends or shell.loading or shell.unloading:
        if shell.unloading or shell.loading:
            shell.swap(5.0)
        else:
            sequence = min(ends, key=lambda one: ends[one])
            shell.at(ends.pop(sequence)).finish(sequence, Usage(output_tokens=20, decode_s=2.0))
        for sequence in shell.running.keys() - ends.keys():
            ends[sequence] = shell.now + 2.0
            started[sequence] = shell.now
    return {sequence: at for sequence, at in started.items() if sequence in waiting}
