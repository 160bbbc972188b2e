"""Homes of one hour: the house's own assistant on one model, and others whose model does not fit
beside it.

The assistant asks again a while after each of its answers, or in sessions with long pauses between
them. The others ask in a closed loop for long answers: streams that go on after an interruption, or
whole answers, which start over. Every home is drawn from a `Random` with a fixed seed, so each is
the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from math import ceil
from random import Random
from statistics import fmean

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.workloads import Builders, Workload, WorkloadJob
from hearth.types import HOUR_S, Lane, Priority, Usage, frozen

ASSISTANT = "assistant"
CUT_S = 1.0
"""A load whose connection is closed is gone within a second (6 of 6 measured)."""
TOKENS_PER_S = 20.0
PROMPT_TOKENS = 300
FIRST_BYTE_S = 0.3


@frozen
class Return:
    """When the assistant asks again: `gap_s` after an answer, within 40 %; after every `turns`
    answers (0: never), a random pause.
    """

    gap_s: float
    turns: int = 0
    mean_pause_s: float = 0.0


RETURNS: Mapping[str, Return] = {
    "2s": Return(gap_s=2.0),
    "8s": Return(gap_s=8.0),
    "20s": Return(gap_s=20.0),
    "60s": Return(gap_s=60.0),
    "sessions": Return(gap_s=6.0, turns=5, mean_pause_s=240.0),
    "visits": Return(gap_s=12.0, turns=3, mean_pause_s=90.0),
}
LOADS: Sequence[tuple[float, float]] = ((2.0, 6.0), (3.0, 12.0), (8.0, 20.0), (20.0, 45.0))
"""(seconds to load the assistant's model, the others')."""
DEAR_LOADS: Sequence[tuple[float, float]] = (
    (30.0, 60.0),
    (30.0, 120.0),
    (60.0, 60.0),
    (60.0, 120.0),
)
OTHERS = (1, 3)
"""Of three others, one has a model of its own."""


def home(
    returns: Return,
    loads_s: tuple[float, float],
    others: int,
    *,
    seed: int,
    priority: Priority = Priority.CRITICAL,
    whole: bool = False,
    length_s: float = HOUR_S,
) -> Workload:
    """One home, up to `length_s`; `whole`: the others get their answers whole."""
    drawing = _Drawing(Random(seed), length_s, whole=whole)  # noqa: S311 - made-up work, no secret
    drawing.assistant(returns, priority)
    models = [f"others-{number % 2}" if others > 2 else "others-0" for number in range(others)]
    for number, model in enumerate(models):
        drawing.person(f"person-{number}", model)
    load_s = {ASSISTANT: loads_s[0], **dict.fromkeys(models, loads_s[1])}
    return Workload(
        jobs=tuple(drawing.jobs),
        models={name: ModelSettings(vram_gb=16.0, parallel=1) for name in load_s},
        swap_costs={("", name): seconds for name, seconds in load_s.items()},
        vram_gb=24.0,
        resident=(ASSISTANT,),
        home=ASSISTANT,
        cut_s=CUT_S,
        until_s=length_s,
    )


def asked_in_turn(
    rng: Random,
    first: int,
    caller: str,
    model: str,
    length_s: float,
    *,
    mean_s: float,
    pause_s: float,
) -> list[WorkloadJob]:
    """One caller's streams, numbered from `first`, each some time after the end of the one before
    it.
    """
    jobs = list[WorkloadJob]()
    spent_s = 0.0
    while spent_s < length_s:
        gap_s = rng.expovariate(1 / pause_s)
        service_s = FIRST_BYTE_S + rng.expovariate(1 / mean_s)
        is_first = not jobs
        job = WorkloadJob(
            id=first + len(jobs),
            model=model,
            at=gap_s if is_first else 0.0,
            after=None if is_first else first + len(jobs) - 1,
            think_s=0.0 if is_first else gap_s,
            caller=caller,
            service_s=service_s,
            first_byte_s=FIRST_BYTE_S,
            streaming=True,
            continues=True,
        )
        jobs.append(job)
        spent_s += gap_s + service_s
    return jobs


class _Drawing:
    """Draws the requests of one home; made for one and thrown away."""

    def __init__(self, rng: Random, length_s: float, *, whole: bool) -> None:
        self.jobs: list[WorkloadJob] = []
        self._rng = rng
        self._length_s = length_s
        self._whole = whole

    def assistant(self, returns: Return, priority: Priority) -> None:
        rng = self._rng
        spent_s = 0.0
        turn = 0
        while spent_s < self._length_s:
            gap_s = returns.gap_s * rng.uniform(0.6, 1.4)
            if returns.turns and turn and turn % returns.turns == 0:
                gap_s = rng.expovariate(1 / returns.mean_pause_s)
            job = self._job(ASSISTANT, ASSISTANT, rng.uniform(0.4, 2.0))
            job = replace(job, lane=Lane.INTERNAL, priority=priority)
            self._append(job, turn, gap_s)
            spent_s += gap_s + job.service_s
            turn += 1

    def person(self, caller: str, model: str) -> None:
        rng = self._rng
        mean_s = rng.choice((8.0, 25.0))
        pause_s = rng.choice((5.0, 20.0))
        spent_s = 0.0
        turn = 0
        while spent_s < self._length_s:
            gap_s = rng.expovariate(1 / pause_s)
            job = self._job(caller, model, min(1.0 + rng.expovariate(1 / mean_s), 180.0))
            if not self._whole:
                job = replace(
                    job,
                    first_byte_s=min(FIRST_BYTE_S, job.service_s / 2),
                    streaming=True,
                    continues=True,
                )
            self._append(job, turn, gap_s)
            spent_s += gap_s + job.service_s
            turn += 1

    def _job(self, caller: str, model: str, service_s: float) -> WorkloadJob:
        prompt_s = min(FIRST_BYTE_S, service_s / 2)
        decode_s = service_s - prompt_s
        output_tokens = max(1, round(decode_s * TOKENS_PER_S))
        usage = Usage(
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=output_tokens,
            prompt_s=prompt_s,
            decode_s=decode_s,
        )
        return WorkloadJob(
            id=len(self.jobs),
            model=model,
            caller=caller,
            service_s=service_s,
            first_byte_s=service_s,
            prompt_tokens=PROMPT_TOKENS,
            usage=usage,
        )

    def _append(self, job: WorkloadJob, turn: int, gap_s: float) -> None:
        first_at = 0.0 if turn else self._rng.uniform(0.0, 10.0)
        after = job.id - 1 if turn else None
        self.jobs.append(replace(job, at=first_at, after=after, think_s=gap_s if turn else 0.0))


def homes(
    *,
    first_seed: int = 1,
    loads_s: Sequence[tuple[float, float]] = LOADS,
    priority: Priority = Priority.CRITICAL,
    whole: bool = False,
) -> Builders:
    """The 48 homes by name, such as `home_8s_3_12_1`: returns, both loads in seconds, how many
    others.
    """
    drawn = product(RETURNS.items(), loads_s, OTHERS)
    return {
        f"home_{name}_{pair_s[0]:g}_{pair_s[1]:g}_{others}": partial(
            home, returns, pair_s, others, seed=seed, priority=priority, whole=whole
        )
        for seed, ((name, returns), pair_s, others) in enumerate(drawn, start=first_seed)
    }


HOMES = homes()


@frozen
class HomeFigures:
    """What a home is judged by; a wait is counted in loads of the assistant's model."""

    mean_loads: float
    p95_loads: float
    swap_share: float
    """Of the time."""
    others_share: float
    """The seconds of answers that others got, as a share of what they get without the assistant."""
    longest_s: float
    """The longest wait of the assistant, in seconds."""


def in_order_of_arrival(workload: Workload) -> Workload:
    """The home without lanes and without a home model; `fifo` then serves whoever came first."""
    jobs = tuple(replace(job, lane=Lane.EXTERNAL) for job in workload.jobs)
    return replace(workload, jobs=jobs, home="")


def figures(
    workload: Workload, base: SchedulerSettings, policy: PolicyName = PolicyName.ADAPTIVE
) -> HomeFigures:
    """Serve a home with its assistant by a policy, and without it by `adaptive`."""
    others_jobs = tuple(job for job in workload.jobs if job.caller != ASSISTANT)
    run = _run(workload, base, policy)
    alone = _run(replace(workload, jobs=others_jobs, home=""), base)
    length_s = workload.until_s or HOUR_S
    waits_s = sorted(
        (length_s if record.started is None else record.started) - record.arrived
        for record in run.records
        if record.job.caller == ASSISTANT
    )
    load_s = workload.swap_s((), ASSISTANT)
    swaps_s = sum(min(swap.end, length_s) - swap.start for swap in run.swaps)
    return HomeFigures(
        mean_loads=fmean(waits_s) / load_s,
        p95_loads=waits_s[ceil(0.95 * len(waits_s)) - 1] / load_s,
        swap_share=swaps_s / length_s,
        others_share=_worked_s(run, length_s) / _worked_s(alone, length_s),
        longest_s=waits_s[-1],
    )


def mean_figures(found: Iterable[HomeFigures]) -> HomeFigures:
    """The mean over homes; of the longest wait, the longest."""
    each = tuple(found)
    return HomeFigures(
        mean_loads=fmean(one.mean_loads for one in each),
        p95_loads=fmean(one.p95_loads for one in each),
        swap_share=fmean(one.swap_share for one in each),
        others_share=fmean(one.others_share for one in each),
        longest_s=max(one.longest_s for one in each),
    )


def _run(
    workload: Workload, base: SchedulerSettings, policy: PolicyName = PolicyName.ADAPTIVE
) -> SimulationRun:
    settings = workload.settings(base, policy)
    return simulate(workload, settings, keep_decisions=False)


def _worked_s(run: SimulationRun, now: float) -> float:
    return sum(record.worked_s(now) for record in run.records if record.job.caller != ASSISTANT)
