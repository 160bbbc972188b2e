"""What an elastic engine behind an alias changes on a busy evening."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.scheduling.actions import Load, Unload
from hearth.simulation.aliasing import with_aliases
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.spilling import CHAT, CLUSTER, CODER, spill_over
from hearth.simulation.workloads import Workload


def served(workload: Workload) -> SimulationRun:
    return simulate(workload, workload.settings(SchedulerSettings(), PolicyName.ADAPTIVE))


def on_alias(limit_s: float, seed: int = 1) -> SimulationRun:
    aliased = with_aliases(spill_over(seed=seed), {"any": (CHAT, CLUSTER)})
    return served(replace(aliased, elastic={CLUSTER: limit_s}))


def waits_s(run: SimulationRun, model: str) -> list[float]:
    return [
        each.wait_s or 0.0
        for each in run.records
        if (each.job.caller == "developer") is (model == CODER)
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_spilling_over_spares_nearly_all_waiting(seed: int):
    by_name = served(spill_over(seed=seed))
    spilled = on_alias(5.0, seed)
    assert fmean(waits_s(by_name, CHAT)) > 15
    assert fmean(waits_s(spilled, CHAT)) < 0.5
    assert fmean(waits_s(spilled, CODER)) < 0.25 * fmean(waits_s(by_name, CODER))
    assert len(spilled.swaps) < 0.7 * len(by_name.swaps)


@pytest.mark.parametrize(("limit_s", "most_share"), [(5.0, 0.9), (15.0, 0.5), (30.0, 0.3)])
def test_the_limit_is_the_longest_wait_and_decides_who_leaves(limit_s: float, most_share: float):
    run = on_alias(limit_s)
    assert max(waits_s(run, CHAT)) <= limit_s + 1e-6
    ran_on = Counter(each.model for each in run.records)
    assert ran_on[CLUSTER] <= most_share * (ran_on[CHAT] + ran_on[CLUSTER])


def test_no_swap_ever_names_the_elastic_model():
    run = on_alias(5.0)
    moved = {action.model for _, action in run.decisions if isinstance(action, Load | Unload)}
    assert moved == {CHAT, CODER}
