"""The gateway in front of a real server with OpenAI's API, a llama-server that hides its other
routes: official clients are answered in each dialect.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

from hearth.bootstrap.probing import hearth_problem
from hearth.config.engines import ENGINE_TITLES
from hearth.config.settings import StorageSettings
from hearth.events import BatchEnded, ItemInterrupted, ItemResumed, SwapStarted
from tests.engines.llamacpp.front import MODEL
from tests.engines.llamacpp.gguf import write_model
from tests.engines.llamacpp.serving import serving
from tests.engines.llamacpp.test_in_front import (
    MOST_TRIES,
    TOKENS,
    Door,
    interrupted,
    open_door,
)
from tests.engines.openai_server.plain import Plain, open_plain
from tests.engines.openai_server.scripted import SSE, Answer, Scripted, events, said
from tests.engines.stub_server import StubServer
from tests.support.fields import Fields
from tests.support.patience import in_time

HELLO: Any = [{"role": "user", "content": "hello house"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}
PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAA"
    "AABJRU5ErkJggg=="
)
COLD: Fields = {"temperature": 0}


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("openai")
    write_model(folder / "tiny.gguf")
    with serving(folder / "tiny.gguf", MODEL) as url:
        yield url


@pytest.fixture
async def opened(server_url: str) -> AsyncIterator[tuple[Door, Plain]]:
    async with before(server_url) as opened:
        yield opened


@asynccontextmanager
async def before(server_url: str, **changes: Any) -> AsyncIterator[tuple[Door, Plain]]:
    async with (
        open_plain(server_url) as (plain, url),
        open_door(url, kind="openai", **changes) as door,
    ):
        yield door, plain


@pytest.fixture
def door(opened: tuple[Door, Plain]) -> Door:
    return opened[0]


@pytest.fixture
def plain(opened: tuple[Door, Plain]) -> Plain:
    return opened[1]


def sent(plain: Plain) -> list[Fields]:
    """The generations that were asked for."""
    return [json.loads(body) for path, body in plain.asked if path != "/v1/models"]


async def test_openais_client_is_answered_whole_and_streamed_alike(door, plain):
    asked: Fields = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    whole = await door.gpt.chat.completions.create(**asked, seed=7)
    stream = await door.gpt.chat.completions.create(**asked, seed=7, stream=True)
    parts = [part async for part in stream]
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content != ""
    assert all(one["stream"] for one in sent(plain))
    assert [model.id async for model in door.gpt.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError):
        await door.gpt.chat.completions.create(**{**asked, "model": "other"})


async def test_responses_are_translated_whole_and_streamed_alike(door, plain):
    asked: Fields = {"model": MODEL, "input": "hello house", "max_output_tokens": 12}
    asked |= {"temperature": 0, "instructions": "be short"}
    whole = await door.gpt.responses.create(**asked)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.output_tokens == 12
    async with door.gpt.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        final = events[-1].response
    assert final.output_text == whole.output_text != ""
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert {tuple(one["messages"][0].items()) for one in sent(plain)} == {
        (("role", "system"), ("content", "be short"))
    }
    book = await door.gpt.responses.create(
        model=MODEL,
        input="a",
        max_output_tokens=60,
        text={"format": {"type": "json_schema", "name": "b", "schema": SCHEMA}},
    )
    assert json.loads(book.output_text) == {"a": "x"}
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        await door.gpt.responses.create(**asked, previous_response_id="resp_1")


async def test_messages_are_translated_whole_and_streamed_alike(door, plain):
    asked: Fields = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "system": "be short"}
    asked |= {"extra_body": COLD}
    whole = await door.claude.messages.create(**asked)
    assert (whole.stop_reason, whole.usage.output_tokens) == ("max_tokens", 12)
    async with door.claude.messages.stream(**asked) as stream:
        final = await stream.get_final_message()
    assert final.content[0].text == whole.content[0].text != ""
    total = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert total == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) > 0
    assert {one["messages"][0]["content"] for one in sent(plain)} == {"be short"}
    with pytest.raises(anthropic.BadRequestError, match=r"`top_k` is not supported"):
        await door.claude.messages.create(**{**asked, "extra_body": {"top_k": 5}})
    begun = [*HELLO, {"role": "assistant", "content": "the"}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[1\]\.role"):
        await door.claude.messages.create(**{**asked, "messages": begun})
    with pytest.raises(anthropic.NotFoundError):
        await door.claude.messages.create(**{**asked, "model": "other"})


async def test_ollamas_client_is_answered_whole_and_streamed_alike(door):
    options = {"num_predict": 12, "temperature": 0, "seed": 7}
    whole = await door.native.chat(model=MODEL, messages=HELLO, options=options)
    stream = await door.native.chat(model=MODEL, messages=HELLO, options=options, stream=True)
    parts = [part async for part in stream]
    assert "".join(part.message.content for part in parts) == whole.message.content != ""
    assert (parts[-1].eval_count, whole.eval_count, whole.done_reason) == (12, 12, "length")
    book = await door.native.chat(
        model=MODEL, messages=HELLO, format=SCHEMA, options={"num_predict": 60}
    )
    assert json.loads(book.message.content) == {"a": "x"}
    assert [model.model for model in (await door.native.list()).models] == [MODEL]
    assert [model.model for model in (await door.native.ps()).models] == [MODEL]
    with pytest.raises(ollama.ResponseError, match=r"options\.top_k"):
        await door.native.chat(model=MODEL, messages=HELLO, options={"top_k": 1})


def part_of_call(**call: Any) -> Fields:
    return {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": [call]}}]}


CALLED = events(
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    part_of_call(id="call_1", type="function", index=0, function={"name": "f"}),
    part_of_call(index=0, function={"arguments": '{"a":'}),
    part_of_call(index=0, function={"arguments": '"x"}'}),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": {"prompt_tokens": 22, "completion_tokens": 9}},
)
"""In the parts in which vLLM 0.32 sends a call."""


async def test_tools_go_there_and_calls_come_back():
    """Before a scripted server: no toy model calls anything."""
    listed = said(200, object="list", data=[{"id": MODEL}])
    script = Scripted({"/v1/models": listed, "/v1/chat/completions": (200, CALLED, SSE)})
    async with StubServer(script) as server, open_door(server.url, kind="openai") as opened:
        door: Any = opened
        tool: Any = {"name": "f", "description": "d", "input_schema": SCHEMA}
        asked: Fields = {"model": MODEL, "max_tokens": 9, "tools": [tool]}
        forced: Any = {"type": "tool", "name": "f"}
        message = await door.claude.messages.create(**asked, messages=HELLO, tool_choice=forced)
        [call] = message.content
        assert (call.name, call.input, message.stop_reason) == ("f", {"a": "x"}, "tool_use")
        async with door.claude.messages.stream(**asked, messages=HELLO) as stream:
            assert (await stream.get_final_message()).content[0].input == {"a": "x"}
        function: Any = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
        response = await door.gpt.responses.create(
            model=MODEL, input="hi", tools=[function], tool_choice="required"
        )
        [item] = response.output
        assert (item.name, json.loads(item.arguments)) == ("f", {"a": "x"})
        native = await door.native.chat(
            model=MODEL, messages=HELLO, tools=[{"type": "function", "function": {"name": "f"}}]
        )
        assert native.message.tool_calls[0].function.arguments == {"a": "x"}
        answered: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "warm"}
        turns: Any = [
            *HELLO,
            {"role": "assistant", "content": [call.model_dump()]},
            {"role": "user", "content": [answered, {"type": "text", "text": "so?"}]},
        ]
        await door.claude.messages.create(**asked, messages=turns)
        sent_to = [peer.json for peer in script.sent_to("/v1/chat/completions")]
        assert sent_to[0]["tool_choice"] == {"type": "function", "function": {"name": "f"}}
        roles = [one["role"] for one in sent_to[-1]["messages"]]
        assert roles == ["user", "assistant", "tool", "user"]


async def test_an_image_reaches_the_server_which_says_what_it_makes_of_it(door, plain):
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    turn: Any = {"role": "user", "content": [{"type": "image", "source": source}]}
    with pytest.raises(anthropic.APIStatusError) as refused:
        await door.claude.messages.create(model=MODEL, messages=[turn], max_tokens=4)
    assert "image input is not supported" in str(refused.value)
    [part] = sent(plain)[-1]["messages"][0]["content"]
    assert part["image_url"]["url"] == f"data:image/png;base64,{PNG}"


async def test_a_wish_to_think_is_said_in_openais_words(door, plain):
    await door.claude.messages.create(
        model=MODEL, messages=HELLO, max_tokens=4, thinking={"type": "disabled"}
    )
    await door.gpt.responses.create(
        model=MODEL, input="hi", max_output_tokens=4, reasoning={"effort": "low"}
    )
    await door.native.chat(model=MODEL, messages=HELLO, think="high", options={"num_predict": 2})
    assert [one["reasoning_effort"] for one in sent(plain)] == ["none", "low", "high"]


async def test_nothing_is_ever_swapped_and_no_answer_is_interrupted(door):
    await door.native.chat(model=MODEL, messages=HELLO, options={"num_predict": 2})
    assert door.events.of(SwapStarted) == []
    assert door.gateway.engines.continuations_of(MODEL) is None


async def test_batches_say_per_request_what_the_server_cannot_be_asked_for(server_url, tmp_path):
    storage = StorageSettings(path=str(tmp_path / "hearth.db"), reserve_mib=0)
    asked: Fields = {"model": MODEL, "messages": HELLO, "max_tokens": 4}
    requests: Any = [
        {"custom_id": "good", "params": asked},
        {"custom_id": "bad", "params": asked | {"top_k": 5}},
    ]
    line: Fields = {"custom_id": "bad", "method": "POST", "url": "/v1/responses"}
    line["body"] = {"model": MODEL, "input": "hi", "previous_response_id": "resp_1"}
    async with before(server_url, store=True, storage=storage) as (door, _):
        batch = await door.claude.messages.batches.create(requests=requests)
        file = await door.gpt.files.create(
            file=("x.jsonl", json.dumps(line).encode()), purpose="batch"
        )
        other = await door.gpt.batches.create(
            input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
        )
        async with in_time():
            await door.events.until(lambda: len(door.events.of(BatchEnded)) == 2)
        found = [each async for each in await door.claude.messages.batches.results(batch.id)]
        results: Any = {each.custom_id: each.result for each in found}
        assert results["good"].message.usage.output_tokens == 4
        assert results["bad"].error.error.type == "invalid_request_error"
        assert "`top_k`" in results["bad"].error.error.message
        other = await door.gpt.batches.retrieve(other.id)
        assert other.errors is not None
        [error] = other.errors.data or []
        assert (other.status, error.line, error.code) == ("failed", 1, "invalid_request")
        assert "`previous_response_id`" in (error.message or "")


def chunk_of(reason: str | None = None, **delta: Any) -> Fields:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


THOUGHT = events(
    chunk_of(reasoning_content="let me "),
    chunk_of(reasoning_content="see"),
    chunk_of(content="yes"),
    chunk_of("stop"),
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
)
CUT = events(chunk_of(content="the "), chunk_of(content="gate"), done=False)


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[tuple[Any, Scripted]]:
    listed = said(200, object="list", data=[{"id": "some/model"}])
    script = Scripted({"/v1/models": listed, "/v1/chat/completions": answer})
    async with StubServer(script) as server, open_door(server.url, kind="openai") as door:
        yield door, script


async def test_thoughts_reach_each_client_in_its_own_place():
    asked: Any = {"model": "some/model", "messages": HELLO}
    async with scripted((200, THOUGHT, SSE)) as (door, _):
        message = await door.claude.messages.create(**asked, max_tokens=9)
        assert [block.type for block in message.content] == ["thinking", "text"]
        assert message.content[0].thinking == "let me see"
        async with door.claude.messages.stream(**asked, max_tokens=9) as stream:
            streamed = await stream.get_final_message()
        assert streamed.content[0].thinking == "let me see"
        assert (await door.native.chat(**asked)).message.thinking == "let me see"
        whole = await door.gpt.responses.create(model="some/model", input="hi")
        async with door.gpt.responses.stream(model="some/model", input="hi") as stream:
            events_ = [event async for event in stream]
        for response in (whole, events_[-1].response):
            thought, told = response.output
            assert (thought.type, thought.content[0].text) == ("reasoning", "let me see")
            assert (told.content[0].text, response.output_text) == ("yes", "yes")
        deltas = [event.delta for event in events_ if event.type == "response.reasoning_text.delta"]
        assert deltas == ["let me ", "see"]
        back = [item.model_dump() for item in whole.output]
        await door.gpt.responses.create(
            model="some/model", input=[*back, {"role": "user", "content": "and?"}]
        )
        chat = await door.gpt.chat.completions.create(**asked)
        assert chat.choices[0].message.reasoning_content == "let me see"


async def test_a_server_that_dies_within_each_stream_is_an_error_in_the_callers_words():
    asked: Any = {"model": "some/model", "messages": HELLO}
    async with scripted((200, CUT, SSE)) as (door, script):
        with pytest.raises(ollama.ResponseError):
            _ = [part async for part in await door.native.chat(**asked, stream=True)]
        stream = await door.gpt.chat.completions.create(**asked, stream=True)
        with pytest.raises(openai.APIError):
            _ = [part async for part in stream]
        with pytest.raises(anthropic.APIStatusError):
            async with door.claude.messages.stream(**asked, max_tokens=9) as told:
                await told.get_final_message()
        responses = await door.gpt.responses.create(model="some/model", input="hi", stream=True)
        with pytest.raises(openai.APIError):
            _ = [part async for part in responses]
        script.answers["/v1/chat/completions"] = (200, THOUGHT, SSE)
        assert (await door.native.chat(**asked)).message.content == "yes"


async def test_a_web_page_or_a_refused_key_is_no_mistake_of_the_caller():
    asked: Any = {"model": "some/model", "messages": HELLO}
    for answer in ((200, b"<html>", "text/html"), said(401, error="Unauthorized")):
        async with scripted(answer) as (door, _):
            with pytest.raises(openai.InternalServerError, match=r"engines\.main\."):
                await door.gpt.chat.completions.create(**asked)
            with pytest.raises(anthropic.InternalServerError, match=r"engines\.main\."):
                await door.claude.messages.create(**asked, max_tokens=9)
            with pytest.raises(ollama.ResponseError, match=r"engines\.main\."):
                await door.native.chat(**asked)


async def test_a_name_with_ollamas_tag_and_in_other_letters_is_the_same_model():
    async with scripted((200, THOUGHT, SSE)) as (door, script):
        for name in ("some/model:latest", "SOME/Model", "some/model"):
            assert (await door.native.chat(model=name, messages=HELLO)).message.content == "yes"
        sent_to = script.sent_to("/v1/chat/completions")
        assert {peer.json["model"] for peer in sent_to} == {"some/model"}


async def test_hearth_is_no_server_of_its_own():
    async with scripted((200, THOUGHT, SSE)) as (door, _):
        url = str(door.gpt.base_url).removesuffix("/v1/")
        for kind in ("openai", "vllm", "lmstudio"):
            title = ENGINE_TITLES[kind]
            problem = await asyncio.to_thread(hearth_problem, url, "engines.big.url", title)
            assert problem is not None
            assert problem.startswith(f"engines.big.url: Hearth answers at {url}, not {title}; set")


Say = Callable[[Door, int], Awaitable[AsyncIterator[str]]]


async def say_in_messages(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.claude.messages.create(
        model=MODEL, messages=HELLO, max_tokens=tokens, stream=True, extra_body=COLD
    )

    async def texts() -> AsyncIterator[str]:
        async for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "text_delta":
                yield event.delta.text

    return texts()


async def say_in_responses(door: Door, tokens: int) -> AsyncIterator[str]:
    stream = await door.gpt.responses.create(
        model=MODEL, input="hello house", max_output_tokens=tokens, stream=True, temperature=0
    )
    numbers: list[int] = []

    async def texts() -> AsyncIterator[str]:
        async for event in stream:
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                yield event.delta
        assert numbers == [*range(len(numbers))]

    return texts()


async def say_in_chat(door: Door, tokens: int) -> AsyncIterator[str]:
    options = {"num_predict": tokens}
    stream = await door.native.chat(model=MODEL, messages=HELLO, options=options, stream=True)

    async def texts() -> AsyncIterator[str]:
        async for part in stream:
            yield part.message.content or ""

    return texts()


@pytest.mark.parametrize("say", [say_in_messages, say_in_responses, say_in_chat])
async def test_an_interrupted_translated_stream_is_replayed(door: Door, say: Say):
    for _ in range(MOST_TRIES):
        text = await interrupted(door, say)
        if door.events.of(ItemInterrupted):
            break
    assert {event.how for event in door.events.of(ItemResumed)} == {"replayed"}
    if say is not say_in_chat:  # its seed is another one each time
        assert text == "".join([piece async for piece in await say(door, TOKENS)])
