"""The scheduler against an independent one: the same starts, at the same instants, on random workloads."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hearth.config.settings import GpuSettings, PolicyName, QueueSettings, SchedulerSettings, SchedulingSettings
from hearth.scheduling.actions import Dispatch
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import Workload
from tests.scheduling.reference import Reference
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.workloads import Mix, random_workload

MIX = Mix(jobs=40, shared_gpu=0.0, parallel=0.0, streaming=0.0, mean_gap_s=1.2)


def rules() -> SchedulerSettings:
    """Nothing that depends on estimates of service, and no restoring of the home model."""
    return SchedulerSettings(
        scheduling=SchedulingSettings(max_swap_wait_s=15.0, residency_factor=1.5, preempt_min_remaining_s=0.0, preempt_restart_bound_s=0.0),
        queue=QueueSettings(max_interrupt_count=2),
        gpu=GpuSettings(restore_home_delay_s=3e7),
    )


def drawn(seed: int) -> Workload:
    return replace(random_workload(Random(seed), MIX), unload_s={})


def starts_of(workload: Workload, policy: PolicyName) -> list[tuple[float, int, str]]:
    settings = workload.settings(rules(), policy)
    run = simulate(workload, settings)
    numbers = {record.sequence: record.job.id for record in run.records}
    return [(at, numbers[action.sequence], action.model) for at, action in run.decisions if isinstance(action, Dispatch)]


@for_each("policy", [PolicyName.FIFO, PolicyName.AFFINITY])
@for_each("block", range(4 * EXAMPLES))
def test_the_scheduler_starts_what_the_reference_starts_when_it_starts_it(policy: PolicyName, block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        workload = drawn(seed)
        assert starts_of(workload, policy) == Reference(workload, rules(), policy).run(), f"seed {seed}"


@pytest.mark.parametrize("seed", [814])
def test_the_reference_agrees_where_it_once_did_not(seed: int) -> None:
    """814: while somebody insists on what was loaded, the house's work for any model goes by band."""
    assert starts_of(drawn(seed), PolicyName.FIFO) == Reference(drawn(seed), rules(), PolicyName.FIFO).run()


def test_the_random_workloads_contain_what_the_reference_is_there_for() -> None:
    """Otherwise agreement would mean little."""
    runs = [simulate(workload, workload.settings(rules(), PolicyName.AFFINITY)) for workload in map(drawn, range(25))]
    assert sum(record.interrupts for run in runs for record in run.records) > 20
    assert sum(len(run.swaps) for run in runs) > 100
    assert sum(action.why == "overdue" for run in runs for _, action in run.decisions if hasattr(action, "why")) > 5
