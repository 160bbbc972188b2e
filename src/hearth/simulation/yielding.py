"""An evening in a home whose card is wanted by others, too: pictures are rendered, somebody plays.

The house's assistant (8 GB) is asked now and then, two people write on a larger model (12 GB), and
a tagger works through a list on a small one (2 GB). The first hour has renders of half a minute to
two minutes, of 10 GB each; then a game takes 14 GB for an hour, beside which the assistant and the
tagger fit, and another takes everything for half an hour.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.homes import ASSISTANT, CUT_S, asked_in_turn
from hearth.simulation.workloads import Builders, CardLease, Workload
from hearth.types import HOUR_S, Lane, Priority

CHAT = "chat"
TAGGER = "tagger"
SIZES_GB = {ASSISTANT: 8.0, CHAT: 12.0, TAGGER: 2.0}
LOADS_S = {ASSISTANT: 4.0, CHAT: 8.0, TAGGER: 1.5}
EVENING_S = 4 * HOUR_S
RENDERS = 20
RENDER_GB = 10.0
GAMES = (
    CardLease(at=HOUR_S, for_s=HOUR_S, gb=14.0),
    CardLease(at=2.5 * HOUR_S, for_s=HOUR_S / 2, is_timed=True),
)


def games_evening(*, seed: int = 1) -> Workload:
    """Four hours; see the module docstring."""
    rng = Random(seed)  # noqa: S311 - made-up work, no secret
    asked = asked_in_turn(rng, 0, ASSISTANT, ASSISTANT, EVENING_S, mean_s=1.5, pause_s=90.0)
    jobs = [replace(job, lane=Lane.INTERNAL, priority=Priority.CRITICAL) for job in asked]
    for person in ("anna", "ben"):
        jobs += asked_in_turn(rng, len(jobs), person, CHAT, EVENING_S, mean_s=15.0, pause_s=60.0)
    jobs += asked_in_turn(rng, len(jobs), TAGGER, TAGGER, EVENING_S, mean_s=4.0, pause_s=5.0)
    return Workload(
        jobs=tuple(jobs),
        models={name: ModelSettings(vram_gb=size, parallel=1) for name, size in SIZES_GB.items()},
        swap_costs={("", name): load_s for name, load_s in LOADS_S.items()},
        vram_gb=24.0,
        resident=(ASSISTANT,),
        home=ASSISTANT,
        cut_s=CUT_S,
        leases=(*_renders(rng), *GAMES),
    )


def _renders(rng: Random) -> list[CardLease]:
    """One after the other, with pauses, within the first hour."""
    found = list[CardLease]()
    at = 0.0
    for _ in range(RENDERS):
        at += rng.uniform(20.0, 90.0)
        render = CardLease(at=at, for_s=rng.uniform(30.0, 120.0), gb=RENDER_GB)
        found.append(render)
        at += render.for_s
    return found


YIELDING: Builders = {"games_evening": games_evening}
