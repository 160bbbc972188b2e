"""The adapter before a router: what its models answer goes through, and what the router says in
their place is no answer.
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
from hearth.engines.llama_router.engine import LlamaRouter
from hearth.errors import BackendGone, ModelGone
from hearth.types import JSON_BODY, BackendCall, LoadOptions
from tests.engines.llama_router.stub import TEXT, Preset, StubRouter
from tests.engines.stub_server import LAST_CHUNK, Peer, StubServer, chunked, read
from tests.engines.upstream_model import answered, stream_head
from tests.support.fields import Fields
from tests.support.llama_server_wire import recorded
from tests.support.patience import WITHIN_S, until

HI: Any = [{"role": "user", "content": "hi"}]
UNPINNED = LoadOptions()
CHAT = Endpoint.OPENAI_CHAT.value


def engine_at(url: str) -> LlamaRouter:
    times: Any = {"connect_timeout_s": WITHIN_S, "control_timeout_s": WITHIN_S}
    return LlamaRouter(url, clock=SystemClock(), **times)


@asynccontextmanager
async def before(router: StubRouter) -> AsyncIterator[LlamaRouter]:
    async with StubServer(router) as server, aclosing(engine_at(server.url)) as engine:
        yield engine


def post(path: str, model: str = "a", **fields: Any) -> BackendCall:
    body = json.dumps({"model": model, **fields}).encode()
    return BackendCall(method="POST", path=path, headers=JSON_BODY, body=body)


async def whole(engine: LlamaRouter, call: BackendCall) -> tuple[int, Fields]:
    exchange = await engine.open(call)
    body = b"".join(await read(exchange))
    return exchange.status, json.loads(body)


async def test_a_request_goes_to_its_model_under_the_name_of_the_router():
    router = StubRouter(Preset("a", aliases=("al",)), Preset("b"))
    async with before(router) as engine:
        await engine.load("a", UNPINNED)
        await engine.load("b", UNPINNED)
        for model in ("al", "AL", "a"):
            status, said = await whole(engine, post("/api/chat", model, messages=HI, stream=False))
            assert (status, said["message"]["content"]) == (200, "abcdefgh")
        process = router.presets["a"].process
        assert process is not None
        assert [asked["model"] for asked in process.seen] == ["a"] * 3


async def test_a_callers_conversation_id_stays_here():
    router = StubRouter(Preset("a", status="loaded"))
    heads: list[Fields] = []

    async def serve(peer: Peer) -> None:
        heads.append({name.decode(): value for name, value in peer.fields})
        await router(peer)

    async with StubServer(serve) as server, aclosing(engine_at(server.url)) as engine:
        await engine.load("a", UNPINNED)
        call = post(CHAT, messages=HI, stream=True)
        headers = (*JSON_BODY, (b"x-conversation-id", b"1"))
        with pytest.raises(ModelGone):
            await engine.open(
                BackendCall(method="POST", path=CHAT, headers=headers, body=call.body)
            )
        assert not any("x-conversation-id" in head for head in heads)


NOT_LOADED = recorded("router_chat_not_loaded").body
CONNECTION = b"proxy error: Could not establish connection"
READ = b"proxy error: Failed to read connection"


@pytest.mark.parametrize(
    "answer",
    [answered(400, NOT_LOADED), answered(500, CONNECTION, TEXT), answered(500, READ, TEXT)],
    ids=["not loaded", "loading or stopping", "died"],
)
@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/v1/messages", "/v1/embeddings"])
async def test_what_the_router_says_for_a_model_that_is_gone_is_no_answer(path: str, answer: bytes):
    router = StubRouter(Preset("a", status="loaded"))
    async with before(router) as engine:
        router.says = dict.fromkeys((CHAT, "/v1/messages", "/v1/embeddings"), answer)
        for is_streamed in (True, False):
            call = post(path, messages=HI, input="x", max_tokens=5, stream=is_streamed)
            with pytest.raises(ModelGone):
                await engine.open(call)


async def test_an_error_of_the_model_is_its_answer():
    router = StubRouter(Preset("a", status="loaded"))
    async with before(router) as engine:
        router.says[CHAT] = answered(400, b'{"error": {"code": 400, "message": "bad grammar"}}')
        status, said = await whole(engine, post("/api/chat", messages=HI))
        assert (status, said) == (400, {"error": "bad grammar"})
        router.says[CHAT] = answered(400, b'{"error": {"message": "model \'a\' not found"}}')
        status, _ = await whole(engine, post(CHAT, messages=HI, stream=True))
        assert status == 404
        router.says[CHAT] = answered(400, b'{"error": {"message": "tool \'x\' not found"}}')
        status, _ = await whole(engine, post(CHAT, messages=HI, stream=True))
        assert status == 400


@pytest.mark.parametrize("path", [CHAT, "/api/chat"])
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_stream_that_ends_in_the_routers_words_is_an_ended_process(
    path: str, is_streamed: bool
):
    router = StubRouter(Preset("a"))
    async with before(router) as engine:
        await engine.load("a", UNPINNED)
        process = router.presets["a"].process
        assert process is not None
        process.held = 3
        call = post(path, messages=HI, stream=is_streamed)
        asking = asyncio.create_task(came(engine, call))
        await process.holds.wait()
        router.unload("a")
        text, error = await asking
        assert isinstance(error, ModelGone)
        assert b"proxy error" not in text
        assert (b'"content":"b"' in text.replace(b" ", b"")) == is_streamed
        assert router.killed == 1


async def came(engine: LlamaRouter, call: BackendCall) -> tuple[bytes, BackendGone | None]:
    text = b""
    try:
        exchange = await engine.open(call)
        while chunks := await exchange.take():
            text += b"".join(chunks)
    except BackendGone as error:
        return text, error
    return text, None


@pytest.mark.parametrize(
    ("chunks", "is_whole"),
    [
        ([b"data: {}\n\n", b"data: [DONE]\n\n"], True),
        ([b"data: {}\n\n", b"proxy error: is what the model said", b"\n\ndata: [DONE]\n\n"], True),
        ([b"data: {}\n\n", b"data: [DONE]\n\n", READ], True),
        ([b"data: {}\n\n", READ], False),
        ([b"data: {}\n\ndata: {", READ], False),
        ([READ], False),
        ([b"data: {}\n\n"], False),
        ([b'data: {"error": {"message": "no"}}\n\n'], True),
    ],
    ids=["whole", "quoted", "after", "behind", "within", "alone", "without", "error"],
)
async def test_only_the_end_of_a_stream_tells_whose_words_were_the_last(
    chunks: list[bytes], is_whole: bool
):
    router = StubRouter(Preset("a", status="loaded"))
    async with before(router) as engine:
        router.says[CHAT] = stream_head() + chunked(*chunks) + LAST_CHUNK
        text, error = await came(engine, post(CHAT, messages=HI, stream=True))
        assert (error is None) == is_whole
        assert READ not in text
        assert text == b"".join(chunk for chunk in chunks if chunk != READ)


async def test_pages_list_all_models_and_those_in_memory():
    router = StubRouter(Preset("a", aliases=("al",)), Preset("b"))
    async with before(router) as engine:
        await engine.load("a", UNPINNED)

        async def names(path: str, key: str, name: str) -> list[str]:
            page = await whole(engine, BackendCall(method="GET", path=path))
            return [model[name] for model in page[1][key]]

        assert await names("/api/tags", "models", "name") == ["a", "al", "b"]
        assert await names("/v1/models", "data", "id") == ["a", "al", "b"]
        assert await names("/api/ps", "models", "name") == ["a"]
        status, shown = await whole(engine, post("/api/show"))
        assert (status, shown["details"]["format"]) == (200, "gguf")
        exchange = await engine.open(BackendCall(method="HEAD", path="/api/version"))
        assert (exchange.status, await read(exchange)) == (200, [])


async def test_what_its_models_can_do_is_what_it_says_or_not_refused():
    async with before(StubRouter(Preset("a"))) as engine:
        has = await engine.capabilities("a")
        assert has is not None
        assert ("completion" in has, "vision" in has) == (True, False)
        assert {one.abilities for one in await engine.installed()} == {frozenset({"completion"})}


async def test_a_probe_is_answered_by_a_model_that_works_and_not_by_one_that_hangs():
    router = StubRouter(Preset("a"))
    async with before(router) as engine:
        await engine.load("a", UNPINNED)
        assert await engine.probe("a", UNPINNED, WITHIN_S)
        process = router.presets["a"].process
        assert process is not None
        process.held = 0
        assert not await engine.probe("a", UNPINNED, 0.05)
        await until(lambda: process.running == 0)
