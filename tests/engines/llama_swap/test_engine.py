"""The adapter before a llama-swap: what the servers of its models answer goes through, and what it
says in their place is no answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.dialects.routes import Endpoint
from hearth.dialects.stream import proxy_failure
from hearth.engines.llama_swap.engine import LlamaSwap
from hearth.errors import BackendBusy, RunnerDied
from hearth.types import JSON_BODY, BackendCall, LoadOptions
from tests.engines.llama_swap.stub import Entry, StubSwap
from tests.engines.stub_server import StubServer, read
from tests.support.fields import Fields
from tests.support.patience import WITHIN_S, until

HI: Any = [{"role": "user", "content": "hi"}]
UNPINNED = LoadOptions()
CHAT = Endpoint.OPENAI_CHAT.value


def engine_at(url: str) -> LlamaSwap:
    times: Any = {"connect_timeout_s": WITHIN_S, "control_timeout_s": WITHIN_S}
    return LlamaSwap(url, clock=SystemClock(), **times)


@asynccontextmanager
async def before(swap: StubSwap) -> AsyncIterator[LlamaSwap]:
    async with StubServer(swap) as server, aclosing(engine_at(server.url)) as engine:
        yield engine


def post(path: str, model: str = "a", **fields: Any) -> BackendCall:
    body = json.dumps({"model": model, **fields}).encode()
    return BackendCall(method="POST", path=path, headers=JSON_BODY, body=body)


async def whole(engine: LlamaSwap, call: BackendCall) -> tuple[int, Fields]:
    exchange = await engine.open(call)
    body = b"".join(await read(exchange))
    return exchange.status, json.loads(body)


async def test_a_request_goes_to_its_model_and_a_rendering_to_its_server():
    swap = StubSwap(Entry("author/a", aliases=("al",)), Entry("b"))
    async with before(swap) as engine:
        await engine.load("author/a", UNPINNED)
        status, said = await whole(engine, post("/api/chat", "al", messages=HI, stream=False))
        assert (status, said["message"]["content"]) == (200, "abcdefgh")
        shown = post("/api/chat", "al", messages=HI, _debug_render_only=True)
        status, said = await whole(engine, shown)
        assert (status, said["_debug_info"]["rendered_template"]) == (200, "<user>hi<assistant>")
        assert ("POST", "/upstream/author/a/apply-template") in swap.asked


@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_stream_that_ends_without_its_end_is_an_ended_server(path: str, is_streamed: bool):
    swap = StubSwap(Entry("a"))
    async with before(swap) as engine:
        await engine.load("a", UNPINNED)
        process = swap.entries["a"].process
        assert process is not None
        process.held = 3

        async def ask() -> None:
            exchange = await engine.open(post(path, messages=HI, stream=is_streamed))
            await read(exchange)

        asking = asyncio.create_task(ask())
        await process.holds.wait()
        await swap.stop(swap.entries["a"])
        with pytest.raises(RunnerDied):
            await asking


async def test_more_requests_than_it_takes_are_no_fault_of_their_callers():
    swap = StubSwap(Entry("a", limit=0))
    async with before(swap) as engine:
        await engine.load("a", UNPINNED)
        for is_streamed in (True, False):
            with pytest.raises(BackendBusy, match="concurrencyLimit"):
                await engine.open(post(CHAT, messages=HI, stream=is_streamed))


async def test_a_server_that_does_not_start_for_a_request_is_a_proxys_error():
    async with before(StubSwap(Entry("a", fails=True))) as engine:
        exchange = await engine.open(post(CHAT, messages=HI, stream=True))
        assert proxy_failure(exchange.status, exchange.headers) is not None
        exchange.close()


async def test_pages_list_the_models_here_and_those_that_run():
    swap = StubSwap(Entry("a", aliases=("al",)), Entry("b"), Entry("far", peer="attic"))
    async with before(swap) as engine:
        await engine.load("a", UNPINNED)

        async def names(path: str, key: str, name: str) -> list[str]:
            page = await whole(engine, BackendCall(method="GET", path=path))
            return [model[name] for model in page[1][key]]

        assert await names("/api/tags", "models", "name") == ["a", "b", "al"]
        assert await names("/v1/models", "data", "id") == ["a", "b", "al"]
        assert await names("/api/ps", "models", "name") == ["a"]
        exchange = await engine.open(BackendCall(method="HEAD", path="/api/version"))
        assert (exchange.status, await read(exchange)) == (200, [])


async def test_a_probe_is_answered_by_a_model_that_works_and_not_by_one_that_hangs():
    swap = StubSwap(Entry("a"))
    async with before(swap) as engine:
        await engine.load("a", UNPINNED)
        assert await engine.probe("a", UNPINNED, WITHIN_S)
        process = swap.entries["a"].process
        assert process is not None
        process.held = 0
        assert not await engine.probe("a", UNPINNED, 0.05)
        await until(lambda: process.running == 0)
