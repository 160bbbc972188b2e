"""The fake that other tests stand on: exact durations, every scripted fault, and a referee that sees every broken rule."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hearth.types import BackendCall, LoadOptions
from tests.support.cases import for_each
from tests.support.fake_ollama import Ending, FakeModel, FakeOllama
from tests.support.taking import chunks_of
from tests.support.virtual_time import in_virtual_time

KEEP = LoadOptions()


def now() -> float:
    return asyncio.get_running_loop().time()


def call(model: str = "a", path: str = "/api/generate", **fields: Any) -> BackendCall:
    return BackendCall(method="POST", path=path, body=json.dumps({"model": model, **fields}).encode())


def loaded(*models: FakeModel, capacity_mib: float | None = None) -> FakeOllama:
    """With the first model in memory."""
    ollama = FakeOllama(*(models or (FakeModel(name="a"), FakeModel(name="b", load_s=3.0))), capacity_mib=capacity_mib)
    ollama.appear(next(iter(ollama.gpu.models)))
    return ollama


async def run(ollama: FakeOllama, asked: BackendCall) -> list[tuple[float, bytes]]:
    exchange = await ollama.open(asked)
    try:
        return [(now(), chunk) async for chunk in chunks_of(exchange)]
    finally:
        exchange.close()


@in_virtual_time
async def test_a_stream_takes_exactly_the_time_that_the_call_asks_for() -> None:
    ollama = loaded()
    came = await run(ollama, call(fake={"service_s": 2.0, "first_byte_s": 0.5, "chunks": 3}))
    assert [at for at, _ in came] == [0.5, 1.0, 1.5, 2.0]
    assert json.loads(came[-1][1])["eval_count"] == 3
    assert (ollama.calls[0].ending, ollama.calls[0].ended_at) == (Ending.COMPLETED, 2.0)


@in_virtual_time
async def test_a_call_that_does_not_stream_answers_as_a_whole_at_the_end_and_a_header_can_ask_for_a_time() -> None:
    came = await run(loaded(), call(stream=False, fake={"service_s": 2.0, "first_byte_s": 0.5}))
    assert [(at, json.loads(body)["response"]) for at, body in came] == [(2.0, " alpha beta gamma")]
    asked = BackendCall(method="POST", path="/api/chat", headers=((b"x-fake-service-s", b"7.5"),), body=b'{"model":"a"}')
    assert (await run(loaded(), asked))[-1][0] == 2.0 + 7.5


async def on_nothing(ollama: FakeOllama) -> None:
    ollama.vanish("a")
    await run(ollama, call())


async def while_it_goes(ollama: FakeOllama) -> None:
    await ollama.unload("a")
    await run(ollama, call())


async def three_at_once(ollama: FakeOllama) -> None:
    await asyncio.gather(*(run(ollama, call()) for _ in range(3)))


async def unload_under_it(ollama: FakeOllama) -> None:
    running = asyncio.create_task(run(ollama, call()))
    await asyncio.sleep(0.5)
    await ollama.unload("a")
    await running


async def load_beside(ollama: FakeOllama) -> None:
    await ollama.load("b", KEEP, 60.0)


async def load_before_it_is_gone(ollama: FakeOllama) -> None:
    await ollama.unload("a")
    await ollama.load("b", KEEP, 60.0)


@for_each(
    ("misdeed", "violation"),
    [
        (on_nothing, "at 0 s: a generation on a, which is not loaded"),
        (while_it_goes, "at 0 s: a generation on a, which is unloading"),
        (three_at_once, "at 0 s: 3 generations on a, which serves 2"),
        (unload_under_it, "at 0.5 s: a is unloaded while a generation runs on it"),
        (load_beside, "at 0 s: b is loaded beside a (loaded): no room"),
        (load_before_it_is_gone, "at 0 s: b is loaded beside a (unloading): no room"),
    ],
)
@in_virtual_time
async def test_the_referee_sees_every_broken_rule(misdeed: Callable[[FakeOllama], Awaitable[None]], violation: str) -> None:
    ollama = loaded(FakeModel(name="a", parallel=2), FakeModel(name="b"))
    await misdeed(ollama)
    assert ollama.violations == [violation]
    with pytest.raises(AssertionError, match=re.escape(violation)):
        ollama.check()
