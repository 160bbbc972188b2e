"""Lives through simulated houses and judges them.

world = simulated(17)          # raises AssertionError with what broke
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.dst.judge import judge_end, judge_rest
from tests.dst.more import More, more_of
from tests.dst.watch import Endless
from tests.dst.world import World
from tests.support.virtual_time import HORIZON_S, run_virtual
from tests.worker.house import settle

__all__ = ["Endless", "lived", "simulated"]

STEPS = 14


def simulated(number: int, *, everything: bool = False, without: frozenset[More] = frozenset()) -> World:
    """The story of a number; another one where its house has everything that a house can have, or not what it would have."""
    world = World(number, more=(frozenset(More) if everything else more_of(number)) - without)
    return lived(world, lambda: world.live(STEPS), number)


def lived(world: World, living: Callable[[], Awaitable[None]], seed: int, *, horizon_s: float = HORIZON_S) -> World:
    """A world after its story. Raises AssertionError for whatever broke."""
    run_virtual(lambda: _told(world, living), seed=seed, horizon_s=horizon_s)
    return world


async def _told(world: World, living: Callable[[], Awaitable[None]]) -> None:
    loop, complaints = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: complaints.append(str(context.get("message"))))
    before = asyncio.all_tasks()
    await living()
    judge_rest(world)
    await world.life.end(0.0)
    await settle()
    judge_end(world, complaints, before)
