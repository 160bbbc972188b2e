"""The workloads that ship are what their descriptions say."""

from __future__ import annotations

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation import workloads as mixes
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import WORKLOADS, Workload
from hearth.types import Lane
from tests.support.cases import for_each


@for_each("name", WORKLOADS)
def test_a_workload_is_the_same_every_time_and_can_be_run(name: str) -> None:
    workload = WORKLOADS[name]()
    known = {job.id for job in workload.jobs}
    assert (workload, len(known)) == (WORKLOADS[name](), len(workload.jobs))
    assert all(workload.swap_s((), job.model) >= 0 for job in workload.jobs if job.model is not None)
    assert all({job.after, *job.also_after} <= known for job in workload.jobs if job.after is not None)


@for_each(("name", "size", "late_s"), [("balanced", 2, 0.1), ("bursty", 10, 0.0)])
def test_a_round_or_a_burst_begins_when_the_last_one_has_ended(name: str, size: int, late_s: float) -> None:
    workload = WORKLOADS[name]()
    records = simulate(workload, workload.settings(SchedulerSettings(), PolicyName.AFFINITY)).records
    assert len(records) == 40
    for first in range(size, 40, size):
        ended = max(record.ended or 0.0 for record in records[first - size : first])
        arrived = sorted({record.arrived for record in records[first : first + size]})
        assert arrived == pytest.approx(sorted({ended, ended + late_s}))


@for_each("load", [mixes.MEDIUM, mixes.HEAVY, mixes.OVERLOAD])
@for_each("kinds", [*mixes.MIXES.values()])
def test_a_mix_has_the_load_that_it_says(kinds: tuple[mixes.Kind, ...], load: float) -> None:
    assert offered(mixes.poisson(kinds, load, jobs=4000)) == pytest.approx(load, rel=0.1)
    assert offered(mixes.diurnal(kinds, load, jobs=4000)) == pytest.approx(load, rel=0.2)
    assert offered(mixes.in_bursts(kinds, load, jobs=4000)) == pytest.approx(load, rel=0.2)


def offered(workload: Workload) -> float:
    return sum(job.service_s for job in workload.jobs) / max(job.at for job in workload.jobs)


def test_the_houses_own_work_comes_within_active_hours_the_bulk_at_night_and_prompts_are_what_packing_is_for() -> None:
    jobs = WORKLOADS["house_day"]().jobs
    internal = [job for job in jobs if job.lane is Lane.INTERNAL]
    assert all(6 * 3600 <= job.at <= 22 * 3600 for job in internal)
    assert all(job.at <= 4 * 3600 for job in jobs if job.caller == "bulk")
    assert ({job.priority for job in internal}, 800 < len(jobs) < 1500) == ({0, 1, 2}, True)
    prompts = WORKLOADS["prompts"]()
    assert [job.prompt_tokens for job in prompts.jobs[:5]] == [512, 1, 1, 1, 512]
    assert all(model.parallel == 4 for model in prompts.models.values())
