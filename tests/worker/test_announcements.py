"""Work that the house knows to be coming finds the GPU free: what would overrun it is held, what fits is not, nothing is lost."""

from __future__ import annotations

import pytest

from hearth.config.settings import Announcement, GatewayConfig
from hearth.events import ItemDispatched, TaskAnnounced
from hearth.execution.request import Ticket
from tests.support.cases import for_each
from tests.support.virtual_time import WALL_AT_START, in_virtual_time, sleep_until
from tests.worker.house import House, body_of, in_house, settings_with

BRIEFING, BACKUP = (Announcement(task_type=name, cron="5 * * * *") for name in ("briefing", "backup"))
FIVE_PAST = settings_with(scheduling={"announcements": (BRIEFING,)})
BOTH_AT_ONCE = settings_with(scheduling={"announcements": (BRIEFING, BACKUP)}, backend={"check_interval_s": 600.0})


async def start_of(house: House, ticket: Ticket) -> float:
    """When the only item of a house began to run, which has ended then."""
    await body_of(ticket)
    (dispatched,) = house.events.of(ItemDispatched)
    return dispatched.at


@in_house("a", resident=("a",), settings=BOTH_AT_ONCE)
async def test_cron_entries_are_announced_in_time_and_once_each_also_two_of_one_minute(house: House):
    await sleep_until(2 * 3600.0 + 600.0)
    told = house.events.of(TaskAnnounced)
    assert sorted((event.task_type, round(event.at + event.due_s, 3)) for event in told) == [
        (task_type, due_at) for task_type in ("backup", "briefing") for due_at in (300.0, 3900.0, 7500.0)
    ]
    assert all(120.0 <= event.due_s <= 300.0 for event in told)


@for_each(("cron", "asked_at", "starts_at"), [("5 * * * *", 298.0, 300.0), ("*/2 * * * *", 238.0, 240.0)])
@in_virtual_time
async def test_a_cron_entry_holds_external_work_like_an_announcement_each_time(cron: str, asked_at: float, starts_at: float):
    settings = settings_with(scheduling={"announcements": (Announcement(task_type="briefing", cron=cron),)})
    async with House("a", resident=("a",), settings=settings) as house:
        await sleep_until(asked_at)
        assert await start_of(house, house.submit("a")) == pytest.approx(starts_at)


@in_virtual_time
async def test_an_entry_that_a_reload_brings_is_announced_though_a_later_one_was_before():
    earlier = Announcement(task_type="early", cron="4 * * * *")
    async with House("a", resident=("a",), settings=FIVE_PAST) as house:
        await sleep_until(150.0)
        assert [event.task_type for event in house.events.of(TaskAnnounced)] == ["briefing"]
        both = (*FIVE_PAST.scheduling.announcements, earlier)
        house.gateway.reload(GatewayConfig(settings=settings_with(scheduling={"announcements": both})))
        await sleep_until(290.0)
        assert [event.task_type for event in house.events.of(TaskAnnounced)] == ["briefing", "early"]


@in_virtual_time
async def test_an_entry_that_a_reload_takes_away_holds_nothing_any_more():
    hourly = {"schedule_drain_minutes": 60.0}
    every_minute = (Announcement(task_type="briefing", cron="* * * * *"),)
    async with House("a", resident=("a",), settings=settings_with(scheduling=hourly | {"announcements": every_minute})) as house:
        house.worker.announce("by hand", WALL_AT_START + 400.0)
        await sleep_until(10.0)
        assert len(house.worker.scheduler.state.announced) > 60
        house.gateway.reload(GatewayConfig(settings=settings_with(scheduling=hourly)))
        await sleep_until(298.0)
        await body_of(house.submit("a"))
        assert house.now == 299.0
        assert house.worker.scheduler.state.announced == ((400.0, "by hand"),)


@for_each(("steps", "due"), [(((1.0, 3700.0),), [200]), (((1.0, 3700.0), (61.0, -3600.0)), [200, 200])])
@in_house("a", settings=FIVE_PAST)
async def test_a_wall_clock_that_jumps_ahead_skips_what_is_past_and_one_that_jumps_back_announces_again(
    house: House, steps: tuple[tuple[float, float], ...], due: list[int]
):
    for at, step_s in steps:
        await sleep_until(at)
        house.clock._wall_at_start += step_s
    await sleep_until(125.0)
    assert [round(event.at + event.due_s) for event in house.events.of(TaskAnnounced)] == due


@in_house("a", resident=("a",))
async def test_what_is_announced_right_after_the_clock_was_set_is_due_when_it_says(house: House):
    house.clock._wall_at_start += 3600.0
    house.worker.announce("briefing", WALL_AT_START + 3700.0)
    await sleep_until(98.0)
    assert await start_of(house, house.submit("a")) == 100.0


@for_each(
    ("step_s", "asked_at", "starts_at"),
    [
        (40.0, 58.0, 60.0),
        (40.0, 98.0, 98.0),
        (3600.0, 98.0, 98.0),
        (-40.0, 98.0, 98.0),
        (-40.0, 138.0, 140.0),
        (0.2, 98.0, 100.0),
    ],
)
@in_house("a", resident=("a",))
async def test_a_task_is_due_by_the_calendar_though_the_clock_was_set_or_the_machine_slept(
    house: House, step_s: float, asked_at: float, starts_at: float
):
    house.worker.announce("briefing", WALL_AT_START + 100.0)
    await sleep_until(50.0)
    house.clock._wall_at_start += step_s
    await sleep_until(asked_at)
    assert await start_of(house, house.submit("a")) == starts_at
