"""A router and a llama-swap on one card: one model of both is in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from hearth.config.engines import EngineSettings
from hearth.events import SwapCompleted
from tests.engines.llama_router.stub import Preset, StubRouter
from tests.engines.llama_swap.stub import Entry, StubSwap
from tests.engines.stub_server import StubServer
from tests.engines.swapping_door import Door, open_door

Both = tuple[Door, StubRouter, StubSwap, StubServer]


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    router = StubRouter(Preset("a"), Preset("b"))
    swap = StubSwap(Entry("c"))
    async with StubServer(router) as first, StubServer(swap) as second:
        engines = {
            "one": EngineSettings(kind="llama_router", url=first.url),
            "two": EngineSettings(kind="llama_swap", url=second.url),
        }
        async with open_door("llama_router", first.url, "a", "b", "c", engines=engines) as door:
            yield door, router, swap, first


async def test_a_model_of_one_makes_room_for_a_model_of_the_other(both: Both):
    door, router, swap, _ = both
    for model in ("a", "c", "b"):
        assert await door.say(model) == "abcdefgh"
    assert [event.to_model for event in door.events.of(SwapCompleted)] == ["a", "c", "b"]
    assert [each.name for each in router.presets.values() if each.is_running] == ["b"]
    assert swap.entries["c"].state == "stopped"
    listed = [model.id async for model in door.gpt.models.list()]
    assert sorted(listed) == ["a", "b", "c"]


async def test_one_that_is_down_takes_its_own_models_away(both: Both):
    door, _, _, first = both
    assert await door.say("a") == "abcdefgh"
    first.stop_listening()
    await door.gateway.worker.watch.look()
    assert await door.say("c") == "abcdefgh"
    with pytest.raises(openai.InternalServerError) as caught:
        await door.say("b")
    assert caught.value.status_code == 503
