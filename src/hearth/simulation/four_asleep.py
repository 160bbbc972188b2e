"""A home with more models than its card holds, whose engine can keep them asleep.

The wakes are those of llmux's switching efficiency report: 2.6 s where the weights are in main
memory, 9 s where only the process is left, 55 s where it has to be started. What sleeps keeps half
a gigabyte of the card, as vLLM does.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.workloads import Builders, SleepCosts, Workload, WorkloadJob
from hearth.types import HOUR_S, SleepLevel

WEIGHTS_GB = {"chat": 14.0, "coder": 18.0, "helper": 9.0, "writer": 30.0}
"""Of which the last is not on the card as a whole."""
ON_CARD_GB = 22.0
SHARES = {"chat": 4, "coder": 3, "helper": 2, "writer": 1}
CARD_GB = 24.0
HOST_RAM_GB = 24.0
HOST_FREE_GB = 100.0
RESIDUAL_GB = 0.5
OFFLOADED_S, DISCARDED_S, STOPPED_S = 2.6, 9.0, 55.0
SLEEP_S = 1.0
MEAN_S = 8.0
SESSIONS_EVERY_S = 600.0
TURNS = 5
THINK_S = 25.0


def four_asleep(*, seed: int = 1, hours: float = 48.0) -> Workload:
    """Every ten minutes somebody begins five turns or so with one of four models."""
    rng = Random(seed)  # noqa: S311 - made-up work, no secret
    jobs = list[WorkloadJob]()
    at = 0.0
    while at < hours * HOUR_S:
        at += rng.expovariate(1 / SESSIONS_EVERY_S)
        jobs += _session(rng, len(jobs), at)
    return Workload(
        jobs=tuple(jobs),
        models={
            model: ModelSettings(vram_gb=min(gb, ON_CARD_GB), parallel=1)
            for model, gb in WEIGHTS_GB.items()
        },
        swap_costs={("", model): STOPPED_S for model in WEIGHTS_GB},
        unload_s=dict.fromkeys(WEIGHTS_GB, SLEEP_S),
        vram_gb=CARD_GB,
        resident=("chat",),
        sleeps={model: _levels(gb) for model, gb in WEIGHTS_GB.items()},
        host_ram_gb=HOST_RAM_GB,
        host_free_gb=HOST_FREE_GB,
    )


def _session(rng: Random, first: int, at: float) -> list[WorkloadJob]:
    (model,) = rng.choices(list(SHARES), weights=list(SHARES.values()))
    caller = f"person-{rng.randrange(4)}"
    turns = 1 + int(rng.expovariate(1 / (TURNS - 0.5)))
    jobs = []
    for turn in range(turns):
        service_s = rng.expovariate(1 / MEAN_S)
        jobs.append(
            WorkloadJob(
                id=first + turn,
                model=model,
                at=at,
                after=first + turn - 1 if turn else None,
                think_s=rng.expovariate(1 / THINK_S) if turn else 0.0,
                caller=caller,
                service_s=service_s,
                first_byte_s=0.1 * service_s,
                streaming=True,
            )
        )
    return jobs


def _levels(weights_gb: float) -> Mapping[SleepLevel, SleepCosts]:
    return {
        "offload": SleepCosts(
            sleep_s=SLEEP_S, wake_s=OFFLOADED_S, residual_gb=RESIDUAL_GB, host_gb=weights_gb
        ),
        "discard": SleepCosts(
            sleep_s=SLEEP_S, wake_s=DISCARDED_S, residual_gb=RESIDUAL_GB, host_gb=0.0
        ),
    }


SLEEPING: Builders = {"four_asleep": four_asleep}
