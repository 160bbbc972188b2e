"""A gateway whose engine loads and unloads models one at a time on a small card."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import ollama
import openai

from hearth.bootstrap import running_gateway
from hearth.config.engines import EngineKind, EngineSettings
from hearth.config.settings import GatewayConfig, GpuSettings, ModelSettings
from hearth.gateway import Gateway
from tests.support.home import house_settings
from tests.support.recorder import Recorder

HELLO: Any = [{"role": "user", "content": "hi"}]
AS_HOUSE = {"X-Task-Type": "chat_router"}
CARD_GB = 24.0
MODEL_GB = 14.0
"""Two of them do not fit beside each other."""


@dataclass
class Door:
    """The gateway, and official clients on it."""

    gateway: Gateway
    events: Recorder
    native: ollama.AsyncClient
    gpt: openai.AsyncOpenAI

    async def say(self, model: str, tokens: int = 8, **more: Any) -> str:
        """The text of a stream."""
        return "".join([piece async for piece in self.stream(model, tokens, **more)])

    async def stream(self, model: str, tokens: int, **more: Any) -> AsyncIterator[str]:
        stream = await self.gpt.chat.completions.create(
            model=model, messages=HELLO, stream=True, max_tokens=tokens, temperature=1e-6, **more
        )
        async for part in stream:
            for choice in part.choices:
                if choice.delta.content:
                    yield choice.delta.content

    async def as_house(self, model: str) -> str:
        """A request of the house's own."""
        return await self.say(model, 2, extra_headers=AS_HOUSE)


@asynccontextmanager
async def open_door(
    kind: EngineKind, url: str, *models: str, **changes: Any
) -> AsyncIterator[Door]:
    """`changes`: sections of the settings."""
    events = Recorder()
    settings = house_settings(gpu=GpuSettings(restore_home_delay_s=0.0, vram_gb=CARD_GB))
    sizes = {name: ModelSettings(vram_gb=MODEL_GB) for name in models}
    engines = {"main": EngineSettings(kind=kind, url=url)}
    given = {"engines": engines, "models": sizes, **changes}
    config = GatewayConfig(settings=settings.replace(**given))
    async with AsyncExitStack() as stack:
        running = running_gateway(config, host="127.0.0.1", port=0, sinks=(events,), store=False)
        gateway, own_url = await stack.enter_async_context(running)
        gpt = openai.AsyncOpenAI(base_url=f"{own_url}/v1", api_key="x", max_retries=0)
        yield Door(
            gateway=gateway,
            events=events,
            native=await stack.enter_async_context(ollama.AsyncClient(own_url, trust_env=False)),
            gpt=await stack.enter_async_context(gpt),
        )


async def broken_into(door: Door, model: str, tokens: int, breaking: asyncio.Event) -> str:
    """The text of a stream, during which `breaking` is set once its caller has seen some of it."""
    text = ""
    async for piece in door.stream(model, tokens):
        text += piece
        if len(text) >= 3:
            breaking.set()
    return text
