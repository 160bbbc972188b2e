"""What is asked of the house, and the truth about how long it takes: the input of a simulation.

The truth (service and swap times) belongs to the engine; the scheduler never sees it and learns its own estimates. Values only; the
generator draws from the `random.Random` that it is given and from nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.types import Lane, Priority, Usage, canonical_model

NOTHING_REPORTED = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request.

    Attributes:
        at: the earliest instant of its arrival.
        after: the job whose end it waits for (a closed loop): it arrives `think_s` after that, and not before `at`.
        also_after: further jobs that must have ended as well; `think_s` counts from the last end.
        service_s: from its start to its last byte on a resident model; first_byte_s: to its first byte.
        streaming: its caller sees the bytes as they come.
        usage: what its answer reports, from which the scheduler may learn.
        cancel_after_s: its caller leaves this long after it arrived, if it has not ended by then.
        max_wait_s: how long it may wait for its first start.
    """

    id: int
    model: str | None
    at: float = 0.0
    after: int | None = None
    also_after: tuple[int, ...] = ()
    think_s: float = 0.0
    lane: Lane = Lane.EXTERNAL
    priority: Priority = Priority.NORMAL
    caller: str = "trace"
    service_s: float
    first_byte_s: float
    streaming: bool = False
    prompt_tokens: int = 0
    max_tokens: int | None = None
    usage: Usage = NOTHING_REPORTED
    cancel_after_s: float | None = None
    max_wait_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCosts:
    """Seconds of a swap by origin and target; the origin "" is a GPU from which nothing had to go."""

    by_pair: Mapping[tuple[str, str], float]

    def seconds(self, replaced: tuple[str, ...], target: str) -> float:
        """The dearest way from what was replaced to the target; a pair that is not known counts as from an empty GPU, else as the
        dearest known way to the target.

        Raises:
            KeyError: nothing at all is known about the target.
        """
        return max(self._pair_s(origin, target) for origin in replaced or ("",))

    def knows(self, target: str) -> bool:
        """Is there any way to this model?"""
        return any(name == target for _, name in self.by_pair)

    def _pair_s(self, origin: str, target: str) -> float:
        known = self.by_pair.get((origin, target), self.by_pair.get(("", target)))
        if known is not None:
            return known
        ways = [seconds for (_, name), seconds in self.by_pair.items() if name == target]
        if not ways:
            raise KeyError(target)
        return max(ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that happens to the house, and the truth about its models.

    Attributes:
        models: sizes and slots as the owner would configure them.
        unload_s: seconds until an unloaded model is gone, 0 where not given (then the swap cost holds all of it).
        vram_gb: the GPU's memory; None is unknown (one model at a time), 0 no limit.
        resident: models in memory at the start.
        modes: instants at which active hours begin (True) or end; active before the first.
    """

    jobs: tuple[Job, ...]
    models: Mapping[str, ModelSettings]
    swap_costs: SwapCosts
    unload_s: Mapping[str, float] = field(default_factory=dict)
    vram_gb: float | None = None
    resident: tuple[str, ...] = ()
    home: str = ""
    modes: tuple[tuple[float, bool], ...] = ()

    def settings(self, base: SchedulerSettings, policy: PolicyName) -> SchedulerSettings:
        """`base` for this workload's GPU and models under `policy`; the owner's home model stays only where the workload knows it."""
        owners = canonical_model(base.gpu.home_model)
        home = self.home or next((name for name in self.models if canonical_model(name) == owners), "")
        return replace(
            base,
            scheduling=base.scheduling.replace(policy=policy),
            gpu=base.gpu.replace(home_model=home, vram_gb=self.vram_gb),
            models=self.models,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The kind of random workload: how many jobs and models, how busy, and how often the less common things happen (0 to 1)."""

    jobs: int = 40
    models: int = 3
    mean_gap_s: float = 1.0
    mean_service_s: float = 1.0
    internal: float = 0.3
    no_model: float = 0.1
    streaming: float = 0.3
    cancelled: float = 0.1
    closed_loop: float = 0.2
    shared_gpu: float = 0.3
    parallel: float = 0.3
    quiet_hours: float = 0.3


def random_workload(rng: Random, mix: Mix) -> Workload:
    """A workload drawn from `rng`: the same state of `rng` makes the same workload. Swap costs depend on the target alone."""
    names = [f"m{index}:latest" for index in range(rng.randint(1, mix.models))]
    models = {name: ModelSettings(vram_gb=rng.uniform(4, 14), parallel=_parallel(rng, mix)) for name in names}
    costs = {("", name): rng.uniform(1.0, 8.0) for name in names}
    jobs: list[Job] = []
    at = 0.0
    for index in range(mix.jobs):
        at += rng.expovariate(1 / mix.mean_gap_s)
        jobs.append(_random_job(rng, mix, names, index, at))
    return Workload(
        jobs=tuple(jobs),
        models=models,
        swap_costs=SwapCosts(by_pair=costs),
        unload_s={name: rng.uniform(0.1, 0.5) for name in names},
        vram_gb=24.0 if rng.random() < mix.shared_gpu else None,
        resident=(names[0],) if rng.random() < 0.5 else (),
        home=rng.choice(names),
        modes=((at * rng.random(), False),) if rng.random() < mix.quiet_hours else (),
    )


def _parallel(rng: Random, mix: Mix) -> int:
    return rng.randint(2, 3) if rng.random() < mix.parallel else 1


def _random_job(rng: Random, mix: Mix, names: list[str], index: int, at: float) -> Job:
    service_s = rng.expovariate(1 / mix.mean_service_s)
    streaming = rng.random() < mix.streaming
    return Job(
        id=index,
        model=None if rng.random() < mix.no_model else rng.choice(names),
        at=at,
        after=rng.randrange(index) if index and rng.random() < mix.closed_loop else None,
        think_s=rng.uniform(0.1, 2.0),
        lane=Lane.INTERNAL if rng.random() < mix.internal else Lane.EXTERNAL,
        priority=rng.choice(tuple(Priority)),
        service_s=service_s,
        first_byte_s=service_s * rng.random() if streaming else service_s,
        streaming=streaming,
        cancel_after_s=rng.expovariate(1 / mix.mean_service_s) if rng.random() < mix.cancelled else None,
    )
