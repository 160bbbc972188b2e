"""The house's own requests over HTTP: they pass whoever waits, stop what can be stopped unnoticed, and lose nobody's answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import ollama
import openai
import pytest

from hearth.config.settings import Settings, StartedStreams
from hearth.events import ItemDispatched, ItemEnded, ItemInterrupted, ItemQueued
from hearth.types import Lane, Outcome, Priority
from tests.clients.home import HELLO, LONG, LONG_TOKENS, SLOW, Home, StartHome, house_settings
from tests.support.patience import WITHIN_S

TASKS = {"alarm": Priority.CRITICAL, "chat_router": Priority.NORMAL, "summary": Priority.BACKGROUND}
AS_HOUSE = {"X-Task-Type": "chat_router"}
SOME_TOKENS = 80
"""Four tenths of a second of a slow model: long enough to be interrupted, short enough to be waited for."""


def settings_with_tasks(**changes: Any) -> Settings:
    return house_settings(tasks=TASKS, **changes)


@pytest.fixture
async def home(start_home: StartHome) -> Home:
    return await start_home(settings_with_tasks())


@pytest.fixture
async def patient_home(start_home: StartHome) -> Home:
    """A house that lets a stream finish."""
    return await start_home(settings_with_tasks(started_streams=StartedStreams.FINISH))


@pytest.fixture
async def patient_native(patient_home: Home) -> AsyncIterator[ollama.AsyncClient]:
    async with patient_home.native() as client:
        yield client


async def complete(home: Home, headers: dict[str, str] | None = None, **asked: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.post(f"{home.url}/llm/completions", json=asked, headers=headers) as got,
    ):
        return got.status, await got.json()


def started(home: Home) -> list[Any]:
    return [event.sequence for event in home.events.of(ItemDispatched)]


async def test_an_internal_request_passes_the_external_ones_that_wait(patient_home, patient_native):
    stream = await patient_native.chat(model=SLOW, messages=HELLO, options=LONG, stream=True)
    await anext(stream)
    external = [asyncio.ensure_future(patient_native.chat(model=SLOW, messages=HELLO, options={"num_predict": 1})) for _ in range(3)]
    await patient_home.until(lambda status: status["external_queue"]["pending"] == 3)
    internal = asyncio.ensure_future(complete(patient_home, AS_HOUSE, prompt="hi", model=SLOW, max_tokens=1))
    await patient_home.until(lambda status: status["internal_queue"]["pending"] == 1)
    await stream.aclose()
    status, _ = await internal
    answers = await asyncio.gather(*external)

    assert status == 200
    house = next(event.sequence for event in patient_home.events.of(ItemQueued) if event.lane is Lane.INTERNAL)
    assert started(patient_home)[1] == house
    assert [answer.eval_count for answer in answers] == [1, 1, 1]


async def test_the_task_type_of_the_body_decides_the_band(patient_home, patient_native):
    stream = await patient_native.chat(model=SLOW, messages=HELLO, options=LONG, stream=True)
    await anext(stream)
    asking = []
    for place, task_type in enumerate(("summary", "chat_router", "alarm")):
        asking.append(asyncio.ensure_future(complete(patient_home, prompt="x", model=SLOW, max_tokens=1, task_type=task_type)))
        await patient_home.until(lambda status, n=place + 1: status["internal_queue"]["pending"] == n)
    await stream.aclose()
    await asyncio.gather(*asking)

    assert [event.task_type for event in patient_home.events.of(ItemDispatched)][1:] == ["alarm", "chat_router", "summary"]


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


async def test_a_stream_that_has_begun_comes_to_its_end_without_a_gap_or_a_repetition(home, claude):
    async with claude.messages.stream(model=SLOW, messages=HELLO, max_tokens=SOME_TOKENS) as stream:
        said = aiter(stream.text_stream)
        texts = [await anext(said)]
        internal = asyncio.ensure_future(complete(home, AS_HOUSE, prompt="hi", model=SLOW, max_tokens=1))
        texts += [text async for text in said]
        final = await stream.get_final_message()
    status, _ = await internal

    assert (status, final.usage.output_tokens, len(texts)) == (200, SOME_TOKENS, SOME_TOKENS)
    assert "".join(texts) == final.content[0].text


async def test_a_request_can_be_cancelled_by_its_id_while_it_runs(home, gpt):
    asked = gpt.chat.completions.create(model=SLOW, messages=HELLO, max_tokens=LONG_TOKENS, extra_headers={"X-Request-Id": "mine-1"})
    asking = asyncio.ensure_future(asked)
    await home.running(SLOW)
    async with aiohttp.ClientSession(trust_env=False) as session:
        for _ in range(2):
            async with session.post(f"{home.url}/llm/requests/mine-1/cancel", json={}) as got:
                assert await got.json() == {"request_id": "mine-1", "cancelled": True}
    await home.idle()

    with pytest.raises(openai.APIStatusError, match="cancelled") as caught:
        await asyncio.wait_for(asking, WITHIN_S)
    assert caught.value.status_code == 499
    assert [event.outcome for event in home.events.of(ItemEnded)] == [Outcome.CANCELLED]
