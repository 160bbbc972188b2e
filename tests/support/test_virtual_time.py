"""The clockwork that every other timing test stands on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.support.virtual_time import Stuck, in_virtual_time, run_virtual, sleep_until


@in_virtual_time
async def test_no_timer_runs_before_its_due_time() -> None:
    loop = asyncio.get_running_loop()
    dues = [0.1 * step + 1e-10 * (step % 7) for step in range(2_000)]
    lateness_s: list[float] = []
    for due in dues:
        loop.call_at(due, lambda due: lateness_s.append(loop.time() - due), due)
    await sleep_until(300)
    assert len(lateness_s) == 2_000
    assert min(lateness_s) == 0


@in_virtual_time
async def test_work_in_a_thread_holds_the_clock() -> None:
    gate = threading.Event()
    waiting = asyncio.create_task(asyncio.to_thread(gate.wait, 5))
    sleeper = asyncio.create_task(asyncio.sleep(100))
    await asyncio.sleep(0)
    threading.Timer(0.01, gate.set).start()
    assert await waiting
    assert asyncio.get_running_loop().time() == 0
    sleeper.cancel()


def test_a_scenario_that_waits_for_nothing_fails_instead_of_hanging() -> None:
    async def scenario() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stuck):
        run_virtual(scenario, stall_s=0.01)


def test_a_scenario_that_only_ticks_ends_at_the_horizon() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_later(5, tick)

        tick()
        await loop.create_future()

    with pytest.raises(Stuck, match="past 100"):
        run_virtual(scenario, horizon_s=100)


def order_of(seed: int | None) -> list[int]:
    async def scenario() -> list[int]:
        ran: list[int] = []

        async def note(number: int) -> None:
            ran.append(number)

        await asyncio.gather(*(note(number) for number in range(10)))
        return ran

    return run_virtual(scenario, seed=seed)


def test_a_seed_shuffles_what_is_ready_together_and_repeats_itself() -> None:
    assert order_of(None) == list(range(10))
    assert order_of(7) == order_of(7) != list(range(10))
    assert len({tuple(order_of(seed)) for seed in range(5)}) > 1
