"""Anthropic's own Python client in front of the gateway: messages whole and streamed, tools, token counts, and its typed errors."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

from hearth.events import SwapCompleted
from tests.clients.home import (
    CODER,
    HELLO,
    LLAMA,
    LONG_TOKENS,
    NARROW,
    SLOW,
    WEATHER_PARAMETERS,
    WEATHER_QUESTION,
    StartHome,
    exhaust,
    house_settings,
    impatient_settings,
)

TOOL: Any = {"name": "get_weather", "description": "weather", "input_schema": WEATHER_PARAMETERS}


def error_type(error: anthropic.APIStatusError) -> str:
    body: Any = error.body
    kind: str = body["error"]["type"]
    return kind


async def test_a_message_is_answered_whole(claude):
    message = await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=12, system="be brief")

    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)
    assert message.content[0].text
    assert message.usage.input_tokens > 0


async def test_a_streamed_message_comes_as_events_in_order_with_its_usage(claude):
    asked: dict[str, Any] = {"model": LLAMA, "messages": HELLO, "max_tokens": 3}
    types = [event.type async for event in await claude.messages.create(**asked, stream=True)]
    async with claude.messages.stream(**asked) as stream:
        said = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()

    frame = ["message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop", "message_delta", "message_stop"]
    assert types == frame
    assert final.content[0].text == said != ""
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 3)


async def test_a_tool_is_used_whole_and_streamed(claude):
    asked: dict[str, Any] = {"model": CODER, "messages": WEATHER_QUESTION, "max_tokens": 100, "tools": [TOOL]}
    whole = await claude.messages.create(**asked)
    async with claude.messages.stream(**asked) as stream:
        final = await stream.get_final_message()

    assert whole.stop_reason == final.stop_reason == "tool_use"
    assert whole.content[0].input == final.content[0].input == {"city": "Paris"}


async def test_tokens_are_counted_without_asking_a_model(home, claude):
    short = await claude.messages.count_tokens(model=LLAMA, messages=HELLO)
    long = await claude.messages.count_tokens(model=LLAMA, messages=[{"role": "user", "content": "a sentence of words. " * 200}])

    assert 0 < short.input_tokens < 20
    assert 600 < long.input_tokens < 2400
    assert home.emulator.loads == ()


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_a_not_found_error(claude, stream):
    with pytest.raises(anthropic.NotFoundError, match="not found") as caught:
        await exhaust(await claude.messages.create(model="nope", messages=HELLO, max_tokens=3, stream=stream))

    assert error_type(caught.value) == "not_found_error"


async def test_a_caller_over_its_rate_gets_a_rate_limit_error_that_says_when_to_come_back(start_home: StartHome):
    home = await start_home(house_settings(per_minute=1))
    async with home.claude() as claude:
        await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1)
        with pytest.raises(anthropic.RateLimitError) as caught:
            await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1)

    assert 50 <= int(caught.value.response.headers["retry-after"]) <= 60
    assert error_type(caught.value) == "rate_limit_error"


async def test_all_three_clients_share_one_queue_and_one_card(start_home: StartHome):
    home = await start_home(house_settings(gpu=NARROW))
    async with home.native() as native, home.gpt() as gpt, home.claude() as claude:
        whole = await asyncio.gather(
            native.chat(model=LLAMA, messages=HELLO, options={"num_predict": 2}),
            gpt.chat.completions.create(model=CODER, messages=HELLO, max_tokens=2),
            claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=2),
            gpt.responses.create(model=CODER, input="hi", max_output_tokens=2),
            native.generate(model=LLAMA, prompt="hi", options={"num_predict": 2}),
        )

    assert [answer.model for answer in whole] == [LLAMA, CODER, LLAMA, CODER, LLAMA]
    assert home.emulator.max_concurrent == 1
    assert len(home.events.of(SwapCompleted)) == 2


async def test_claude_code_is_sent_events_while_it_waits_of_which_nothing_stays_in_the_message(start_home: StartHome):
    home = await start_home(impatient_settings())
    asked: dict[str, Any] = {"model": CODER, "messages": WEATHER_QUESTION, "max_tokens": 100, "tools": [TOOL]}
    async with home.claude() as claude:
        other = await claude.messages.create(model=SLOW, messages=HELLO, max_tokens=LONG_TOKENS, stream=True)
        await home.running(SLOW)
        kinds = []
        async with claude.messages.stream(**asked, extra_headers={"User-Agent": "claude-cli/2.1.200 (external, cli)"}) as stream:
            async for event in stream:
                kinds.append(event.type)
                if len(kinds) == 4:
                    await other.close()
            final = await stream.get_final_message()
    assert kinds[:4] == ["message_start", *["message_delta"] * 3]
    assert kinds.count("message_start") == 1
    assert [block.type for block in final.content] == ["tool_use"]
    assert (final.stop_reason, final.usage.input_tokens > 0) == ("tool_use", True)
