"""Lives through simulated worlds and judges them.

world = simulated(17)          # raises AssertionError with what broke
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

from hearth.config.settings import Settings, Window
from tests.dst.drawing import More, houses, more_of
from tests.dst.judge import judge_end, judge_rest
from tests.dst.world import World
from tests.support.virtual_time import HORIZON_S, run_virtual
from tests.worker.house import settle

STEPS = 14
LONG_GAPS_S = (0.0, 0.0, 0.25, 2.0, 2.0, 60.0, 600.0, 1200.0, 5400.0)
CHECK_S = 60.0  # between looks at the model server where a world lasts for days: every five seconds would be most of what that costs


def simulated(number: int, *, everything: bool = False, without: frozenset[More] = frozenset()) -> World:
    """The story of a number; another one where its house has everything that a house can have, or not what it would have."""
    world = World(number, more=(frozenset(More) if everything else more_of(number)) - without)
    return lived(world, lambda: _story(world, STEPS, 1), number)


def lived_days(number: int, first_day: datetime, *, rests: int) -> World:
    """A world that rests about every five hours, in a zone whose clocks change."""
    house = houses()[number]
    long = house._replace(settings=tuple(_by_day(each, str(first_day.tzinfo)) for each in house.settings))
    world = World(number, long, wall_at_start=first_day.timestamp(), gaps_s=LONG_GAPS_S)
    world.down_s = (CHECK_S + 5.0, 90.0)
    return lived(world, lambda: _story(world, 2 * STEPS, rests), number, horizon_s=rests * 86_400.0)


async def _story(world: World, steps: int, rests: int) -> None:
    await world.begin()
    for _ in range(rests):
        await world.live(steps)
        judge_rest(world)


def _by_day(settings: Settings, zone: str) -> Settings:
    """Active from 6 to 22."""
    scheduling = settings.scheduling.replace(active_hours=Window(start_minute=6 * 60, end_minute=22 * 60), time_zone=zone)
    return settings.replace(scheduling=scheduling, backend=settings.backend.replace(check_interval_s=CHECK_S))


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
