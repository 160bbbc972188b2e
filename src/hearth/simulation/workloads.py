"""What is asked of a gateway, and the truth about how long it takes: the input of a simulation, and
the workloads that ship.

The truth (service and swap times) belongs to the engine; the scheduler never sees it and learns its
own estimates. Workloads are drawn from a `Random` with a fixed seed, so each is the same
everywhere. `load` is the share of the time that serving alone would take; swaps come on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from math import log, pi, sin
from random import Random
from typing import Literal, TypeAlias, TypedDict, Unpack

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.types import HOUR_S, Lane, Priority, SleepLevel, Usage, frozen

NOTHING_REPORTED = Usage()
JobKind: TypeAlias = Literal["text", "audio", "speech", "image"]
"""What a request asks for: a text, the text of a recording, speech, an image."""


@frozen
class WorkloadJob:
    """One request."""

    id: int
    model: str | None
    kind: JobKind = "text"
    audio_s: float = 0.0  # the length of the recording or of the speech
    alias: str = ""  # the name by which its caller means any of `choices`, of which `model` is one
    choices: tuple[str, ...] = ()
    at: float = 0.0  # the earliest instant of its arrival
    # the job whose end it waits for (a closed loop): it arrives `think_s` after that, and not
    # before `at`
    after: int | None = None
    # further jobs that must have ended as well; `think_s` counts from the last end
    also_after: tuple[int, ...] = ()
    think_s: float = 0.0
    lane: Lane = Lane.EXTERNAL
    priority: Priority = Priority.NORMAL
    background: bool = False  # an external program's own call beside its user's turns
    caller: str = "trace"
    user: str = ""  # whom of its users the caller asks for, where that is known
    conversation: str = ""  # of its caller, with which it goes on; all before it is in its prompt
    # from its start to its last byte on a resident model that has read nothing of it;
    # first_byte_s: to its first byte
    service_s: float
    first_byte_s: float
    streaming: bool = False  # its caller sees the bytes as they come
    # a stream that goes on where it was interrupted: what was written is not written again
    continues: bool = False
    prompt_tokens: int = 0
    max_tokens: int | None = None
    usage: Usage = NOTHING_REPORTED  # what its answer reports, from which the scheduler may learn
    # its caller leaves this long after it arrived, if it has not ended by then
    cancel_after_s: float | None = None
    max_wait_s: float | None = None  # how long it may wait for its first start


@frozen
class Outage:
    """An engine does not answer for a while: what runs on its models ends, and they are gone."""

    began_at: float
    ended_at: float
    models: frozenset[str]  # all that it has, while another engine answers


@frozen
class CardLease:
    """Another program is to have memory of the card for a while: a game, a render."""

    at: float
    for_s: float
    gb: float | None = None  # None: all
    is_timed: bool = False  # its end is known from the start; else its holder ends it


@frozen
class SleepCosts:
    """How a model sleeps at a level: the seconds until it does and until it is awake again, and
    what it keeps meanwhile.
    """

    sleep_s: float
    wake_s: float
    residual_gb: float  # of the card
    host_gb: float  # of main memory


@frozen
class Workload:
    """Everything that is asked, and the truth about the models."""

    jobs: tuple[WorkloadJob, ...]
    models: Mapping[str, ModelSettings]  # sizes and slots as the owner would configure them
    # seconds of a swap by (origin, target); the origin "" is a GPU from which nothing had to go
    swap_costs: Mapping[tuple[str, str], float]
    # seconds until an unloaded model is gone, 0 where not given (then the swap cost holds all of
    # it)
    unload_s: Mapping[str, float] = field(default_factory=dict)
    # the GPU's memory; None is unknown (one model at a time), 0 no limit
    vram_gb: float | None = None
    resident: tuple[str, ...] = ()  # models in memory at the start
    home: str = ""
    # instants at which active hours begin (True) or end; active before the first
    modes: tuple[tuple[float, bool], ...] = ()
    # seconds until a load that is cut has left the memory free; None: loads cannot be cut
    cut_s: float | None = None
    # the run stops at this instant, whatever is open; None: when everything has ended
    until_s: float | None = None
    # of the models, those that stay in memory for good, that are not on the card, and whose loads
    # cannot be cut
    staying: frozenset[str] = frozenset()
    off_card: frozenset[str] = frozenset()
    whole_loads: frozenset[str] = frozenset()
    outages: tuple[Outage, ...] = ()
    # how long an answer takes on a model, beside others; where two are not known they take alike
    pace: Mapping[str, float] = field(default_factory=dict)
    # models of an elastic engine, and how long a request of an alias waits for others before one of
    # these: always there, on no card
    elastic: Mapping[str, float] = field(default_factory=dict)
    leases: tuple[CardLease, ...] = ()
    # of models that can sleep, how they do at each level, quickest to wake first
    sleeps: Mapping[str, Mapping[SleepLevel, SleepCosts]] = field(default_factory=dict)
    host_ram_gb: float = 0.0  # main memory that sleepers may take, where the owner sets none
    host_free_gb: float | None = None  # what is free of it at the start; None is unknown
    # of all sleeps and wakes, by number from 0: those that free nothing, and those that fail
    failing_sleeps: frozenset[int] = frozenset()
    failing_wakes: frozenset[int] = frozenset()

    @property
    def is_mixed(self) -> bool:
        """Its models are of several engines, or of one that does not load them as Ollama does."""
        odd = (
            self.staying,
            self.off_card,
            self.whole_loads,
            self.outages,
            self.elastic,
            self.sleeps,
        )
        return any(odd)

    def on_model(self, job: WorkloadJob, model: str) -> WorkloadJob:
        """The same request, as long as it takes on another model."""
        own = self.pace.get(job.model or "")
        other = self.pace.get(model)
        if own and other:
            times = other / own
            usage = replace(
                job.usage,
                prompt_s=None if job.usage.prompt_s is None else times * job.usage.prompt_s,
                decode_s=None if job.usage.decode_s is None else times * job.usage.decode_s,
            )
            job = replace(
                job,
                service_s=times * job.service_s,
                first_byte_s=times * job.first_byte_s,
                usage=usage,
            )
        return replace(job, model=model)

    def swap_s(self, replaced: tuple[str, ...], target: str) -> float:
        """The dearest way from what was replaced to the target; an unknown pair costs what an empty
        GPU does, else the dearest known way.

        Raises KeyError: nothing at all is known about the target.
        """
        known = [seconds for (_, name), seconds in self.swap_costs.items() if name == target]
        if not known:
            raise KeyError(target)
        unknown_s = self.swap_costs.get(("", target), max(known))
        return max(self.swap_costs.get((origin, target), unknown_s) for origin in replaced or ("",))

    def settings(
        self, base: SchedulerSettings, policy: PolicyName, canonical: Callable[[str], str] = str
    ) -> SchedulerSettings:
        """`base` for this workload's GPU and models under `policy`; the owner's home model stays
        only where the workload knows it, by its `canonical` name.
        """
        owners = base.gpu.home_model
        home = self.home or next((name for name in self.models if canonical(name) == owners), "")
        host_ram_gb = base.gpu.sleep.host_ram_gb or self.host_ram_gb
        return replace(
            base,
            scheduling=base.scheduling.replace(policy=policy),
            gpu=base.gpu.replace(
                home_model=home,
                vram_gb=self.vram_gb,
                sleep=base.gpu.sleep.replace(host_ram_gb=host_ram_gb),
            ),
            models=self.models,
        )


class _DrawnFields(TypedDict, total=False):
    """What may be said of a job beside its model and its time."""

    at: float
    after: int | None
    also_after: tuple[int, ...]
    think_s: float
    caller: str
    lane: Lane


def _job(number: int, model: str, service_s: float, **fields: Unpack[_DrawnFields]) -> WorkloadJob:
    """One whose answer comes in one piece."""
    return WorkloadJob(
        id=number, model=model, service_s=service_s, first_byte_s=service_s, **fields
    )


def _workload(
    jobs: Iterable[WorkloadJob],
    load_s: Mapping[str, float],
    *,
    parallel: int = 1,
) -> Workload:
    """On a card of 24 GB with the first model in memory; loading a model costs the same whatever
    has to go for it.
    """
    return Workload(
        jobs=tuple(jobs),
        models={name: ModelSettings(vram_gb=16.0, parallel=parallel) for name in load_s},
        swap_costs={("", name): seconds for name, seconds in load_s.items()},
        vram_gb=24.0,
        resident=(next(iter(load_s)),),
    )


def _seeded(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - made-up work, no secret


# The five profiles of llmux's switching efficiency report, as far as it describes them: a to b
# takes 7.4 s, b to a 2.0 s, a request 0.3 s. Its engine serves many requests of a model at once, so
# the models have slots for all of them: what is measured is the swaps.

TO_A_S = 2.0
TO_B_S = 7.4
SERVICE_S = 0.3
SLOTS = 64


def _profile(jobs: Iterable[WorkloadJob]) -> Workload:
    costs = {("a", "b"): TO_B_S, ("b", "a"): TO_A_S, ("", "a"): TO_A_S, ("", "b"): TO_B_S}
    return replace(_workload(jobs, {"a": TO_A_S, "b": TO_B_S}, parallel=SLOTS), swap_costs=costs)


def single_model() -> Workload:
    """40 requests 0.1 s apart for the model in memory."""
    return _profile(_job(index, "a", SERVICE_S, at=0.1 * index) for index in range(40))


def balanced() -> Workload:
    """20 rounds of one request per model 0.1 s apart; the next begins when both have ended."""
    jobs = [_job(0, "a", SERVICE_S), _job(1, "b", SERVICE_S, at=0.1)]
    for first in range(2, 40, 2):
        jobs.append(_job(first, "a", SERVICE_S, after=first - 2, also_after=(first - 1,)))
        jobs.append(
            _job(first + 1, "b", SERVICE_S, after=first - 2, also_after=(first - 1,), think_s=0.1)
        )
    return _profile(jobs)


def bursty() -> Workload:
    """Four bursts for a and b in turn, each when the last has ended."""
    size = 10
    jobs = [_job(index, "a", SERVICE_S) for index in range(size)]
    for burst in (1, 2, 3):
        first = burst * size
        model = "ab"[burst % 2]
        before = tuple(range(first - size, first))
        jobs += [
            _job(index, model, SERVICE_S, after=before[0], also_after=before[1:])
            for index in range(first, first + size)
        ]
    return _profile(jobs)


def dominant() -> Workload:
    """50 requests 0.05 s apart, every fifth for b."""
    return _profile(
        _job(index, "b" if index % 5 == 4 else "a", SERVICE_S, at=0.05 * index)
        for index in range(50)
    )


def interleave() -> Workload:
    """30 requests for each model, all at once."""
    return _profile(_job(index, "ab"[index % 2], SERVICE_S) for index in range(60))


# Random mixes of models: independent callers, days with a rhythm, bursts, agents that take turns
# with a model.

MEDIUM = 0.6
HEAVY = 0.9
OVERLOAD = 2.0
LOADS = {"light": 0.3, "medium": MEDIUM, "heavy": HEAVY}


@frozen
class ModelKind:
    """One model of a mix: its part of all requests (`share`, need not add up to 1), and the mean of
    its exponential service times.
    """

    name: str
    share: float
    load_s: float
    service_s: float


Kinds = Sequence[ModelKind]

TWO = (
    ModelKind(name="large", share=1, load_s=18.0, service_s=4.0),
    ModelKind(name="small", share=2, load_s=5.0, service_s=1.5),
)
EQUAL = (
    ModelKind(name="left", share=1, load_s=10.0, service_s=2.0),
    ModelKind(name="right", share=1, load_s=10.0, service_s=2.0),
)
THREE = (
    ModelKind(name="writer", share=2, load_s=20.0, service_s=5.0),
    ModelKind(name="coder", share=2, load_s=8.0, service_s=3.0),
    ModelKind(name="helper", share=5, load_s=2.0, service_s=1.0),
)
FOUR = (
    ModelKind(name="huge", share=1, load_s=45.0, service_s=8.0),
    ModelKind(name="writer", share=2, load_s=20.0, service_s=4.0),
    ModelKind(name="coder", share=3, load_s=8.0, service_s=3.0),
    ModelKind(name="helper", share=6, load_s=2.0, service_s=1.0),
)


def _mixed_job(
    rng: Random, kind: ModelKind, number: int, **fields: Unpack[_DrawnFields]
) -> WorkloadJob:
    service_s = rng.expovariate(1 / kind.service_s)
    if "caller" not in fields:
        fields["caller"] = f"caller-{rng.randrange(6)}"
    return _job(number, kind.name, service_s, **fields)


def _mixed(kinds: Kinds, jobs: Iterable[WorkloadJob]) -> Workload:
    return _workload(jobs, {kind.name: kind.load_s for kind in kinds})


def _pick(rng: Random, kinds: Kinds) -> ModelKind:
    return rng.choices(kinds, weights=[kind.share for kind in kinds])[0]


def _mean_service_s(kinds: Kinds) -> float:
    return sum(kind.share * kind.service_s for kind in kinds) / sum(kind.share for kind in kinds)


def poisson(
    kinds: Kinds,
    load: float,
    *,
    jobs: int = 400,
    seed: int = 1,
    pace: Callable[[float], float] = lambda _: 1.0,
) -> Workload:
    """Independent callers: exponential gaps at a constant rate, or at that times `pace` of the
    instant.
    """
    rng = _seeded(seed)
    drawn = list[WorkloadJob]()
    at = 0.0
    rate = load / _mean_service_s(kinds)
    for number in range(jobs):
        at += rng.expovariate(rate * pace(at))
        drawn.append(_mixed_job(rng, _pick(rng, kinds), number, at=at))
    return _mixed(kinds, drawn)


def diurnal(
    kinds: Kinds, load: float, *, jobs: int = 400, period_s: float = 1800.0, seed: int = 2
) -> Workload:
    """The same with a rate that swings between a tenth and nearly twice the mean."""
    return poisson(
        kinds, load, jobs=jobs, seed=seed, pace=lambda at: 1 + 0.9 * sin(2 * pi * at / period_s)
    )


def in_bursts(
    kinds: Kinds, load: float, *, jobs: int = 400, size: int = 6, seed: int = 3
) -> Workload:
    """Bursts of one model each, half a second between the requests of one; the bursts are
    independent.
    """
    rng = _seeded(seed)
    drawn = list[WorkloadJob]()
    at = 0.0
    mean_gap_s = size * _mean_service_s(kinds) / load
    while len(drawn) < jobs:
        at += rng.expovariate(1 / mean_gap_s)
        kind = _pick(rng, kinds)
        burst_at = at
        for _ in range(1 + int(rng.expovariate(1 / (size - 0.5)))):
            drawn.append(_mixed_job(rng, kind, len(drawn), at=burst_at))
            burst_at += rng.expovariate(2.0)
    return _mixed(kinds, drawn)


def agents() -> Workload:
    """Two agents that take 100 turns with one model each, ten turns a task, beside independent
    callers of a third model.
    """
    rng = _seeded(4)
    turns = 100
    drawn = list[WorkloadJob]()
    for name, kind in (("coding", THREE[1]), ("research", THREE[0])):
        for turn in range(turns):
            pause_s = rng.expovariate(1 / 120.0) if turn % 10 == 0 else rng.uniform(0.5, 1.5) * 2.0
            if turn:
                drawn.append(
                    _mixed_job(
                        rng, kind, len(drawn), caller=name, after=len(drawn) - 1, think_s=pause_s
                    )
                )
            else:
                drawn.append(_mixed_job(rng, kind, len(drawn), at=pause_s, caller=name))
    at = 0.0
    for _ in range(turns):
        at += rng.expovariate(0.3 / THREE[2].service_s)
        drawn.append(_mixed_job(rng, THREE[2], len(drawn), at=at, caller="lights"))
    return _mixed(THREE, drawn)


def relay() -> Workload:
    """One agent that plans with one model, works with the next, and does something else for a while
    before each turn.
    """
    rng = _seeded(5)
    drawn = [_mixed_job(rng, EQUAL[0], 0, at=1.0, caller="relay")]
    for turn in range(1, 120):
        pause_s = rng.uniform(0.5, 1.5) * 6.0
        drawn.append(
            _mixed_job(rng, EQUAL[turn % 2], turn, caller="relay", after=turn - 1, think_s=pause_s)
        )
    return _mixed(EQUAL, drawn)


def prompts() -> Workload:
    """One model with several slots, prompts of 512, 1, 1 and 1 units in turn: what packing is for.

    A unit is 4 ms of prompt evaluation.
    """
    rng = _seeded(6)
    drawn = list[WorkloadJob]()
    at = 0.0
    for index in range(400):
        at += rng.expovariate(1 / 0.35)
        units = 512 if index % 4 == 0 else 1
        prompt_s = 0.004 * units
        decode_s = 0.5
        usage = Usage(prompt_tokens=units, output_tokens=20, prompt_s=prompt_s, decode_s=decode_s)
        job = _job(index, "served", prompt_s + decode_s, at=at)
        drawn.append(
            replace(
                job,
                first_byte_s=prompt_s,
                streaming=True,
                prompt_tokens=units,
                max_tokens=20,
                usage=usage,
            )
        )
    return _workload(drawn, {"served": 5.0}, parallel=4)


def many_models(models: int, load: float, *, seed: int) -> Workload:
    """Independent callers of four to eight models, some dear to load and rarely asked for."""
    rng = _seeded(seed)
    kinds = [
        ModelKind(
            name=f"model-{number}",
            share=rng.choice((1, 1, 2, 3, 5)),
            load_s=rng.choice((2.0, 4.0, 8.0, 15.0, 25.0, 45.0)),
            service_s=rng.choice((1.0, 2.0, 4.0, 6.0)),
        )
        for number in range(models)
    ]
    return poisson(kinds, load, seed=seed)


# Long runs near capacity, and callers made to expose a scheduler: whether a queue is stable shows
# after thousands of requests.

REQUESTS = 3000
# of the logarithm of a service time: the longest hundredth of the answers takes a fifth of the time
SIGMA = 1.2


def heavy_tailed(
    build: Callable[..., Workload], kinds: Kinds, load: float, *, seed: int, **shape: float
) -> Workload:
    """The arrivals of another builder with log-normal service times of the same means."""
    workload = build(kinds, load, jobs=REQUESTS, seed=seed, **shape)
    rng = _seeded(seed + 1000)
    mean_s = {kind.name: kind.service_s for kind in kinds}
    drawn = []
    for job in workload.jobs:
        service_s = rng.lognormvariate(log(mean_s[job.model or ""]) - SIGMA**2 / 2, SIGMA)
        drawn.append(replace(job, service_s=service_s, first_byte_s=service_s))
    return replace(workload, jobs=tuple(drawn))


def two_agents(*, turns: int = 900) -> Workload:
    """Two agents take turns on two models with swaps of 2 s; after 100 s, one request for a model
    that takes 45 s to load.
    """
    jobs = [_job(0, "rare", 5.0, at=100.0, caller="rare")]
    for name in ("one", "two"):
        for turn in range(turns):
            jobs.append(
                _job(
                    len(jobs),
                    name,
                    2.0,
                    after=len(jobs) - 1 if turn else None,
                    think_s=2.0 if turn else 0.0,
                    caller=name,
                )
            )
    return _workload(jobs, {"one": 2.0, "two": 2.0, "rare": 45.0})


def rare_in_overload(*, load: float = 1.4, seed: int = 31) -> Workload:
    """One model with more work than fits, and every ten minutes a request for another one that
    takes 45 s to load.
    """
    rng = _seeded(seed)
    jobs = list[WorkloadJob]()
    at = 0.0
    while len(jobs) < REQUESTS:
        at += rng.expovariate(load / 2.0)
        service_s = rng.expovariate(1 / 2.0)
        jobs.append(_job(len(jobs), "busy", service_s, at=at, caller=f"caller-{rng.randrange(6)}"))
    for rare in range(int(at // 600)):
        jobs.append(_job(len(jobs), "rare", 5.0, at=300.0 + 600.0 * rare, caller="rare"))
    return _workload(sorted(jobs, key=lambda job: job.at), {"busy": 3.0, "rare": 45.0})


def two_of_three() -> Workload:
    """Three models of which two fit; the popular one is dear to load, the other two cheap."""
    kinds = (
        ModelKind(name="popular", share=4, load_s=30.0, service_s=3.0),
        ModelKind(name="second", share=2, load_s=5.0, service_s=3.0),
        ModelKind(name="third", share=2, load_s=5.0, service_s=3.0),
    )
    models = {kind.name: ModelSettings(vram_gb=12.0, parallel=1) for kind in kinds}
    return replace(heavy_tailed(poisson, kinds, 0.3, seed=41), models=models)


# A day of a home.

ACTIVE = (6 * HOUR_S, 22 * HOUR_S)
ASSISTANT = "assistant"
CODER = "coder"
SMALL = "small"
HABITS = (
    ("voice", ASSISTANT, 8, 6, 22, 3, Lane.INTERNAL, Priority.CRITICAL, False),
    ("digest", ASSISTANT, 4, 6, 22, 12, Lane.INTERNAL, Priority.NORMAL, False),
    ("nudge", SMALL, 6, 6, 22, 2, Lane.INTERNAL, Priority.BACKGROUND, False),
    ("chat", ASSISTANT, 10, 17, 23, 15, Lane.EXTERNAL, Priority.NORMAL, True),
    ("editor", CODER, 30, 9, 18, 6, Lane.EXTERNAL, Priority.NORMAL, True),
    ("automations", SMALL, 4, 0, 24, 1, Lane.EXTERNAL, Priority.NORMAL, False),
    ("bulk", CODER, 150, 0, 4, 12, Lane.EXTERNAL, Priority.NORMAL, False),
)
"""(caller, model, requests an hour, from hour, to hour, mean service in seconds, lane, priority,
streaming)
"""


def house_day() -> Workload:
    """About 1,350 requests; internal work comes in active hours, from 6 to 22."""
    rng = _seeded(7)
    drawn = list[tuple[float, int]]()
    jobs = list[WorkloadJob]()
    for number, (_, _, per_hour, from_hour, to_hour, *_) in enumerate(HABITS):
        at = from_hour * HOUR_S + rng.expovariate(per_hour / HOUR_S)
        while at < to_hour * HOUR_S:
            drawn.append((at, number))
            at += rng.expovariate(per_hour / HOUR_S)
    for index, (at, number) in enumerate(sorted(drawn)):
        caller, model, _, _, _, mean_s, lane, priority, streaming = HABITS[number]
        service_s = rng.expovariate(1 / mean_s)
        job = _job(index, model, service_s, at=at, caller=caller, lane=lane)
        jobs.append(
            replace(
                job,
                priority=priority,
                streaming=streaming,
                first_byte_s=0.1 * service_s if streaming else service_s,
            )
        )
    workload = _workload(jobs, {ASSISTANT: 20.0, CODER: 8.0, SMALL: 3.0})
    return replace(
        workload, home=ASSISTANT, modes=((0.0, False), (ACTIVE[0], True), (ACTIVE[1], False))
    )


Builders = Mapping[str, Callable[[], Workload]]
"""By name; each makes the same workload every time."""

MIXES = {"two": TWO, "equal": EQUAL, "three": THREE, "four": FOUR}
WORKLOADS: Builders = {
    "single_model": single_model,
    "balanced": balanced,
    "bursty": bursty,
    "dominant": dominant,
    "interleave": interleave,
    **{
        f"{name}_{load}": partial(poisson, kinds, LOADS[load])
        for name, kinds in MIXES.items()
        for load in ("medium", "heavy")
    },
    "equal_bursts": partial(in_bursts, EQUAL, HEAVY),
    "three_bursts": partial(in_bursts, THREE, MEDIUM),
    "two_diurnal": partial(diurnal, TWO, HEAVY),
    "three_diurnal": partial(diurnal, THREE, MEDIUM),
    "two_overload": partial(poisson, EQUAL, OVERLOAD),
    "four_overload": partial(poisson, FOUR, OVERLOAD),
    "agents": agents,
    "relay": relay,
    "house_day": house_day,
    "prompts": prompts,
}
MANY_MODELS: Builders = {
    f"many_{models}_{round(100 * load)}_{seed}": partial(many_models, models, load, seed=seed)
    for models in (4, 5, 6, 8)
    for load in (0.5, 0.7, 0.85, 1.1)
    for seed in (1, 2)
}
NEAR_CAPACITY: Builders = {
    **{
        f"long_{name}_{load}": partial(
            heavy_tailed, poisson, kinds, load / 100, seed=11 + 2 * index + (load == 95)
        )
        for index, (name, kinds) in enumerate(MIXES.items())
        for load in (90, 95)
    },
    "long_bursts_90": partial(heavy_tailed, in_bursts, THREE, 0.9, seed=19, size=15),
    "long_day_90": partial(heavy_tailed, diurnal, FOUR, 0.9, seed=20, period_s=7200.0),
}
"""The long runs at 0.9 and more, by which policies are compared with exhaustive service."""
LONG: Builders = {
    **NEAR_CAPACITY,
    "long_three_60": partial(heavy_tailed, poisson, THREE, 0.6, seed=21),
    "long_four_75": partial(heavy_tailed, poisson, FOUR, 0.75, seed=22),
    "two_agents": two_agents,
    "rare_in_overload": rare_in_overload,
    "two_of_three": two_of_three,
}
