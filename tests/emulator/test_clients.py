"""What the official clients do with an Ollama of its own, beside all that `tests/clients` does through a gateway with this emulator."""

from __future__ import annotations

from typing import Any

import anthropic
import ollama

from hearth.emulator.models import default_profiles
from tests.emulator.conftest import StartEmulator

CODER = "qwen2.5-coder:14b"


async def test_ollama_manages_models(start_emulator: StartEmulator) -> None:
    url = (await start_emulator(default_profiles(), speed=1000.0))[1]
    async with ollama.AsyncClient(host=url, trust_env=False) as native:
        await native.copy(CODER, "mine")
        await native.create(model="tuned", from_="mine", system="be brief", parameters={"num_ctx": 512})
        shown = await native.show("tuned")
        assert ("num_ctx" in str(shown.parameters), shown.capabilities) == (True, ["completion", "tools", "insert"])
        assert {"mine:latest", "tuned:latest"} <= {one.model for one in (await native.list()).models}
        await native.delete("mine")
        assert "mine:latest" not in {one.model for one in (await native.list()).models}
        assert [part.status async for part in await native.pull("llama3.1:8b", stream=True)][-1] == "success"
        assert (await native.generate(model="tuned", prompt="")).done_reason == "load"
        assert [(one.model, one.context_length) for one in (await native.ps()).models] == [("tuned:latest", 512)]


async def test_a_thinking_model_thinks_first_in_every_dialect(start_emulator: StartEmulator) -> None:
    thinker = default_profiles()[1].model_copy(update={"name": "thinker", "capabilities": ("completion", "thinking")})
    url = (await start_emulator([thinker], speed=1000.0))[1]
    asked: Any = {"model": "thinker", "messages": [{"role": "user", "content": "say hello"}]}
    async with ollama.AsyncClient(host=url, trust_env=False) as native:
        parts = [part.message async for part in await native.chat(**asked, stream=True)]
        quiet = await native.chat(**asked, think=False)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="unused", max_retries=0) as claude:
        message = await claude.messages.create(max_tokens=100, thinking={"type": "enabled", "budget_tokens": 1024}, **asked)
    assert [bool(parts[0].thinking), bool(parts[-2].content), bool(quiet.message.thinking)] == [True, True, False]
    assert [block.type for block in message.content] == ["thinking", "text"]
