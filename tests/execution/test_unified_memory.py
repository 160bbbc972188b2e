"""A GPU that shares main memory, in the whole gateway: what models may have of it, what is loaded,
and what an owner reads. The readings come through the real adapters (`support.shared_memory`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hearth.config.settings import ModelSettings, Settings
from hearth.engines.ollama.traits import OllamaTraits
from hearth.engines.table import EngineTable
from hearth.events import ModelOffloaded, SwapCompleted
from hearth.execution.gpu_watch import GpuWatch, foreign_memory_mib
from hearth.execution.unified_memory import as_card, reserve_mib
from hearth.scheduling.inputs import GpuSampled, Input
from hearth.types import GpuReading, ResidentModel
from tests.backends.stub_driver import StubDriver, loaded
from tests.support.fake_ollama import FakeModel
from tests.support.house import FULL_TEXT, House, settings_with
from tests.support.shared_memory import GIB, SYSTEM_MIB, Apu, Card, Gb10, SharedMachine
from tests.support.virtual_time import in_virtual_time, loop_s, sleep_until

GIB_BYTES = 1024**3
HERE = "http://127.0.0.1:11434"
MACHINES: dict[str, Callable[[StubDriver, Path], Card]] = {
    "GB10": lambda driver, _: Gb10(driver),
    "GB10, gateway in a container": lambda driver, _: Gb10(driver, lists=False),
    # github.com/unslothai/unsloth/pull/7960
    "APU that can map more than there is": lambda _, folder: Apu(folder, 128 * GIB_BYTES),
    # half of main memory, as Linux has it by default: github.com/ROCm/rocm-systems/pull/3978
    "APU that can map half": lambda _, folder: Apu(folder, 62.5 * GIB_BYTES),
}
MOST_MIB = {
    "GB10": 127_600_748 / 1024 - 12 * GIB,
    "GB10, gateway in a container": 127_600_748 / 1024 - 12 * GIB,
    "APU that can map more than there is": 130_988_200 / 1024 - 12 * GIB,
    "APU that can map half": 62.5 * GIB,
}
"""What models may have at most: main memory less the reserve, or what the GPU can map of it."""


class SharedHouse(House):
    """As `House`, on a machine whose GPU shares main memory: a load for which there is not enough
    of it breaks a rule.
    """

    def __init__(self, card: Card, folder: Path, *models: FakeModel, **wanted: Any) -> None:
        self.machine = SharedMachine(card, folder)
        here = {"table": lambda engine: EngineTable.of_one(engine, HERE)}
        super().__init__(*models, **here | {"capacity_mib": self.machine.room_mib} | wanted)
        self.machine.taken_mib = lambda: self.ollama.gpu.taken_mib(loop_s())
        self.told: list[GpuSampled] = []
        runtime = replace(self.gateway.worker.runtime, post=self._post)
        watch = GpuWatch(runtime, self.machine, self.gateway.engines)
        self.gateway.accompany("gpu watch", watch.run)

    def _post(self, fact: Input) -> None:
        assert isinstance(fact, GpuSampled)
        self.told.append(fact)
        self.gateway.worker.post(fact)

    def orders(self) -> list[str]:
        """What Ollama was told to do with models."""
        return [f"{call.kind} {call.model}" for call in self.ollama.control]


@pytest.fixture
def driver() -> Any:
    stub = StubDriver()
    with loaded(stub):
        yield stub


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest, driver: StubDriver, tmp_path: Path) -> tuple[str, Card]:
    name: str = request.param
    return name, MACHINES[name](driver, tmp_path)


def model(name: str, gib: float, **more: Any) -> FakeModel:
    return FakeModel(name=name, vram_mib=gib * GIB, **more)


def sized(**gib: float) -> Settings:
    """Settings that know the sizes of models."""
    return settings_with().replace(
        models={name: ModelSettings(vram_gb=size) for name, size in gib.items()}
    )


@pytest.mark.parametrize(
    ("total_gib", "reserve_gb", "kept_gib"),
    [
        (121.7, None, 12.0),
        (62.0, None, 6.2),
        (30.0, None, 4.0),
        (121.7, 3.0, 3.0),
        (62.0, 0.0, 0.0),
    ],
)
def test_a_tenth_of_main_memory_stays_free_within_bounds(total_gib, reserve_gb, kept_gib):
    assert reserve_mib(total_gib * GIB, reserve_gb) == pytest.approx(kept_gib * GIB)


def shared(used_mib: float, **more: Any) -> GpuReading:
    return GpuReading(unified=True, total_mib=100_000.0, used_mib=used_mib, **more)


@pytest.mark.parametrize(
    ("reading", "most_mib", "used_mib"),
    [
        pytest.param(
            shared(20_000.0), 90_000.0, 20_000.0, id="as much as is free less the reserve"
        ),
        pytest.param(shared(95_000.0), 90_000.0, 90_000.0, id="nothing is free"),
        pytest.param(
            shared(20_000.0, gpu_used_mib=1_000.0, gpu_limit_mib=50_000.0),
            50_000.0,
            1_000.0,
            id="the GPU can map less than is free",
        ),
        pytest.param(
            shared(60_000.0, gpu_used_mib=1_000.0, gpu_limit_mib=50_000.0),
            50_000.0,
            20_000.0,
            id="less is free than the GPU can map",
        ),
        pytest.param(
            GpuReading(total_mib=24_576.0, used_mib=1.0), 24_576.0, 1.0, id="memory of its own"
        ),
        pytest.param(GpuReading(unified=True), None, None, id="none that is known"),
    ],
)
def test_what_models_may_have_is_what_is_free_beside_the_reserve(reading, most_mib, used_mib):
    card = as_card(reading, 10_000 / GIB)
    assert (card.total_mib, card.used_mib) == (most_mib, used_mib)


def test_pages_of_files_are_not_taken_for_memory_that_models_give_back():
    """Where a model computes on mapped pages of its file, Linux counts them as free. To take its
    size from what is used would hide as much of what others hold.
    """
    resident = (ResidentModel(name="a", size_mib=40_000.0, vram_mib=40_000.0),)
    processes = OllamaTraits.processes
    mapped = shared(30_000.0, gpu_used_mib=500.0)
    assert foreign_memory_mib(mapped, resident, processes) == 29_500.0
    copied = shared(70_000.0, gpu_used_mib=41_000.0)
    assert foreign_memory_mib(copied, resident, processes) == 30_000.0


@in_virtual_time
async def test_the_scheduler_is_told_of_main_memory_as_the_gpus(machine, tmp_path):
    name, card = machine
    async with SharedHouse(card, tmp_path, model("a", 20), resident="a") as house:
        await sleep_until(1.0)
        (told,) = house.told
        assert told.unified
        assert told.capacity_mib == pytest.approx(MOST_MIB[name])
        mapped_by_others = name == "APU that can map half"
        others_mib = 18_653_184 / 1024**2 if mapped_by_others else SYSTEM_MIB
        assert told.foreign_mib == pytest.approx(others_mib, abs=1.0)
        shown = house.gpu_status
        assert (shown["unified_memory"], shown["memory_total_mib"]) == (
            True,
            round(house.machine.total_mib, 1),
        )
        assert shown["memory_used_mib"] == pytest.approx(SYSTEM_MIB + 20 * GIB, abs=1.0)


@in_virtual_time
async def test_a_model_that_ollama_has_split_is_one_whole_in_unified_memory(machine, tmp_path):
    """Ollama splits a model that does not fit into what it takes for the GPU's memory."""
    _, card = machine
    split = model("a", 10, size_mib=30 * GIB)
    other = model("b", 5)
    async with SharedHouse(card, tmp_path, split, other, resident="a") as house:
        await sleep_until(11.0)
        assert house.gpu_status["offloaded_models"] == []
        await house.answer("b")
        await house.answer("a")
        assert [event.offloaded for event in house.events.of(SwapCompleted)] == [False] * len(
            house.events.of(SwapCompleted)
        )
        assert house.events.of(ModelOffloaded) == []
        assert not any(row["offloaded"] for row in await house.gateway.models())


@in_virtual_time
async def test_models_stand_beside_each_other_in_unified_memory(machine, tmp_path):
    _, card = machine
    settings = sized(a=30, b=30)
    async with SharedHouse(
        card, tmp_path, model("a", 30), model("b", 30), resident="a", settings=settings
    ) as house:
        await sleep_until(1.0)
        assert await house.answer("b") == FULL_TEXT
        assert house.orders() == ["load b:latest"]
