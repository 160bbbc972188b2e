"""The official clients in front of the gateway: what each is built to expect of its own server, and
what Hearth adds to that.

What an answer looks like in detail is held to recordings (`tests/gateway`, `tests/dialects`).
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import anthropic
import ollama
import openai
import pytest

from hearth.config.settings import CallerLimits, RateLimitSettings
from hearth.events import ItemEnded, ItemQueued, SwapCompleted
from hearth.types import Lane
from tests.support.fields import Fields
from tests.support.home import (
    BOOK_SCHEMA,
    CODER,
    EMBEDDER,
    FRIEND_KEY,
    GUEST_KEY,
    HELLO,
    HOUSE_KEY,
    KEYS,
    LLAMA,
    NARROW,
    SLOW,
    WEATHER,
    WEATHER_PARAMETERS,
    WEATHER_QUESTION,
    Home,
    StartHome,
    exhaust,
    house_settings,
)

CLAUDE_TOOL: Any = {
    "name": "get_weather",
    "description": "weather",
    "input_schema": WEATHER_PARAMETERS,
}
PARIS = {"city": "Paris"}
ONE = {"num_predict": 1}
ONCE_AN_HOUR = RateLimitSettings(default=CallerLimits(requests_per_minute=100, requests_per_hour=1))


async def test_ollamas_client_is_answered_whole_and_streamed_alike(clients):
    native, _, _ = clients
    options = {"seed": 7, "num_predict": 25}
    whole = await native.chat(model=LLAMA, messages=HELLO, options=options)
    parts = [
        part
        async for part in await native.chat(
            model=LLAMA, messages=HELLO, options=options, stream=True
        )
    ]
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * 25 + [True]
    assert (whole.model, parts[-1].eval_count, whole.eval_count) == (LLAMA, 25, 25)
    calling = await native.chat(
        model=CODER, messages=WEATHER_QUESTION, tools=[WEATHER], stream=True
    )
    assert [
        [one.function.arguments for one in part.message.tool_calls or ()] async for part in calling
    ] == [[PARIS], []]
    book = await native.chat(model=LLAMA, messages=HELLO, format=BOOK_SCHEMA)
    assert set(json.loads(book.message.content)) == {"title", "year"}
    assert (await native.show(LLAMA)).capabilities == ["completion", "tools"]


async def test_openais_client_is_answered_whole_and_streamed_alike(clients):
    _, gpt, _ = clients
    asked: Fields = {"model": LLAMA, "messages": HELLO, "seed": 7, "max_tokens": 20}
    whole = await gpt.chat.completions.create(**asked)
    parts = [part async for part in await gpt.chat.completions.create(**asked, stream=True)]
    assert (
        "".join(part.choices[0].delta.content or "" for part in parts)
        == whole.choices[0].message.content
    )
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    calling = await gpt.chat.completions.create(
        model=CODER, messages=WEATHER_QUESTION, tools=[WEATHER], stream=True
    )
    called = [part async for part in calling]
    assert json.loads(called[0].choices[0].delta.tool_calls[0].function.arguments) == PARIS
    text: Fields = {"model": LLAMA, "prompt": "once", "seed": 7, "max_tokens": 6}
    streamed = [
        part.choices[0].text async for part in await gpt.completions.create(**text, stream=True)
    ]
    assert "".join(streamed) == (await gpt.completions.create(**text)).choices[0].text
    events = [
        event
        async for event in await gpt.responses.create(
            model=LLAMA, input="hello", max_output_tokens=5, stream=True
        )
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == events[-1].response.output_text != ""


async def test_the_tokens_of_a_stream_are_known_though_the_client_asks_for_none(home, clients):
    _, gpt, _ = clients
    asked: Fields = {"model": LLAMA, "seed": 7, "max_tokens": 20, "stream": True}
    for ask, more in (
        (gpt.chat.completions.create, {"messages": HELLO}),
        (gpt.completions.create, {"prompt": "once"}),
    ):
        counted = [
            part
            async for part in await ask(**asked, **more, stream_options={"include_usage": True})
        ]
        silent = [part async for part in await ask(**asked, **more)]
        assert [bool(part.choices) for part in silent] == [True] * (len(counted) - 1)
        assert [part.usage for part in silent] == [None] * len(silent)
        usage = counted[-1].usage
        for ended in home.events.of(ItemEnded)[-2:]:
            assert (ended.prompt_tokens, ended.output_tokens) == (
                usage.prompt_tokens,
                usage.completion_tokens,
            )


async def test_anthropics_client_is_answered_whole_and_streamed_alike(home, clients):
    _, _, claude = clients
    whole = await claude.messages.create(
        model=LLAMA, messages=HELLO, max_tokens=12, system="be brief"
    )
    assert (whole.stop_reason, whole.usage.output_tokens, bool(whole.content[0].text)) == (
        "max_tokens",
        12,
        True,
    )
    async with claude.messages.stream(
        model=CODER, messages=WEATHER_QUESTION, max_tokens=100, tools=[CLAUDE_TOOL]
    ) as stream:
        final = await stream.get_final_message()
    assert (final.stop_reason, final.content[0].input) == ("tool_use", PARIS)
    loaded = home.emulator.loads
    assert 0 < (await claude.messages.count_tokens(model=SLOW, messages=HELLO)).input_tokens < 20
    assert home.emulator.loads == loaded


async def test_models_are_listed_and_texts_embedded(clients):
    native, gpt, _ = clients
    batch = await native.embed(model=EMBEDDER, input=["one", "two"])
    assert (
        batch.embeddings[1]
        == (await native.embed(model=EMBEDDER, input="two")).embeddings[0]
        != batch.embeddings[0]
    )
    installed = {LLAMA, CODER, f"{EMBEDDER}:latest"}
    assert installed <= {model.model for model in (await native.list()).models} & {
        model.id async for model in gpt.models.list()
    }
    assert [model.model for model in (await native.ps()).models] == [f"{EMBEDDER}:latest"]
    assert (await gpt.models.retrieve(LLAMA)).owned_by == "library"
    floats = await gpt.embeddings.create(
        model=EMBEDDER, input=["one", "two"], encoding_format="float"
    )
    packed = await gpt.embeddings.create(model=EMBEDDER, input=["one", "two"])
    for left, right in zip(floats.data, packed.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding, rel=1e-6)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_each_clients_own_not_found_error_on_every_route(clients, stream):
    native, gpt, claude = clients
    for asking, text in (
        (native.chat(model="nope", messages=HELLO, stream=stream), "model 'nope' not found"),
        (native.generate(model="nope", prompt="x", stream=stream), "model 'nope' not found"),
        (native.embed(model="nope", input="x"), 'model "nope" not found, try pulling it first'),
        (
            native.embeddings(model="nope", prompt="x"),
            'model "nope" not found, try pulling it first',
        ),
    ):
        with pytest.raises(ollama.ResponseError) as by_native:
            await exhaust(await asking)
        assert (by_native.value.status_code, by_native.value.error) == (404, text)
    for asking, error in (
        (
            gpt.chat.completions.create(model="nope", messages=HELLO, stream=stream),
            openai.NotFoundError,
        ),
        (gpt.completions.create(model="nope", prompt="x", stream=stream), openai.NotFoundError),
        (gpt.responses.create(model="nope", input="x", stream=stream), openai.NotFoundError),
        (gpt.embeddings.create(model="nope", input="x"), openai.NotFoundError),
        (gpt.models.retrieve("nope"), openai.NotFoundError),
        (
            claude.messages.create(model="nope", messages=HELLO, max_tokens=3, stream=stream),
            anthropic.NotFoundError,
        ),
    ):
        with pytest.raises(error, match="not found"):
            await exhaust(await asking)


async def test_a_caller_over_its_rate_gets_its_clients_own_error_with_a_delay(
    start_home: StartHome,
):
    home = await start_home(house_settings().replace(rate_limits=ONCE_AN_HOUR))
    async with home.gpt() as gpt, home.claude() as claude:
        await gpt.chat.completions.create(model=LLAMA, messages=HELLO, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as by_gpt:
            await gpt.responses.create(model=LLAMA, input="the same limit on every route")
        with pytest.raises(anthropic.RateLimitError) as by_claude:
            await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1)
    assert by_gpt.value.code == "rate_limit_exceeded"
    for error in (by_gpt.value, by_claude.value):
        assert 60 < int(error.response.headers["retry-after"]) <= 3600


async def test_all_three_clients_share_one_queue_and_card_under_any_spelling(start_home: StartHome):
    home = await start_home(house_settings(gpu=NARROW))
    spellings = (LLAMA, "LLAMA3.1:8B", "registry.ollama.ai/library/llama3.1:8b")
    home.gateway.orders.pause()
    async with home.native() as native, home.gpt() as gpt, home.claude() as claude:
        asked = asyncio.gather(
            *(native.chat(model=model, messages=HELLO, options=ONE) for model in spellings),
            gpt.chat.completions.create(model=CODER, messages=HELLO, max_tokens=2),
            claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=2),
            gpt.responses.create(model=CODER, input="hi", max_output_tokens=2),
        )
        await home.until(lambda status: status["external_queue"]["pending"] == 6)
        home.gateway.orders.resume()
        whole = await asked
    assert [answer.model for answer in whole] == [*spellings, CODER, LLAMA, CODER]
    assert (home.emulator.max_concurrent, len(home.events.of(SwapCompleted))) == (1, 2)
    assert [name for name, _ in home.emulator.loads] == [LLAMA, CODER]


# The clients with API keys: which header each of them sends, what its key may do, and its own error
# where it may not.


async def one_each(
    home: Home, keys: tuple[str, str, str], model: str = LLAMA, *, stream: bool = False
) -> Any:
    """What the three clients get, under these keys."""
    async with (
        home.native(keys[0]) as native,
        home.gpt(keys[1]) as gpt,
        home.claude(keys[2]) as claude,
    ):
        native_chat: Any = native.chat(model=model, messages=HELLO, options=ONE, stream=stream)
        return await asyncio.gather(
            exhaust(await native_chat) if stream else native_chat,
            gpt.chat.completions.create(model=model, messages=HELLO, max_tokens=1, stream=stream),
            claude.messages.create(model=model, messages=HELLO, max_tokens=1, stream=stream),
            return_exceptions=True,
        )


async def test_each_client_is_served_under_the_name_of_its_key_also_as_a_bearer_token(
    start_home: StartHome,
):
    home = await start_home(house_settings(keys=KEYS))
    await one_each(home, (FRIEND_KEY, GUEST_KEY, HOUSE_KEY))
    served = {(event.caller, event.lane) for event in home.events.of(ItemQueued)}
    assert served == {("friend", Lane.EXTERNAL), ("guest", Lane.EXTERNAL), ("house", Lane.INTERNAL)}
    async with anthropic.AsyncAnthropic(
        base_url=home.url, auth_token=FRIEND_KEY, api_key=None, max_retries=0
    ) as claude:
        assert (
            await claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1)
        ).usage.output_tokens == 1


async def test_a_wrong_key_or_a_forbidden_model_is_each_clients_own_error(start_home: StartHome):
    home = await start_home(house_settings(keys=KEYS))
    for stream in (False, True):
        by_native, by_gpt, by_claude = await one_each(
            home, ("wrong", "wrong", "wrong"), stream=stream
        )
        assert (type(by_native), by_native.status_code, "API key" in by_native.error) == (
            ollama.ResponseError,
            401,
            True,
        )
        assert (type(by_gpt), by_gpt.code) == (openai.AuthenticationError, "invalid_api_key")
        assert type(by_claude) is anthropic.AuthenticationError
    refused = await one_each(home, (GUEST_KEY, GUEST_KEY, GUEST_KEY), CODER)
    assert [type(one) for one in refused] == [
        ollama.ResponseError,
        openai.PermissionDeniedError,
        anthropic.PermissionDeniedError,
    ]
    assert (refused[0].status_code, all(CODER in str(one) for one in refused)) == (403, True)
    assert [request for request in home.emulator.requests if request.method != "GET"] == []
