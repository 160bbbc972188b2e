"""The model server fails while the official clients wait or listen: each of them gets an error it can recognise, never a short answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import ollama
import openai
import pytest

from hearth.config.settings import QueueSettings
from hearth.errors import ShuttingDown
from tests.clients.home import HELLO, LLAMA, LONG, LONG_TOKENS, SLOW, Home, StartHome, house_settings
from tests.support.patience import WITHIN_S

Streaming = Callable[[Home, str, int], AsyncIterator[Any]]
Whole = Callable[[Home, str, int], Awaitable[Any]]


async def native_chat(home: Home, model: str, tokens: int) -> AsyncIterator[Any]:
    async with home.native() as client:
        async for part in await client.chat(model=model, messages=HELLO, options={"num_predict": tokens}, stream=True):
            yield part


async def native_generate(home: Home, model: str, tokens: int) -> AsyncIterator[Any]:
    async with home.native() as client:
        async for part in await client.generate(model=model, prompt="x", options={"num_predict": tokens}, stream=True):
            yield part


async def openai_chat(home: Home, model: str, tokens: int) -> AsyncIterator[Any]:
    async with home.gpt() as client:
        async for part in await client.chat.completions.create(model=model, messages=HELLO, max_tokens=tokens, stream=True):
            yield part


async def openai_completion(home: Home, model: str, tokens: int) -> AsyncIterator[Any]:
    async with home.gpt() as client:
        async for part in await client.completions.create(model=model, prompt="x", max_tokens=tokens, stream=True):
            yield part


async def openai_response(home: Home, model: str, tokens: int) -> AsyncIterator[Any]:
    async with home.gpt() as client:
        async for event in await client.responses.create(model=model, input="x", max_output_tokens=tokens, stream=True):
            yield event


async def anthropic_message(home: Home, model: str, tokens: int) -> AsyncIterator[Any]:
    async with home.claude() as client:
        async for event in await client.messages.create(model=model, messages=HELLO, max_tokens=tokens, stream=True):
            yield event


async def anthropic_stream(home: Home, model: str, tokens: int) -> AsyncIterator[Any]:
    async with home.claude() as client, client.messages.stream(model=model, messages=HELLO, max_tokens=tokens) as stream:
        async for text in stream.text_stream:
            yield text


STREAMS = {
    native_chat: ollama.ResponseError,
    native_generate: ollama.ResponseError,
    openai_chat: openai.APIError,
    openai_completion: openai.APIError,
    openai_response: openai.APIError,
    anthropic_message: anthropic.APIStatusError,
    anthropic_stream: anthropic.APIStatusError,
}


async def stop_server(home: Home) -> None:
    await home.emulator.stop()


async def crash_runner(home: Home) -> None:
    home.emulator.kill_runner(SLOW)


@pytest.mark.parametrize("break_off", [stop_server, crash_runner])
@pytest.mark.parametrize(("ask", "error"), STREAMS.items())
async def test_a_stream_that_breaks_off_ends_with_the_clients_own_error(home, ask: Streaming, error, break_off):
    stream = ask(home, SLOW, LONG_TOKENS)
    await anext(stream)
    await break_off(home)

    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(error):
            async for _ in stream:
                pass


async def whole_native(home: Home, model: str, tokens: int) -> Any:
    async with home.native() as client:
        return await client.chat(model=model, messages=HELLO, options={"num_predict": tokens})


async def whole_openai(home: Home, model: str, tokens: int) -> Any:
    async with home.gpt() as client:
        return await client.chat.completions.create(model=model, messages=HELLO, max_tokens=tokens)


async def whole_anthropic(home: Home, model: str, tokens: int) -> Any:
    async with home.claude() as client:
        return await client.messages.create(model=model, messages=HELLO, max_tokens=tokens)


WHOLE = {
    whole_native: ollama.ResponseError,
    whole_openai: openai.InternalServerError,
    whole_anthropic: anthropic.InternalServerError,
}


def status_of(error: Exception) -> int:
    status: int = getattr(error, "status_code", 0)
    return status


def retry_after(error: Exception) -> str:
    """The header that the two SDKs wait by; the Ollama client does not show it."""
    assert isinstance(error, openai.APIStatusError | anthropic.APIStatusError)
    return error.response.headers["retry-after"]


@pytest.mark.parametrize(("ask", "error"), WHOLE.items())
async def test_a_model_server_that_goes_away_in_mid_answer_is_a_503(home, ask: Whole, error):
    asking = asyncio.ensure_future(ask(home, SLOW, LONG_TOKENS))
    await home.running(SLOW)
    await home.emulator.stop()

    with pytest.raises(error) as caught:
        await asyncio.wait_for(asking, WITHIN_S)
    assert status_of(caught.value) == 503


@pytest.mark.parametrize(("ask", "error"), WHOLE.items())
async def test_a_model_server_that_is_down_is_a_typed_503(home, ask: Whole, error):
    await home.emulator.stop()

    with pytest.raises(error) as caught:
        await asyncio.wait_for(ask(home, LLAMA, 1), WITHIN_S)
    assert status_of(caught.value) == 503


async def test_a_model_server_that_is_down_says_when_to_come_back(home):
    await home.emulator.stop()

    async with home.gpt() as gpt, home.claude() as claude:
        for asking in (
            gpt.chat.completions.create(model=LLAMA, messages=HELLO),
            claude.messages.create(model=LLAMA, messages=HELLO, max_tokens=1),
            gpt.models.retrieve(LLAMA),
        ):
            with pytest.raises((openai.InternalServerError, anthropic.InternalServerError)) as caught:
                await asking
            assert retry_after(caught.value) == "5"


async def test_the_lists_of_a_model_server_that_is_down_are_an_error_and_not_empty(home, native):
    await home.emulator.stop()

    for ask in (native.list, native.ps):
        with pytest.raises(ollama.ResponseError, match="cannot be reached") as caught:
            await ask()
        assert caught.value.status_code == 503


@pytest.mark.parametrize(("ask", "error"), STREAMS.items())
async def test_a_gateway_that_is_told_to_stop_says_so_in_the_stream(home, ask: Streaming, error):
    stream = ask(home, SLOW, LONG_TOKENS)
    await anext(stream)
    await home.gateway.stop()

    with pytest.raises(error, match="shutting down"):
        async for _ in stream:
            pass


@pytest.mark.parametrize(("ask", "error"), WHOLE.items())
async def test_a_gateway_that_is_told_to_stop_refuses_those_who_wait_with_a_503(home, ask: Whole, error):
    running = asyncio.ensure_future(await home.gateway.worker.enqueue_internal(prompt="x", model=SLOW, max_tokens=LONG_TOKENS))
    await home.running(SLOW)
    waiting = asyncio.ensure_future(ask(home, SLOW, 1))
    await home.until(lambda status: status["external_queue"]["pending"] == 1)
    await home.gateway.stop()

    with pytest.raises(error, match="shutting down") as caught:
        await waiting
    assert status_of(caught.value) == 503
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], ShuttingDown)


async def test_requests_wait_for_a_model_server_that_is_away_for_a_moment(start_home: StartHome):
    home = await start_home(house_settings(wait_when_down_s=5))
    await home.emulator.stop()
    asking = [asyncio.ensure_future(ask(home, LLAMA, 2)) for ask in WHOLE]
    await home.until(lambda status: status["external_queue"]["pending"] == 3 and not status["backend"]["up"])
    await home.revive()

    native, gpt, claude = await asyncio.wait_for(asyncio.gather(*asking), WITHIN_S)
    assert (native.eval_count, gpt.usage.completion_tokens, claude.usage.output_tokens) == (2, 2, 2)


async def test_a_runner_that_crashed_while_idle_is_started_again_unnoticed(home, native):
    await native.chat(model=LLAMA, messages=HELLO, options={"num_predict": 1})
    home.emulator.kill_runner(LLAMA)

    assert (await native.chat(model=LLAMA, messages=HELLO, options={"num_predict": 2})).eval_count == 2


async def test_the_slot_of_a_stream_that_broke_off_is_free_again(home, native):
    stream = native_chat(home, SLOW, LONG_TOKENS)
    await anext(stream)
    home.emulator.kill_runner(SLOW)
    with pytest.raises(ollama.ResponseError):
        async for _ in stream:
            pass
    await home.idle()

    assert (await asyncio.wait_for(native.chat(model=SLOW, messages=HELLO, options={"num_predict": 1}), WITHIN_S)).eval_count == 1


@pytest.mark.parametrize(("ask", "error"), WHOLE.items())
async def test_a_full_queue_is_a_typed_503_that_says_when_to_come_back(start_home: StartHome, ask: Whole, error):
    home = await start_home(house_settings(queue=QueueSettings(max_external_depth=1)))
    async with home.native() as native:
        held = [asyncio.ensure_future(native.chat(model=SLOW, messages=HELLO, options=LONG))]
        await home.running(SLOW)
        held.append(asyncio.ensure_future(native.chat(model=SLOW, messages=HELLO, options=LONG)))
        await home.until(lambda status: status["external_queue"]["pending"] == 1)

        with pytest.raises(error) as caught:
            await ask(home, SLOW, 1)
        for one in held:
            one.cancel()
        await home.idle()
    assert status_of(caught.value) == 503
    assert "queue is full" in str(caught.value)
    if not isinstance(caught.value, ollama.ResponseError):
        assert int(retry_after(caught.value)) >= 1
