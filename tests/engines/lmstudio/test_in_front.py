"""The gateway in front of LM Studio as it is documented: it decides what is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest

from hearth.events import ItemInterrupted, ItemResumed, SwapCompleted, SwapFailed
from tests.engines.lmstudio.stub import LOAD, Entry, StubStudio
from tests.engines.stub_server import StubServer
from tests.engines.swapping_door import Door, broken_into, open_door

TOKENS = 26


@asynccontextmanager
async def before(studio: StubStudio) -> AsyncIterator[Door]:
    async with (
        StubServer(studio) as server,
        open_door("lmstudio", server.url, *studio.entries) as door,
    ):
        yield door


async def test_two_models_that_do_not_fit_take_turns():
    studio = StubStudio(Entry("a"), Entry("b"))
    async with before(studio) as door:
        for model in ("a", "b", "a"):
            assert await door.say(model) == "abcdefgh"
        assert [key for key, entry in studio.entries.items() if entry.instances] == ["a"]
        assert [event.to_model for event in door.events.of(SwapCompleted)] == ["a", "b", "a"]
        assert [one["model"] for one in studio.sent_to(LOAD)] == ["a", "b", "a"]


async def test_a_model_that_cannot_be_loaded_fails_its_own_requests_alone():
    studio = StubStudio(Entry("a"), Entry("bad", fails="Not enough memory"))
    async with before(studio) as door:
        with pytest.raises(openai.InternalServerError) as caught:
            await door.say("bad")
        assert "Not enough memory" in str(caught.value)
        assert {event.to_model for event in door.events.of(SwapFailed)} == {"bad"}
        assert await door.say("a") == "abcdefgh"


async def test_an_interrupted_stream_is_replayed_after_its_model_was_unloaded():
    studio = StubStudio(Entry("a"), Entry("b"))
    async with before(studio) as door:
        await door.say("a", 1)
        process = studio.entries["a"].process
        assert process is not None
        process.held = 5
        seen = asyncio.Event()
        reading = asyncio.create_task(broken_into(door, "a", TOKENS, seen))
        await seen.wait()
        process.held = None
        assert await door.as_house("b") == "ab"
        assert await reading == "abcdefghijklmnopqrstuvwxyz"
        assert len(door.events.of(ItemInterrupted)) == 1
        assert [event.how for event in door.events.of(ItemResumed)] == ["replayed"]
