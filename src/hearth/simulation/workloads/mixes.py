"""Random mixes of models: independent callers, days with a rhythm, bursts, agents that take turns with a model.

Drawn from a `random.Random` with a fixed seed, so a mix is the same everywhere. `load` is the share of the time that serving alone would
take; swaps come on top. Loading a model costs the same whatever has to go for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import pi, sin
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.workloads.jobs import Job, SwapCosts, Workload
from hearth.types import Usage

MEDIUM, HEAVY, OVERLOAD = 0.6, 0.9, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One model of a mix.

    Attributes:
        share: its part of all requests; shares need not add up to 1.
        load_s: what bringing it into memory takes.
        service_s: mean of its service times, which are exponential.
    """

    name: str
    share: float
    load_s: float
    service_s: float


TWO = (Kind(name="large", share=1, load_s=18.0, service_s=4.0), Kind(name="small", share=2, load_s=5.0, service_s=1.5))
EQUAL = (Kind(name="left", share=1, load_s=10.0, service_s=2.0), Kind(name="right", share=1, load_s=10.0, service_s=2.0))
THREE = (
    Kind(name="writer", share=2, load_s=20.0, service_s=5.0),
    Kind(name="coder", share=2, load_s=8.0, service_s=3.0),
    Kind(name="helper", share=5, load_s=2.0, service_s=1.0),
)
FOUR = (
    Kind(name="huge", share=1, load_s=45.0, service_s=8.0),
    Kind(name="writer", share=2, load_s=20.0, service_s=4.0),
    Kind(name="coder", share=3, load_s=8.0, service_s=3.0),
    Kind(name="helper", share=6, load_s=2.0, service_s=1.0),
)


def poisson(kinds: tuple[Kind, ...], load: float, *, jobs: int = 400, seed: int = 1) -> Workload:
    """Independent callers: exponential gaps at a constant rate."""
    return _arriving(kinds, load, jobs=jobs, rng=_seeded(seed), pace=lambda _: 1.0)


def diurnal(kinds: tuple[Kind, ...], load: float, *, jobs: int = 400, period_s: float = 1800.0, seed: int = 2) -> Workload:
    """The same with a rate that swings between a tenth and nearly twice the mean."""
    return _arriving(kinds, load, jobs=jobs, rng=_seeded(seed), pace=lambda at: 1 + 0.9 * sin(2 * pi * at / period_s))


def in_bursts(kinds: tuple[Kind, ...], load: float, *, jobs: int = 400, size: int = 6, seed: int = 3) -> Workload:
    """Bursts of one model each, half a second between the requests of one; the bursts are independent."""
    rng = _seeded(seed)
    mean_gap_s = size * _mean_service_s(kinds) / load
    drawn, at = list[Job](), 0.0
    while len(drawn) < jobs:
        at += rng.expovariate(1 / mean_gap_s)
        kind = _pick(rng, kinds)
        burst_at = at
        for _ in range(1 + int(rng.expovariate(1 / (size - 0.5)))):
            drawn.append(_job(rng, kind, len(drawn), burst_at))
            burst_at += rng.expovariate(2.0)
    return _house(kinds, drawn)


def agents(*, turns: int = 100, think_s: float = 2.0, load: float = 0.3, seed: int = 4) -> Workload:
    """Two agents that take their turns with one model each, ten turns a task, beside independent callers of a third model."""
    rng = _seeded(seed)
    drawn = list[Job]()
    for name, model in (("coding", THREE[1]), ("research", THREE[0])):
        before: int | None = None
        for turn in range(turns):
            pause_s = rng.expovariate(1 / 120.0) if turn % 10 == 0 else rng.uniform(0.5, 1.5) * think_s
            at = pause_s if before is None else 0.0
            drawn.append(_job(rng, model, len(drawn), at, caller=name, after=before, think_s=0.0 if before is None else pause_s))
            before = drawn[-1].id
    at = 0.0
    for _ in range(turns):
        at += rng.expovariate(load / THREE[2].service_s)
        drawn.append(_job(rng, THREE[2], len(drawn), at, caller="lights"))
    return _house(THREE, drawn)


def relay(*, turns: int = 120, think_s: float = 6.0, seed: int = 5) -> Workload:
    """One agent that plans with one model, works with the next, and does something else for a while before each turn."""
    rng = _seeded(seed)
    first = _job(rng, EQUAL[0], 0, 1.0, caller="relay")
    later = (
        _job(rng, EQUAL[turn % 2], turn, 0.0, caller="relay", after=turn - 1, think_s=rng.uniform(0.5, 1.5) * think_s)
        for turn in range(1, turns)
    )
    return _house(EQUAL, [first, *later])


def prompts(*, count: int = 400, mean_gap_s: float = 0.35, seed: int = 6) -> Workload:
    """One model with several slots, prompts of 512, 1, 1 and 1 units in turn: what packing is for. A unit is 4 ms of prompt evaluation."""
    rng = _seeded(seed)
    drawn, at = list[Job](), 0.0
    for index in range(count):
        at += rng.expovariate(1 / mean_gap_s)
        units = 512 if index % 4 == 0 else 1
        prompt_s, decode_s = 0.004 * units, 0.5
        usage = Usage(prompt_tokens=units, output_tokens=20, prompt_s=prompt_s, decode_s=decode_s)
        drawn.append(
            Job(
                id=index,
                model="served",
                at=at,
                service_s=prompt_s + decode_s,
                first_byte_s=prompt_s,
                streaming=True,
                prompt_tokens=units,
                max_tokens=20,
                usage=usage,
            )
        )
    return Workload(
        jobs=tuple(drawn),
        models={"served": ModelSettings(vram_gb=16.0, parallel=4)},
        swap_costs=SwapCosts(by_pair={("", "served"): 5.0}),
        vram_gb=24.0,
        resident=("served",),
    )


def _seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - made-up work, no secret


def _arriving(kinds: tuple[Kind, ...], load: float, *, jobs: int, rng: Random, pace: Callable[[float], float]) -> Workload:
    """Arrivals at a mean rate for `load`, times `pace` of the instant."""
    rate = load / _mean_service_s(kinds)
    drawn, at = list[Job](), 0.0
    for index in range(jobs):
        at += rng.expovariate(rate * pace(at))
        drawn.append(_job(rng, _pick(rng, kinds), index, at))
    return _house(kinds, drawn)


def _mean_service_s(kinds: tuple[Kind, ...]) -> float:
    return sum(kind.share * kind.service_s for kind in kinds) / sum(kind.share for kind in kinds)


def _pick(rng: Random, kinds: tuple[Kind, ...]) -> Kind:
    return rng.choices(kinds, weights=[kind.share for kind in kinds])[0]


def _job(rng: Random, kind: Kind, index: int, at: float, *, caller: str = "", after: int | None = None, think_s: float = 0.0) -> Job:
    service_s = rng.expovariate(1 / kind.service_s)
    return Job(
        id=index,
        model=kind.name,
        at=at,
        after=after,
        think_s=think_s,
        caller=caller or f"caller-{rng.randrange(6)}",
        service_s=service_s,
        first_byte_s=service_s,
    )


def _house(kinds: tuple[Kind, ...], jobs: Iterable[Job]) -> Workload:
    return Workload(
        jobs=tuple(jobs),
        models={kind.name: ModelSettings(vram_gb=16.0, parallel=1) for kind in kinds},
        swap_costs=SwapCosts(by_pair={("", kind.name): kind.load_s for kind in kinds}),
        vram_gb=24.0,
        resident=(kinds[0].name,),
    )
