"""A home whose evenings are more than its card can do, and an elastic engine that helps out.

People write on one model, and one of them has another one write code; the two do not fit beside
each other. The same requests on an alias of the first model and the elastic one show what
spilling over changes.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.homes import CUT_S, FIRST_BYTE_S
from hearth.simulation.workloads import Builders, Workload, WorkloadJob

CHAT = "chat"
CODER = "coder"
CLUSTER = "cluster"
SPILL_S = 5.0
EVENING_S = 7200.0
LOAD_S = 8.0
PEOPLE = 4


def spill_over(*, seed: int = 1) -> Workload:
    """Four people ask in turn, half a minute after each answer; a fifth asks the coder."""
    rng = Random(seed)  # noqa: S311 - made-up work, no secret
    jobs = list[WorkloadJob]()
    for person in range(PEOPLE):
        jobs += _asked(rng, len(jobs), f"person-{person}", CHAT, mean_s=12.0, pause_s=30.0)
    jobs += _asked(rng, len(jobs), "developer", CODER, mean_s=8.0, pause_s=60.0)
    card = ModelSettings(vram_gb=16.0, parallel=1)
    return Workload(
        jobs=tuple(jobs),
        models={CHAT: card, CODER: card, CLUSTER: ModelSettings(parallel=8)},
        swap_costs={("", CHAT): LOAD_S, ("", CODER): LOAD_S},
        vram_gb=24.0,
        resident=(CHAT,),
        home=CHAT,
        cut_s=CUT_S,
        elastic={CLUSTER: SPILL_S},
    )


def _asked(
    rng: Random, first: int, caller: str, model: str, *, mean_s: float, pause_s: float
) -> list[WorkloadJob]:
    """One caller's requests, each some time after the answer before it."""
    jobs = list[WorkloadJob]()
    spent_s = 0.0
    while spent_s < EVENING_S:
        gap_s = rng.expovariate(1 / pause_s)
        length_s = FIRST_BYTE_S + rng.expovariate(1 / mean_s)
        job = WorkloadJob(
            id=first + len(jobs),
            model=model,
            caller=caller,
            service_s=length_s,
            first_byte_s=FIRST_BYTE_S,
            streaming=True,
            continues=True,
        )
        is_first = not jobs
        jobs.append(
            replace(
                job,
                at=gap_s if is_first else 0.0,
                after=None if is_first else job.id - 1,
                think_s=0.0 if is_first else gap_s,
            )
        )
        spent_s += gap_s + length_s
    return jobs


SPILLING: Builders = {"spill_over": spill_over}
