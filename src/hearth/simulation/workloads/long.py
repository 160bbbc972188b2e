"""Long runs near capacity, and houses made to expose a scheduler: what 400 requests cannot show.

Drawn from a `random.Random` with a fixed seed, so a workload is the same everywhere. A queue near capacity needs thousands of requests
to show whether it is stable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import log
from random import Random
from types import MappingProxyType

from hearth.config.settings import ModelSettings
from hearth.simulation.workloads import mixes
from hearth.simulation.workloads.jobs import Job, SwapCosts, Workload
from hearth.simulation.workloads.mixes import EQUAL, FOUR, THREE, TWO, Kind
from hearth.types import Lane

REQUESTS = 3000
SIGMA = 1.2
"""Of the logarithm of a service time: the longest hundredth of the answers takes a fifth of the time."""


def steady(kinds: tuple[Kind, ...], load: float, *, seed: int) -> Workload:
    """Independent callers with heavy-tailed answers."""
    return _heavy_tailed(mixes.poisson(kinds, load, jobs=REQUESTS, seed=seed), kinds, seed)


def bursts(kinds: tuple[Kind, ...], load: float, *, seed: int) -> Workload:
    """Bursts of about 15 requests for one model, with heavy-tailed answers."""
    return _heavy_tailed(mixes.in_bursts(kinds, load, jobs=REQUESTS, size=15, seed=seed), kinds, seed)


def day(kinds: tuple[Kind, ...], load: float, *, seed: int) -> Workload:
    """A rate that swings between a tenth and nearly twice the mean, with heavy-tailed answers."""
    return _heavy_tailed(mixes.diurnal(kinds, load, jobs=REQUESTS, period_s=7200.0, seed=seed), kinds, seed)


def two_agents(*, turns: int = 900, think_s: float = 2.0) -> Workload:
    """Two agents take turns on two models with swaps of 2 s; after 100 s, one request for a model that takes 45 s to load."""
    jobs = [Job(id=0, model="rare", at=100.0, caller="rare", service_s=5.0, first_byte_s=5.0)]
    for name in ("one", "two"):
        before: int | None = None
        for _ in range(turns):
            pause_s = 0.0 if before is None else think_s
            jobs.append(Job(id=len(jobs), model=name, after=before, think_s=pause_s, caller=name, service_s=2.0, first_byte_s=2.0))
            before = jobs[-1].id
    return _one_at_a_time(jobs, {"one": 2.0, "two": 2.0, "rare": 45.0})


def rare_in_overload(*, load: float = 1.4, seed: int = 31) -> Workload:
    """One model with more work than fits, and every ten minutes a request for another one that takes 45 s to load."""
    rng, jobs, at = Random(seed), list[Job](), 0.0  # noqa: S311 - made-up work, no secret
    while len(jobs) < REQUESTS:
        at += rng.expovariate(load / 2.0)
        service_s = rng.expovariate(1 / 2.0)
        caller = f"caller-{rng.randrange(6)}"
        jobs.append(Job(id=len(jobs), model="busy", at=at, caller=caller, service_s=service_s, first_byte_s=service_s))
    for rare in range(int(at // 600)):
        jobs.append(Job(id=len(jobs), model="rare", at=300.0 + 600.0 * rare, caller="rare", service_s=5.0, first_byte_s=5.0))
    return _one_at_a_time(sorted(jobs, key=lambda job: job.at), {"busy": 3.0, "rare": 45.0})


def two_of_three(*, load: float = 0.3, seed: int = 41) -> Workload:
    """Three models of which two fit; the popular one is dear to load, the other two cheap."""
    kinds = (
        Kind(name="popular", share=4, load_s=30.0, service_s=3.0),
        Kind(name="second", share=2, load_s=5.0, service_s=3.0),
        Kind(name="third", share=2, load_s=5.0, service_s=3.0),
    )
    house = steady(kinds, load, seed=seed)
    return replace(house, models={kind.name: ModelSettings(vram_gb=12.0, parallel=1) for kind in kinds})


def household(*, directly: bool, pause_s: float, load_s: float, seed: int) -> Workload:
    """Four chat and four coder callers on two models, 60 requests each, the next one `pause_s` after an answer, and one assistant.

    Directly, nobody is the house's own. The assistant has shorter answers and a pause of 4 s; nobody is streamed to.
    """
    rng, jobs = Random(seed), list[Job]()  # noqa: S311 - made-up work, no secret
    callers = [(f"{model}-{number}", model, 60, 1.2, pause_s) for model in ("chat", "coder") for number in range(4)]
    for caller, model, count, mean_s, pause in (*callers, ("assistant", "chat", 240, 0.6, 4.0)):
        lane = Lane.INTERNAL if caller == "assistant" and not directly else Lane.EXTERNAL
        before: int | None = None
        for _ in range(count):
            service_s = 0.05 + rng.expovariate(1 / mean_s)
            think_s = rng.expovariate(1 / pause) if pause and before is not None else 0.0
            job = Job(
                id=len(jobs),
                model=model,
                after=before,
                think_s=think_s,
                lane=lane,
                caller=caller,
                service_s=service_s,
                first_byte_s=service_s,
            )
            jobs.append(job)
            before = job.id
    return _one_at_a_time(jobs, {"chat": load_s, "coder": load_s})


def _heavy_tailed(workload: Workload, kinds: tuple[Kind, ...], seed: int) -> Workload:
    """The same arrivals with log-normal service times of the same means; answers tell no tokens."""
    rng, mean_s = Random(seed + 1000), {kind.name: kind.service_s for kind in kinds}  # noqa: S311 - made-up work, no secret
    drawn = []
    for job in workload.jobs:
        service_s = rng.lognormvariate(log(mean_s[job.model or ""]) - SIGMA**2 / 2, SIGMA)
        drawn.append(replace(job, service_s=service_s, first_byte_s=service_s))
    return replace(workload, jobs=tuple(drawn))


def _one_at_a_time(jobs: list[Job], load_s: Mapping[str, float]) -> Workload:
    return Workload(
        jobs=tuple(jobs),
        models={name: ModelSettings(vram_gb=16.0, parallel=1) for name in load_s},
        swap_costs=SwapCosts(by_pair={("", name): seconds for name, seconds in load_s.items()}),
        vram_gb=24.0,
        resident=(next(iter(load_s)),),
    )


NEAR_CAPACITY: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
        "long_two_90": partial(steady, TWO, 0.9, seed=11),
        "long_two_95": partial(steady, TWO, 0.95, seed=12),
        "long_equal_90": partial(steady, EQUAL, 0.9, seed=13),
        "long_equal_95": partial(steady, EQUAL, 0.95, seed=14),
        "long_three_90": partial(steady, THREE, 0.9, seed=15),
        "long_three_95": partial(steady, THREE, 0.95, seed=16),
        "long_four_90": partial(steady, FOUR, 0.9, seed=17),
        "long_four_95": partial(steady, FOUR, 0.95, seed=18),
        "long_bursts_90": partial(bursts, THREE, 0.9, seed=19),
        "long_day_90": partial(day, FOUR, 0.9, seed=20),
    }
)
"""The long runs at 0.9 and more, by which policies are compared with exhaustive service."""

LONG: Mapping[str, Callable[[], Workload]] = MappingProxyType(
    {
        **NEAR_CAPACITY,
        "long_three_60": partial(steady, THREE, 0.6, seed=21),
        "long_four_75": partial(steady, FOUR, 0.75, seed=22),
        "two_agents": two_agents,
        "rare_in_overload": rare_in_overload,
        "two_of_three": two_of_three,
    }
)
"""All long workloads by name, with their seeds above."""
