"""Random workloads for tests and benchmarks."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Lane, Priority, frozen


@frozen
class Mix:
    """The kind of random workload: how many jobs and models, how busy, and how often the less
    common things happen (0 to 1).
    """

    jobs: int = 40
    models: int = 3
    mean_gap_s: float = 1.0
    mean_service_s: float = 1.0
    internal: float = 0.3
    background: float = 0.0
    aliased: float = 0.0
    callers: int = 1
    conversations: int = 0
    no_model: float = 0.1
    streaming: float = 0.3
    cancelled: float = 0.1
    closed_loop: float = 0.2
    shared_gpu: float = 0.3
    parallel: float = 0.3
    quiet_hours: float = 0.3


def random_workload(rng: Random, mix: Mix) -> Workload:
    """A workload drawn from `rng`: the same state of `rng` makes the same workload.

    Swap costs depend on the target alone.
    """
    names = [f"m{index}:latest" for index in range(rng.randint(1, mix.models))]
    models = {
        name: ModelSettings(vram_gb=rng.uniform(4, 14), parallel=_parallel(rng, mix))
        for name in names
    }
    costs = {("", name): rng.uniform(1.0, 8.0) for name in names}
    jobs: list[WorkloadJob] = []
    at = 0.0
    for index in range(mix.jobs):
        at += rng.expovariate(1 / mix.mean_gap_s)
        jobs.append(_random_job(rng, mix, names, index, at))
    return Workload(
        jobs=tuple(jobs),
        models=models,
        swap_costs=costs,
        unload_s={name: rng.uniform(0.1, 0.5) for name in names},
        vram_gb=24.0 if rng.random() < mix.shared_gpu else None,
        resident=(names[0],) if rng.random() < 0.5 else (),
        home=rng.choice(names),
        modes=((at * rng.random(), False),) if rng.random() < mix.quiet_hours else (),
    )


def _parallel(rng: Random, mix: Mix) -> int:
    return rng.randint(2, 3) if rng.random() < mix.parallel else 1


def _random_job(rng: Random, mix: Mix, names: list[str], index: int, at: float) -> WorkloadJob:
    service_s = rng.expovariate(1 / mix.mean_service_s)
    streaming = rng.random() < mix.streaming
    model = None if rng.random() < mix.no_model else rng.choice(names)
    choices: tuple[str, ...] = ()
    if mix.aliased and model is not None and rng.random() < mix.aliased:
        choices = (model, *rng.sample(names, rng.randint(1, len(names))))
        choices = tuple(dict.fromkeys(choices))
    return WorkloadJob(
        id=index,
        model=model,
        alias="alias" if choices else "",
        choices=choices,
        at=at,
        after=rng.randrange(index) if index and rng.random() < mix.closed_loop else None,
        think_s=rng.uniform(0.1, 2.0),
        lane=Lane.INTERNAL if rng.random() < mix.internal else Lane.EXTERNAL,
        priority=rng.choice(tuple(Priority)),
        background=bool(mix.background) and rng.random() < mix.background,
        caller=f"caller{rng.randrange(mix.callers)}" if mix.callers > 1 else "trace",
        conversation=f"c{rng.randrange(mix.conversations)}" if mix.conversations else "",
        service_s=service_s,
        first_byte_s=service_s * rng.random() if streaming else service_s,
        streaming=streaming,
        cancel_after_s=rng.expovariate(1 / mix.mean_service_s)
        if rng.random() < mix.cancelled
        else None,
    )


def household(*, directly: bool, pause_s: float, load_s: float, seed: int) -> Workload:
    """Four chat and four coder callers on two models, 60 requests each, the next one `pause_s`
    after an answer, and one assistant.

    Directly, nobody is internal. The assistant has shorter answers and a pause of 4 s; nobody is
    streamed to.
    """
    rng = Random(seed)
    jobs = list[WorkloadJob]()
    callers = [
        (f"{model}-{number}", model, 60, 1.2, pause_s)
        for model in ("chat", "coder")
        for number in range(4)
    ]
    for caller, model, count, mean_s, pause in (*callers, ("assistant", "chat", 240, 0.6, 4.0)):
        lane = Lane.INTERNAL if caller == "assistant" and not directly else Lane.EXTERNAL
        for turn in range(count):
            service_s = 0.05 + rng.expovariate(1 / mean_s)
            job = WorkloadJob(
                id=len(jobs),
                model=model,
                lane=lane,
                caller=caller,
                service_s=service_s,
                first_byte_s=service_s,
            )
            think_s = rng.expovariate(1 / pause) if pause and turn else 0.0
            jobs.append(replace(job, after=len(jobs) - 1 if turn else None, think_s=think_s))
    return Workload(
        jobs=tuple(jobs),
        models={name: ModelSettings(vram_gb=16.0, parallel=1) for name in ("chat", "coder")},
        swap_costs={("", "chat"): load_s, ("", "coder"): load_s},
        vram_gb=24.0,
        resident=("chat",),
    )
