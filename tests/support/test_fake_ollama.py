"""The fake that other tests stand on: exact durations, every scripted fault, and a referee that sees every broken rule."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hearth.errors import BackendGone, BackendUnreachable, SwapTimedOut
from hearth.types import BackendCall, LoadOptions
from tests.support.cases import for_each
from tests.support.fake_ollama import CallFault, Ending, FakeModel, FakeOllama, LoadFault, UnloadFault
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


@for_each(
    ("path", "end"),
    [
        ("/api/generate", b'"done":true'),
        ("/api/chat", b'"done":true'),
        ("/v1/chat/completions", b"data: [DONE]\n\n"),
        ("/v1/completions", b"data: [DONE]\n\n"),
        ("/v1/messages", b"event: message_stop"),
    ],
)
@in_virtual_time
async def test_every_stream_ends_with_the_terminator_of_its_dialect(path: str, end: bytes) -> None:
    came = await run(loaded(), call(path=path, stream=True))
    assert end in came[-1][1]
    assert not any(end in chunk for _, chunk in came[:-1])


@pytest.mark.parametrize("path", ["/api/embed", "/v1/embeddings"])
@in_virtual_time
async def test_an_embedding_has_one_vector_per_input(path: str) -> None:
    [(_, body)] = await run(loaded(), call(path=path, input=["x", "y", "z"]))
    answer = json.loads(body)
    assert len(answer.get("embeddings") or answer["data"]) == 3


@in_virtual_time
async def test_a_load_and_an_unload_take_their_time() -> None:
    ollama = FakeOllama(FakeModel(name="a", load_s=4.0, unload_s=1.5))
    await ollama.load("a", KEEP, 60.0)
    assert now() == 4.0
    await ollama.unload("a")
    assert (now(), len(await ollama.resident())) == (4.0, 1)
    await ollama.settled()
    assert (now(), await ollama.resident()) == (5.5, ())
    ollama.check()


@in_virtual_time
async def test_a_loaded_model_is_loaded_again_only_for_another_context() -> None:
    ollama = loaded(FakeModel(name="a", load_s=4.0))
    await ollama.load("a", LoadOptions(num_ctx=4096), 60.0)
    assert now() == 0.0
    await ollama.load("a", LoadOptions(num_ctx=8192), 60.0)
    assert now() == 4.0


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


@pytest.mark.parametrize(("capacity_mib", "broken"), [(16_384.0, 0), (16_383.0, 1)])
@in_virtual_time
async def test_models_share_a_gpu_while_their_memory_fits(capacity_mib: float, broken: int) -> None:
    ollama = loaded(capacity_mib=capacity_mib)
    await ollama.load("b", KEEP, 60.0)
    assert len(ollama.violations) == broken


@in_virtual_time
async def test_a_closed_call_frees_its_slot_at_once() -> None:
    ollama = loaded()
    exchange = await ollama.open(call())
    exchange.close()
    await run(ollama, call())
    ollama.check()
    assert [record.ending for record in ollama.calls] == [Ending.CLOSED, Ending.COMPLETED]


@pytest.mark.parametrize("fault", [CallFault.SILENT, CallFault.STALL])
@in_virtual_time
async def test_a_silent_call_holds_its_slot_until_it_is_given_up(fault: CallFault) -> None:
    ollama = loaded()
    ollama.next_calls(fault)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1_000):
            await run(ollama, call())
    assert (now(), ollama.calls[0].ending, ollama.gpu.in_flight["a"]) == (1_000, Ending.CLOSED, 0)


@in_virtual_time
async def test_faults_hit_the_calls_they_are_scripted_for() -> None:
    ollama = loaded()
    ollama.next_calls(None, CallFault.REFUSE)
    await run(ollama, call())
    with pytest.raises(BackendUnreachable):
        await run(ollama, call())
    await run(ollama, call())
    assert [record.ending for record in ollama.calls] == [Ending.COMPLETED, Ending.BROKEN, Ending.COMPLETED]


@in_virtual_time
async def test_what_a_call_fault_does_to_an_answer() -> None:
    ollama = loaded()
    ollama.next_calls(CallFault.ERROR_LINE, CallFault.NO_DONE, CallFault.SERVER_ERROR, CallFault.SLOW)
    came = await run(ollama, call())
    assert [sorted(json.loads(chunk)) for _, chunk in came] == [["created_at", "done", "model", "response"], ["error"]]
    assert not any(b'"done":true' in chunk for _, chunk in await run(ollama, call()))
    failed = await ollama.open(call())
    failed.close()
    began = now()
    assert (failed.status, (await run(ollama, call(fake={"service_s": 2.0})))[-1][0] - began) == (500, 20.0)


@in_virtual_time
async def test_a_wedged_model_answers_again_after_a_reload() -> None:
    ollama = loaded(FakeModel(name="a", load_s=1.0))
    ollama.wedge("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await run(ollama, call())
    await ollama.unload("a")
    await ollama.settled()
    await ollama.load("a", KEEP, 60.0)
    assert len(await run(ollama, call())) == 4
    ollama.check()


@pytest.mark.parametrize(("fault", "load_s", "in_memory"), [(LoadFault.LATE, 2.0, ["a"]), (None, 30.0, [])])
@in_virtual_time
async def test_a_late_load_turns_up_after_its_timeout_and_a_longer_one_is_given_up(
    fault: LoadFault | None, load_s: float, in_memory: list[str]
) -> None:
    ollama = FakeOllama(FakeModel(name="a", load_s=load_s))
    ollama.next_loads(fault)
    with pytest.raises(SwapTimedOut):
        await ollama.load("a", KEEP, 10.0)
    assert (now(), await ollama.resident()) == (10.0, ())
    await ollama.settled()
    assert [model.name for model in await ollama.resident()] == in_memory


@in_virtual_time
async def test_a_load_can_lie_and_an_unload_can_stick() -> None:
    ollama = loaded()
    ollama.next_loads(LoadFault.LIE)
    ollama.next_unloads(UnloadFault.STUCK)
    await ollama.load("b", KEEP, 10.0)
    await ollama.unload("a")
    await ollama.settled()
    assert [model.name for model in await ollama.resident()] == ["a"]


@in_virtual_time
async def test_a_killed_server_breaks_what_runs_and_what_loads_and_forgets_its_memory() -> None:
    ollama = loaded(capacity_mib=100_000.0)
    running = asyncio.create_task(run(ollama, call(fake={"service_s": 60.0})))
    loading = asyncio.create_task(ollama.load("b", KEEP, 60.0))
    await asyncio.sleep(1.0)
    ollama.go_down()
    for broken in (running, loading):
        with pytest.raises(BackendGone):
            await broken
    with pytest.raises(BackendUnreachable):
        await ollama.open(call())
    ollama.come_up()
    assert (now(), await ollama.resident()) == (1.0, ())
    ollama.check()


@in_virtual_time
async def test_listings_need_no_gpu() -> None:
    ollama = loaded()
    exchange = await ollama.open(BackendCall(method="GET", path="/api/tags"))
    [body] = [chunk async for chunk in chunks_of(exchange)]
    assert [model["name"] for model in json.loads(body)["models"]] == ["a", "b"]
    assert (await ollama.open(BackendCall(method="GET", path="/nowhere"))).status == 404
    ollama.check()
