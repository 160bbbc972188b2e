"""A home whose model server can keep models asleep: what makes room sleeps, and is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from hearth.config.scheduler_settings import SleepSettings
from hearth.config.settings import ModelSettings
from hearth.errors import LoadError, StaysAwake
from hearth.events import ModelPutToSleep, ModelWoken, SleepFailed
from hearth.types import LoadOptions, ResidentModel, SleepLevel
from tests.execution.test_gpu_watch import CardHouse
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.house import FULL_TEXT, body_of, heard, settings_with, text_of
from tests.support.virtual_time import in_virtual_time

HELD_MIB = 1200.0
ROOM_MIB = 2300.0
"""One model, and what a sleeper is taken to keep before that was measured."""


class Sleepy(FakeOllama):
    """Keeps nothing of the card asleep. `fails`: the steps that raise. `done`: what it was told."""

    def __init__(self, *models: FakeModel, **options: Any) -> None:
        super().__init__(*models, **options)
        self.slept: dict[str, SleepLevel] = {}
        self.fails: set[str] = set()
        self.done: list[str] = []

    def sleeps(self, model: str) -> tuple[SleepLevel, ...]:
        del model
        return ("offload",)

    def asleep(self) -> Mapping[str, SleepLevel]:
        return dict(self.slept)

    def _do(self, step: str, model: str) -> None:
        self.done.append(f"{step} {model.removesuffix(':latest')}")
        if step in self.fails:
            raise LoadError(f"no {step}")

    async def load(self, model: str, options: LoadOptions) -> None:
        self._do("wake" if model in self.slept else "load", model)
        await super().load(model, options)
        self.slept.pop(model, None)

    async def unload(self, model: str) -> None:
        self._do("stop", model)
        if self.slept.pop(model, None) is None:
            await super().unload(model)

    async def sleep(self, model: str, level: SleepLevel) -> None:
        self._do("sleep", model)
        self.gpu.drop(model)
        self.slept[model] = level


def home(
    server: Callable[..., Sleepy] = Sleepy,
    *,
    room_mib: float = ROOM_MIB,
    max_residual_gb: float = 1.5,
    b_gb: float = HELD_MIB / 1024,
) -> CardHouse:
    settings = settings_with()
    sleep = SleepSettings(host_ram_gb=4.0, max_residual_gb=max_residual_gb)
    gpu = settings.gpu.model_copy(update={"sleep": sleep, "sample_interval_s": 1.0})
    sizes = {name: ModelSettings(vram_gb=gb) for name, gb in (("a", HELD_MIB / 1024), ("b", b_gb))}
    return CardHouse(
        FakeModel(name="a", vram_mib=HELD_MIB),
        FakeModel(name="b", vram_mib=HELD_MIB),
        settings=settings.replace(gpu=gpu, models=sizes),
        capacity_mib=room_mib,
        ollama=server,
        card={"total_mib": room_mib},
    )


async def ask(house: CardHouse, *models: str) -> None:

    for model in models:
        assert text_of(await body_of(house.submit(model, service_s=0.5))) == FULL_TEXT
        await asyncio.sleep(10.0)


@in_virtual_time
async def test_a_model_that_makes_room_sleeps_and_its_next_request_wakes_it():
    async with home() as house:
        await ask(house, "a", "b", "a", "b")
        server: Any = house.ollama
        steps = [step for step in server.done if step not in ("load a", "load b")]
        assert steps == ["sleep a", "sleep b", "wake a", "sleep a", "wake b"]
        assert house.gateway.engines.asleep() == {"a:latest": "offload"}
        assert len(house.events.of(ModelPutToSleep)) == 3
        assert len(house.events.of(ModelWoken)) == 2
        assert house.events.of(SleepFailed) == []
        [asleep] = house.gpu_status["sleepers"]
        assert (asleep["model"], asleep["level"]) == ("a:latest", "offload")
        assert asleep["residual_mib"] == 0
        assert 0.0 < house.clock.wall() - asleep["since"] < 60.0


@in_virtual_time
async def test_a_level_that_fails_twice_is_not_used_again_and_no_request_is_lost():
    async with home() as house:
        server: Any = house.ollama
        server.fails = {"sleep"}
        await ask(house, *"abababab")
        assert len(house.events.of(SleepFailed)) == 4  # two of each model
        assert server.done.count("sleep a") == server.done.count("sleep b") == 2


@in_virtual_time
async def test_one_that_does_not_wake_is_started_anew_and_its_request_served():
    async with home() as house:
        server: Any = house.ollama
        server.fails = {"wake"}
        await ask(house, *"abababab")
        assert {failed.step for failed in house.events.of(SleepFailed)} == {"wake"}
        assert server.done.count("wake a") <= 2


@in_virtual_time
async def test_the_owner_stops_what_sleeps():
    async with home() as house:
        server: Any = house.ollama
        await ask(house, "a", "b")
        assert house.gateway.engines.asleep() == {"a:latest": "offload"}
        assert await house.gateway.orders.unload("a")
        await asyncio.sleep(10.0)
        assert server.done[-1] == "stop a"
        assert not await house.gateway.orders.unload("a")


@in_virtual_time
async def test_what_sleeps_is_stopped_before_its_files_are_deleted():
    async with home() as house:
        server: Any = house.ollama
        await ask(house, "a", "b")
        await house.gateway.orders.clear_for_deletion("a")
        assert server.done[-1] == "stop a"


@in_virtual_time
async def test_what_sleeps_is_still_known_after_the_card_could_not_be_read_for_a_while():
    async with home() as house:
        server: Any = house.ollama
        await ask(house, "a", "b")
        assert house.gateway.engines.asleep() == {"a:latest": "offload"}
        house.card.fault = "gpu_lost"
        await asyncio.sleep(60.0)
        house.card.fault = None
        await asyncio.sleep(60.0)
        await house.gateway.orders.unload("a")
        await asyncio.sleep(10.0)
        assert server.done[-1] == "stop a"


class Unstoppable(Sleepy):
    """`a` cannot be stopped, and frees nothing asleep."""

    async def resident(self) -> tuple[ResidentModel, ...]:
        return tuple(each for each in await super().resident() if each.name not in self.slept)

    async def sleep(self, model: str, level: SleepLevel) -> None:
        if model.startswith("b"):
            await super().sleep(model, level)
            return
        self._do("sleep", model)
        self.slept[model] = level

    async def unload(self, model: str) -> None:
        if model.startswith("b"):
            await super().unload(model)
        elif model not in self.slept:
            try:
                await self.sleep(model, "offload")
            except LoadError as error:
                raise StaysAwake(error.message) from error


@in_virtual_time
async def test_what_neither_frees_enough_asleep_nor_can_be_stopped_costs_nobody_the_answer():
    async with home(Unstoppable, room_mib=2500.0, max_residual_gb=1.0, b_gb=1.4) as house:
        server: Any = house.ollama
        await ask(house, *"abab")
        steps = ["load a", "sleep a", "load b", "sleep b", "wake a", "sleep a", "wake b"]
        assert server.done == steps
        [failed] = house.events.of(SleepFailed)  # the second one was to be a stop
        assert failed.detail == "it keeps 1200 MiB of the GPU's memory, 1024 MiB are allowed"


@in_virtual_time
async def test_what_neither_sleeps_nor_can_be_stopped_works_on():
    async with home(Unstoppable) as house:
        server: Any = house.ollama
        server.fails = {"sleep"}
        await ask(house, "a")
        for _ in range(2):
            error = (await heard(house.submit("b", service_s=0.5)))[1]
            assert isinstance(error, LoadError)
            await ask(house, "a", "a")
        assert server.done.count("load a") == 1


@in_virtual_time
async def test_what_slept_before_the_gateway_began_is_counted_until_it_is_woken():
    async with home() as house:
        server: Any = house.ollama
        server.slept["a:latest"] = "offload"
        await asyncio.sleep(60.0)
        [asleep] = house.gpu_status["sleepers"]
        assert (asleep["model"], asleep["level"]) == ("a:latest", "offload")
        assert asleep["residual_mib"] == 1024
        await ask(house, "a")
        assert server.done == ["wake a"]
        assert house.gpu_status["sleepers"] == []
