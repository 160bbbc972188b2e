"""A Python program that embeds the gateway instead of speaking HTTP to it."""

from __future__ import annotations

import asyncio
from datetime import datetime

import aiohttp

from hearth.bootstrap import build_gateway
from hearth.config.settings import BackendMode, GatewayConfig
from hearth.types import Completion, Priority
from tests.support.home import (
    CODER,
    EMBEDDER,
    LLAMA,
    LONG_TOKENS,
    SLOW,
    house_settings,
    new_emulator,
    open_home,
)


async def test_an_internal_call_is_awaited_like_a_future_and_runs_on_the_resident():
    async with open_home(house_settings(tasks={"chat_router": Priority.CRITICAL})) as home:
        worker = home.gateway.worker
        at_home = await worker.enqueue_internal(
            prompt="hi",
            max_tokens=4,
            task_type="chat_router",
            task_id="t-1",
            user_id="ann",
            is_chain_continuation=True,
        )
        assert isinstance(at_home, asyncio.Future)
        answer = await at_home
        assert isinstance(answer, Completion)
        assert (answer.model, answer.tokens_out, answer.cost_usd, answer.parsed) == (
            LLAMA,
            4,
            0.0,
            None,
        )
        assert (bool(answer.output), answer.tokens_in > 0) == (True, True)
        for model in (CODER, None):
            assert (
                await (await worker.enqueue_internal(prompt="hi", model=model, max_tokens=1))
            ).model == CODER


async def test_status_items_say_when_they_came_and_show_prompts_only_if_wanted():
    async with open_home(house_settings()) as home:
        settings = home.gateway.config.settings
        for previews, shown in ((False, ""), (True, "a secret of two lines")):
            server = settings.server.replace(prompt_previews=previews)
            home.gateway.reload(GatewayConfig(settings=settings.replace(server=server)))
            running = await home.gateway.worker.enqueue_internal(
                prompt="a secret\n of two lines", model=SLOW, max_tokens=LONG_TOKENS
            )
            item = await home.running(SLOW)
            assert item["prompt_preview"] == shown
            assert datetime.fromisoformat(item["enqueued_at"]) <= datetime.fromisoformat(
                item["started_at"]
            )
            running.cancel()
            await home.idle()


async def test_a_prompt_for_any_model_does_not_go_to_an_embedding_model():
    emulator = new_emulator()
    url = await emulator.start()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/api/embed", json={"model": EMBEDDER, "input": "x"}),
        ):
            pass
        config = GatewayConfig(settings=house_settings())
        async with await build_gateway(
            config, backend_mode=BackendMode.OLLAMA, backend_url=url
        ) as gateway:
            answer = await (await gateway.worker.enqueue_internal(prompt="hi", max_tokens=4))
    finally:
        await emulator.stop()
    assert answer.model == LLAMA
