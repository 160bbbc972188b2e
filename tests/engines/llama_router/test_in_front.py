"""The gateway in front of a router: it decides what is in memory, and nothing is lost where the
router or somebody else does what it did not decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from string import ascii_lowercase as LETTERS

import openai
import pytest

from hearth.config.settings import BackendMode, BackendSettings, ModelSettings
from hearth.events import (
    ItemBrokenOff,
    ItemInterrupted,
    ItemQueued,
    ItemResumed,
    LoadCut,
    ResidencyDrifted,
    SwapCompleted,
    SwapFailed,
)
from tests.engines.llama_router.stub import Preset, StubRouter
from tests.engines.stub_server import StubServer
from tests.engines.swapping_door import Door, broken_into, open_door
from tests.engines.upstream_model import UpstreamModel
from tests.support.patience import until

TOKENS = 26


@asynccontextmanager
async def before(router: StubRouter, **changes: object) -> AsyncIterator[Door]:
    async with (
        StubServer(router) as server,
        open_door("llama_router", server.url, *router.presets, **changes) as door,
    ):
        yield door


def process_of(router: StubRouter, name: str) -> UpstreamModel:
    process = router.presets[name].process
    assert process is not None
    return process


async def test_two_models_that_do_not_fit_take_turns():
    router = StubRouter(Preset("a", aliases=("al",)), Preset("b"))
    async with before(router) as door:
        for model in ("a", "b", "al"):
            assert await door.say(model) == "abcdefgh"
        assert [p.name for p in router.presets.values() if p.is_running] == ["a"]
        assert [swap.to_model for swap in door.events.of(SwapCompleted)] == ["a", "b", "a"]
        assert router.killed == 0
        assert door.events.of(ResidencyDrifted) == []


async def test_an_interrupted_stream_goes_on_after_its_model_was_unloaded():
    router = StubRouter(Preset("a"), Preset("b"))
    async with before(router) as door:
        await door.say("a", 1)
        process_of(router, "a").held = 5
        seen = asyncio.Event()
        reading = asyncio.create_task(broken_into(door, "a", TOKENS, seen))
        await seen.wait()
        assert await door.as_house("b") == "ab"
        assert await reading == LETTERS
        assert len(door.events.of(ItemInterrupted)) == 1
        assert [event.how for event in door.events.of(ItemResumed)] == ["continued"]
        assert [swap.to_model for swap in door.events.of(SwapCompleted)] == ["a", "b", "a"]
        assert router.killed == 0


async def test_a_model_that_cannot_be_loaded_fails_its_own_requests_alone():
    router = StubRouter(Preset("a"), Preset("gone", fails=1))
    async with before(router) as door:
        with pytest.raises(openai.InternalServerError) as caught:
            await door.say("gone")
        assert caught.value.status_code == 503
        assert "ended with exit code 1 while it loaded text_model" in str(caught.value)
        assert {swap.to_model for swap in door.events.of(SwapFailed)} == {"gone"}
        assert await door.say("a") == "abcdefgh"


async def test_a_model_that_somebody_else_has_unloaded_is_loaded_again():
    router = StubRouter(Preset("a"))
    async with before(router) as door:
        await door.say("a")
        router.unload("a")
        await until(lambda: router.presets["a"].status == "unloaded")
        assert await door.say("a") == "abcdefgh"


async def test_a_stream_whose_process_is_killed_goes_on_where_it_stopped():
    router = StubRouter(Preset("a"))
    async with before(router) as door:
        await door.say("a", 1)
        process_of(router, "a").held = 5
        seen = asyncio.Event()
        reading = asyncio.create_task(broken_into(door, "a", TOKENS, seen))
        await seen.wait()
        router.unload("a")
        assert await reading == LETTERS
        assert [event.reason for event in door.events.of(ItemBrokenOff)] == ["model_gone"]
        assert [event.how for event in door.events.of(ItemResumed)] == ["continued"]


async def test_what_somebody_else_loads_is_noticed_and_makes_room():
    router = StubRouter(Preset("a"), Preset("b"))
    async with before(router) as door:
        await door.say("a")
        router.load("b")
        await door.gateway.worker.watch.look()
        drift = await door.events.first(ResidencyDrifted)
        assert drift.appeared == ("b",)
        assert await door.say("b") == "abcdefgh"


async def test_a_load_is_cut_for_what_is_more_urgent():
    router = StubRouter(Preset("a"), Preset("b"))
    router.presets["b"].loads.clear()
    async with before(router) as door:
        await door.say("a")
        waiting = asyncio.create_task(door.say("b"))
        await until(lambda: router.presets["b"].status == "loading")
        assert await door.as_house("a") == "ab"
        [cut] = door.events.of(LoadCut)
        assert cut.to_model == "b"
        router.presets["b"].loads.set()
        assert await waiting == "abcdefgh"


PATIENT = BackendSettings(mode=BackendMode.OLLAMA, wait_when_down_s=600.0)


async def test_a_router_with_a_queue_of_its_own_is_sent_nothing_that_it_could_strand():
    router = StubRouter(Preset("a"), Preset("b"), autoload=True, most=1, strands=True)
    async with before(router, backend=PATIENT) as door:
        is_ready, why = door.gateway.ready()
        assert (is_ready, "--no-models-autoload --models-max 0" in why) == (False, True)
        waiting = asyncio.create_task(door.say("a"))
        await door.events.first(ItemQueued)
        assert not any(method == "POST" for method, _ in router.asked)
        router.autoload, router.most = False, 0
        assert await waiting == "abcdefgh"


async def test_a_router_that_comes_back_with_a_limit_is_down_until_it_has_none():
    router = StubRouter(Preset("a"))
    async with before(router, backend=PATIENT) as door:
        await door.say("a")
        router.most = 1
        await door.gateway.worker.watch.look()
        is_ready, why = door.gateway.ready()
        assert (is_ready, "max_instances: 1" in why) == (False, True)
        queued = len(door.events.of(ItemQueued))
        waiting = asyncio.create_task(door.say("a"))
        await door.events.until(lambda: len(door.events.of(ItemQueued)) > queued)
        assert not waiting.done()
        router.most = 0
        assert await waiting == "abcdefgh"


async def test_a_model_that_the_router_evicts_is_loaded_again_for_its_next_request():
    router = StubRouter(Preset("a"), Preset("b"))
    small = {name: ModelSettings(vram_gb=1.0) for name in router.presets}
    async with before(router, models=small) as door:
        for model in ("a", "b"):
            await door.say(model)
        router.unload("a")
        assert await door.say("b") == "abcdefgh"
        assert await door.say("a") == "abcdefgh"
        assert sorted(each.name for each in router.presets.values() if each.is_running) == [
            "a",
            "b",
        ]


async def test_requests_wait_while_the_list_of_models_changes():
    router = StubRouter(Preset("a"))
    async with before(router) as door:
        await door.say("a")
        router.presets["c"] = Preset("c")
        assert await door.say("c") == "abcdefgh"
        del router.presets["a"]
        await door.gateway.worker.watch.look()
        with pytest.raises(openai.NotFoundError, match="'a' not found"):
            await door.say("a", 1)


async def test_a_name_with_ollamas_tag_is_the_one_without_it():
    router = StubRouter(Preset("a", aliases=("al",)), Preset("b:latest"))
    async with before(router) as door:
        for name in ("a:latest", "al:latest", "b", "B:Latest"):
            assert await door.say(name) == "abcdefgh"
        with pytest.raises(openai.NotFoundError):
            await door.say("c:latest")
