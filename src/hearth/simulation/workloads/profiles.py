"""The five profiles of llmux's switching efficiency report, as far as it describes them.

Two models that do not fit together, a in memory at first; a to b takes 7.4 s, b to a 2.0 s, a request 0.3 s. That report's engine serves
many requests of a model at once, so the models have slots for all of them: what is measured is the swaps.
"""

from __future__ import annotations

from collections.abc import Iterable

from hearth.config.settings import ModelSettings
from hearth.simulation.workloads.jobs import Job, SwapCosts, Workload

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
