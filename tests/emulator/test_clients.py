"""The official Python clients understand the emulated server: whole and streamed, tools, formats, embeddings, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from math import isclose
from typing import Any

import anthropic
import ollama
import openai
import pytest

from hearth.emulator.models import default_profiles
from tests.emulator.conftest import StartEmulator

CODER = "qwen2.5-coder:14b"
SAY_HELLO = [{"role": "user", "content": "say hello"}]
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris now?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "weather", "parameters": PARAMETERS}}
BOOK = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "year": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}}},
    "required": ["title", "year", "tags"],
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


async def test_ollama_says_the_same_whole_and_streamed_and_ends_by_itself_after_some_sentences(native):
    options = {"seed": 7, "num_predict": 30}
    whole = await native.chat(model=CODER, messages=SAY_HELLO, options=options)
    parts = [part async for part in await native.chat(model=CODER, messages=SAY_HELLO, options=options, stream=True)]
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert (parts[-1].done, parts[-1].eval_count) == (True, whole.eval_count)
    answer = await native.generate(model=CODER, prompt="tell me")
    assert (answer.done_reason, 40 <= answer.eval_count <= 203) == ("stop", True)
    assert answer.total_duration >= answer.eval_duration > 0


async def test_answers_have_the_schema_asked_for(native, gpt):
    wanted = {"type": "json_schema", "json_schema": {"name": "book", "schema": BOOK}}
    choice = (await gpt.chat.completions.create(model=CODER, messages=SAY_HELLO, response_format=wanted)).choices[0]
    for text in ((await native.chat(model=CODER, messages=SAY_HELLO, format=BOOK)).message.content, choice.message.content):
        book = json.loads(text)
        assert (set(book), type(book["year"]), set(book["tags"]) <= {"a", "b"}) == ({"title", "year", "tags"}, int, True)


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


async def test_embeddings_are_unit_vectors_and_equal_alone_and_in_a_batch(native, gpt):
    batch = await native.embed(model="nomic-embed-text", input=["one", "two"])
    alone = await native.embed(model="nomic-embed-text", input="two")
    assert batch.embeddings[1] == alone.embeddings[0] != batch.embeddings[0]
    assert len(alone.embeddings[0]) == 768
    assert isclose(sum(value * value for value in alone.embeddings[0]), 1.0, rel_tol=1e-5)
    vectors = await gpt.embeddings.create(model="nomic-embed-text", input=["one", "two"], dimensions=8)
    assert [len(one.embedding) for one in vectors.data] == [8, 8]


async def test_openai_says_the_same_whole_and_streamed(gpt):
    asked: dict[str, Any] = {"model": CODER, "messages": SAY_HELLO, "seed": 7, "max_tokens": 20}
    whole = await gpt.chat.completions.create(**asked)
    parts = [part async for part in await gpt.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    said = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert (said, whole.choices[0].finish_reason) == (whole.choices[0].message.content, "length")
    assert parts[-1].usage.completion_tokens == 20
    text = await gpt.completions.create(model=CODER, prompt="hello", max_tokens=4)
    assert text.usage.completion_tokens == 4
    assert CODER in [one.id async for one in gpt.models.list()]
    assert (await gpt.models.retrieve(CODER)).id == CODER


async def test_anthropic_says_the_same_whole_and_streamed(claude):
    asked: dict[str, Any] = {"model": CODER, "messages": SAY_HELLO, "max_tokens": 12}
    whole = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        said = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
    assert (whole.stop_reason, whole.usage.output_tokens, final.usage.output_tokens) == ("max_tokens", 12, 12)
    assert said == final.content[0].text


async def test_a_thinking_model_thinks_first_in_every_dialect(native, claude):
    parts = [part.message async for part in await native.chat(model="thinker", messages=SAY_HELLO, stream=True)]
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    message = await claude.messages.create(model="thinker", max_tokens=100, messages=SAY_HELLO, thinking=thinking)
    quiet = await native.chat(model="thinker", messages=SAY_HELLO, think=False)
    assert parts[0].thinking
    assert parts[-2].content
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert not quiet.message.thinking


async def test_every_error_has_the_class_of_its_client(native, gpt, claude):
    with pytest.raises(ollama.ResponseError, match="not found"):
        await native.chat(model="nope", messages=SAY_HELLO)
    with pytest.raises(openai.NotFoundError, match="not found"):
        await gpt.chat.completions.create(model="nope", messages=SAY_HELLO)
    with pytest.raises(anthropic.NotFoundError, match="not found"):
        await claude.messages.create(model="nope", messages=SAY_HELLO, max_tokens=3)


async def test_ollama_calls_the_tool_that_the_question_asks_for_whole_and_in_one_chunk(native):
    whole = await native.chat(model=CODER, messages=ASK_WEATHER, tools=[WEATHER])
    parts = [part async for part in await native.chat(model=CODER, messages=ASK_WEATHER, tools=[WEATHER], stream=True)]
    for message in (whole.message, parts[0].message):
        call = message.tool_calls[0].function
        assert (call.name, call.arguments["city"], type(call.arguments["days"])) == ("get_weather", "Paris", int)
    assert [bool(part.message.tool_calls) for part in parts] == [True, False]
    assert parts[-1].done_reason == "stop"


async def test_openai_tool_calls_carry_their_arguments_as_text_and_a_result_is_answered_with_text(gpt):
    asked: dict[str, Any] = {"model": CODER, "messages": ASK_WEATHER, "tools": [WEATHER]}
    choice = (await gpt.chat.completions.create(**asked)).choices[0]
    parts = [part async for part in await gpt.chat.completions.create(**asked, stream=True)]
    assert choice.finish_reason == parts[-1].choices[0].finish_reason == "tool_calls"
    for call in (choice.message.tool_calls[0], parts[0].choices[0].delta.tool_calls[0]):
        arguments = json.loads(call.function.arguments)
        assert (call.function.name, arguments["city"], 1 <= arguments["days"] <= 9) == ("get_weather", "Paris", True)
    result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "sunny"}
    answered = await gpt.chat.completions.create(**asked | {"messages": [*ASK_WEATHER, choice.message.model_dump(), result]})
    assert answered.choices[0].message.content


async def test_anthropic_tool_use_whole_and_streamed(claude):
    tools = [{"name": "get_weather", "description": "weather", "input_schema": PARAMETERS}]
    asked: dict[str, Any] = {"model": CODER, "messages": ASK_WEATHER, "max_tokens": 100, "tools": tools}
    whole = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        final = await stream.get_final_message()
    assert whole.stop_reason == final.stop_reason == "tool_use"
    assert whole.content[0].input["city"] == final.content[0].input["city"] == "Paris"


async def test_openai_responses_whole_streamed_and_with_a_tool(gpt):
    tool = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
    whole = await gpt.responses.create(model=CODER, input="hello", max_output_tokens=5)
    events = [event async for event in await gpt.responses.create(model=CODER, input="hello", stream=True)]
    called = await gpt.responses.create(model=CODER, input=ASK_WEATHER[0]["content"], tools=[tool])
    calls = [event async for event in await gpt.responses.create(model=CODER, input="weather in Rome", tools=[tool], stream=True)]
    assert whole.output_text
    assert events[-1].response.output_text == "".join(one.delta for one in events if one.type == "response.output_text.delta")
    assert called.output[0].name == calls[-1].response.output[0].name == "get_weather"
    assert [one.sequence_number for one in calls] == list(range(len(calls)))
    assert [one.type for one in calls][-2:] == ["response.output_item.done", "response.completed"]
    assert "response.function_call_arguments.done" in [one.type for one in calls]
