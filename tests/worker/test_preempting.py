"""The house's own work stops other programs' work: how fast, how often, and when not."""

from __future__ import annotations

import asyncio

import pytest

from hearth.config.settings import Window
from hearth.events import ItemInterrupted, ItemProtected, ModeChanged
from hearth.types import Outcome
from tests.support.cases import for_each
from tests.support.fake_ollama import Ending
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, in_house, settings_with, settle, text_of

MORNING_S = 6 * 3600.0
"""The loop starts at midnight UTC."""
AT_ONCE = {"preempt_restart_bound_s": 0.0}
"""Whatever is lost by it: the price of starting over has tests of its own (tests/scheduling/test_preemption.py)."""
BY_DAY = settings_with(
    scheduling={"active_hours": Window(start_minute=6 * 60, end_minute=22 * 60), **AT_ONCE}, backend={"check_interval_s": 3600.0}
)
FIFTY_MS = 0.05


@pytest.mark.parametrize("stream", [False, True])
@in_house("a", resident=("a",))
async def test_internal_work_stops_a_running_external_call_within_50_ms_and_that_one_completes_later(house: House, stream: bool):
    external = house.submit("a", stream=stream, service_s=1.0, first_byte_s=0.9)
    await sleep_until(0.5)
    internal = house.internal("a")
    assert text_of(await body_of(internal)) == FULL_TEXT
    assert house.now <= 1.5 + FIFTY_MS
    stopped = house.ollama.calls[0]
    assert stopped.ending is Ending.CLOSED
    assert stopped.ended_at is not None
    assert stopped.ended_at <= 0.5 + FIFTY_MS
    assert text_of(await body_of(external)) == FULL_TEXT
    assert ((await house.end_of(external)).attempts, (await house.end_of(external)).interrupt_count) == (2, 1)


@in_house("a", resident=("a",))
async def test_an_external_call_that_was_told_to_start_and_to_stop_in_one_tick_is_not_lost(house: House):
    external = house.submit("a")
    internal = house.internal("a")
    await body_of(internal)
    assert house.now == 1.0
    assert text_of(await body_of(external)) == FULL_TEXT
    assert house.now == 2.0


@in_virtual_time
async def test_a_call_that_was_interrupted_often_enough_is_protected_and_its_owner_is_told_once():
    settings = settings_with(queue={"max_interrupt_count": 2}, scheduling=AT_ONCE)
    async with House("a", resident=("a",), settings=settings) as house:
        external = house.submit("a", service_s=10.0)
        for _ in range(3):
            await settle()
            await asyncio.sleep(1.0)
            urgent = house.internal("a")
            await settle()
            if house.state_of(urgent.sequence) == "running":
                await body_of(urgent)
        assert house.state_of(external.sequence) == "running"
        assert text_of(await body_of(external)) == FULL_TEXT
        await body_of(urgent)
        assert [event.interrupt_count for event in house.events.of(ItemInterrupted)] == [1, 2]
        (protected,) = house.events.of(ItemProtected)
        assert (protected.sequence, protected.interrupt_count) == (external.sequence, 2)


@for_each("last_decision_s", [0.001, 0.5, 1.0, 20.0])
@in_virtual_time
async def test_internal_work_that_waits_when_active_hours_begin_stops_the_call_at_that_instant(last_decision_s: float):
    await sleep_until(7.0)  # so that no regular look at the clock is at that instant
    async with House("a", resident=("a",), settings=BY_DAY) as house:
        await sleep_until(MORNING_S - 60)
        external = house.submit("a", service_s=100.0)
        await sleep_until(MORNING_S - last_decision_s)
        internal = house.internal("a")
        await body_of(internal)
        assert house.now == pytest.approx(MORNING_S + 1.0, abs=0.01)
        assert [event.active for event in house.events.of(ModeChanged)] == [False, True]
        house.worker.cancel(external.sequence)


@in_house("a", resident=("a",))
async def test_the_owner_can_make_external_work_yield(house: House):
    external = house.submit("a", service_s=2.0)
    await sleep_until(1.0)
    assert house.worker.preempt_external() == 1
    await body_of(external)
    assert house.now == 3.0
    assert (await house.end_of(external)).interrupt_count == 1


@in_house("a", resident=("a",))
async def test_what_cannot_be_stopped_unnoticed_is_not_counted_as_yielding(house: House):
    external = house.submit("a", stream=True)
    await sleep_until(0.5)
    assert house.worker.preempt_external() == 0
    await body_of(external)
    assert house.now == 1.0
    await body_of(house.internal("a"))
    assert house.worker.preempt_external() == 0


@in_house("a", resident=("a",))
async def test_the_time_of_an_interrupted_call_counts_once_as_gpu_time(house: House):
    external = house.submit("a", service_s=2.0)
    await sleep_until(1.0)
    internal = house.internal("a")
    await sleep_until(1.5)
    house.worker.cancel(external.sequence)
    await body_of(internal)
    ended = await house.end_of(external)
    assert (ended.outcome, ended.attempts, ended.backend_s, ended.queue_s) == (Outcome.CANCELLED, 1, None, ended.total_s)
    assert house.gpu_status["executions_1h"] == 2
