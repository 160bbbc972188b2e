"""A disk that takes no reservation, or takes its time, while Claude is considered for a request
that the GPU could answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hearth.errors import Draining, StorageUnavailable
from hearth.types import Lane
from tests.dst.asks import Ask
from tests.dst.drawing import Drawn, houses
from tests.dst.judge import lived
from tests.dst.outside import CONNECT_S, HAIKU
from tests.dst.world import World
from tests.support.fields import Fields

SLOW_S = 5.0
"""As long as another program's lock on the file is waited for."""


def told(story: Callable[[World], Awaitable[None]], **cloud: Any) -> World:
    """A gateway in which Claude is to answer whatever would wait, after the story; every rule of
    `judge` has to hold at its end.
    """
    drawn = houses()[0].settings[0]
    given: Fields = {"when_wait_over_s": 0.0} | cloud
    settings = drawn.replace(
        cloud=drawn.cloud.replace(**given),
        gpu=drawn.gpu.replace(home_model="", vram_gb=None, parallel=1),
        budget=drawn.budget.replace(daily_external_usd=5.0),
        queue=drawn.queue.replace(max_external_depth=100, max_wait_s=0.0),
    )
    world = World(1, Drawn(capacity_mib=None, settings=(settings,)), more=frozenset())

    async def living() -> None:
        await world.begin()
        await asyncio.sleep(1.0)
        await story(world)
        await world.come_to_rest()

    return lived(world, living, 1)


def asks(
    world: World, model: str = "a", *, allow_cloud: bool = True, patience_s: float | None = None
) -> Ask:
    ask = world.new_ask(
        caller="ada",
        model=model,
        path="/v1/chat/completions",
        patience_s=patience_s,
        changeable=False,
    )
    world.go(world.over_http(ask, Lane.EXTERNAL, allow_cloud=allow_cloud))
    return ask


def ledger(world: World) -> list[tuple[str, float | None]]:
    return world.disk.rows("SELECT state, settled_usd FROM ledger")


@pytest.mark.parametrize(
    ("patience_s", "state"), [(CONNECT_S / 2, "released"), (CONNECT_S * 1.5, "settled")]
)
def test_whoever_leaves_pays_once_the_call_was_sent_and_not_before(patience_s, state):
    async def story(world: World) -> None:
        asks(world, HAIKU, patience_s=patience_s)

    assert [row[0] for row in ledger(told(story))] == [state]


@pytest.mark.parametrize("latency_s", [0.0, SLOW_S])
def test_a_disk_that_takes_no_reservation_leaves_a_request_to_the_queue(latency_s):
    async def story(world: World) -> None:
        world.disk.latency_s, world.disk.broken_writes = latency_s, True
        waiting = asks(world)
        only_claudes = asks(world, HAIKU)
        await asyncio.sleep(SLOW_S + 30.0)
        assert (waiting.whole, waiting.status, waiting.by_claude) == (True, 200, False)
        assert isinstance(only_claudes.refused, StorageUnavailable)
        assert world.life.purse.open_reservations == 0
        world.disk.latency_s, world.disk.broken_writes = 0.0, False

    world = told(story)
    assert (world.claude.bills, ledger(world)) == ([], [])


def test_a_request_given_back_to_the_queue_goes_before_later_ones():
    async def story(world: World) -> None:
        first = asks(world, allow_cloud=False)
        world.disk.broken_writes = True
        given_back = asks(world)
        await asyncio.sleep(0.25)
        later = asks(world, allow_cloud=False)
        await asyncio.sleep(30.0)
        ends = [world.life.watch.items[ask.sequence].ended for ask in (first, given_back, later)]
        assert [end.at for end in ends if end is not None] == sorted(
            end.at for end in ends if end is not None
        )
        assert all(ask.whole and not ask.by_claude for ask in (first, given_back, later))
        world.disk.broken_writes = False

    told(story)


def test_a_commit_reported_as_failed_is_given_back_and_nothing_is_spent():
    async def story(world: World) -> None:
        world.disk.silent = True
        ask = asks(world)
        await asyncio.sleep(4.0)
        world.disk.silent = False
        await asyncio.sleep(30.0)
        assert (ask.whole, ask.by_claude) == (True, False)

    assert ledger(told(story)) == [("released", None)]


def test_a_stop_while_the_disk_takes_its_time_spends_nothing():
    async def story(world: World) -> None:
        world.disk.latency_s = SLOW_S
        for model in ("a", HAIKU):
            asks(world, model)
        await asyncio.sleep(0.25)
        await world.life.end(0.0)
        world.disk.latency_s = 0.0
        assert {state for state, _ in ledger(world)} == {"released"}
        await world.begin()

    world = told(story)
    assert world.claude.bills == []
    assert [type(ask.refused).__name__ for ask in world.asks] == ["ShuttingDown"] * 2


@pytest.mark.parametrize("model", ["a", HAIKU])
def test_a_drain_during_a_slow_reservation_refuses_the_request(model):
    async def story(world: World) -> None:
        world.disk.latency_s = SLOW_S
        ask = asks(world, model)
        await asyncio.sleep(0.25)
        world.life.gateway.orders.drain()
        await asyncio.sleep(SLOW_S)
        assert isinstance(ask.refused, Draining)
        world.disk.latency_s = 0.0

    assert ledger(told(story)) == [("released", None)]
