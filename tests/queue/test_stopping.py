"""The end of the gateway: who is told, who may finish, who is cut off, and that nothing is left
behind.
"""

from __future__ import annotations

import asyncio

import pytest

from hearth.errors import ShuttingDown
from hearth.events import GatewayStopped, GatewayStopping
from hearth.types import Outcome
from tests.support.house import (
    FULL_TEXT,
    House,
    body_of,
    heard,
    in_house,
    in_loaded_house,
    settings_with,
    settle,
    text_of,
    timers,
)
from tests.support.virtual_time import LoopClock, in_virtual_time, sleep_until


@in_loaded_house
async def test_who_waits_is_told_at_once_and_what_runs_may_finish(house: House):
    running = house.submit("a", service_s=5.0)
    waiting = house.submit("a")
    await sleep_until(1.0)
    stopping = asyncio.create_task(house.gateway.stop())
    assert isinstance((await heard(waiting))[1], ShuttingDown)
    assert house.now == 1.0
    assert text_of(await body_of(running)) == FULL_TEXT
    await asyncio.gather(stopping, house.gateway.stop())
    await house.gateway.stop()
    assert house.now == 5.0
    (told,) = house.events.of(GatewayStopping)
    assert (told.running, told.waiting, told.grace_s) == (1, 1, 10.0)
    assert [event.uptime_s for event in house.events.of(GatewayStopped)] == [5.0]


@pytest.mark.parametrize(
    ("stream", "hurry_at", "ends_at"), [(False, None, 4.0), (True, None, 4.0), (False, 2.0, 2.0)]
)
@in_house(settings=settings_with(server={"shutdown_grace_s": 3.0}))
async def test_what_outlasts_the_grace_or_a_hurry_is_cut_off_with_a_retryable_error(
    house: House, stream, hurry_at, ends_at
):
    ticket = house.submit("a", stream=stream, service_s=50.0)
    hurry = asyncio.Event()
    await sleep_until(1.0)
    if hurry_at:
        asyncio.get_running_loop().call_at(hurry_at, hurry.set)
    await house.gateway.stop(hurry=hurry)
    error = (await heard(ticket))[1]
    assert isinstance(error, ShuttingDown)
    assert (house.now, error.retryable, house.ollama.calls[0].ended_at) == (ends_at, True, ends_at)
    assert (await house.end_of(ticket)).reason == "shutting_down"


@in_house("a", "b", resident="a")
async def test_a_stop_during_a_swap_tells_who_waits_for_it_and_ends(house: House):
    ticket = house.submit("b")
    await sleep_until(1.0)
    await house.gateway.stop()
    assert (house.now, type((await heard(ticket))[1])) == (1.0, ShuttingDown)
    await sleep_until(3.0)


@pytest.mark.parametrize("at_s", [0.0, 0.5])
@in_loaded_house
async def test_what_runs_ends_well_and_who_waits_for_it_is_told_in_process_too(
    house: House, at_s: float
):
    futures = [await house.worker.enqueue_internal("hello", "a") for _ in range(2)]
    waiting = house.submit("a")
    await sleep_until(at_s)
    await house.gateway.stop()
    results = await asyncio.gather(*futures, body_of(waiting), return_exceptions=True)
    assert [type(result).__name__ for result in results] == [
        "Completion",
        "ShuttingDown",
        "ShuttingDown",
    ]
    assert len(house.ollama.calls) == 1


@pytest.mark.parametrize("starts", [False, True])
@in_virtual_time
async def test_a_gateway_that_never_started_closes_what_it_was_given(starts: bool):
    house = House("a")
    if starts:
        starting = asyncio.create_task(house.gateway.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    await house.gateway.stop()
    assert (house.closed, len(asyncio.all_tasks())) == (["backend"], 1)


@in_virtual_time
async def test_what_no_decision_has_seen_before_the_stop_is_told():
    house = House()
    ticket = house.submit("a")
    await house.worker.stop(0.0)
    assert (type((await heard(ticket))[1]), house.ollama.calls) == (ShuttingDown, [])


@in_loaded_house
async def test_a_preempted_call_does_not_start_again_during_a_stop(house: House):
    external = house.submit("a")
    await sleep_until(0.5)
    internal = house.internal("a")
    await settle()
    await house.gateway.stop()
    assert text_of(await body_of(internal)) == FULL_TEXT
    assert isinstance((await heard(external))[1], ShuttingDown)


class LateClock(LoopClock):
    """Behind the loop, which so runs its timers early."""

    def __init__(self, lag_s: float) -> None:
        super().__init__()
        self._lag_s = lag_s

    def monotonic(self) -> float:
        return super().monotonic() - self._lag_s


@pytest.mark.parametrize("lag_s", [0.0, 0.25])
@in_virtual_time
async def test_items_with_a_longest_wait_expire_and_leave_no_timer_behind(lag_s: float):
    settings = settings_with(queue={"max_wait_s": 100.0})
    async with House(settings=settings, clock=LateClock(lag_s)) as house:
        running = house.submit("a", service_s=200.0)
        expiring = house.submit("a", service_s=1.0)
        await sleep_until(100.0)
        ended = await house.end_of(expiring)
        assert (ended.outcome, ended.reason, ended.at) == (
            Outcome.EXPIRED,
            "wait_expired",
            100.0 - lag_s,
        )
        house.submit("a")
        await settle()
        await house.gateway.stop(0.0)
        assert timers() == []
        assert (await house.end_of(running)).outcome is Outcome.CANCELLED
