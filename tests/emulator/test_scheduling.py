"""The emulated scheduler behaves like Ollama's, its traps included."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from urllib.parse import urlsplit

import pytest

from hearth.clock import SystemClock
from hearth.emulator import Emulator
from tests.emulator.callers import (
    FOREVER_TOKENS,
    MESSAGES,
    SLOW,
    cancel,
    loaded_names,
    model,
    occupied,
)
from tests.emulator.conftest import Emulated
from tests.support.examples import needs_quiet
from tests.support.patience import in_time, until


async def test_loads_are_served_in_order_and_a_loaded_model_past_a_waiting_load(emulated):
    emulator, caller = await emulated(model("a", **SLOW), model("b"), model("c"), num_parallel=2)
    long, *waiting = await occupied(emulator, caller, "b", "c", "b")
    assert (await caller.generate("a"))["done"] is True
    assert not any(call.done() for call in (long, *waiting))
    await cancel(long)
    await asyncio.gather(*waiting)
    assert loaded_names(emulator) == ["a", "b", "c", "b"]


async def test_a_caller_that_leaves_stops_its_generation_and_its_load(emulated):
    emulator, caller = await emulated(model("a", **SLOW), model("b", load_s=30.0))
    (call,) = await occupied(emulator, caller)
    await cancel(call)
    await until(lambda: not emulator.in_flight)
    loading = caller.begin("b")
    await until(lambda: len(emulator.requests) == 2)
    await cancel(loading)
    assert (await caller.generate("a"))["done"] is True
    assert loaded_names(emulator) in (["a"], ["a", "a"]), (
        "the load may have evicted the idle model before it was left"
    )


async def test_a_queued_caller_that_leaves_still_evicts(emulated):
    emulator, caller = await emulated(model("a", **SLOW), model("b", load_s=60.0))
    long, waiting = await occupied(emulator, caller, "b")
    await cancel(waiting)
    await cancel(long)
    await until(lambda: not emulator.resident)
    assert loaded_names(emulator) == ["a"]


async def test_slots_bound_what_runs_at_the_same_time(emulated):
    for slots in (1, 2):
        emulator, caller = await emulated(model("a", **SLOW), num_parallel=slots)
        await asyncio.gather(*(caller.begin("a", tokens=10) for _ in range(4)))
        assert emulator.max_concurrent == slots


async def test_another_num_ctx_reloads_and_other_options_do_not(emulated):
    emulator, caller = await emulated(model("a"))
    for options in ({}, {"temperature": 0.1, "seed": 3}, {"num_ctx": 1024}, {"num_ctx": 1024}, {}):
        await caller.generate("a", options=options)
    for more_than_the_model_has in (8193, 9999):
        await caller.generate("a", options={"num_ctx": more_than_the_model_has})
    assert (len(emulator.loads), (await caller.ps())[0]["context_length"]) == (3, 8192)
    answer = await caller.generate("a", tokens=500, shift=False, options={"num_ctx": 64})
    assert (answer["done_reason"], answer["prompt_eval_count"] + answer["eval_count"]) == (
        "length",
        64,
    )


async def test_a_model_is_absent_from_ps_while_it_loads_and_gone_after_an_unload(emulated):
    emulator, caller = await emulated(model("a"), model("b", load_s=60.0, vram_gib=0.1))
    await caller.generate("a")
    loading = caller.begin("b")
    await until(lambda: len(emulator.requests) == 2)
    assert [one["name"] for one in await caller.ps()] == ["a:latest"]
    await cancel(loading)
    assert (await caller.unload("a"))["done_reason"] == "unload"
    assert await caller.ps() == []


async def test_an_unload_waits_for_the_request_in_flight(emulated):
    emulator, caller = await emulated(model("a", **SLOW), num_parallel=2)
    (long,) = await occupied(emulator, caller)
    await caller.unload("a")
    await caller.generate("a")
    assert (emulator.resident, long.done()) == (("a:latest",), False)
    await cancel(long)
    await until(lambda: not emulator.resident)


async def test_a_model_leaves_when_its_keep_alive_ends_and_never_with_minus_one(emulated):
    emulator, caller = await emulated(model("a"))
    await caller.generate("a", keep_alive=-1)
    assert (await caller.ps())[0]["expires_at"].startswith("23")
    await caller.generate("a", keep_alive="20ms")
    await until(lambda: not emulator.resident)


@pytest.mark.parametrize(
    ("vram_gib", "resident"), [(9.6, {"a:latest", "b:latest"}), (9.7, {"b:latest"})]
)
async def test_models_share_the_card_up_to_four_fifths_of_what_is_free(
    vram_gib, resident, emulated
):
    emulator, caller = await emulated(
        model("a"), model("b", size_gib=5.0, vram_gib=vram_gib), vram_gib=24.0
    )
    await caller.generate("a")
    await caller.generate("b")
    assert set(emulator.resident) == resident


async def test_the_victim_is_the_idle_model_with_the_shortest_keep_alive(emulated):
    emulator, caller = await emulated(
        *(model(name, size_gib=0.1, vram_gib=0.1) for name in "abc"), max_loaded=2
    )
    await caller.generate("a", keep_alive="10s")
    # expires after `a`, since it has loaded for 10 ms meanwhile
    await caller.generate("b", keep_alive="9999ms")
    await caller.generate("c")
    assert set(emulator.resident) == {"a:latest", "c:latest"}


async def test_names_that_share_weights_share_a_runner_with_its_context(emulated, session):
    emulator, caller = await emulated(
        model("a", size_gib=25.0, vram_gib=22.5, parameters={"num_ctx": 1234})
    )
    await caller.post("/v1/chat/completions", model="a", messages=MESSAGES, max_tokens=1)
    await session.post(f"{caller.url}/api/copy", json={"source": "a", "destination": "twin"})
    await caller.generate("twin")
    assert len(emulator.loads) == 1
    (listed,) = await caller.ps()
    assert (listed["name"], listed["context_length"], listed["size_vram"] < listed["size"]) == (
        "a:latest",
        1234,
        True,
    )


async def test_a_stop_ends_with_open_streams_and_stalled_readers_and_may_repeat(session):
    emulator = Emulator([model("a", decode_tokens_per_s=1e6)], clock=SystemClock(), seed=1)
    url = await emulator.start()
    stalled = await session.post(
        url + "/api/generate",
        json={"model": "a", "prompt": "x", "options": {"num_predict": 60_000}},
    )
    assert stalled.status == 200
    async with in_time():
        await emulator.stop()
        await emulator.stop()
    stalled.close()


async def test_a_stalled_reader_holds_the_slot_until_it_leaves(emulated):
    emulator, caller = await emulated(model("a"), speed=1000.0)
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(stalled, ("127.0.0.1", urlsplit(caller.url).port))
        body = json.dumps(
            {
                "model": "a",
                "stream": True,
                "max_tokens": 2500,
                "logprobs": True,
                "top_logprobs": 20,
                "messages": MESSAGES,
            }
        )
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            f"{len(body)}\r\n\r\n"
        )
        await loop.sock_sendall(stalled, (head + body).encode())
        await until(lambda: emulator.in_flight)
        second = caller.begin("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(second), 0.5)
        assert emulator.in_flight == {"a:latest": 1}
    assert (await second)["done"] is True


TIMERS = 200
TIMER_S = 0.001
"""No event loop's timer is finer; what one takes on this machine is measured in the same run."""


@needs_quiet
async def test_a_fast_emulator_is_not_limited_by_the_resolution_of_timers(emulated):
    _, caller = await emulated(model("a", decode_tokens_per_s=50.0), speed=1000.0)
    began_at = time.monotonic()
    for _ in range(TIMERS):
        await asyncio.sleep(TIMER_S)
    timer_s = (time.monotonic() - began_at) / TIMERS
    began_at = time.monotonic()
    assert (await caller.generate("a", tokens=FOREVER_TOKENS))["eval_count"] == FOREVER_TOKENS
    assert time.monotonic() - began_at < FOREVER_TOKENS * timer_s


@pytest.mark.parametrize(
    ("path", "packed"),
    [("/api/embed", {}), ("/v1/embeddings", {}), ("/v1/embeddings", {"encoding_format": "base64"})],
)
async def test_many_embeddings_are_computed_in_many_steps_of_the_loop(
    emulated: Emulated, path: str, packed: dict[str, str]
):
    _, caller = await emulated(model("a", capabilities=("embedding",), embedding_length=768))
    body = {"model": "a", "input": [f"text {number}" for number in range(1000)], **packed}

    async def ask() -> bytes:
        async with caller.session.post(caller.url + path, json=body) as response:
            return await response.read()

    answer = asyncio.create_task(ask())
    longest_s = 0.0
    # of the processor: it does not matter how busy the machine is
    began_s = last_s = time.thread_time()
    while not answer.done():
        await asyncio.sleep(0)
        now_s = time.thread_time()
        longest_s = max(longest_s, now_s - last_s)
        last_s = now_s
    found = json.loads(answer.result())
    assert len(found.get("embeddings") or found["data"]) == 1000
    assert longest_s < (last_s - began_s) / 4
