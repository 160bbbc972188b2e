"""Models that are fast to load and slow to finish, and a caller that asks an emulated server over
real sockets.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import aiohttp

from hearth.emulator import EmulatedModel, Emulator
from tests.support.fields import Fields
from tests.support.patience import until
from tests.support.reading import read_to_its_end


def model(name: str, **changes: Any) -> EmulatedModel:
    facts = {
        "size_gib": 10.0,
        "vram_gib": 12.0,
        "load_s": 0.01,
        "unload_s": 0.001,
        "prompt_tokens_per_s": 1e6,
    }
    rates = {"decode_tokens_per_s": 1e5, "context_tokens": 8192}
    return EmulatedModel(name=name, ends=False, **{**facts, **rates, **changes})


SLOW = {"decode_tokens_per_s": 500.0}
FOREVER_TOKENS = 20_000
MESSAGES = [{"role": "user", "content": "hello"}]
STREAMS: dict[str, Fields] = {
    "/api/generate": {"prompt": "hello", "options": {"num_predict": 20}},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 20}},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 20},
    "/v1/completions": {"prompt": "hello", "max_tokens": 20},
    "/v1/responses": {"input": "hello", "max_output_tokens": 20},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 20},
}


class Caller:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, path: str, **body: Any) -> Fields:
        async with self.session.post(self.url + path, json={"stream": False, **body}) as response:
            answer: Fields = await response.json()
            return answer | {"status": response.status}

    async def generate(self, name: str, *, tokens: int = 3, **body: Any) -> Fields:
        options = {"num_predict": tokens, **body.pop("options", {})}
        return await self.post("/api/generate", model=name, prompt="hello", options=options, **body)

    def begin(self, name: str, *, tokens: int = 3, **body: Any) -> asyncio.Task[Fields]:
        return asyncio.create_task(self.generate(name, tokens=tokens, **body))

    async def unload(self, name: str) -> Fields:
        return await self.post("/api/generate", model=name, keep_alive=0)

    async def stream(self, path: str) -> tuple[int, bytes]:
        """Status and bytes of a short stream of model `a`, one of `STREAMS`."""
        async with self.session.post(
            self.url + path, json={"model": "a", "stream": True, **STREAMS[path]}
        ) as response:
            return response.status, await read_to_its_end(response)

    async def begin_stream(self) -> aiohttp.ClientResponse:
        """A long native stream of model `a` of which the first line has been read."""
        body = {"model": "a", "prompt": "x", "options": {"num_predict": FOREVER_TOKENS}}
        response = await self.session.post(self.url + "/api/generate", json=body)
        await response.content.readline()
        return response

    async def ps(self) -> list[Fields]:
        async with self.session.get(self.url + "/api/ps") as response:
            models: list[Fields] = (await response.json())["models"]
            return models


async def occupied(emulator: Emulator, caller: Caller, *waiting: str) -> list[asyncio.Task[Fields]]:
    """An answer of `a` that never ends, then a request for each of these models, in this order of
    arrival.
    """
    calls = [caller.begin("a", tokens=FOREVER_TOKENS)]
    await until(lambda: emulator.in_flight)
    for name in waiting:
        arrived = partial(lambda before: len(emulator.requests) > before, len(emulator.requests))
        calls.append(caller.begin(name))
        await until(arrived)
    return calls


async def leave_in_mid_stream(emulator: Emulator, caller: Caller) -> None:
    (await caller.begin_stream()).close()
    await until(lambda: not emulator.in_flight)


def loaded_names(emulator: Emulator) -> list[str]:
    return [name.partition(":")[0] for name, _ in emulator.loads]


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
