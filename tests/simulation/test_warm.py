"""What it is worth to know warm conversations, on the homes that ship with agents."""

from __future__ import annotations

from statistics import fmean

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings, SchedulingSettings
from hearth.simulation.agents import home_agent_and_assistant, home_two_agents
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.measures import by_lane, summary
from hearth.simulation.workloads import Workload
from hearth.types import Lane

MOST_WAIT_S = 600.0
ASSISTANTS = 12


def served(
    workload: Workload, policy: PolicyName = PolicyName.ADAPTIVE, *, on: bool
) -> SimulationRun:
    rules = SchedulerSettings(scheduling=SchedulingSettings(warm_conversations=on))
    return simulate(workload, workload.settings(rules, policy), keep_decisions=False)


@pytest.mark.parametrize("seed", range(1, 7))
def test_two_agents_read_a_third_as_much_twice(seed: int):
    workload = home_two_agents(seed=seed)
    before = served(workload, on=False)
    now = served(workload, on=True)
    assert now.reread_s <= 0.3 * before.reread_s
    assert summary(now).makespan_s <= 0.8 * summary(before).makespan_s
    assert summary(now).mean_wait_s <= 0.8 * summary(before).mean_wait_s
    assert summary(now).max_wait_s <= MOST_WAIT_S


def test_an_assistant_waits_no_longer_beside_an_agent():
    waits = dict[bool, list[dict[str, float]]]()
    makespans = dict[bool, list[float]]()
    for on in (False, True):
        runs = [
            served(home_agent_and_assistant(seed=seed), on=on) for seed in range(1, ASSISTANTS + 1)
        ]
        waits[on] = [by_lane(run)[Lane.INTERNAL] for run in runs]
        makespans[on] = [summary(run).makespan_s for run in runs]
    for figure in ("mean_wait_s", "p95_wait_s"):
        before, now = (fmean(each[figure] for each in waits[on]) for on in (False, True))
        assert now <= before
    assert fmean(makespans[True]) <= 1.05 * fmean(makespans[False])


@pytest.mark.parametrize("policy", PolicyName)
def test_no_policy_reads_more_twice_for_knowing(policy: PolicyName):
    workload = home_two_agents()
    before = served(workload, policy, on=False)
    now = served(workload, policy, on=True)
    assert now.reread_s <= 1.05 * before.reread_s
    assert summary(now).makespan_s <= 1.05 * summary(before).makespan_s
