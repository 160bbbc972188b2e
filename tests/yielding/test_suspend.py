"""A machine that sleeps, in virtual time: answers are interrupted and models unloaded before, and
everything goes on afterwards, whatever logind does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hearth.config.scheduler_settings import YieldSettings
from hearth.config.settings import GatewayConfig, Settings
from hearth.events import (
    GpuLeaseEnded,
    MachineWoke,
    SuspendFollowed,
    SuspendPrepared,
    SuspendUnfollowed,
)
from hearth.yielding.suspend import LEASE_ID, LONGEST_RETRY_S, SuspendWatch
from tests.support.fake_logind import MemoryLogin
from tests.support.fake_ollama import FakeModel, UnloadFault
from tests.support.house import House, body_of, settings_with, settle, within
from tests.support.virtual_time import LoopClock, sleep_until

NIGHT_S = 8 * 3600.0


def sleeping(**wanted: Any) -> Settings:
    settings = settings_with(gpu={"home_model": "a", "restore_home_delay_s": 0.0})
    return settings.replace(gpu=settings.gpu.model_copy(update={"yield": YieldSettings(**wanted)}))


class SleepHouse(House):
    """A house on a machine that sleeps."""

    def __init__(self, *models: FakeModel, delay_s: float = 5.0) -> None:
        super().__init__(
            *(models or (FakeModel(name="a"),)),
            settings=sleeping(),
            clock=LoopClock(),
            resident="a",
        )
        self.login = MemoryLogin(delay_s)
        gateway = self.gateway
        watch = SuspendWatch(gateway.worker.runtime, gateway.leases, self.login)
        gateway.on_reload(lambda _: watch.ring())
        gateway.accompany("suspend", watch.run)

    async def sleep(self, slept_s: float = NIGHT_S) -> None:
        """As logind does it: announce it, wait for whoever holds it up, sleep, say it is over."""
        self.login.announce(sleep=True)
        until = self.now + self.login.delay_s
        while self.login.is_held_up and self.now < until:
            await sleep_until(self.now + 0.1)
        self.clock.slept_s += slept_s
        self.login.announce(sleep=False)
        await settle()

    @property
    def in_memory(self) -> set[str]:
        return set(self.worker.runtime.view.residents)

    @property
    def prepared(self) -> list[bool]:
        """Of each sleep, whether all models were unloaded."""
        return [event.freed for event in self.events.of(SuspendPrepared)]


@asynccontextmanager
async def open_house(*models: FakeModel, delay_s: float = 5.0) -> AsyncIterator[SleepHouse]:
    async with SleepHouse(*models, delay_s=delay_s) as house:
        yield house


@within(open_house)
async def test_models_are_unloaded_before_a_sleep_and_loaded_after_it(house: SleepHouse):
    assert house.in_memory == {"a:latest"}
    house.login.announce(sleep=True)
    while house.login.is_held_up:
        await sleep_until(house.now + 0.1)
    assert house.in_memory == set()
    assert house.now < 2.0, "the machine is not held up for longer than that takes"
    house.clock.slept_s += NIGHT_S
    house.login.announce(sleep=False)
    await sleep_until(house.now + 10.0)
    assert house.in_memory == {"a:latest"}
    assert house.login.held_up == 2
    assert house.prepared == [True]
    (woke,) = house.events.of(MachineWoke)
    assert woke.slept_s == NIGHT_S


@within(open_house)
async def test_a_stream_goes_on_after_the_sleep_as_one_answer(house: SleepHouse):
    ticket = house.submit("a", stream=True, ways=("replayed",), service_s=20.0, chunks=40)
    await sleep_until(5.0)
    await house.sleep()
    assert house.prepared == [True]
    body = await body_of(ticket)
    assert all(b" w%d" % number in body for number in range(40))
    assert b"error" not in body


@within(lambda: open_house(delay_s=30.0))
async def test_where_a_sleep_may_wait_an_answer_that_is_nearly_over_ends(house: SleepHouse):
    ticket = house.submit("a", service_s=4.0)
    await sleep_until(0.5)
    house.login.announce(sleep=True)
    await body_of(ticket)
    assert house.now == 4.0
    await sleep_until(10.0)
    assert house.prepared == [True]
    house.login.announce(sleep=False)


@within(lambda: open_house(FakeModel(name="a", unload_s=60.0)))
async def test_a_sleep_waits_no_longer_than_logind_lets_it(house: SleepHouse):
    house.login.announce(sleep=True)
    await sleep_until(house.login.delay_s)
    assert not house.login.is_held_up
    assert house.prepared == [False]
    house.login.announce(sleep=False)
    await sleep_until(200.0)


@within(open_house)
async def test_a_sleep_that_is_called_off_at_once_costs_one_load(house: SleepHouse):
    await settle()
    house.login.announce(sleep=True)
    await settle()
    house.login.announce(sleep=False)
    await sleep_until(10.0)
    assert house.prepared == []
    assert house.in_memory == {"a:latest"}
    assert house.login.is_held_up
    assert [event.slept_s for event in house.events.of(MachineWoke)] == [0.0]


@within(open_house)
async def test_signals_that_come_twice_change_nothing(house: SleepHouse):
    for sleep in (True, True, False, False):
        house.login.announce(sleep=sleep)
        await sleep_until(house.now + 3.0)
    assert house.prepared == [True]
    assert len(house.events.of(MachineWoke)) == 1
    assert house.login.held_up == 2


@within(open_house)
async def test_two_sleeps_in_a_row_are_two(house: SleepHouse):
    for _ in range(2):
        await house.sleep()
        await sleep_until(house.now + 5.0)
    assert house.prepared == [True, True]
    assert house.in_memory == {"a:latest"}


@within(open_house)
async def test_logind_that_restarts_in_between_is_asked_what_it_does(house: SleepHouse):
    house.login.announce(sleep=True)
    await sleep_until(0.2)
    house.login.lose("restarted")
    house.login.problem = ""
    await sleep_until(4.0)
    assert LEASE_ID in house.gateway.leases.leases, "it still prepares for a sleep"
    house.login.announce(sleep=False)
    await sleep_until(10.0)
    assert house.in_memory == {"a:latest"}
    assert house.login.is_held_up


@within(open_house)
async def test_a_bus_that_is_lost_within_a_sleep_does_not_keep_the_card(house: SleepHouse):
    house.login.announce(sleep=True)
    await sleep_until(0.2)
    house.login.lose("lost")
    await sleep_until(20.0)
    assert house.in_memory == {"a:latest"}
    house.login.problem = ""
    house.login.announce(sleep=False)
    await sleep_until(20.0 + LONGEST_RETRY_S)
    assert house.login.is_held_up
    assert [event.reason for event in house.events.of(SuspendUnfollowed)] == ["lost"]
    assert len(house.events.of(SuspendFollowed)) == 2


@within(open_house)
async def test_without_logind_it_says_so_once_and_all_goes_on(house: SleepHouse):
    house.login.lose("no_bus")
    await sleep_until(1000.0)
    assert [event.reason for event in house.events.of(SuspendUnfollowed)] == ["no_bus"]
    assert await house.answer("a")


@pytest.mark.parametrize("within_s", [0.0, 0.3])
@within(open_house)
async def test_it_can_be_turned_off_and_on_while_it_runs(house: SleepHouse, within_s: float):
    await sleep_until(1.0)
    house.gateway.in_force.take(GatewayConfig(settings=sleeping(suspend=False)))
    await settle()
    assert not house.login.is_held_up
    house.login.announce(sleep=True)
    await sleep_until(3.0)
    assert house.in_memory == {"a:latest"}
    house.gateway.in_force.take(GatewayConfig(settings=sleeping()))
    await sleep_until(3.0 + within_s)
    house.gateway.in_force.take(GatewayConfig(settings=sleeping(suspend=False)))
    await sleep_until(10.0)
    assert house.in_memory == {"a:latest"}
    assert {event.why for event in house.events.of(GpuLeaseEnded)} <= {"stopped"}


@within(open_house)
async def test_a_gateway_that_stops_while_it_prepares_lets_the_machine_sleep(house: SleepHouse):
    house.ollama.next_unloads(UnloadFault.STUCK)
    house.login.announce(sleep=True)
    await sleep_until(0.2)
    await house.gateway.stop(0.0)
    assert not house.login.is_held_up


@pytest.mark.parametrize("says_so", [True, False])
@within(open_house)
async def test_a_lease_with_an_end_lasts_until_then_by_the_clock_on_the_wall(
    house: SleepHouse, says_so: bool
):
    """Whether or not logind says that the machine has slept."""
    leases = house.gateway.leases
    leases.take(reason="a film", source="api", for_s=3 * 3600.0, lease_id="film")
    leases.take(reason="a night", source="api", for_s=NIGHT_S + 3600.0, lease_id="night")
    leases.take(reason="a game", source="games", lease_id="game")
    await sleep_until(10.0)
    if says_so:
        await house.sleep()
        assert set(leases.leases) == {"night", "game"}
    else:
        house.clock.slept_s += NIGHT_S
        await sleep_until(60.0)
        assert set(leases.leases) == {"night", "game"}
    renewed = leases.renew("night", 600.0)
    assert renewed is not None
    assert renewed.until == house.now + 600.0
    await sleep_until(house.now + 601.0)
    assert set(leases.leases) == {"game"}
