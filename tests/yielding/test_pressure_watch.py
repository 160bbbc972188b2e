"""The watch for pressure in the whole gateway over a scripted card."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hearth.bootstrap.yielding import join_pressure
from hearth.config.scheduler_settings import YieldSettings
from hearth.config.settings import GatewayConfig, Settings
from hearth.events import GpuLeaseEnded, GpuLeaseTaken, YieldWatchOff
from hearth.types import DAY_S, GpuProcess, GpuReading
from tests.execution.test_gpu_watch import GIB, CardHouse, FakeCard, model
from tests.support.fake_gpu import FakeModel
from tests.support.fields import Fields
from tests.support.house import House, settings_with, settle
from tests.support.virtual_time import in_virtual_time, loop_s, sleep_until


def watching(watch: str = "pressure", beat_s: float = 5.0, **wanted: Any) -> Settings:
    yielding = YieldSettings.model_validate({"watch": watch} | wanted)
    return settings_with(gpu={"yield": yielding, "sample_interval_s": beat_s})


class PressureHouse(CardHouse):
    """A model of 19 GiB is in memory, and other programs have 0.5 GiB of the card's 24."""

    def __init__(self, *, models: tuple[FakeModel, ...] = (model("a", 19),), **wanted: Any) -> None:
        usual: Fields = {
            "resident": "a",
            "settings": watching(),
            "card": {"foreign_mib": 0.5 * GIB},
        }
        super().__init__(*models, **usual | wanted)
        join_pressure(self.gateway)

    def leases(self) -> list[tuple[str, float | None]]:
        """Those in force, with GiB."""
        return [
            (lease.source, None if lease.mib is None else lease.mib / GIB)
            for lease in self.gateway.leases.leases.values()
        ]


async def grow(house: PressureHouse, gib: float, at: float) -> None:
    await sleep_until(at)
    house.card.foreign_mib = gib * GIB


@in_virtual_time
async def test_memory_goes_to_who_takes_it_until_it_is_free_again():
    async with PressureHouse() as house:
        await grow(house, 4.5, 8.0)
        await sleep_until(11.5)  # readings at 10 and, since it grows, at 11
        (taken,) = house.events.of(GpuLeaseTaken)
        assert (taken.at, taken.source, taken.mib) == (11.0, "pressure", 5.5 * GIB)
        (lease,) = house.gateway.leases.leases.values()
        assert lease.reason == "game takes memory of the GPU"
        await grow(house, 9.5, 12.0)
        await sleep_until(25.0)
        assert house.leases() == [("pressure", 10.5)]
        await grow(house, 0.5, 100.0)
        await sleep_until(200.0)
        (ended,) = house.events.of(GpuLeaseEnded)
        assert ended.why == "released"
        assert ended.at == pytest.approx(100.0 + 60.0, abs=6.0)
        assert len(house.events.of(GpuLeaseTaken)) == 1


@in_virtual_time
async def test_more_than_the_card_has_is_all_of_it():
    async with PressureHouse(settings=watching(headroom_gb=20.0)) as house:
        await grow(house, 4.9, 8.0)
        await sleep_until(12.0)
        assert house.leases() == [("pressure", None)]


@in_virtual_time
async def test_what_a_program_with_a_lease_takes_leads_to_none():
    async with PressureHouse() as house:
        await sleep_until(6.0)
        house.gateway.leases.take(reason="a render", source="api", mib=4.5 * GIB)
        await grow(house, 4.9, 8.0)
        await sleep_until(60.0)
        assert house.leases() == [("api", 4.5)]


@in_virtual_time
async def test_one_that_the_owner_ends_is_not_taken_again():
    async with PressureHouse() as house:
        await grow(house, 4.5, 8.0)
        await sleep_until(20.0)
        house.gateway.leases.end("pressure", "owner")
        await sleep_until(600.0)
        assert house.leases() == []


@in_virtual_time
async def test_a_card_that_is_lost_ends_no_lease_and_is_told_of_once():
    async with PressureHouse() as house:
        await grow(house, 4.5, 8.0)
        await sleep_until(20.0)
        house.card.fault = "gpu_lost"
        await sleep_until(3600.0)
        assert house.leases() == [("pressure", 5.5)]
        (off,) = house.events.of(YieldWatchOff)
        assert (off.watch, off.reason) == ("pressure", "the GPU cannot be read")
        house.card.fault = None
        house.card.foreign_mib = 0.5 * GIB
        await sleep_until(3800.0)
        assert house.leases() == []
        house.card.fault = "gpu_lost"
        await sleep_until(3900.0)
        assert len(house.events.of(YieldWatchOff)) == 2


OFF: dict[str, tuple[dict[str, object], str]] = {
    "no driver": ({"fault": "no_driver"}, "the GPU cannot be read"),
    "no sizes": (
        {"total_mib": None},
        "the driver does not tell what other programs have of the GPU's memory",
    ),
}


@pytest.mark.parametrize("name", OFF)
@in_virtual_time
async def test_without_numbers_it_is_off_and_says_so_once(name):
    card, reason = OFF[name]
    async with PressureHouse(card=card) as house:
        await sleep_until(3600.0)
        assert [event.reason for event in house.events.of(YieldWatchOff)] == [reason]
        assert house.leases() == []


class Lagging(FakeCard):
    """Shows memory as it was a second ago: after an unload it is taken for that long."""

    def __init__(self, house: House) -> None:
        super().__init__(house)
        self.seen: list[tuple[float, float]] = []
        house.gateway.accompany("lag", self._follow)

    async def _follow(self) -> None:
        while True:
            self.seen.append((loop_s(), sum(self.gpu.taken_mib(loop_s()))))
            await asyncio.sleep(0.25)

    async def read(self) -> GpuReading:
        reading = await super().read()
        recent = [mib for at, mib in self.seen if at > loop_s() - 1.5]
        used_mib = max(recent, default=0.0) + self.foreign_mib
        assert reading.used_mib is not None
        return replace(reading, used_mib=max(used_mib, reading.used_mib))


@pytest.mark.parametrize("names", [True, False])
@in_virtual_time
async def test_models_that_come_and_go_are_no_pressure(names):
    models = tuple(replace(model(name, 22), load_s=4.0) for name in ("a", "b"))
    card = {"names": names, "overhead_mib": 300.0, "foreign_mib": 500.0}
    async with PressureHouse(models=models, card_type=Lagging, card=card) as house:
        for n in range(40):
            await house.answer("ab"[n % 2], service_s=0.3 + 0.7 * (n % 5))
            await asyncio.sleep(1.9 * (n % 7))
        assert house.leases() == []
        assert house.events.of(GpuLeaseTaken) == []


class Unnamed(FakeCard):
    """The model server runs under a name that nobody knows, as in a container."""

    def _processes(self, own: list[float]) -> tuple[GpuProcess, ...]:
        *models, other = super()._processes(own)
        return (*[replace(each, name="/opt/serve") for each in models], other)


@pytest.mark.parametrize("size_mib", [0.0, 19.0 * GIB])
@in_virtual_time
async def test_models_of_an_unknown_server_are_no_other_program(size_mib):
    silent = replace(model("a", 19), vram_mib=size_mib, load_s=30.0)
    card = {"overhead_mib": 19.0 * GIB - size_mib, "foreign_mib": 4.5 * GIB}
    async with PressureHouse(models=(silent,), resident="", card_type=Unnamed, card=card) as house:
        await house.answer("a")
        await sleep_until(house.now + 60.0)
        assert house.leases() == []
        off = [event.reason for event in house.events.of(YieldWatchOff)]
        assert off == ([] if size_mib else [OFF["no sizes"][1]])


@in_virtual_time
async def test_a_lease_is_renewed_before_its_day_is_over():
    async with PressureHouse(settings=watching(beat_s=600.0)) as house:
        await grow(house, 4.5, 8.0)
        await sleep_until(0.6 * DAY_S)
        (lease,) = house.gateway.leases.leases.values()
        assert lease.expires_at > 1.4 * DAY_S
        assert len(house.events.of(GpuLeaseTaken)) == 1


@in_virtual_time
async def test_where_nobody_reads_the_card_it_says_so_once():
    house = House("a", resident="a", settings=watching())
    join_pressure(house.gateway)
    async with house:
        await sleep_until(3600.0)
        (off,) = house.events.of(YieldWatchOff)
        assert off.reason == "the GPU is not read (gpu.nvml)"


@in_virtual_time
async def test_it_is_switched_on_and_off_while_hearth_runs():
    async with PressureHouse(settings=watching("named")) as house:
        await grow(house, 4.5, 8.0)
        await sleep_until(20.0)
        assert house.leases() == []
        await switch(house, watching())
        await grow(house, 4.9, 30.0)
        await sleep_until(60.0)
        assert house.leases() == []  # what they hold already when it is switched on is theirs
        await grow(house, 2.0, 60.0)
        await grow(house, 4.9, 70.0)
        await sleep_until(90.0)
        assert house.leases() == [("pressure", 4.5)]
        await switch(house, watching("off"))
        assert house.leases() == []


async def switch(house: House, settings: Settings) -> None:
    assert house.gateway.in_force.take(GatewayConfig(settings=settings))
    await settle()
