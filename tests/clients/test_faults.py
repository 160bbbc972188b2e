"""The model server fails while the official clients wait or listen: each of them gets an error it
can recognise, never a short answer.
"""

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
from hearth.events import ItemBrokenOff, ItemResumed
from tests.support.home import (
    HELLO,
    LLAMA,
    LONG_TOKENS,
    SLOW,
    Home,
    StartHome,
    exhaust,
    house_settings,
)
from tests.support.patience import in_time, within_limit

Asks = dict[str, tuple[type[Exception], Any, Any]]
"""The client's own error, the client, and how it is asked of a model for so many tokens."""
ASKS: Asks = {
    "native chat": (
        ollama.ResponseError,
        Home.native,
        lambda on, model, n, **more: on.chat(
            model=model, messages=HELLO, options={"num_predict": n}, **more
        ),
    ),
    "chat": (
        openai.APIError,
        Home.gpt,
        lambda on, model, n, **more: on.chat.completions.create(
            model=model, messages=HELLO, max_tokens=n, **more
        ),
    ),
    "message": (
        anthropic.APIStatusError,
        Home.claude,
        lambda on, model, n, **more: on.messages.create(
            model=model, messages=HELLO, max_tokens=n, **more
        ),
    ),
}
STREAMS: Asks = ASKS | {
    "native generate": (
        ollama.ResponseError,
        Home.native,
        lambda on, model, n, **more: on.generate(
            model=model, prompt="x", options={"num_predict": n}, **more
        ),
    ),
    "completion": (
        openai.APIError,
        Home.gpt,
        lambda on, model, n, **more: on.completions.create(
            model=model, prompt="x", max_tokens=n, **more
        ),
    ),
    "response": (
        openai.APIError,
        Home.gpt,
        lambda on, model, n, **more: on.responses.create(
            model=model, input="x", max_output_tokens=n, **more
        ),
    ),
}


async def parts(
    home: Home, name: str, model: str = SLOW, tokens: int = LONG_TOKENS
) -> AsyncIterator[Any]:
    _, client, ask = STREAMS[name]
    async with client(home) as on:
        async for part in await ask(on, model, tokens, stream=True):
            yield part


@pytest.mark.parametrize("how", ["the runner dies", "the model server goes", "the gateway stops"])
@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_that_breaks_off_ends_with_the_clients_own_error(
    start_home: StartHome, name: str, how: str
):
    home = await start_home(
        house_settings(started_streams="resume" if "server" in how else "finish")
    )
    stream = parts(home, name)
    await anext(stream)
    if how == "the runner dies":
        home.emulator.kill_runner(SLOW)
    else:
        await (home.emulator if "server" in how else home.gateway).stop()
    with pytest.raises(
        STREAMS[name][0], match="shutting down" if how == "the gateway stops" else None
    ):
        await within_limit(exhaust(stream))


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_whose_runner_dies_is_read_to_its_end_as_one(home: Home, name: str):
    stream = parts(home, name, LLAMA, 30)
    read = [await anext(stream)]
    home.emulator.kill_runner(LLAMA)
    async with in_time():
        read += [part async for part in stream]
    assert len(home.events.of(ItemBrokenOff)) == 1
    assert [event.how for event in home.events.of(ItemResumed)] == ["continued"]
    assert len(read) >= 30


async def whole(home: Home, name: str, model: str = SLOW, tokens: int = 1) -> Any:
    _, client, ask = ASKS[name]
    async with client(home) as on:
        return await ask(on, model, tokens)


async def refusals(*asking: Any, match: str | None = None) -> list[Any]:
    """The 503 that each client raises, in its own type."""
    raised = []
    for one, error in zip(
        asking,
        (ollama.ResponseError, openai.InternalServerError, anthropic.InternalServerError),
        strict=True,
    ):
        with pytest.raises(error, match=match) as caught:
            await within_limit(one)
        assert getattr(caught.value, "status_code", 0) == 503
        raised.append(caught.value)
    return raised


async def test_a_model_server_that_goes_away_is_a_typed_503_with_advice(home: Home, clients):
    asking = [asyncio.ensure_future(whole(home, name, SLOW, LONG_TOKENS)) for name in ASKS]
    await home.until(lambda status: status["running"])
    await home.emulator.stop()
    await refusals(*asking)
    _, *by_others = await refusals(*(whole(home, name, LLAMA) for name in ASKS))
    assert [error.response.headers["retry-after"] for error in by_others] == ["5", "5"]
    for ask in (clients[0].list, clients[0].ps):  # an error, and no empty list
        with pytest.raises(ollama.ResponseError, match="cannot be reached") as caught:
            await ask()
        assert caught.value.status_code == 503


async def test_a_gateway_that_is_told_to_stop_refuses_those_who_wait_with_a_503(home: Home):
    running = asyncio.ensure_future(
        await home.gateway.worker.enqueue_internal(prompt="x", model=SLOW, max_tokens=LONG_TOKENS)
    )
    await home.running(SLOW)
    waiting = [asyncio.ensure_future(whole(home, name)) for name in ASKS]
    await home.until(lambda status: status["external_queue"]["pending"] == 3)
    await home.gateway.stop()
    await refusals(*waiting, match="shutting down")
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], ShuttingDown)


async def test_requests_wait_for_a_model_server_that_is_away_for_a_moment(start_home: StartHome):
    home = await start_home(house_settings(wait_when_down_s=5))
    await home.emulator.stop()
    asking = [asyncio.ensure_future(whole(home, name, LLAMA, 2)) for name in ASKS]
    await home.until(
        lambda status: status["external_queue"]["pending"] == 3 and not status["backend"]["up"]
    )
    await home.revive()
    native, gpt, claude = await within_limit(asyncio.gather(*asking))
    assert (native.eval_count, gpt.usage.completion_tokens, claude.usage.output_tokens) == (2, 2, 2)


async def test_a_full_queue_is_a_typed_503_that_says_when_to_come_back(start_home: StartHome):
    home = await start_home(house_settings(queue=QueueSettings(max_external_depth=1)))
    held = [asyncio.ensure_future(whole(home, "native chat", SLOW, LONG_TOKENS))]
    await home.running(SLOW)
    held.append(asyncio.ensure_future(whole(home, "native chat", SLOW, LONG_TOKENS)))
    await home.until(lambda status: status["external_queue"]["pending"] == 1)
    _, *by_others = await refusals(*(whole(home, name) for name in ASKS), match="queue is full")
    assert min(int(error.response.headers["retry-after"]) for error in by_others) >= 1
    for one in held:
        one.cancel()
    await home.idle()
