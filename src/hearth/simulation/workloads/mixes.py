"""The workloads of a house: its days, mixed callers, long answers, and the profiles of what they ask.

The five profiles of llmux's switching efficiency report, as far as it describes them.

Two models that do not fit together, a in memory at first; a to b takes 7.4 s, b to a 2.0 s, a request 0.3 s. That report's engine serves
many requests of a model at once, so the models have slots for all of them: what is measured is the swaps.

Random mixes of models: independent callers, days with a rhythm, bursts, agents that take turns with a model.

Drawn from a `random.Random` with a fixed seed, so a mix is the same everywhere. `load` is the share of the time that serving alone would
take; swaps come on top. Loading a model costs the same whatever has to go for it.

Long runs near capacity, and houses made to expose a scheduler: what 400 requests cannot show.

Drawn from a `random.Random` with a fixed seed, so a workload is the same everywhere. A queue near capacity needs thousands of requests
to show whether it is stable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import log, pi, sin
from random import Random
from types import MappingProxyType

from hearth.config.settings import ModelSettings
from hearth.simulation.workloads.jobs import Job, SwapCosts, Workload
from hearth.types import Lane, Priority, Usage

TO_A_S = 2.0
TO_B_S = 7.4
SERVICE_S = 0.3
SLOTS = 64


def single_model() -> Workload:
    """40 requests 0.1 s apart for the model in memory."""
    return _house(_job(index, "a", at=0.1 * index) for index in range(40))


def balanced(rounds: int = 20) -> Workload:
    """Rounds of one request per model 0.1 s apart; the next round begins when both have ended."""
    jobs = [_job(0, "a"), _job(1, "b", at=0.1)]
    for first in range(2, 2 * rounds, 2):
        jobs += [_follower(first, "a", think_s=0.0), _follower(first + 1, "b", think_s=0.1)]
    return _house(jobs)


def bursty(bursts: int = 4, size: int = 10) -> Workload:
    """Bursts for a and b in turn, each when the last has ended."""
    jobs = [_job(index, "a") for index in range(size)]
    for first in range(size, bursts * size, size):
        before = tuple(range(first - size, first))
        jobs += [_job(index, "ab"[first // size % 2], after=before[0], also_after=before[1:]) for index in range(first, first + size)]
    return _house(jobs)


def dominant() -> Workload:
    """50 requests 0.05 s apart, every fifth for b."""
    return _house(_job(index, "b" if index % 5 == 4 else "a", at=0.05 * index) for index in range(50))


def interleave() -> Workload:
    """30 requests for each model, all at once."""
    return _house(_job(index, "ab"[index % 2]) for index in range(60))


def _job(
    index: int, model: str, *, at: float = 0.0, after: int | None = None, also_after: tuple[int, ...] = (), think_s: float = 0.0
) -> Job:
    return Job(
        id=index,
        model=model,
        at=at,
        after=after,
        also_after=also_after,
        think_s=think_s,
        service_s=SERVICE_S,
        first_byte_s=SERVICE_S,
    )


def _follower(index: int, model: str, *, think_s: float) -> Job:
    """Part of the round after the one that this index is behind."""
    first = index - index % 2 - 2
    return _job(index, model, after=first, also_after=(first + 1,), think_s=think_s)


def _house(jobs: Iterable[Job]) -> Workload:
    return Workload(
        jobs=tuple(jobs),
        models={"a": ModelSettings(vram_gb=16.0, parallel=SLOTS), "b": ModelSettings(vram_gb=16.0, parallel=SLOTS)},
        swap_costs=SwapCosts(by_pair={("a", "b"): TO_B_S, ("b", "a"): TO_A_S, ("", "a"): TO_A_S, ("", "b"): TO_B_S}),
        vram_gb=24.0,
        resident=("a",),
    )


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
            drawn.append(_mixed_job(rng, kind, len(drawn), burst_at))
            burst_at += rng.expovariate(2.0)
    return _mixed_house(kinds, drawn)


def agents(*, turns: int = 100, think_s: float = 2.0, load: float = 0.3, seed: int = 4) -> Workload:
    """Two agents that take their turns with one model each, ten turns a task, beside independent callers of a third model."""
    rng = _seeded(seed)
    drawn = list[Job]()
    for name, model in (("coding", THREE[1]), ("research", THREE[0])):
        before: int | None = None
        for turn in range(turns):
            pause_s = rng.expovariate(1 / 120.0) if turn % 10 == 0 else rng.uniform(0.5, 1.5) * think_s
            at = pause_s if before is None else 0.0
            drawn.append(_mixed_job(rng, model, len(drawn), at, caller=name, after=before, think_s=0.0 if before is None else pause_s))
            before = drawn[-1].id
    at = 0.0
    for _ in range(turns):
        at += rng.expovariate(load / THREE[2].service_s)
        drawn.append(_mixed_job(rng, THREE[2], len(drawn), at, caller="lights"))
    return _mixed_house(THREE, drawn)


def relay(*, turns: int = 120, think_s: float = 6.0, seed: int = 5) -> Workload:
    """One agent that plans with one model, works with the next, and does something else for a while before each turn."""
    rng = _seeded(seed)
    first = _mixed_job(rng, EQUAL[0], 0, 1.0, caller="relay")
    later = (
        _mixed_job(rng, EQUAL[turn % 2], turn, 0.0, caller="relay", after=turn - 1, think_s=rng.uniform(0.5, 1.5) * think_s)
        for turn in range(1, turns)
    )
    return _mixed_house(EQUAL, [first, *later])


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
        drawn.append(_mixed_job(rng, _pick(rng, kinds), index, at))
    return _mixed_house(kinds, drawn)


def _mean_service_s(kinds: tuple[Kind, ...]) -> float:
    return sum(kind.share * kind.service_s for kind in kinds) / sum(kind.share for kind in kinds)


def _pick(rng: Random, kinds: tuple[Kind, ...]) -> Kind:
    return rng.choices(kinds, weights=[kind.share for kind in kinds])[0]


def _mixed_job(rng: Random, kind: Kind, index: int, at: float, *, caller: str = "", after: int | None = None, think_s: float = 0.0) -> Job:
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


def _mixed_house(kinds: tuple[Kind, ...], jobs: Iterable[Job]) -> Workload:
    return Workload(
        jobs=tuple(jobs),
        models={kind.name: ModelSettings(vram_gb=16.0, parallel=1) for kind in kinds},
        swap_costs=SwapCosts(by_pair={("", kind.name): kind.load_s for kind in kinds}),
        vram_gb=24.0,
        resident=(kinds[0].name,),
    )


REQUESTS = 3000
SIGMA = 1.2
"""Of the logarithm of a service time: the longest hundredth of the answers takes a fifth of the time."""


def steady(kinds: tuple[Kind, ...], load: float, *, seed: int) -> Workload:
    """Independent callers with heavy-tailed answers."""
    return _heavy_tailed(poisson(kinds, load, jobs=REQUESTS, seed=seed), kinds, seed)


def bursts(kinds: tuple[Kind, ...], load: float, *, seed: int) -> Workload:
    """Bursts of about 15 requests for one model, with heavy-tailed answers."""
    return _heavy_tailed(in_bursts(kinds, load, jobs=REQUESTS, size=15, seed=seed), kinds, seed)


def day(kinds: tuple[Kind, ...], load: float, *, seed: int) -> Workload:
    """A rate that swings between a tenth and nearly twice the mean, with heavy-tailed answers."""
    return _heavy_tailed(diurnal(kinds, load, jobs=REQUESTS, period_s=7200.0, seed=seed), kinds, seed)


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


HOUR_S = 3600.0
ACTIVE = (6 * HOUR_S, 22 * HOUR_S)
ASSISTANT, CODER, SMALL = "assistant", "coder", "small"
LOAD_S = {ASSISTANT: 20.0, CODER: 8.0, SMALL: 3.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """One kind of work: so many an hour between two hours of the day, on one model; external without a priority."""

    caller: str
    model: str
    per_hour: float
    from_hour: float
    to_hour: float
    service_s: float
    priority: Priority | None = None
    streaming: bool = False


HABITS = (
    Habit(caller="voice", model=ASSISTANT, per_hour=8, from_hour=6, to_hour=22, service_s=3, priority=Priority.CRITICAL),
    Habit(caller="digest", model=ASSISTANT, per_hour=4, from_hour=6, to_hour=22, service_s=12, priority=Priority.NORMAL),
    Habit(caller="nudge", model=SMALL, per_hour=6, from_hour=6, to_hour=22, service_s=2, priority=Priority.BACKGROUND),
    Habit(caller="chat", model=ASSISTANT, per_hour=10, from_hour=17, to_hour=23, service_s=15, streaming=True),
    Habit(caller="editor", model=CODER, per_hour=30, from_hour=9, to_hour=18, service_s=6, streaming=True),
    Habit(caller="automations", model=SMALL, per_hour=4, from_hour=0, to_hour=24, service_s=1),
    Habit(caller="bulk", model=CODER, per_hour=150, from_hour=0, to_hour=4, service_s=12),
)


def house_day(*, seed: int = 7) -> Workload:
    """About 1,350 requests; the house's own work comes in active hours, from 6 to 22."""
    rng = Random(seed)  # noqa: S311 - made-up work, no secret
    drawn = sorted((at, number, habit) for number, habit in enumerate(HABITS) for at in _instants(rng, habit))
    return Workload(
        jobs=tuple(_day_job(rng, habit, index, at) for index, (at, _, habit) in enumerate(drawn)),
        models={name: ModelSettings(vram_gb=16.0, parallel=1) for name in LOAD_S},
        swap_costs=SwapCosts(by_pair={("", name): load_s for name, load_s in LOAD_S.items()}),
        vram_gb=24.0,
        resident=(ASSISTANT,),
        home=ASSISTANT,
        modes=((0.0, False), (ACTIVE[0], True), (ACTIVE[1], False)),
    )


def _instants(rng: Random, habit: Habit) -> list[float]:
    at, found = habit.from_hour * HOUR_S, list[float]()
    while (at := at + rng.expovariate(habit.per_hour / HOUR_S)) < habit.to_hour * HOUR_S:
        found.append(at)
    return found


def _day_job(rng: Random, habit: Habit, index: int, at: float) -> Job:
    service_s = rng.expovariate(1 / habit.service_s)
    return Job(
        id=index,
        model=habit.model,
        at=at,
        lane=Lane.EXTERNAL if habit.priority is None else Lane.INTERNAL,
        priority=Priority.NORMAL if habit.priority is None else habit.priority,
        caller=habit.caller,
        service_s=service_s,
        first_byte_s=0.1 * service_s if habit.streaming else service_s,
        streaming=habit.streaming,
    )
