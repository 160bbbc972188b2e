"""The owner's own work stops other programs' work, or finds the GPU free that it was announced for:
how fast, how often, and when not.
"""

from __future__ import annotations

import asyncio

import pytest

from hearth.config.settings import Announcement, GatewayConfig, Window
from hearth.events import ItemDispatched, ItemInterrupted, ItemProtected, ModeChanged, TaskAnnounced
from hearth.execution.request import Ticket
from hearth.types import JsonDict, Outcome, Priority
from tests.support.fake_ollama import Ending
from tests.support.house import (
    FULL_TEXT,
    House,
    body_of,
    in_house,
    in_loaded_house,
    settings_with,
    settle,
    text_of,
)
from tests.support.virtual_time import WALL_AT_START, in_virtual_time, sleep_until

MORNING_S = 6 * 3600.0
"""The loop starts at midnight UTC."""
AT_ONCE = {"preempt_restart_bound_s": 0.0}
"""Whatever is lost by it: the price of starting over has tests of its own in tests/scheduling."""
BY_DAY = settings_with(
    scheduling={"active_hours": (Window(start_minute=6 * 60, end_minute=22 * 60),), **AT_ONCE},
    backend={"check_interval_s": 3600.0},
)
FIFTY_MS = 0.05


@pytest.mark.parametrize("stream", [False, True])
@in_loaded_house
async def test_internal_work_stops_an_external_call_within_50_ms_which_ends_later(
    house: House, stream: bool
):
    external = house.submit("a", stream=stream, service_s=1.0, first_byte_s=0.9)
    await sleep_until(0.5)
    assert text_of(await body_of(house.internal("a"))) == FULL_TEXT
    assert house.now <= 1.5 + FIFTY_MS
    stopped = house.ollama.calls[0]
    assert (stopped.ending, (stopped.ended_at or 9.0) <= 0.5 + FIFTY_MS) == (Ending.CLOSED, True)
    assert text_of(await body_of(external)) == FULL_TEXT
    ended = await house.end_of(external)
    assert (ended.attempts, ended.interrupt_count) == (2, 1)


@in_virtual_time
async def test_an_often_interrupted_call_is_protected_and_its_owner_told_once():
    settings = settings_with(queue={"max_interrupt_count": 2}, scheduling=AT_ONCE)
    async with House(settings=settings) as house:
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


@pytest.mark.parametrize("last_decision_s", [0.001, 0.5, 1.0, 20.0])
@in_virtual_time
async def test_internal_work_waiting_at_active_hours_stops_the_call_at_that_instant(
    last_decision_s: float,
):
    await sleep_until(7.0)  # so that no regular look at the clock is at that instant
    async with House(settings=BY_DAY) as house:
        await sleep_until(MORNING_S - 60)
        external = house.submit("a", service_s=100.0)
        await sleep_until(MORNING_S - last_decision_s)
        await body_of(house.internal("a"))
        assert house.now == pytest.approx(MORNING_S + 1.0, abs=0.01)
        assert [event.active for event in house.events.of(ModeChanged)] == [False, True]
        house.cancel(external)


@pytest.mark.parametrize(("stream", "yielding", "ends_at"), [(False, 1, 3.0), (True, 0, 2.0)])
@in_loaded_house
async def test_the_owner_can_make_external_work_yield_that_can_be_stopped_unnoticed(
    house: House, stream, yielding, ends_at
):
    external = house.submit("a", stream=stream, service_s=2.0)
    await sleep_until(1.0)
    assert house.worker.preempt_external() == yielding
    await body_of(external)
    assert (house.now, (await house.end_of(external)).interrupt_count) == (ends_at, yielding)


@in_loaded_house
async def test_the_time_of_an_interrupted_call_counts_once_as_gpu_time(house: House):
    external = house.submit("a", service_s=2.0)
    await sleep_until(1.0)
    internal = house.internal("a")
    await sleep_until(1.5)
    house.cancel(external)
    await body_of(internal)
    ended = await house.end_of(external)
    assert (ended.outcome, ended.attempts, ended.backend_s, ended.queue_s) == (
        Outcome.CANCELLED,
        1,
        None,
        ended.total_s,
    )
    assert house.gpu_status["executions_1h"] == 2


# Announced work: what would overrun it is held, what fits is not, nothing is lost.


def announcing(*crons: tuple[str, str], **scheduling: float) -> JsonDict:
    return {
        "announcements": tuple(Announcement(task_type=name, cron=cron) for name, cron in crons),
        **scheduling,
    }


BRIEFING = ("briefing", "5 * * * *")
BACKUP = ("backup", "5 * * * *")
EARLY = ("early", "4 * * * *")


async def start_of(house: House, ticket: Ticket) -> float:
    """When the only item of a house began to run, which has ended then."""
    await body_of(ticket)
    (dispatched,) = house.events.of(ItemDispatched)
    return dispatched.at


@in_house(
    "a",
    settings=settings_with(
        scheduling=announcing(BRIEFING, BACKUP), backend={"check_interval_s": 600.0}
    ),
)
async def test_cron_entries_are_announced_in_time_and_once_each(house: House):
    await sleep_until(2 * 3600.0 + 600.0)
    told = house.events.of(TaskAnnounced)
    assert sorted((event.task_type, round(event.at + event.due_s, 3)) for event in told) == [
        (task_type, due_at)
        for task_type in ("backup", "briefing")
        for due_at in (300.0, 3900.0, 7500.0)
    ]
    assert all(120.0 <= event.due_s <= 300.0 for event in told)


@pytest.mark.parametrize(
    ("cron", "asked_at", "starts_at"), [("5 * * * *", 298.0, 300.0), ("*/2 * * * *", 238.0, 240.0)]
)
@in_virtual_time
async def test_a_cron_entry_holds_external_work_like_an_announcement_each_time(
    cron: str, asked_at: float, starts_at: float
):
    async with House(settings=settings_with(scheduling=announcing(("briefing", cron)))) as house:
        await sleep_until(asked_at)
        assert await start_of(house, house.submit("a")) == pytest.approx(starts_at)


@in_house(settings=settings_with(scheduling=announcing(BRIEFING)))
async def test_a_reload_announces_a_new_entry_and_a_removed_one_holds_nothing(house: House):
    house.worker.announce("by hand", WALL_AT_START + 500.0)
    await sleep_until(150.0)
    house.gateway.reload(
        GatewayConfig(settings=settings_with(scheduling=announcing(BRIEFING, EARLY)))
    )
    await sleep_until(290.0)
    assert [event.task_type for event in house.events.of(TaskAnnounced)] == [
        "by hand",
        "briefing",
        "early",
    ]
    house.gateway.reload(GatewayConfig(settings=settings_with()))
    await sleep_until(299.5)
    assert await start_of(house, house.submit("a")) == 299.5
    assert house.worker.scheduler.gateway.announced == ((500.0, "by hand"),)


@pytest.mark.parametrize(
    ("steps", "due"), [(((1.0, 3700.0),), [200]), (((1.0, 3700.0), (61.0, -3600.0)), [200, 200])]
)
@in_house("a", settings=settings_with(scheduling=announcing(BRIEFING)))
async def test_a_clock_that_jumps_ahead_skips_and_one_that_jumps_back_repeats(
    house: House, steps, due
):
    for at, step_s in steps:
        await sleep_until(at)
        house.clock._wall_at_start += step_s
    await sleep_until(125.0)
    assert [round(event.at + event.due_s) for event in house.events.of(TaskAnnounced)] == due


@pytest.mark.parametrize(
    ("earlier_s", "step_s", "asked_at", "starts_at"),
    [
        (0.0, 40.0, 58.0, 60.0),
        (0.0, 40.0, 98.0, 98.0),
        (0.0, 3600.0, 98.0, 98.0),
        (0.0, -40.0, 98.0, 98.0),
        (0.0, -40.0, 138.0, 140.0),
        (0.0, 0.2, 98.0, 100.0),
        pytest.param(3600.0, 0.0, 98.0, 100.0, id="it is announced right after the clock was set"),
    ],
)
@in_loaded_house
async def test_a_task_is_due_by_the_calendar_though_clock_or_machine_stood_still(
    house: House, earlier_s: float, step_s: float, asked_at: float, starts_at: float
):
    house.clock._wall_at_start += earlier_s
    house.worker.announce("briefing", WALL_AT_START + earlier_s + 100.0)
    await sleep_until(50.0)
    house.clock._wall_at_start += step_s
    await sleep_until(asked_at)
    assert await start_of(house, house.submit("a")) == starts_at


EITHER = ("a:latest", "b:latest")


@pytest.mark.parametrize(("first_byte_s", "goes_on_with"), [(0.1, "b:latest"), (5.0, "a:latest")])
@in_house("a", "b", "c", resident="b")
async def test_a_stream_of_an_alias_goes_on_with_its_model_once_its_caller_has_text(
    house: House, first_byte_s: float, goes_on_with: str
):
    external = house.submit(
        "a",
        choices=EITHER,
        stream=True,
        ways=("replayed",),
        service_s=9.0,
        first_byte_s=first_byte_s,
    )
    await sleep_until(1.0)
    urgent = [house.internal(model, priority=Priority.CRITICAL) for model in ("c", "a")]
    await asyncio.gather(*map(body_of, urgent))
    assert text_of(await body_of(external)) == FULL_TEXT
    dispatched = house.events.of(ItemDispatched)
    served = [event.model for event in dispatched if event.sequence == external.sequence]
    assert served == ["b:latest", goes_on_with]
