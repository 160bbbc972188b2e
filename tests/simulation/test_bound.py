"""The clairvoyant schedule: right on cases that can be counted by hand or tried exhaustively, and never worse than a real policy."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.simulation import workloads as mixes
from hearth.simulation.engine import simulate
from hearth.simulation.measures import summary
from hearth.simulation.workloads import Job, Workload
from tests.simulation.bound import foreseen_wait_s
from tests.support.cases import for_each


def house(*jobs: tuple[str, float, float], resident: str = "a") -> Workload:
    """Jobs as (model, arrival, service); loading costs 10 s."""
    return Workload(
        jobs=tuple(
            Job(id=index, model=model, at=at, service_s=service_s, first_byte_s=service_s)
            for index, (model, at, service_s) in enumerate(jobs)
        ),
        models={name: ModelSettings(vram_gb=16.0) for name in ("a", "b")},
        swap_costs={("", "a"): 10.0, ("", "b"): 10.0},
        vram_gb=24.0,
        resident=(resident,) if resident else (),
    )


@for_each(
    ("jobs", "waited_s"),
    [
        ([("a", 0.0, 1.0)], 0.0),
        ([("b", 0.0, 1.0)], 10.0),
        ([("b", 15.0, 1.0)], 0.0),
        ([("b", 0.0, 1.0), ("a", 2.0, 1.0)], 13.0),
        ([("a", 0.0, 4.0), ("a", 0.0, 4.0), ("b", 0.0, 1.0)], 22.0),
    ],
)
def test_cases_that_can_be_counted(jobs: list[tuple[str, float, float]], waited_s: float) -> None:
    assert foreseen_wait_s(house(*jobs)) * len(jobs) == pytest.approx(waited_s)


def tried(workload: Workload) -> float:
    """The least sum of waits over all orders that keep each model's own."""
    best = float("inf")
    for order in set(permutations(job.model for job in workload.jobs)):
        lines = {name: iter([job for job in workload.jobs if job.model == name]) for name in workload.models}
        now, waited_s, resident = 0.0, 0.0, workload.resident[0]
        for model in order:
            job = next(lines[str(model)])
            start = max(now + (0.0 if model == resident else 10.0), job.at)
            now, waited_s, resident = start + job.service_s, waited_s + start - job.at, str(model)
        best = min(best, waited_s)
    return best


def test_nothing_beats_it_when_everything_is_tried() -> None:
    for seed in range(30):
        rng = Random(seed)
        jobs = sorted((rng.uniform(0, 20), rng.choice("ab"), rng.expovariate(0.3)) for _ in range(7))
        workload = house(*((model, at, service_s) for at, model, service_s in jobs))
        assert foreseen_wait_s(workload) * 7 == pytest.approx(tried(workload)), f"seed {seed}"


@for_each("policy", list(PolicyName))
def test_no_policy_waits_less_than_it(policy: PolicyName) -> None:
    for seed in range(3):
        workload = mixes.poisson(mixes.EQUAL, mixes.HEAVY, jobs=60, seed=seed)
        real = summary(simulate(workload, workload.settings(SchedulerSettings(), policy)))
        assert foreseen_wait_s(workload) <= real.mean_wait_s + 1e-9


def test_an_empty_gpu_costs_the_load_alone() -> None:
    assert foreseen_wait_s(house(("a", 0.0, 1.0), resident="")) == 10.0


@for_each(
    ("change", "why"),
    [
        ({"jobs": (Job(id=0, model=None, service_s=1.0, first_byte_s=1.0),)}, "a model and a known arrival"),
        ({"jobs": (Job(id=1, model="a", after=0, service_s=1.0, first_byte_s=1.0),)}, "a model and a known arrival"),
        ({"models": {"a": ModelSettings(parallel=2)}}, "models with one slot"),
    ],
)
def test_what_it_cannot_foresee_it_refuses(change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        foreseen_wait_s(replace(house(("a", 0.0, 1.0)), **change))  # type: ignore[arg-type]
