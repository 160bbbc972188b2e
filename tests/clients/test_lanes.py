"""The house's own requests over HTTP: they pass whoever waits, stop what can be stopped unnoticed, and lose nobody's answer."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from hearth.config.settings import Settings
from hearth.events import ItemEnded, ItemInterrupted
from hearth.types import Lane, Priority
from tests.clients.home import HELLO, SLOW, Home, StartHome, house_settings

TASKS = {"alarm": Priority.CRITICAL, "chat_router": Priority.NORMAL, "summary": Priority.BACKGROUND}
AS_HOUSE = {"X-Task-Type": "chat_router"}
SOME_TOKENS = 80
"""Four tenths of a second of a slow model: long enough to be interrupted, short enough to be waited for."""


def settings_with_tasks(**changes: Any) -> Settings:
    return house_settings(tasks=TASKS, **changes)


@pytest.fixture
async def home(start_home: StartHome) -> Home:
    return await start_home(settings_with_tasks())


async def complete(home: Home, headers: dict[str, str] | None = None, **asked: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(f"{home.url}/llm/completions", json=asked, headers=headers) as got,
    ):
        return got.status, await got.json()


async def test_an_internal_request_stops_a_running_external_one_which_completes_afterwards(home, native):
    external = asyncio.ensure_future(native.chat(model=SLOW, messages=HELLO, options={"num_predict": SOME_TOKENS}, stream=False))
    running = await home.running(SLOW)
    internal = asyncio.ensure_future(complete(home, AS_HOUSE, prompt="hi", model=SLOW, max_tokens=20))
    interrupted = await home.until(lambda status: status["external_queue"]["pending"] == 1 and status["internal_queue"]["pending"] == 0)
    status, _ = await internal

    shown = interrupted["external_queue"]["next_items"][0]
    assert (shown["sequence"], shown["band"], shown["interrupt_count"]) == (running["sequence"], "interrupted", 1)
    assert status == 200
    assert (await external).eval_count == SOME_TOKENS
    assert [event.lane for event in home.events.of(ItemEnded)] == [Lane.INTERNAL, Lane.EXTERNAL]
    assert [event.sequence for event in home.events.of(ItemInterrupted)] == [running["sequence"]]
