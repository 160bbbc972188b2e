"""What other tests stand on: exact durations, a referee that sees every broken rule of the one GPU,
and a clock that never runs ahead.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable

import pytest

from hearth.types import BackendCall, LoadOptions
from tests.support.fake_ollama import Ending, FakeModel, FakeOllama
from tests.support.taking import chunks_of
from tests.support.virtual_time import Stuck, in_virtual_time, loop_s, run_virtual, sleep_until


async def run(ollama: FakeOllama, **fields: object) -> list[tuple[float, bytes]]:
    body = json.dumps({"model": "a", "prompt": "?", **fields}).encode()
    exchange = await ollama.open(BackendCall(method="POST", path="/api/generate", body=body))
    try:
        return [(loop_s(), chunk) async for chunk in chunks_of(exchange)]
    finally:
        exchange.close()


def with_a() -> FakeOllama:
    ollama = FakeOllama(FakeModel(name="a", parallel=2), FakeModel(name="b"))
    ollama.appear("a")
    return ollama


@in_virtual_time
async def test_a_call_takes_exactly_the_time_that_it_asks_for():
    ollama = with_a()
    came = await run(ollama, fake={"service_s": 2.0, "first_byte_s": 0.5, "chunks": 3})
    assert [at for at, _ in came] == [0.5, 1.0, 1.5, 2.0]
    assert (ollama.calls[0].ending, ollama.calls[0].ended_at) == (Ending.COMPLETED, 2.0)
    came = await run(ollama, stream=False, fake={"service_s": 2.0, "first_byte_s": 0.5})
    assert [(at, json.loads(body)["response"]) for at, body in came] == [(4.0, " alpha beta gamma")]


async def on_nothing(ollama: FakeOllama) -> None:
    ollama.vanish("a")
    await run(ollama)


async def while_it_goes(ollama: FakeOllama) -> None:
    await ollama.unload("a")
    await run(ollama)


async def three_at_once(ollama: FakeOllama) -> None:
    await asyncio.gather(*(run(ollama) for _ in range(3)))


async def unload_under_it(ollama: FakeOllama) -> None:
    running = asyncio.create_task(run(ollama))
    await asyncio.sleep(0.5)
    await ollama.unload("a")
    await running


async def load_beside(ollama: FakeOllama) -> None:
    await ollama.load("b", LoadOptions())


@pytest.mark.parametrize(
    ("misdeed", "violation"),
    [
        (on_nothing, "at 0 s: a generation on a, which is not loaded"),
        (while_it_goes, "at 0 s: a generation on a, which is unloading"),
        (three_at_once, "at 0 s: 3 generations on a, which serves 2"),
        (unload_under_it, "at 0.5 s: a is unloaded while a generation runs on it"),
        (load_beside, "at 0 s: b is loaded beside a (loaded): no room"),
    ],
)
@in_virtual_time
async def test_the_referee_sees_every_broken_rule(
    misdeed: Callable[[FakeOllama], Awaitable[None]], violation: str
):
    ollama = with_a()
    await misdeed(ollama)
    assert ollama.violations == [violation]
    with pytest.raises(AssertionError):
        ollama.check()


@in_virtual_time
async def test_no_timer_runs_before_its_due_time_and_work_in_a_thread_holds_the_clock():
    loop = asyncio.get_running_loop()
    lateness_s = list[float]()
    gate = threading.Event()
    waiting = asyncio.create_task(asyncio.to_thread(gate.wait, 5))
    sleeper = asyncio.create_task(asyncio.sleep(100))
    await asyncio.sleep(0)
    threading.Timer(0.01, gate.set).start()
    assert (await waiting, loop.time()) == (True, 0)
    sleeper.cancel()
    for due in (0.1 * step + 1e-10 * (step % 7) for step in range(2_000)):
        loop.call_at(due, lambda due: lateness_s.append(loop.time() - due), due)
    await sleep_until(300)
    assert (len(lateness_s), min(lateness_s)) == (2_000, 0)


def test_an_endless_scenario_fails_and_a_seed_repeats_its_shuffle():
    async def waits() -> None:
        await asyncio.get_running_loop().create_future()

    async def ticks() -> None:
        while True:  # noqa: ASYNC110 - nothing but time passes
            await asyncio.sleep(5)

    async def order() -> list[int]:
        ran: list[int] = []

        async def note(number: int) -> None:
            ran.append(number)

        await asyncio.gather(*(note(number) for number in range(10)))
        return ran

    with pytest.raises(Stuck):
        run_virtual(waits, stall_s=0.01)
    with pytest.raises(Stuck, match="past 100"):
        run_virtual(ticks, horizon_s=100)
    assert run_virtual(order) == list(range(10))
    assert run_virtual(order, seed=7) == run_virtual(order, seed=7) != list(range(10))
    assert len({tuple(run_virtual(order, seed=seed)) for seed in range(5)}) > 1
