"""A server that stands for many machines: what it refuses, and what it still has meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.engines.openai_server.engine import OpenAiServer
from hearth.engines.vllm.engine import Vllm
from hearth.errors import (
    BackendError,
    BackendProtocolError,
    BackendUnreachable,
    EngineRefused,
    ProxyFailed,
)
from tests.engines.openai_server.scripted import JSON, Answer, Scripted, post, said
from tests.engines.stub_server import StubServer

PLAIN = "text/plain; charset=utf-8"
LISTED = said(200, object="list", data=[{"id": "m"}])
FULL: Answer = (503, b"Request dropped due to backpressure", PLAIN)
LOST: Answer = (500, b"Internal Server Error", PLAIN)
HI: Any = [{"role": "user", "content": "hi"}]
DIALECTS = (
    post("/v1/chat/completions", "m", messages=HI),
    post("/v1/chat/completions", "m", messages=HI, stream=True),
    post("/api/chat", "m", messages=HI),
    post("/api/chat", "m", messages=HI, stream=False),
    post("/v1/messages", "m", messages=HI, max_tokens=5),
    post("/v1/responses", "m", input="hi", stream=True),
    post("/api/embed", "m", input="hi"),
)


@asynccontextmanager
async def before(
    script: Scripted, kind: type[OpenAiServer] = OpenAiServer, *, elastic: bool = True
) -> AsyncIterator[OpenAiServer]:
    async with StubServer(script) as server:
        engine = kind(
            server.url,
            clock=SystemClock(),
            connect_timeout_s=30.0,
            control_timeout_s=30.0,
            elastic=elastic,
        )
        async with aclosing(engine):
            yield engine


@pytest.mark.parametrize("call", DIALECTS, ids=[f"{each.path} {each.body!r}" for each in DIALECTS])
@pytest.mark.parametrize(("answer", "error"), [(FULL, EngineRefused), (LOST, ProxyFailed)])
async def test_a_refusal_is_told_from_an_answer_in_every_dialect(
    call: Any, answer: Answer, error: type[BackendError]
):
    script = Scripted({"/v1/models": LISTED})
    async with before(script) as engine:
        await engine.installed()
        for path in ("/v1/chat/completions", "/v1/embeddings"):
            script.answers[path] = answer
        with pytest.raises(error):
            await engine.open(call)


async def worked(engine: OpenAiServer, script: Scripted) -> None:
    """It has answered a request, so its list is read again."""
    script.answers["/v1/completions"] = said(200, choices=[])
    exchange = await engine.open(post("/v1/completions", "m", prompt="x", stream=True))
    exchange.close()


@pytest.mark.parametrize("kind", [OpenAiServer, Vllm])
@pytest.mark.parametrize("answer", [FULL, LOST, (502, b"<html>", "text/html")])
async def test_what_it_had_it_has_while_its_list_is_refused(
    kind: type[OpenAiServer], answer: Answer
):
    script = Scripted({"/v1/models": LISTED})
    async with before(script, kind) as engine:
        listed = await engine.installed()
        await worked(engine, script)
        script.answers["/v1/models"] = answer
        assert await engine.version() == "unknown"
        assert await engine.installed() is listed
        assert [model.name for model in await engine.resident()] == ["m"]


@pytest.mark.parametrize("answer", [said(404, detail="Not Found"), (200, b"<html>", "text/html")])
async def test_a_list_that_is_none_is_an_outage_all_the_same(answer: Answer):
    script = Scripted({"/v1/models": LISTED})
    async with before(script) as engine:
        await engine.installed()
        await worked(engine, script)
        script.answers["/v1/models"] = answer
        with pytest.raises(BackendProtocolError):
            await engine.installed()


async def test_an_engine_at_rest_is_connected_to_and_asked_nothing():
    script = Scripted({"/v1/models": LISTED})
    async with before(script) as engine:
        listed = await engine.installed()
        asked = len(script.asked)
        for _ in range(3):
            assert await engine.version() == "unknown"
            assert await engine.installed() is listed
        assert len(script.asked) == asked
        await worked(engine, script)
        script.answers["/v1/models"] = said(200, object="list", data=[{"id": "m"}, {"id": "n"}])
        assert [model.name for model in await engine.installed()] == ["m", "n"]


async def test_an_engine_at_rest_whose_address_is_gone_is_away():
    async with StubServer(Scripted({"/v1/models": LISTED})) as server:
        engine = OpenAiServer(
            server.url,
            clock=SystemClock(),
            connect_timeout_s=30.0,
            control_timeout_s=30.0,
            elastic=True,
        )
        await engine.installed()
    async with aclosing(engine):
        for ask in (engine.version, engine.installed):
            with pytest.raises(BackendUnreachable):
                await ask()


async def test_before_its_first_list_nobody_knows_what_it_has():
    async with before(Scripted({"/v1/models": FULL})) as engine:
        with pytest.raises(EngineRefused):
            await engine.installed()


@pytest.mark.parametrize(("elastic", "on_card"), [(True, False), (False, True)])
async def test_a_vllm_is_on_the_card_unless_it_stands_for_others(*, elastic: bool, on_card: bool):
    async with before(Scripted({}), Vllm, elastic=elastic) as engine:
        assert engine.on_card is on_card


async def test_another_server_says_itself_that_it_is_busy():
    script = Scripted({"/v1/models": LISTED, "/v1/chat/completions": (503, b"{}", JSON)})
    async with before(script, elastic=False) as engine:
        await engine.installed()
        exchange = await engine.open(DIALECTS[0])
        assert exchange.status == 503
        exchange.close()
