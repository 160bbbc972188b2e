"""The workloads that ship are what their descriptions say."""

from __future__ import annotations

from collections import Counter

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation import workloads as mixes
from hearth.simulation.engine import Run, simulate
from hearth.simulation.workloads import WORKLOADS, Workload
from hearth.types import Lane
from tests.support.cases import for_each


def run_of(name: str) -> Run:
    workload = WORKLOADS[name]()
    return simulate(workload, workload.settings(SchedulerSettings(), PolicyName.AFFINITY))


@for_each("name", WORKLOADS)
def test_a_workload_is_the_same_every_time_and_can_be_run(name: str) -> None:
    workload = WORKLOADS[name]()
    assert workload == WORKLOADS[name]()
    assert len({job.id for job in workload.jobs}) == len(workload.jobs)
    assert all(workload.swap_s((), job.model) >= 0 for job in workload.jobs if job.model is not None)
    known = {job.id for job in workload.jobs}
    assert all({job.after, *job.also_after} <= known for job in workload.jobs if job.after is not None)


@for_each(
    ("name", "requests"),
    [
        ("single_model", {"a": 40}),
        ("balanced", {"a": 20, "b": 20}),
        ("bursty", {"a": 20, "b": 20}),
        ("dominant", {"a": 40, "b": 10}),
        ("interleave", {"a": 30, "b": 30}),
    ],
)
def test_the_reports_profiles_have_its_numbers_of_requests(name: str, requests: dict[str, int]) -> None:
    assert Counter(job.model for job in WORKLOADS[name]().jobs) == requests


def test_a_round_begins_when_both_requests_of_the_last_have_ended() -> None:
    records = run_of("balanced").records
    ended = {record.job.id: record.ended or 0.0 for record in records}
    for record in records[2:]:
        first = record.job.id - record.job.id % 2 - 2
        late_s = 0.1 if record.job.model == "b" else 0.0
        assert record.arrived == pytest.approx(max(ended[first], ended[first + 1]) + late_s)


def test_a_burst_begins_when_the_last_one_has_ended() -> None:
    records = run_of("bursty").records
    for burst in range(1, 4):
        before, after = records[10 * burst - 10 : 10 * burst], records[10 * burst : 10 * burst + 10]
        assert {record.arrived for record in after} == {max(record.ended or 0.0 for record in before)}
        assert len({record.job.model for record in after}) == 1


@for_each("load", [mixes.MEDIUM, mixes.HEAVY, mixes.OVERLOAD])
@for_each("kinds", [mixes.TWO, mixes.EQUAL, mixes.THREE, mixes.FOUR])
def test_a_mix_has_the_load_that_it_says(kinds: tuple[mixes.Kind, ...], load: float) -> None:
    assert offered(mixes.poisson(kinds, load, jobs=4000)) == pytest.approx(load, rel=0.1)
    assert offered(mixes.diurnal(kinds, load, jobs=4000)) == pytest.approx(load, rel=0.2)
    assert offered(mixes.in_bursts(kinds, load, jobs=4000)) == pytest.approx(load, rel=0.2)


def offered(workload: Workload) -> float:
    return sum(job.service_s for job in workload.jobs) / max(job.at for job in workload.jobs)


def test_the_houses_own_work_comes_within_active_hours_the_bulk_at_night_and_prompts_are_what_packing_is_for() -> None:
    jobs = WORKLOADS["house_day"]().jobs
    assert all(6 * 3600 <= job.at <= 22 * 3600 for job in jobs if job.lane is Lane.INTERNAL)
    assert all(job.at <= 4 * 3600 for job in jobs if job.caller == "bulk")
    assert {job.priority for job in jobs if job.lane is Lane.INTERNAL} == {0, 1, 2}
    assert 800 < len(jobs) < 1500
    prompts = WORKLOADS["prompts"]()
    assert [job.prompt_tokens for job in prompts.jobs[:5]] == [512, 1, 1, 1, 512]
    assert all(model.parallel == 4 for model in prompts.models.values())
