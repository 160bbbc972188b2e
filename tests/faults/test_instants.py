"""The same scenario with one thing more, at every instant of it: what must not matter is shown not
to matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from hearth.config.settings import GatewayConfig, Window
from hearth.errors import HearthError, ShuttingDown
from hearth.events import ItemDispatched, ItemEnded, ItemInterrupted, SwapCompleted
from hearth.job_types import Job
from hearth.types import Outcome
from tests.jobs.house import JobHouse, job
from tests.storage.memory import Disk
from tests.support.examples import EXAMPLES
from tests.support.fake_gpu import FakeModel
from tests.support.house import (
    ALWAYS_PREEMPT,
    House,
    bodies_of,
    body_of,
    in_house,
    settings_with,
    settle,
)
from tests.support.virtual_time import in_virtual_time, run_virtual, sleep_until

HOUR_S = 3600.0
YEAR_S = 365.25 * 86_400
TO_1970_S = -1_767_571_200.0
CROWD = 2_000 if EXAMPLES == 1 else 10_000
SCENARIO_S = 12.0
MODELS = [FakeModel(name=name, load_s=1.0, unload_s=0.5) for name in "ab"]
SETTINGS = {"scheduling": ALWAYS_PREEMPT}


def undisturbed(house: House) -> None:
    """The one thing more is nothing."""


async def busy_house(act_at: float, act: Callable[[House], object]) -> list[Any]:
    """Streams, a swap, a preemption and a queue, and `act` at an instant; what every item came to,
    and when.
    """
    async with House(*MODELS, resident="a", settings=settings_with(**SETTINGS)) as house:
        asyncio.get_running_loop().call_at(act_at, act, house)
        tickets = [
            house.submit("a", service_s=2.0),
            house.submit("a", stream=True, service_s=0.5),
            house.submit("b", service_s=1.0),
        ]
        await sleep_until(1.0)
        tickets.append(house.internal("a", service_s=0.5))
        await sleep_until(6.0)
        tickets += [
            house.submit("a", stream=True, service_s=1.0),
            house.internal("b", service_s=0.5),
        ]
        bodies = await bodies_of(tickets)
        await sleep_until(SCENARIO_S)
        ends = house.events.of(ItemEnded)
        assert len(ends) == len(tickets)
        assert house.events.of(ItemInterrupted)
        assert house.events.of(SwapCompleted)
        return [
            *bodies,
            *(
                (
                    end.at,
                    end.sequence,
                    end.outcome,
                    end.queue_s,
                    end.swap_s,
                    end.backend_s,
                    end.total_s,
                )
                for end in ends
            ),
        ]


def told_of(act_at: float = 0.0, act: Callable[[House], object] = undisturbed) -> list[Any]:
    return run_virtual(lambda: busy_house(act_at, act))


def jump(by_s: float) -> Callable[[House], None]:
    def act(house: House) -> None:
        house.clock._wall_at_start += by_s

    return act


def reload(house: House) -> None:
    changed = settings_with(
        **SETTINGS, queue={"max_interrupt_count": 9}, gpu={"restore_home_delay_s": 77.0}
    )
    assert house.gateway.reload(GatewayConfig(settings=changed))


def look(house: House) -> None:
    house.worker.get_status()
    house.gateway.health()


@pytest.mark.parametrize(
    ("act", "every_s"),
    [
        *((jump(by_s), 1.0) for by_s in (HOUR_S, -HOUR_S, 10 * YEAR_S, -10 * YEAR_S, TO_1970_S)),
        (reload, 0.25),
        (look, 1.0),
    ],
)
def test_a_clock_jump_a_reload_or_a_look_at_any_instant_changes_nothing(
    act: Callable[[House], None], every_s: float
):
    expected = told_of()
    for step in range(int(SCENARIO_S / every_s)):
        assert told_of(step * every_s + 0.1 * (every_s == 1.0), act) == expected, step


FIRST_MINUTE = settings_with(
    scheduling={
        "active_hours": (Window(start_minute=0, end_minute=1),),
        "preemption": "at_once",
        "preempt_min_remaining_s": 0.0,
    }
)


@pytest.mark.parametrize(("asked_at", "interrupted"), [(59.9, 1), (60.0, 0), (60.1, 0)])
@in_house(settings=FIRST_MINUTE)
async def test_from_the_instant_at_which_active_hours_end_nobody_is_stopped(
    house: House, asked_at: float, interrupted: int
):
    await sleep_until(55.0)
    external = house.submit("a", service_s=10.0)
    await sleep_until(asked_at)
    internal = house.internal("a")
    await asyncio.gather(body_of(external), body_of(internal))
    assert (await house.end_of(external)).interrupt_count == interrupted


@pytest.mark.parametrize("asked_at", [59.0, 59.4, 60.0])
@in_house(*MODELS, resident="a", settings=FIRST_MINUTE)
async def test_a_swap_on_which_active_hours_end_is_finished_and_serves_both(
    house: House, asked_at: float
):
    await sleep_until(asked_at)
    external = house.submit("b")
    await sleep_until(asked_at + 0.3)
    internal = house.internal("a")
    await asyncio.gather(body_of(external), body_of(internal))
    assert house.now < 70.0


@pytest.mark.parametrize(
    ("leaves_after_s", "loads"),
    [
        *((early_s, ["a:latest"]) for early_s in (0.0, 0.2, 0.5)),
        *((late_s, ["b:latest", "a:latest"]) for late_s in (0.9, 1.4, 1.6)),
    ],
)
@in_house(*MODELS, resident="a")
async def test_a_swap_whose_reason_leaves_ends_without_a_third_one(
    house: House, leaves_after_s: float, loads: list[str]
):
    away = house.submit("b")
    await settle()
    back = house.submit("a")
    await sleep_until(leaves_after_s)
    house.cancel(away)
    await body_of(back)
    assert [record.model for record in house.ollama.control if record.kind == "load"] == loads
    assert house.now < 6.0


@in_virtual_time
async def test_thousands_who_wait_and_leave_at_once_are_gone_at_once():
    settings = settings_with(queue={"max_external_depth": 20_000})
    async with House(settings=settings) as house:
        running = house.submit("a", stream=True, service_s=20.0, chunks=5)
        tickets = [house.submit("a", caller=f"caller {number % 100}") for number in range(CROWD)]
        await sleep_until(5.0)
        for ticket in tickets:
            house.cancel(ticket)
        await settle()
        assert len(house.worker.scheduler.gateway.entries) == 1
        ended = [event.outcome for event in house.events.of(ItemEnded)]
        assert ended == [Outcome.CANCELLED] * CROWD
        await body_of(running)
        assert [event.sequence for event in house.events.of(ItemDispatched)] == [running.sequence]
        with pytest.raises(HearthError):
            await body_of(tickets[0])


@pytest.mark.parametrize(
    ("stopped_at", "promised"),
    [
        (0.9, False),
        (1.0, False),
        (1.001, True),
        (1.25, True),
        (1.499, True),
        (1.5, True),
        (1.501, True),
        (2.0, True),
    ],
)
@in_virtual_time
async def test_a_job_that_is_being_accepted_during_a_stop_is_durable_or_refused(
    stopped_at: float, promised: bool
):
    disk = Disk()
    disk.latency_s = 0.5
    async with JobHouse(disk=disk) as house:
        stops: list[asyncio.Future[None]] = []
        asyncio.get_running_loop().call_at(
            stopped_at, lambda: stops.append(asyncio.ensure_future(house.gateway.stop(0.0)))
        )
        await sleep_until(1.0)
        (accepted,) = await asyncio.gather(house.accept(job()), return_exceptions=True)
        assert isinstance(accepted, Job if promised else ShuttingDown)
        await sleep_until(10.0)
        await asyncio.gather(*stops)
        assert len(disk.rows("SELECT id FROM jobs")) == promised
