"""A home whose evenings are more than its card can do, and an elastic engine that helps out.

People write on one model, and one of them has another one write code; the two do not fit beside
each other. The same requests on an alias of the first model and the elastic one show what
spilling over changes.
"""

from __future__ import annotations

from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.homes import CUT_S, asked_in_turn
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
        jobs += asked_in_turn(
            rng, len(jobs), f"person-{person}", CHAT, EVENING_S, mean_s=12.0, pause_s=30.0
        )
    jobs += asked_in_turn(rng, len(jobs), "developer", CODER, EVENING_S, mean_s=8.0, pause_s=60.0)
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


SPILLING: Builders = {"spill_over": spill_over}
