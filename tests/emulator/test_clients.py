"""What the official clients do with an Ollama of its own, beside all that `tests/clients` does through a gateway with this emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

from hearth.emulator.models import default_profiles
from tests.emulator.conftest import StartEmulator

CODER = "qwen2.5-coder:14b"
SAY_HELLO = [{"role": "user", "content": "say hello"}]
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
async def url(start_emulator: StartEmulator) -> str:
    thinker = default_profiles()[1].model_copy(update={"name": "thinker", "capabilities": ("completion", "thinking")})
    return (await start_emulator([*default_profiles(), thinker], speed=1000.0))[1]


@pytest.fixture
async def native(url: str) -> AsyncIterator[ollama.AsyncClient]:
    async with ollama.AsyncClient(host=url, trust_env=False) as client:
        yield client


@pytest.fixture
async def gpt(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as client:
        yield client


async def test_ollama_manages_models(native):
    await native.copy(CODER, "mine")
    await native.create(model="tuned", from_="mine", system="be brief", parameters={"num_ctx": 512})
    shown = await native.show("tuned")
    assert "num_ctx" in shown.parameters
    assert shown.capabilities == ["completion", "tools", "insert"]
    assert {"mine:latest", "tuned:latest"} <= {one.model for one in (await native.list()).models}
    await native.delete("mine")
    assert "mine:latest" not in {one.model for one in (await native.list()).models}
    assert [part.status async for part in await native.pull("llama3.1:8b", stream=True)][-1] == "success"
    assert (await native.generate(model="tuned", prompt="")).done_reason == "load"
    assert [(one.model, one.context_length) for one in (await native.ps()).models] == [("tuned:latest", 512)]


async def test_a_thinking_model_thinks_first_in_every_dialect(native, claude):
    parts = [part.message async for part in await native.chat(model="thinker", messages=SAY_HELLO, stream=True)]
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    message = await claude.messages.create(model="thinker", max_tokens=100, messages=SAY_HELLO, thinking=thinking)
    quiet = await native.chat(model="thinker", messages=SAY_HELLO, think=False)
    assert parts[0].thinking
    assert parts[-2].content
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert not quiet.message.thinking
