"""Whitespace before an answer that does not stream, to the official clients in front of a gateway
on a socket: they read over it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import ollama
import openai
import pytest

from hearth.clock import SystemClock
from hearth.config.settings import KeepaliveSettings
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from tests.support.home import HELLO, SPEED, Home, house_settings, open_home

MODEL = "llama3.1:8b"


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    """A gateway whose queue is paused, and that sends whitespace at once."""
    emulator = Emulator(default_profiles(), clock=SystemClock(), speed=SPEED, seed=1)
    keepalive = KeepaliveSettings(after_s=0.02, every_s=0.02, whole_answers="whitespace")
    async with open_home(house_settings().replace(keepalive=keepalive), emulator) as home:
        home.gateway.orders.pause()
        yield home


def resuming(home: Home) -> dict[str, Any]:
    """The queue goes on once a client has the head of the answer, which whitespace has begun."""

    async def resume(response: Any) -> None:
        assert "content-length" not in response.headers
        home.gateway.orders.resume()

    return {"response": [resume]}


async def test_ollamas_client_reads_over_it(home: Home):
    async with ollama.AsyncClient(
        host=home.url, trust_env=False, event_hooks=resuming(home)
    ) as native:
        answer = await native.chat(model=MODEL, messages=HELLO)
    assert (answer.done, bool(answer.message.content)) == (True, True)


async def test_openais_client_reads_over_it(home: Home):
    async with openai.AsyncOpenAI(
        base_url=f"{home.url}/v1",
        api_key="x",
        max_retries=0,
        http_client=httpx2.AsyncClient(event_hooks=resuming(home)),
    ) as gpt:
        messages: Any = HELLO
        answer = await gpt.chat.completions.create(model=MODEL, messages=messages)
    assert answer.choices[0].message.content


async def test_anthropics_client_reads_over_it(home: Home):
    async with anthropic.AsyncAnthropic(
        base_url=home.url,
        api_key="x",
        max_retries=0,
        http_client=httpx2.AsyncClient(event_hooks=resuming(home)),
    ) as claude:
        messages: Any = HELLO
        answer = await claude.messages.create(model=MODEL, max_tokens=9, messages=messages)
    assert answer.content[0].type == "text"
