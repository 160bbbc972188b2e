"""A Python program that embeds the gateway instead of speaking HTTP to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

import aiohttp
import pytest

import hearth
from hearth.bootstrap import build_gateway
from hearth.config.settings import BackendMode, GatewayConfig, QueueSettings
from hearth.gateway import Gateway
from hearth.types import Completion, Priority
from tests.clients.home import CODER, EMBEDDER, LLAMA, LONG_TOKENS, SLOW, house_settings, new_emulator, open_home
from tests.emulator.waiting import until
from tests.support.patience import WITHIN_S

TASKS = {"chat_router": Priority.CRITICAL, "summary": Priority.BACKGROUND}


@pytest.fixture
async def program() -> AsyncIterator[Gateway]:
    async with open_home(house_settings(tasks=TASKS, queue=QueueSettings(max_internal_depth=3))) as home:
        yield home.gateway


async def something_runs(gateway: Gateway) -> None:
    async with asyncio.timeout(WITHIN_S):
        async for _ in gateway.worker.changes():
            if gateway.worker.get_status()["running"]:
                return


async def test_an_internal_call_is_awaited_like_any_future(program):
    future = await program.worker.enqueue_internal(
        prompt="hi", model=LLAMA, max_tokens=4, task_type="chat_router", task_id="t-1", user_id="ann", is_chain_continuation=True
    )
    assert isinstance(future, asyncio.Future)
    answer = await future

    assert isinstance(answer, Completion)
    assert (answer.cost_usd, answer.parsed) == (0.0, None)
    assert (answer.model, answer.tokens_out) == (LLAMA, 4)
    assert answer.output
    assert answer.tokens_in > 0


async def test_status_items_tell_when_they_came_and_show_prompts_only_where_the_owner_wants_that(program):
    gateway = program
    settings = gateway.config.settings
    for previews, shown in ((False, ""), (True, "a secret of two lines")):
        server = settings.server.replace(prompt_previews=previews)
        gateway.reload(GatewayConfig(settings=settings.replace(server=server)))
        running = await gateway.worker.enqueue_internal(prompt="a secret\n of two lines", model=SLOW, max_tokens=LONG_TOKENS)
        await something_runs(gateway)
        (item,) = gateway.worker.get_status()["running"]
        assert item["prompt_preview"] == shown
        assert datetime.fromisoformat(item["enqueued_at"]) <= datetime.fromisoformat(item["started_at"])
        running.cancel()
        await until(lambda: not gateway.worker.get_status()["running"])


async def test_a_call_without_a_model_runs_on_what_is_resident_and_else_at_home(program):
    gateway = program
    at_home = await (await gateway.worker.enqueue_internal(prompt="hi", max_tokens=1))
    await (await gateway.worker.enqueue_internal(prompt="hi", model=CODER, max_tokens=1))
    on_what_is_there = await (await gateway.worker.enqueue_internal(prompt="hi", max_tokens=1))

    assert (at_home.model, on_what_is_there.model) == (LLAMA, CODER)


async def test_a_prompt_for_any_model_does_not_go_to_an_embedding_model_that_was_there_before():
    emulator = new_emulator()
    url = await emulator.start()
    try:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/api/embed", json={"model": EMBEDDER, "input": "x"}):
            pass
        config = hearth.GatewayConfig(settings=house_settings())
        async with await build_gateway(config, backend_mode=BackendMode.OLLAMA, ollama_url=url) as gateway:
            answer = await (await gateway.worker.enqueue_internal(prompt="hi", max_tokens=4))
    finally:
        await emulator.stop()
    assert isinstance(answer, Completion)
    assert answer.model == LLAMA
