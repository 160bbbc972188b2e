"""The model server fails while the official clients wait or listen: each of them gets an error it can recognise, never a short answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import ollama
import openai
import pytest

from hearth.config.settings import QueueSettings
from hearth.errors import ShuttingDown
from tests.clients.home import HELLO, LLAMA, LONG, LONG_TOKENS, SLOW, Home, StartHome, house_settings
from tests.support.patience import WITHIN_S

STREAMS: dict[str, tuple[type[Exception], Any, Any]] = {
    "native chat": (ollama.ResponseError, Home.native, lambda on, n: on.chat(model=SLOW, messages=HELLO, options=n, stream=True)),
    "native generate": (ollama.ResponseError, Home.native, lambda on, n: on.generate(model=SLOW, prompt="x", options=n, stream=True)),
    "chat": (openai.APIError, Home.gpt, lambda on, _: on.chat.completions.create(model=SLOW, messages=HELLO, stream=True)),
    "completion": (openai.APIError, Home.gpt, lambda on, _: on.completions.create(model=SLOW, prompt="x", stream=True)),
    "response": (openai.APIError, Home.gpt, lambda on, _: on.responses.create(model=SLOW, input="x", stream=True)),
    "message": (
        anthropic.APIStatusError,
        Home.claude,
        lambda on, _: on.messages.create(model=SLOW, messages=HELLO, max_tokens=LONG_TOKENS, stream=True),
    ),
}
"""The client's own error, the client, and how it is asked for a long stream."""


async def begun(home: Home, name: str) -> AsyncIterator[Any]:
    """A stream of which the first part has come."""

    async def parts() -> AsyncIterator[Any]:
        _, client, ask = STREAMS[name]
        async with client(home) as on:
            async for part in await ask(on, LONG):
                yield part

    stream = parts()
    await anext(stream)
    return stream


async def to_its_end(stream: AsyncIterator[Any]) -> None:
    async with asyncio.timeout(WITHIN_S):
        async for _ in stream:
            pass


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_breaks_off_ends_with_the_clients_own_error(home: Home, name: str, crash: bool):
    stream = await begun(home, name)
    if crash:
        home.emulator.kill_runner(SLOW)
    else:
        await home.emulator.stop()
    with pytest.raises(STREAMS[name][0]):
        await to_its_end(stream)


@pytest.mark.parametrize("name", STREAMS)
async def test_a_gateway_that_is_told_to_stop_says_so_in_the_stream(home: Home, name: str):
    stream = await begun(home, name)
    await home.gateway.stop()
    with pytest.raises(STREAMS[name][0], match="shutting down"):
        await to_its_end(stream)


async def whole_native(home: Home, model: str, tokens: int) -> Any:
    async with home.native() as client:
        return await client.chat(model=model, messages=HELLO, options={"num_predict": tokens})


async def whole_openai(home: Home, model: str, tokens: int) -> Any:
    async with home.gpt() as client:
        return await client.chat.completions.create(model=model, messages=HELLO, max_tokens=tokens)


async def whole_anthropic(home: Home, model: str, tokens: int) -> Any:
    async with home.claude() as client:
        return await client.messages.create(model=model, messages=HELLO, max_tokens=tokens)


WHOLE = (whole_native, whole_openai, whole_anthropic)
TYPED = (ollama.ResponseError, openai.InternalServerError, anthropic.InternalServerError)


async def refusals(*asking: Any, match: str | None = None) -> list[Any]:
    """The 503 that each client raises, in its own type."""
    raised = []
    for one, error in zip(asking, TYPED, strict=True):
        with pytest.raises(error, match=match) as caught:
            await asyncio.wait_for(one, WITHIN_S)
        assert getattr(caught.value, "status_code", 0) == 503
        raised.append(caught.value)
    return raised


def retry_after(error: Any) -> str:
    """The header that the two SDKs wait by; the Ollama client does not show it."""
    header: str = error.response.headers["retry-after"]
    return header


async def test_a_model_server_that_goes_away_in_mid_answer_or_is_down_is_a_typed_503_that_says_when_to_come_back(home: Home):
    asking = [asyncio.ensure_future(ask(home, SLOW, LONG_TOKENS)) for ask in WHOLE]
    await home.until(lambda status: status["running"])
    await home.emulator.stop()
    await refusals(*asking)
    _, by_gpt, by_claude = await refusals(*(ask(home, LLAMA, 1) for ask in WHOLE))
    assert (retry_after(by_gpt), retry_after(by_claude)) == ("5", "5")


async def test_the_lists_of_a_model_server_that_is_down_are_an_error_and_not_empty(home, native):
    await home.emulator.stop()
    for ask in (native.list, native.ps):
        with pytest.raises(ollama.ResponseError, match="cannot be reached") as caught:
            await ask()
        assert caught.value.status_code == 503


async def test_a_gateway_that_is_told_to_stop_refuses_those_who_wait_with_a_503(home: Home):
    running = asyncio.ensure_future(await home.gateway.worker.enqueue_internal(prompt="x", model=SLOW, max_tokens=LONG_TOKENS))
    await home.running(SLOW)
    waiting = [asyncio.ensure_future(ask(home, SLOW, 1)) for ask in WHOLE]
    await home.until(lambda status: status["external_queue"]["pending"] == 3)
    await home.gateway.stop()
    await refusals(*waiting, match="shutting down")
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], ShuttingDown)


async def test_requests_wait_for_a_model_server_that_is_away_for_a_moment(start_home: StartHome):
    home = await start_home(house_settings(wait_when_down_s=5))
    await home.emulator.stop()
    asking = [asyncio.ensure_future(ask(home, LLAMA, 2)) for ask in WHOLE]
    await home.until(lambda status: status["external_queue"]["pending"] == 3 and not status["backend"]["up"])
    await home.revive()

    native, gpt, claude = await asyncio.wait_for(asyncio.gather(*asking), WITHIN_S)
    assert (native.eval_count, gpt.usage.completion_tokens, claude.usage.output_tokens) == (2, 2, 2)


async def test_a_full_queue_is_a_typed_503_that_says_when_to_come_back(start_home: StartHome):
    home = await start_home(house_settings(queue=QueueSettings(max_external_depth=1)))
    held = [asyncio.ensure_future(whole_native(home, SLOW, LONG_TOKENS))]
    await home.running(SLOW)
    held.append(asyncio.ensure_future(whole_native(home, SLOW, LONG_TOKENS)))
    await home.until(lambda status: status["external_queue"]["pending"] == 1)

    _, by_gpt, by_claude = await refusals(*(ask(home, SLOW, 1) for ask in WHOLE), match="queue is full")
    for one in held:
        one.cancel()
    await home.idle()
    assert min(int(retry_after(by_gpt)), int(retry_after(by_claude))) >= 1
