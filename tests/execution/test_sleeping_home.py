"""A home whose model server can keep models asleep: what makes room sleeps, and is woken."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from hearth.config.scheduler_settings import SleepSettings
from hearth.config.settings import ModelSettings
from hearth.errors import LoadError
from hearth.events import ModelPutToSleep, ModelWoken, SleepFailed
from hearth.types import LoadOptions, SleepLevel
from tests.execution.test_gpu_watch import CardHouse
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.house import FULL_TEXT, body_of, settings_with, text_of
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


def home() -> CardHouse:
    settings = settings_with()
    sleep = SleepSettings(host_ram_gb=4.0)
    gpu = settings.gpu.model_copy(update={"sleep": sleep, "sample_interval_s": 1.0})
    sizes = {name: ModelSettings(vram_gb=HELD_MIB / 1024) for name in ("a", "b")}
    return CardHouse(
        FakeModel(name="a", vram_mib=HELD_MIB),
        FakeModel(name="b", vram_mib=HELD_MIB),
        settings=settings.replace(gpu=gpu, models=sizes),
        capacity_mib=ROOM_MIB,
        ollama=Sleepy,
        card={"total_mib": ROOM_MIB},
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
        assert (asleep["residual_mib"], asleep["host_mib"] >= 0) == (0, True)
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
