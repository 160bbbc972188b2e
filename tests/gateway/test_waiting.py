"""The official clients wait ten minutes for their turn, in virtual time: signs of life come in
their dialect, and then the whole text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anthropic
import httpx
import httpx2
import ollama
import openai
import pytest
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseInProgressEvent,
)

from hearth.api.app import HearthApp
from tests.execution.test_resuming import TEXT, Model
from tests.support.fake_ollama import Service
from tests.support.house import ALWAYS_PREEMPT, FULL_TEXT, House, settings_with, settle
from tests.support.in_process import Wire, transport
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time

MODEL = "a:latest"
TEN_MINUTES_S = 600.0
IMPATIENCE_S = 30.0
"""How long each client waits for the next byte."""
SIGNS_AT_S = [10.0 + 15.0 * index for index in range(40)]
ASKED: Any = [{"role": "user", "content": "say hello"}]
LIFECYCLE = (ResponseCreatedEvent, ResponseInProgressEvent, ResponseCompletedEvent)


class Clients(NamedTuple):
    """The official clients, all on one wire."""

    native: ollama.AsyncClient
    gpt: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic


@asynccontextmanager
async def clients_of(house: House) -> AsyncIterator[tuple[Clients, Wire]]:
    wire = Wire(HearthApp(house.gateway))
    http = httpx2.AsyncClient(transport=transport(httpx2, wire), timeout=IMPATIENCE_S)
    given: Any = {"api_key": "x", "max_retries": 0, "timeout": IMPATIENCE_S, "http_client": http}
    claude = anthropic.AsyncAnthropic(base_url="http://localhost", **given)
    gpt = openai.AsyncOpenAI(base_url="http://localhost/v1", **given)
    native = ollama.AsyncClient(
        host="http://localhost", transport=transport(httpx, wire), timeout=IMPATIENCE_S
    )
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    async with http, native:
        # on their first request the clients look at the machine in a thread: virtual time has to
        # stand still
        with loop.held():
            await gpt.models.list()
            await claude.messages.count_tokens(model=MODEL, messages=ASKED)
        wire.calls.clear()
        yield Clients(native, gpt, claude), wire


async def chat(clients: Clients) -> str:
    parts = [part async for part in await clients.native.chat(MODEL, ASKED, stream=True)]
    assert [part.done for part in parts].count(True) == 1
    return "".join(part.message.content or "" for part in parts)


async def generate(clients: Clients) -> str:
    return "".join(
        [
            part.response or ""
            async for part in await clients.native.generate(MODEL, "say hello", stream=True)
        ]
    )


async def gpt_chat(clients: Clients) -> str:
    stream = await clients.gpt.chat.completions.create(model=MODEL, messages=ASKED, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def gpt_completion(clients: Clients) -> str:
    stream = await clients.gpt.completions.create(model=MODEL, prompt="say hello", stream=True)
    return "".join([chunk.choices[0].text async for chunk in stream])


async def claude_message(clients: Clients) -> str:
    async with clients.claude.messages.stream(
        model=MODEL, messages=ASKED, max_tokens=100
    ) as stream:
        said = "".join([text async for text in stream.text_stream])
        final = (await stream.get_final_message()).content[0]
    assert final.type == "text"
    assert final.text == said
    return said


async def claude_code(clients: Clients) -> str:
    """As Claude Code asks.

    What it would send back in the next turn holds no empty block, which the API would refuse.
    """
    code: Any = {"User-Agent": "claude-cli/2.1.200 (external, cli)"}
    async with clients.claude.messages.stream(
        model=MODEL, messages=ASKED, max_tokens=100, extra_headers=code
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert (kinds.count("message_start"), final.stop_reason) == (1, "end_turn")
    assert min(final.usage.input_tokens, final.usage.output_tokens) > 2
    return "|".join(block.text for block in final.content if block.type == "text")


async def gpt_response(clients: Clients) -> str:
    """The client itself sees to it that a response begins, and keeps its id."""
    async with clients.gpt.responses.stream(model=MODEL, input="say hello") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events].count("response.created") == 1
    assert {event.response.created_at for event in events if isinstance(event, LIFECYCLE)} == {
        final.created_at
    }
    return final.output_text


Ask = Callable[[Clients], Coroutine[Any, Any, str]]


def _is_line(**said: Any) -> Callable[[bytes], bool]:
    return lambda piece: (
        json.loads(piece).items() >= {"model": MODEL, "done": False, **said}.items()
    )


NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
DIALECTS: list[tuple[Ask, Callable[[bytes], bool], str]] = [
    (chat, _is_line(message={"role": "assistant", "content": ""}), NDJSON),
    (generate, _is_line(response=""), NDJSON),
    (gpt_chat, b": waiting\n\n".__eq__, SSE),
    (gpt_completion, b": waiting\n\n".__eq__, SSE),
    (gpt_response, lambda piece: b"event: response.in_progress" in piece, SSE),
    (claude_message, b'event: ping\ndata: {"type": "ping"}\n\n'.__eq__, SSE),
    (
        claude_code,
        lambda piece: b"event: message_delta" in piece and b'"stop_reason":null' in piece,
        SSE,
    ),
]
CLIENTS: list[Ask] = [chat, gpt_chat, gpt_response, claude_message, claude_code]
ERRORS = [
    ollama.ResponseError,
    openai.APIError,
    openai.APIError,
    anthropic.APIStatusError,
    anthropic.APIStatusError,
]


@pytest.mark.parametrize(("ask", "is_sign", "content_type"), DIALECTS)
@in_virtual_time
async def test_a_client_that_waits_ten_minutes_hears_of_it_and_gets_the_whole_text(
    ask: Ask, is_sign: Callable[[bytes], bool], content_type: str
):
    async with House() as house, clients_of(house) as (clients, wire):
        house.submit("a", service_s=TEN_MINUTES_S)
        assert await ask(clients) == FULL_TEXT
        (heard,) = wire.calls
        signs = [(at_s, piece) for at_s, piece in heard.pieces if at_s < TEN_MINUTES_S]
        assert [at_s for at_s, _ in signs] == SIGNS_AT_S
        assert all(is_sign(piece) for _, piece in signs)
        assert (heard.status, heard.head_s, heard.headers["content-type"]) == (
            200,
            SIGNS_AT_S[0],
            content_type,
        )


@pytest.mark.parametrize(("ask", "is_sign", "content_type"), DIALECTS)
@in_virtual_time
async def test_a_short_wait_shows_nothing_but_the_answer(
    ask: Ask, is_sign: Callable[[bytes], bool], content_type: str
):
    async with House() as house, clients_of(house) as (clients, wire):
        house.submit("a", service_s=9.0)
        assert await ask(clients) == FULL_TEXT
        (heard,) = wire.calls
        assert heard.head_s == pytest.approx(9.1)
        assert heard.headers["content-type"] == content_type
        # The last line of a native answer says nothing either, and a response begins so.
        assert ask in (chat, generate, gpt_response) or not any(
            is_sign(piece) for _, piece in heard.pieces
        )


@pytest.mark.parametrize("ask", CLIENTS)
@in_virtual_time
async def test_what_is_known_of_the_request_comes_with_the_first_sign(ask: Ask):
    async with House() as house, clients_of(house) as (clients, wire):
        for _ in range(3):
            house.submit("a", service_s=20.0)
            await settle()
        await ask(clients)
        (heard,) = wire.calls
        assert heard.head_s == 10.0
        assert heard.headers["x-queue-position"] == "2"
        assert heard.headers["x-request-id"].startswith("req_")
        assert float(heard.headers["x-estimated-wait-seconds"]) > 0


@pytest.mark.parametrize("ask", CLIENTS)
@in_virtual_time
async def test_a_load_and_the_prompt_after_it_are_waited_for_in_the_same_way(ask: Ask):
    slow_to_begin = House("a", service=lambda _: Service(first_byte_s=25.0, service_s=26.0))
    async with slow_to_begin as house, clients_of(house) as (clients, wire):
        assert await ask(clients) == FULL_TEXT
        assert [at_s for at_s, _ in wire.calls[0].pieces[:3]] == [10.0, 25.0, 27.0]


@pytest.mark.parametrize(("max_wait_s", "pieces_s"), [(9.0, []), (20.0, [10.0, 20.0])])
@in_virtual_time
async def test_an_error_has_its_status_for_ten_seconds_and_then_is_in_the_stream(
    max_wait_s: float, pieces_s: list[float]
):
    async with (
        House(settings=settings_with(queue={"max_wait_s": max_wait_s})) as house,
        clients_of(house) as (clients, wire),
    ):
        house.submit("a", service_s=1000.0)
        errors: list[Any] = []
        for ask, error in zip(CLIENTS, ERRORS, strict=True):
            with pytest.raises(error, match="waited longer") as raised:
                await ask(clients)
            errors.append(raised.value)
        assert [heard.head_s for heard in wire.calls] == [min(max_wait_s, 10.0)] * 5
        if pieces_s:
            assert [(heard.status, [at_s for at_s, _ in heard.pieces]) for heard in wire.calls] == [
                (200, pieces_s)
            ] * 5
            assert (errors[0].status_code, errors[1].type, errors[3].type) == (
                -1,
                "api_error",
                "overloaded_error",
            )
        else:
            assert [error.status_code for error in errors] == [503] * 5
            assert all(int(heard.headers["retry-after"]) >= 1 for heard in wire.calls)


@pytest.mark.parametrize("ask", CLIENTS)
@in_virtual_time
async def test_who_gave_up_and_asks_anew_goes_before_those_who_came_later(ask: Ask):
    async with House() as house, clients_of(house) as (clients, _):
        house.submit("a", service_s=400.0)
        await settle()
        first = asyncio.ensure_future(ask(clients))
        await asyncio.sleep(300.0)
        later = house.submit("a", service_s=400.0)
        first.cancel()
        await asyncio.sleep(1.0)
        await ask(clients)
        assert house.now < 410.0
        assert house.state_of(later.sequence) == "running"


@pytest.mark.parametrize("ask", CLIENTS)
@pytest.mark.parametrize("waits", [False, True])
@in_virtual_time
async def test_a_stream_that_is_interrupted_for_minutes_is_one_stream(ask: Ask, waits: bool):
    says = Model()
    settings = settings_with(scheduling=ALWAYS_PREEMPT)
    house = House(
        settings=settings,
        service=lambda call: says(call) if b"true" in call.body else Service(service_s=400.0),
    )
    async with house, clients_of(house) as (clients, wire):
        if waits:
            house.submit("a")
            await settle()
        asking = asyncio.ensure_future(ask(clients))
        await asyncio.sleep(404.5 if waits else 4.5)
        house.internal("a")
        assert await asking == TEXT
        assert house.now > 400.0
        (heard,) = wire.calls
        assert (
            40 > len([at_s for at_s, _ in heard.pieces if 15.0 < at_s - 400.0 * waits < 400.0]) > 20
        )
