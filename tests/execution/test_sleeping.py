"""Models are put to sleep and woken, and what came of it is seen in the card's memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.config.settings import GatewayConfig, Settings
from hearth.engines.table import EngineTable
from hearth.errors import LoadError
from hearth.events import ModelPutToSleep, ModelWoken, SleepFailed
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.gpu_tracker import CardUse, GpuTracker
from hearth.execution.runtime import Runtime
from hearth.execution.swapper import Swapper
from hearth.execution.tasks import cancel_all
from hearth.main_memory import MainMemory
from hearth.scheduling.inputs import Input, LoadAborted, Loaded, LoadFailed, Unloaded, UnloadFailed
from hearth.types import GpuReading, LoadOptions, ResidentModel, SleepLevel
from tests.support.echo_engine import EchoEngine
from tests.support.recorder import Recorder
from tests.support.virtual_time import in_virtual_time

MODEL = "a"
OTHER = "b"
HELD_MIB = 9000.0
HOST_MIB = 64_000.0


class Sleeping(EchoEngine):
    """Keeps `keeps_mib` of the card asleep, and offloaded all of it in main memory. `fails`: the
    steps that raise. `done`: what it was told to do.
    """

    def __init__(self, keeps_mib: float, *fails: str) -> None:
        super().__init__(MODEL)
        self.keeps_mib = keeps_mib
        self.fails = fails
        self.level: SleepLevel | None = None
        self.held_mib = 0.0
        self.done: list[str] = []

    @property
    def host_mib(self) -> float:
        return HELD_MIB if self.level == "offload" else 0.0

    def sleeps(self, model: str) -> tuple[SleepLevel, ...]:
        del model
        return ("offload", "discard")

    def asleep(self) -> Mapping[str, SleepLevel]:
        return {} if self.level is None else {MODEL: self.level}

    def _do(self, step: str) -> None:
        self.done.append(step)
        if step in self.fails:
            raise LoadError(f"no {step}")

    async def resident(self) -> tuple[ResidentModel, ...]:
        there = await super().resident()
        return (
            ()
            if self.level
            else tuple(
                ResidentModel(name=each.name, size_mib=HELD_MIB, vram_mib=HELD_MIB)
                for each in there
            )
        )

    async def load(self, model: str, options: LoadOptions) -> None:
        self._do("load" if self.level is None else "wake")
        await super().load(model, options)
        self.level = None
        self.held_mib = HELD_MIB

    async def unload(self, model: str) -> None:
        self._do("stop")
        await super().unload(model)
        self.level = None
        self.held_mib = 0.0

    async def sleep(self, model: str, level: SleepLevel) -> None:
        del model
        self._do("sleep")
        self.level = level
        self.held_mib = self.keeps_mib


@dataclass
class Bench:
    engine: Sleeping
    swapper: Swapper
    events: Recorder
    posted: list[Input] = field(default_factory=list)

    async def come(self) -> Input:
        self.swapper.load(MODEL)
        return await self.answer()

    async def go(self, level: SleepLevel | None) -> Input:
        self.swapper.unload(MODEL, level)
        return await self.answer()

    async def answer(self) -> Input:
        while not self.posted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return self.posted.pop()


@asynccontextmanager
async def bench(engine: Sleeping, *, is_read: bool = True) -> AsyncIterator[Bench]:
    events = Recorder()
    posted: list[Input] = []
    config = GatewayConfig(settings=Settings())
    tracker = GpuTracker("", config.settings.gpu.alerts)
    view: Any = SimpleNamespace(residents={})
    forecasts: Any = SimpleNamespace(longest_load_s=lambda _: 0.0)
    runtime = Runtime(
        config=config,
        clock=SystemClock(),
        events=events,
        view=view,
        forecasts=forecasts,
        tracker=tracker,
        post=posted.append,
        engine_of=lambda _: "main",
    )

    async def read() -> None:
        while is_read:
            tracker.record_reading(GpuReading(used_mib=500.0 + engine.held_mib), CardUse())
            await runtime.card_beat.pause(5.0)

    table = EngineTable.of_one(engine)

    def read_host() -> MainMemory:
        return MainMemory(total_mib=HOST_MIB, available_mib=HOST_MIB - engine.host_mib)

    swapper = Swapper(runtime, table, BackendWatch(runtime, table), read_host)
    reading = asyncio.ensure_future(read())
    async with aclosing(swapper):
        yield Bench(engine, swapper, events, posted)
    await cancel_all((reading,))


@in_virtual_time
async def test_what_sleeps_is_reported_with_what_it_keeps_and_a_load_wakes_it():
    async with bench(Sleeping(800.0)) as home:
        assert isinstance(await home.come(), Loaded)
        slept = await home.go("offload")
        assert isinstance(slept, Unloaded)
        assert (slept.level, slept.residual_mib, slept.failed_level) == ("offload", 800.0, None)
        woken = await home.come()
        assert isinstance(woken, Loaded)
        assert woken.failed_level is None
        assert home.engine.done == ["load", "sleep", "wake"]
        assert [event.sleep_level for event in home.events.of(ModelPutToSleep)] == ["offload"]
        assert [event.sleep_level for event in home.events.of(ModelWoken)] == ["offload"]
        assert home.events.of(SleepFailed) == []


@pytest.mark.parametrize(
    ("engine", "is_read", "failed_level", "says"),
    [
        (
            Sleeping(HELD_MIB),
            True,
            "offload",
            "keeps 9000 MiB of the GPU's memory, 1536 MiB are allowed",
        ),
        (Sleeping(0.0, "sleep"), True, "offload", "no sleep"),
        (Sleeping(0.0), False, None, "could not be read"),
    ],
)
@in_virtual_time
async def test_a_sleep_that_frees_too_little_or_nobody_knows_what_ends_in_a_stop(
    engine: Sleeping, is_read: bool, failed_level: SleepLevel | None, says: str
):
    async with bench(engine, is_read=is_read) as home:
        await home.come()
        stopped = await home.go("offload")
        assert isinstance(stopped, Unloaded)
        assert (stopped.level, stopped.failed_level) == (None, failed_level)
        assert engine.done == ["load", "sleep", "stop"]
        [failed] = home.events.of(SleepFailed)
        assert failed.step == "sleep"
        assert says in failed.detail


@in_virtual_time
async def test_one_that_does_not_wake_is_stopped_and_started_anew_once():
    async with bench(Sleeping(0.0, "wake")) as home:
        await home.come()
        await home.go("discard")
        come = await home.come()
        assert isinstance(come, Loaded)
        assert come.failed_level == "discard"
        assert home.engine.done == ["load", "sleep", "wake", "stop", "load"]
        assert [event.step for event in home.events.of(SleepFailed)] == ["wake"]
        home.engine.fails = ("wake", "load")
        await home.go("discard")
        assert isinstance(await home.come(), LoadFailed)
        assert home.engine.done[-3:] == ["wake", "stop", "load"]


@in_virtual_time
async def test_one_that_neither_sleeps_nor_stops_keeps_its_room():
    async with bench(Sleeping(HELD_MIB, "stop")) as home:
        await home.come()
        assert isinstance(await home.go("offload"), UnloadFailed)


class Slow(Sleeping):
    """Never ends to wake."""

    async def load(self, model: str, options: LoadOptions) -> None:
        if self.level is not None:
            self.done.append("wake")
            await asyncio.Event().wait()
        await super().load(model, options)


@in_virtual_time
async def test_a_wake_that_is_cut_ends_the_sleeper():
    async with bench(Slow(0.0)) as home:
        await home.come()
        await home.go("offload")
        home.swapper.load(MODEL)
        await asyncio.sleep(1.0)
        home.swapper.cut(MODEL)
        cut = await home.answer()
        assert isinstance(cut, LoadAborted)
        assert cut.clean
        assert home.engine.done[-2:] == ["wake", "stop"]


class Unstoppable(Sleeping):
    """Only sleeps, as a server that somebody else runs."""

    async def unload(self, model: str) -> None:
        del model
        self._do("stop")


@in_virtual_time
async def test_one_that_frees_too_little_and_cannot_be_stopped_sleeps_with_what_it_keeps():
    async with bench(Unstoppable(3000.0)) as home:
        await home.come()
        slept = await home.go("offload")
        assert isinstance(slept, Unloaded)
        assert (slept.level, slept.failed_level) == ("offload", "offload")
        assert (slept.residual_mib, slept.host_mib) == (3000.0, HELD_MIB)
        assert home.engine.done == ["load", "sleep", "stop"]


class Dozing(Unstoppable):
    """Sleeps when it is to be stopped."""

    async def unload(self, model: str) -> None:
        await self.sleep(model, "discard")


@in_virtual_time
async def test_one_that_sleeps_when_it_is_to_be_stopped_is_reported_with_what_it_keeps():
    async with bench(Dozing(3000.0)) as home:
        await home.come()
        slept = await home.go(None)
        assert isinstance(slept, Unloaded)
        assert (slept.level, slept.residual_mib, slept.failed_level) == ("discard", 3000.0, None)
        home.engine.keeps_mib = 2500.0
        again = await home.go(None)
        assert isinstance(again, Unloaded)
        assert again.residual_mib == 2500.0
        assert [event.residual_mib for event in home.events.of(ModelPutToSleep)] == [3000.0, 2500.0]


@in_virtual_time
async def test_what_cannot_be_read_of_one_that_sleeps_is_taken_for_what_such_a_model_keeps():
    async with bench(Dozing(3000.0), is_read=False) as home:
        await home.come()
        slept = await home.go(None)
        assert isinstance(slept, Unloaded)
        assert (slept.level, slept.residual_mib) == ("discard", 1024.0)


@in_virtual_time
async def test_one_that_sleeps_deeper_is_measured_by_what_it_kept():
    async with bench(Sleeping(800.0)) as home:
        await home.come()
        await home.go("offload")
        home.engine.keeps_mib = 600.0
        deeper = await home.go("discard")
        assert isinstance(deeper, Unloaded)
        assert (deeper.level, deeper.residual_mib, deeper.failed_level) == ("discard", 600.0, None)


class Still(Unstoppable):
    """Reads over what it is told asleep."""

    async def sleep(self, model: str, level: SleepLevel) -> None:
        await super().sleep(model, self.level or level)


@pytest.mark.parametrize(
    ("engine", "then", "level", "host_mib"),
    [
        (Sleeping(800.0), "discard", "discard", 0.0),
        (Still(800.0), "discard", "offload", HELD_MIB),
        (Still(800.0), None, "offload", HELD_MIB),
    ],
)
@in_virtual_time
async def test_one_that_sleeps_is_reported_with_what_it_has_of_main_memory(
    engine: Sleeping, then: SleepLevel | None, level: SleepLevel, host_mib: float
):
    async with bench(engine) as home:
        await home.come()
        slept = await home.go("offload")
        assert isinstance(slept, Unloaded)
        assert slept.host_mib == HELD_MIB
        again = await home.go(then)
        assert isinstance(again, Unloaded)
        assert (again.level, again.host_mib) == (level, host_mib)


@in_virtual_time
async def test_a_sleeper_is_stopped_for_good():
    async with bench(Sleeping(800.0)) as home:
        await home.come()
        await home.go("offload")
        gone = await home.go(None)
        assert isinstance(gone, Unloaded)
        assert (gone.level, home.engine.done[-1]) == (None, "stop")


class Pair(Sleeping):
    """Has `a`, which frees nothing of the card asleep, and `b`, which frees all."""

    def __init__(self) -> None:
        super().__init__(HELD_MIB)
        EchoEngine.__init__(self, MODEL, OTHER)
        self.slept: dict[str, SleepLevel] = {}

    def asleep(self) -> Mapping[str, SleepLevel]:
        return dict(self.slept)

    async def resident(self) -> tuple[ResidentModel, ...]:
        return tuple(each for each in await super().resident() if each.name not in self.slept)

    async def load(self, model: str, options: LoadOptions) -> None:
        await EchoEngine.load(self, model, options)
        self.held_mib += HELD_MIB

    async def unload(self, model: str) -> None:
        await EchoEngine.unload(self, model)
        if self.slept.pop(model, None) is None or model == MODEL:
            self.held_mib -= HELD_MIB

    async def sleep(self, model: str, level: SleepLevel) -> None:
        await asyncio.sleep(0.2)
        self.slept[model] = level
        self.held_mib -= 0.0 if model == MODEL else HELD_MIB


@pytest.mark.parametrize("order", [(MODEL, OTHER), (OTHER, MODEL)])
@pytest.mark.parametrize("other_becomes", ["offload", None])
@in_virtual_time
async def test_what_another_frees_meanwhile_is_not_taken_for_what_a_sleep_has_freed(
    order: tuple[str, str], other_becomes: SleepLevel | None
):
    async with bench(Pair()) as home:
        for model in order:
            home.swapper.load(model)
            await home.answer()
        for model in order:
            home.swapper.unload(model, "offload" if model == MODEL else other_becomes)
        reports = [await home.answer(), await home.answer()]
        found = {each.model: each for each in reports if isinstance(each, Unloaded)}
        assert (found[MODEL].level, found[MODEL].failed_level) == (None, "offload")
        assert (found[OTHER].level, found[OTHER].residual_mib) == (other_becomes, 0.0)
