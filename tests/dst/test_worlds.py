"""Whole houses, each drawn from a number, five thousand of them: whatever happens in whatever order, the rules of `judge` hold.

A failure names the world: `simulated(number)` lives through it again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hearth.errors import BadRequest
from hearth.types import Lane
from tests.dst.drawing import Drawn, houses
from tests.dst.telling import lived, simulated
from tests.dst.world import World
from tests.support.examples import EXAMPLES

BLOCK = 125
BLOCKS = 40 * EXAMPLES
REGRESSIONS = (3910, 4521)
"""Worlds that broke a rule once (these two: a reload between the choice of a job and its start); kept in case fewer are drawn."""


def first_broken(numbers: range | tuple[int, ...]) -> str | None:
    """The first world of these that breaks a rule, and how."""
    for number in numbers:
        try:
            simulated(number)
        except AssertionError as broken:
            return f"world {number}: {broken}"
    return None


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_world_breaks_a_rule(block: int) -> None:
    assert first_broken(range(block * BLOCK, block * BLOCK + BLOCK)) is None


def test_no_world_that_once_broke_a_rule_breaks_it_again() -> None:
    assert first_broken(REGRESSIONS) is None


def test_who_would_take_any_model_is_told_when_the_memory_is_lost_and_there_is_no_home() -> None:
    """Found as two worlds of an earlier way of drawing them: the item waited for ever."""
    drawn = houses()[0].settings[0]
    settings = replace(
        drawn,
        gpu=replace(drawn.gpu, home_model="", vram_gb=None),
        backend=replace(drawn.backend, wait_when_down_s=60.0),
        queue=replace(drawn.queue, max_wait_s=0.0),
    )
    world = World(1, Drawn(capacity_mib=None, settings=(settings,)))

    async def story() -> None:
        await world.begin()
        world.go(world.over_http(world.new_ask(caller="ada", model="a", patience_s=None), Lane.EXTERNAL))
        await asyncio.sleep(20.0)
        await world.backend_dies()
        world.ask_in_process(anything=True)
        world.asks[-1].patience_s = None
        await world.come_to_rest()

    lived(world, story, 1)
    assert isinstance(world.asks[-1].error, BadRequest)


def test_a_world_tells_the_same_story_each_time() -> None:
    first, second = ([ask.text_of_story() for ask in simulated(7).asks] for _ in range(2))
    assert first == second


def test_the_worlds_contain_what_the_rules_are_about() -> None:
    worlds = [simulated(number) for number in range(100)]
    lives = [life for world in worlds for life in world.lives]
    items = [item for life in lives for item in life.watch.items.values()]
    assert len(items) > 700
    assert sum(item.cloud for item in items) > 80
    assert sum(item.interrupts for item in items) > 8
    assert sum(item.returns - item.interrupts for item in items) > 8
    assert sum(life.killed for life in lives) > 5
    assert len(lives) - len(worlds) > 20
    assert sum(len(world.accepted_jobs) for world in worlds) > 60
    assert {ask.path for world in worlds for ask in world.asks if ask.whole} == {"/api/generate", "/api/chat", "/v1/chat/completions"}
