"""The emulated prompt cache: what a prompt shares with an earlier one is not read again, until the
model is unloaded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hearth.emulator.engine import EmulatedServer
from hearth.emulator.models import EmulatedModel
from hearth.emulator.text_cache import LEAST_TOKENS, TextCache
from hearth.prompt_cache import BATCH_TOKENS
from hearth.types import JSON_BODY, BackendCall, LoadOptions
from tests.support.emulated import EmulatedOllama
from tests.support.fields import Fields
from tests.support.virtual_time import LoopClock, in_virtual_time

READ_TPS = 100.0
LONG = "word " * 600
OTHER = "else " * 600


@asynccontextmanager
async def ollama(**settings: Any) -> AsyncIterator[EmulatedOllama]:
    profile = EmulatedModel(
        name="a",
        size_gib=1.0,
        vram_gib=1.0,
        load_s=1.0,
        prompt_tokens_per_s=READ_TPS,
        decode_tokens_per_s=1000.0,
        context_tokens=32_768,
        ends=False,
    )
    engine = EmulatedServer([profile], clock=LoopClock(), seed=1, vram_gib=48.0, **settings)
    async with EmulatedOllama(engine) as started:
        yield started


async def ask(server: EmulatedOllama, *texts: str) -> Fields:
    """The answer to a conversation, the user's texts and the model's in turn."""
    roles = ("user", "assistant")
    body = {
        "model": "a",
        "stream": False,
        "options": {"num_predict": 20},
        "messages": [
            {"role": roles[place % 2], "content": text} for place, text in enumerate(texts)
        ],
    }
    call = BackendCall(
        method="POST", path="/api/chat", headers=JSON_BODY, body=json.dumps(body).encode()
    )
    answer = await server.open(call)
    (whole,) = await answer.take()
    read: Fields = json.loads(whole)
    return read


def read_tokens(answer: Fields) -> int:
    read_s: float = answer["prompt_eval_duration"] / 1e9
    return round(read_s * READ_TPS)


@in_virtual_time
async def test_going_on_with_a_conversation_reads_what_is_new_until_the_unload():
    async with ollama() as server:
        first = await ask(server, LONG)
        turns = [LONG, first["message"]["content"], "and then?"]
        second = await ask(server, *turns)
        assert read_tokens(first) == first["prompt_eval_count"] > LEAST_TOKENS
        assert second["prompt_eval_count"] > first["prompt_eval_count"]
        assert read_tokens(second) < 40
        await server.unload("a")
        await asyncio.sleep(60.0)
        assert not server.engine.resident
        again = await ask(server, *turns)
        assert read_tokens(again) == again["prompt_eval_count"] == second["prompt_eval_count"]


@in_virtual_time
async def test_two_long_conversations_take_turns_on_one_slot():
    async with ollama() as server:
        for text in (LONG, OTHER):
            assert read_tokens(await ask(server, text)) > LEAST_TOKENS
        for text in (LONG, OTHER):
            assert read_tokens(await ask(server, text)) == 1


@in_virtual_time
async def test_a_short_prompt_takes_the_same_each_time():
    async with ollama() as server:
        answers = [await ask(server, "word " * 100) for _ in range(2)]
    assert [read_tokens(each) for each in answers] == [
        each["prompt_eval_count"] for each in answers
    ]


@in_virtual_time
async def test_of_a_prompt_whose_caller_leaves_whole_batches_stay():
    async with ollama() as server:
        await server.load("a", LoadOptions(num_ctx=32_768))
        text = "word " * 10_000
        leaving = asyncio.create_task(ask(server, text))
        await asyncio.sleep(45.0)  # 4,500 tokens
        for task in tuple(server._tasks):
            task.cancel()
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        again = await ask(server, text)
        kept = again["prompt_eval_count"] - read_tokens(again)
        assert kept == pytest.approx(2 * BATCH_TOKENS, abs=4)


def test_a_text_that_begins_alike_shares_its_beginning():
    cache = TextCache(slots=1)
    cache.keep("a" * 1000, 1000)
    fork = "a" * 500 + "b" * 500
    assert (cache.cached(fork, 1000), cache.cached("b" * 1000, 1000)) == (500, 0)
    cache.keep(fork, 1000)
    assert cache.cached("a" * 1000, 1000) == 999
