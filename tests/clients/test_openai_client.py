"""OpenAI's own Python client in front of the gateway: chat, completions, embeddings, models, responses, and its typed errors."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.clients.home import (
    CODER,
    EMBEDDER,
    HELLO,
    LLAMA,
    LONG_TOKENS,
    SLOW,
    WEATHER,
    WEATHER_PARAMETERS,
    WEATHER_QUESTION,
    StartHome,
    exhaust,
    house_settings,
    impatient_settings,
)


async def test_a_chat_is_answered_whole_and_streamed_alike(gpt):
    asked: dict[str, Any] = {"model": LLAMA, "messages": HELLO, "seed": 7, "max_tokens": 20}
    whole = await gpt.chat.completions.create(**asked)
    parts = [part async for part in await gpt.chat.completions.create(**asked, stream=True)]

    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 20


async def test_a_tool_is_called_whole_and_streamed(gpt):
    asked: dict[str, Any] = {"model": CODER, "messages": WEATHER_QUESTION, "tools": [WEATHER]}
    whole = await gpt.chat.completions.create(**asked)
    parts = [part async for part in await gpt.chat.completions.create(**asked, stream=True)]

    assert whole.choices[0].finish_reason == parts[-1].choices[0].finish_reason == "tool_calls"
    for call in (whole.choices[0].message.tool_calls[0], parts[0].choices[0].delta.tool_calls[0]):
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})


async def test_a_completion_is_answered_whole_and_streamed_alike(gpt):
    asked: dict[str, Any] = {"model": LLAMA, "prompt": "once", "seed": 7, "max_tokens": 6}
    whole = await gpt.completions.create(**asked)
    parts = [part async for part in await gpt.completions.create(**asked, stream=True)]

    assert whole.usage.completion_tokens == 6
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text


async def test_embeddings_are_the_same_numbers_as_floats_and_as_base64(gpt):
    floats = await gpt.embeddings.create(model=EMBEDDER, input=["one", "two"], encoding_format="float")
    packed = await gpt.embeddings.create(model=EMBEDDER, input=["one", "two"])

    assert [len(one.embedding) for one in floats.data] == [768, 768]
    for left, right in zip(floats.data, packed.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding, rel=1e-6)


async def test_models_are_listed_and_retrieved(gpt):
    listed = {model.id async for model in gpt.models.list()}

    assert {LLAMA, CODER, f"{EMBEDDER}:latest"} <= listed
    assert (await gpt.models.retrieve(LLAMA)).owned_by == "library"
    with pytest.raises(openai.NotFoundError, match="not found"):
        await gpt.models.retrieve("nope")


async def test_a_response_is_given_whole_and_as_events_in_order(gpt):
    whole = await gpt.responses.create(model=LLAMA, input="hello", max_output_tokens=5)
    events = [event async for event in await gpt.responses.create(model=LLAMA, input="hello", max_output_tokens=5, stream=True)]

    assert whole.usage.output_tokens == 5
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == events[-1].response.output_text != ""


async def test_a_response_can_call_a_tool(gpt):
    tool: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER_PARAMETERS}
    called = await gpt.responses.create(model=CODER, input="the weather in Rome", tools=[tool])

    assert (called.output[0].name, json.loads(called.output[0].arguments)) == ("get_weather", {"city": "Rome"})


async def test_a_response_that_waits_has_begun_and_goes_on_as_the_same(start_home: StartHome):
    home = await start_home(impatient_settings())
    tool: Any = {"type": "function", "name": "get_weather", "parameters": WEATHER_PARAMETERS}
    async with home.gpt() as gpt:
        other = await gpt.chat.completions.create(model=SLOW, messages=HELLO, max_tokens=LONG_TOKENS, stream=True)
        await home.running(SLOW)
        waited, numbers = 0, []
        async with gpt.responses.stream(model=CODER, input="the weather in Rome", tools=[tool]) as stream:
            async for event in stream:
                numbers.append(event.sequence_number)
                waited += event.type == "response.in_progress"
                if waited == 3:
                    await other.close()
            final = await stream.get_final_response()
    assert waited >= 3
    assert numbers == list(range(len(numbers)))
    (called,) = final.output
    assert called.type == "function_call"
    assert (called.name, json.loads(called.arguments)) == ("get_weather", {"city": "Rome"})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_a_not_found_error_on_every_route(gpt, stream):
    for ask in (
        gpt.chat.completions.create(model="nope", messages=HELLO, stream=stream),
        gpt.completions.create(model="nope", prompt="x", stream=stream),
        gpt.responses.create(model="nope", input="x", stream=stream),
        gpt.embeddings.create(model="nope", input="x"),
    ):
        with pytest.raises(openai.NotFoundError, match="not found") as caught:
            await exhaust(await ask)
        assert caught.value.type == "not_found_error"


async def test_a_caller_over_its_rate_gets_a_rate_limit_error_that_says_when_to_come_back(start_home: StartHome):
    home = await start_home(house_settings(per_minute=1))
    async with home.gpt() as gpt:
        await gpt.chat.completions.create(model=LLAMA, messages=HELLO, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as caught:
            await gpt.chat.completions.create(model=LLAMA, messages=HELLO, max_tokens=1)

    assert 50 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert caught.value.code == "rate_limit_exceeded"
