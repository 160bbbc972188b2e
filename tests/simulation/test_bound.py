"""The clairvoyant schedule is the yardstick of a policy: right where every order can be tried, and never worse than a real policy."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.simulation.engine import simulate
from hearth.simulation.measures import summary
from hearth.simulation.workloads import EQUAL, HEAVY, Job, Workload, poisson
from tests.simulation.bound import foreseen_wait_s


def drawn(rng: Random) -> Workload:
    """Seven items for two models; loading costs 10 s."""
    found = sorted((rng.uniform(0, 20), rng.choice("ab"), rng.expovariate(0.3)) for _ in range(7))
    jobs = [Job(id=number, model=model, at=at, service_s=run_s, first_byte_s=run_s) for number, (at, model, run_s) in enumerate(found)]
    models = {name: ModelSettings(vram_gb=16.0) for name in "ab"}
    return Workload(jobs=tuple(jobs), models=models, swap_costs={("", "a"): 10.0, ("", "b"): 10.0}, vram_gb=24.0, resident=("a",))


def tried(workload: Workload) -> float:
    """The least sum of waits over all orders that keep each model's own."""
    best = float("inf")
    for order in set(permutations(job.model for job in workload.jobs)):
        lines = {name: iter([job for job in workload.jobs if job.model == name]) for name in workload.models}
        now, waited_s, resident = 0.0, 0.0, "a"
        for model in order:
            job = next(lines[str(model)])
            start = max(now + (0.0 if model == resident else 10.0), job.at)
            now, waited_s, resident = start + job.service_s, waited_s + start - job.at, str(model)
        best = min(best, waited_s)
    return best


def test_nothing_beats_it_when_everything_is_tried() -> None:
    for seed in range(30):
        workload = drawn(Random(seed))
        assert foreseen_wait_s(workload) * 7 == pytest.approx(tried(workload)), f"seed {seed}"


def test_no_policy_waits_less_than_it() -> None:
    workload = poisson(EQUAL, HEAVY, jobs=60, seed=1)
    least_s = foreseen_wait_s(workload)
    for policy in PolicyName:
        real = summary(simulate(workload, workload.settings(SchedulerSettings(), policy)))
        assert least_s <= real.mean_wait_s + 1e-9
