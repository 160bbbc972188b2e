"""The gateway in front of a llama-swap: it decides what runs, and goes on where llama-swap decides
otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from string import ascii_lowercase as LETTERS

import openai
import pytest

from hearth.events import (
    EngineMovedModels,
    ItemBrokenOff,
    ItemInterrupted,
    ItemResumed,
    LoadCut,
    ResidencyDrifted,
    SwapCompleted,
    SwapFailed,
)
from tests.engines.llama_swap.stub import Entry, StubSwap
from tests.engines.stub_server import StubServer
from tests.engines.swapping_door import Door, broken_into, open_door
from tests.engines.upstream_model import UpstreamModel
from tests.support.patience import until

TOKENS = 26


@asynccontextmanager
async def before(swap: StubSwap, **changes: object) -> AsyncIterator[Door]:
    async with (
        StubServer(swap) as server,
        open_door("llama_swap", server.url, *swap.entries, **changes) as door,
    ):
        yield door


def process_of(swap: StubSwap, name: str) -> UpstreamModel:
    process = swap.entries[name].process
    assert process is not None
    return process


@pytest.mark.parametrize("coexist", [True, False], ids=["one group", "default groups"])
async def test_two_models_that_do_not_fit_take_turns(coexist: bool):
    swap = StubSwap(Entry("a", aliases=("al",)), Entry("b"), coexist=coexist)
    async with before(swap) as door:
        for model in ("a", "b", "al"):
            assert await door.say(model) == "abcdefgh"
        assert [e.name for e in swap.entries.values() if e.state == "ready"] == ["a"]
        assert [event.to_model for event in door.events.of(SwapCompleted)] == ["a", "b", "a"]


@pytest.mark.parametrize("coexist", [True, False], ids=["one group", "default groups"])
async def test_an_interrupted_stream_goes_on_after_its_model_was_unloaded(coexist: bool):
    swap = StubSwap(Entry("a"), Entry("b"), coexist=coexist)
    async with before(swap) as door:
        await door.say("a", 1)
        process_of(swap, "a").held = 5
        seen = asyncio.Event()
        reading = asyncio.create_task(broken_into(door, "a", TOKENS, seen))
        await seen.wait()
        assert await door.as_house("b") == "ab"
        assert await reading == LETTERS
        assert len(door.events.of(ItemInterrupted)) == 1
        assert [event.how for event in door.events.of(ItemResumed)] == ["continued"]


async def test_a_model_that_cannot_be_started_fails_its_own_requests_alone():
    swap = StubSwap(Entry("a"), Entry("bad", fails=True))
    async with before(swap) as door:
        with pytest.raises(openai.InternalServerError) as caught:
            await door.say("bad")
        assert caught.value.status_code == 503
        assert "upstream command exited prematurely" in str(caught.value)
        assert {event.to_model for event in door.events.of(SwapFailed)} == {"bad"}
        assert await door.say("a") == "abcdefgh"


async def test_a_stream_whose_server_is_stopped_goes_on_where_it_stopped():
    swap = StubSwap(Entry("a"))
    async with before(swap) as door:
        await door.say("a", 1)
        process_of(swap, "a").held = 5
        seen = asyncio.Event()
        reading = asyncio.create_task(broken_into(door, "a", TOKENS, seen))
        await seen.wait()
        await swap.stop(swap.entries["a"])
        assert await reading == LETTERS
        assert [event.reason for event in door.events.of(ItemBrokenOff)] == ["runner_died"]
        assert [event.how for event in door.events.of(ItemResumed)] == ["continued"]


async def test_what_its_own_rules_stop_is_started_again():
    swap = StubSwap(Entry("a", ttl_s=5))
    async with before(swap) as door:
        await door.say("a")
        await swap.stop(swap.entries["a"])
        assert await door.say("a") == "abcdefgh"
        await swap.stop(swap.entries["a"])
        await door.gateway.worker.watch.look()
        [moved] = door.events.of(EngineMovedModels)
        assert (moved.appeared, moved.vanished) == ((), ("a",))
        assert door.events.of(ResidencyDrifted) == []
        assert await door.say("a") == "abcdefgh"
        assert [event.to_model for event in door.events.of(SwapCompleted)] == ["a", "a"]


async def test_a_start_is_cut_for_what_is_more_urgent():
    swap = StubSwap(Entry("a"), Entry("b"))
    swap.entries["b"].starts.clear()
    async with before(swap) as door:
        await door.say("a")
        waiting = asyncio.create_task(door.say("b"))
        await until(lambda: swap.entries["b"].state == "starting")
        assert await door.as_house("a") == "ab"
        [cut] = door.events.of(LoadCut)
        assert cut.to_model == "b"
        swap.entries["b"].starts.set()
        assert await waiting == "abcdefgh"


async def test_a_name_with_ollamas_tag_is_the_one_without_it():
    async with before(StubSwap(Entry("a", aliases=("al",)), Entry("b:latest"))) as door:
        for name in ("a:latest", "al:latest", "b", "B:Latest"):
            assert await door.say(name) == "abcdefgh"
        with pytest.raises(openai.NotFoundError):
            await door.say("c:latest")
