"""Rules 1, 2, 4, 5, 8, 9 and 11 over a hundred thousand random schedules (about 0.9 ms each). A failure names the schedule's number:
`first_broken(range(number, number + 1))` runs it again."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests.scheduling import schedules
from tests.scheduling.mutation import Mutant, broken_schedule, copies
from tests.scheduling.schedules import Schedule, all_settings, first_broken
from tests.support.examples import EXAMPLES

BLOCK = 5_000
BLOCKS = 20 * EXAMPLES

MUTANTS = (
    Mutant(what="the ceiling is no ceiling", module="aging", old="entry.band <= settings.ceiling or", new="entry.band <= 0 or"),
    Mutant(what="external work rises", module="aging", old="item.lane is not _INTERNAL or ", new=""),
    Mutant(what="the second rise never comes", module="core", old="            state.aging.expect(entry)\n", new=""),
    Mutant(what="nobody waits for a rise", module="state", old="        self.aging.expect(entry)\n", new=""),
    Mutant(what="the largest prompts go first", module="packing", old="(costs[index], index)", new="(-costs[index], index)"),
    Mutant(what="a round has no limit", module="packing", old=" or used + costs[index] > budget", new=""),
    Mutant(what="chosen items start by size", module="packing", old="return sorted(chosen) or [0]", new="return chosen or [0]"),
    Mutant(what="rounds overlap", module="packing", old="    if until <= now:\n", new="    if until >= 0:\n"),
    Mutant(what="no round is in order", module="packing", old="number % settings.force_fifo_every == 0", new="False"),
    Mutant(what="urgent work waits for lower rounds", module="packing", old=" and entry.band <= band]", new="]"),
    Mutant(what="nobody looks when a round is over", module="packing", old="    state.wake_at(until)\n", new=""),
    Mutant(what="a first byte ends no round", module="facts", old=" and not first_byte_may_open(state)", new=""),
    Mutant(what="a task's budget is ignored", module="residency", old="if budget_gb is not None:", new="if False:"),
    Mutant(
        what="a task's budget ends with the load",
        module="residency",
        old="task_type = None if known is None else known.task_type",
        new="task_type = None",
    ),
    Mutant(
        what="bands are turned round",
        module="placement",
        old="in zip(BANDS, self._state.waiting.lines, strict=True):",
        new="in reversed([*zip(BANDS, self._state.waiting.lines, strict=True)]):",
    ),
    Mutant(what="a pause is no pause", module="placement", old=" and not (orders.paused and band in EXTERNAL_BANDS)", new=""),
    Mutant(what="a pin holds nothing", module="placement", old="self._claimed.add(pinned)", new="pass"),
    Mutant(what="nobody comes back to the pin", module="state", old="return self.pinned or self.home", new="return self.home"),
    Mutant(what="an order to load is forgotten", module="placement", old="for model in orders.wanted:", new="for model in ():"),
    Mutant(what="the short way passes urgent work", module="starting", old=" or any(urgent)", new=""),
    Mutant(what="who is alone does not heed a pause", module="starting", old=" or orders.paused or", new=" or"),
    Mutant(what="who is alone needs no slot", module="starting", old="return not resident.running", new="return True"),
)
"""Bugs that the schedules must notice; the sentences have more of their own."""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_breaks_a_rule(block: int) -> None:
    broken = first_broken(range(block * BLOCK, block * BLOCK + BLOCK))
    assert broken is None, f"schedule {broken[0]}: {broken[1]}"


def test_the_schedules_contain_what_the_rules_are_about() -> None:
    pool, seen = all_settings(), [0, 0, 0]
    for number in range(1000):
        schedule = Schedule(number, pool[number % len(pool)])
        schedule.run()
        seen = [seen[0] + schedule.starts, seen[1] + schedule.loads, seen[2] + schedule.promotions]
    assert seen[0] > 3000
    assert seen[1] > 2000
    assert seen[2] > 80


@pytest.fixture(scope="module")
def compiled() -> dict[Path, CodeType]:
    """What the mutants share is compiled once."""
    return {}


SHORT_WAYS = (
    Mutant(what="alone", module="core", old="(action := start_alone(state, now))", new="(action := None)"),
    Mutant(what="next of line", module="core", old="(action := start_next_of_line(state, now))", new="(action := None)"),
)


def decided(module: Any, count: int) -> list[str]:
    """All that was decided in the first schedules of a module, with its instant."""
    said: list[str] = []

    class Telling(module.Schedule):  # type: ignore[misc]  # the class of a copy
        def note(self, action: object) -> None:
            said.append(f"{self.now} {action}")
            super().note(action)

    pool = module.all_settings()
    for number in range(count):
        Telling(number, pool[number % len(pool)]).run()
    return said


@pytest.mark.parametrize("removed", SHORT_WAYS, ids=lambda mutant: mutant.what)
def test_a_short_way_says_what_placement_says(removed: Mutant, compiled: dict[Path, CodeType]) -> None:
    with copies(removed, compiled):
        assert decided(importlib.import_module("mutant.tests.schedules"), 2000) == decided(schedules, 2000)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_bug_that_is_put_in_is_noticed(mutant: Mutant, compiled: dict[Path, CodeType]) -> None:
    with copies(mutant, compiled):
        assert broken_schedule(2000) is not None, f"no schedule noticed: {mutant.what}"
