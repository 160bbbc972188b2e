"""A GPU that shares main memory, in the whole gateway: what models may have of it, what is loaded,
and what an owner reads. The readings come through the real adapters (`support.shared_memory`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hearth.config.engine_checks import UNIFIED_SLEEP
from hearth.config.engines import RunSettings
from hearth.config.scheduler_settings import SleepSettings
from hearth.config.settings import ModelSettings, Settings
from hearth.engines.ollama.traits import OllamaTraits
from hearth.engines.table import EngineTable
from hearth.errors import CardTaken, NeverFits, QueueFull
from hearth.events import ItemEnded, ModelOffloaded, SwapCompleted, SwapFailed
from hearth.execution.gpu_watch import GpuWatch, foreign_memory_mib
from hearth.execution.request import Ticket
from hearth.execution.unified_memory import as_card, reserve_mib
from hearth.scheduling.inputs import GpuSampled, Input
from hearth.types import GpuProcess, GpuReading, ResidentModel
from tests.backends.stub_driver import StubDriver, loaded
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import FakeModel
from tests.support.house import FULL_TEXT, House, body_of, settings_with, text_of
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

    def __init__(
        self,
        card: Card,
        folder: Path,
        *models: FakeModel,
        machine: type[SharedMachine] = SharedMachine,
        url: str = HERE,
        **wanted: Any,
    ) -> None:
        self.machine = machine(card, folder)
        here = {
            "table": lambda engine: EngineTable.of_one(engine, url),
            "capacity_mib": self.machine.room_mib,
        }
        super().__init__(*models, **here | wanted)
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
    held = (GpuProcess(pid=1, name="/usr/lib/ollama/llama-server", used_mib=38_000.0),)
    named = replace(copied, processes=held)
    assert foreign_memory_mib(named, resident, processes) == 32_000.0
    # of a server that does not say what its model takes
    unsaid = (ResidentModel(name="a", size_mib=0.0, vram_mib=0.0),)
    assert foreign_memory_mib(named, unsaid, processes) == 32_000.0
    assert foreign_memory_mib(copied, unsaid, processes) == 70_000.0


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
async def test_that_levels_of_sleep_are_ignored_is_in_the_status(driver, tmp_path):
    words = ("server",)
    run = RunSettings(command=words, sleep_command=words, wake_command=words)
    settings = settings_with()
    gpu = settings.gpu.model_copy(update={"sleep": SleepSettings(host_ram_gb=8.0)})
    set_to_sleep = settings.replace(gpu=gpu, models={"a": ModelSettings(run=run)})
    for of_house, counts in ((set_to_sleep, 1), (set_to_sleep.replace(gpu=settings.gpu), 0)):
        machine = Gb10(driver)
        async with SharedHouse(machine, tmp_path, model("a", 20), settings=of_house) as house:
            await sleep_until(loop_s() + 1.0)
            assert house.status["gpu"]["unified_memory"]
            assert house.status["warnings"].count(UNIFIED_SLEEP) == counts


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


# What is loaded, beside other programs that take memory and give it back.


@in_virtual_time
async def test_what_has_no_room_waits_until_others_give_theirs_back(machine, tmp_path):
    """On a card it would be loaded alone, partly on the CPU; here it would go into swap."""
    _, card = machine
    settings = sized(a=50)
    async with SharedHouse(card, tmp_path, model("a", 50), settings=settings) as house:
        house.machine.foreign_mib = 70 * GIB
        await sleep_until(11.0)
        ticket = house.submit("a")
        await sleep_until(40.0)
        assert house.orders() == []
        view = house.worker.runtime.view
        waiting = view.entry(ticket.sequence)
        assert waiting is not None
        assert view.reason_of(waiting, house.now)["kind"] == "memory"
        house.machine.foreign_mib = 0.0
        await sleep_until(60.0)
        assert house.orders() == ["load a:latest"]
        assert text_of(await body_of(ticket)) == FULL_TEXT


@in_virtual_time
async def test_who_waits_too_long_for_memory_of_others_is_told_when_to_come_again(
    machine, tmp_path
):
    _, card = machine
    async with SharedHouse(card, tmp_path, model("a", 50), settings=sized(a=50)) as house:
        house.machine.foreign_mib = 70 * GIB
        await sleep_until(11.0)
        with pytest.raises(CardTaken) as raised:
            await house.answer("a")
        assert house.now == pytest.approx(11.0 + 60.0)
        assert raised.value.retry_after_s is not None


@in_virtual_time
async def test_a_program_that_takes_memory_right_before_a_load_holds_it_up(machine, tmp_path):
    """The last reading is up to five seconds old: memory is read again before each load."""
    _, card = machine
    async with SharedHouse(card, tmp_path, model("a", 50), settings=sized(a=50)) as house:
        await sleep_until(6.0)
        house.machine.foreign_mib = 70 * GIB
        ticket = house.submit("a")
        await sleep_until(30.0)
        assert house.orders() == []
        assert house.events.of(SwapFailed) == []
        house.machine.foreign_mib = 0.0
        assert text_of(await body_of(ticket)) == FULL_TEXT
        assert house.orders() == ["load a:latest"]


@pytest.mark.parametrize(
    ("settings", "file_gib"),
    [
        pytest.param(sized(a=130), None, id="by its size"),
        pytest.param(settings_with(), 130, id="by its file, as it was never loaded"),
    ],
)
@in_virtual_time
async def test_a_model_that_is_larger_than_main_memory_is_refused(
    machine, tmp_path, settings, file_gib
):
    name, card = machine
    large = model("a", 130, file_mib=None if file_gib is None else file_gib * GIB)
    async with SharedHouse(card, tmp_path, large, settings=settings) as house:
        await sleep_until(1.0)
        with pytest.raises(NeverFits, match="of the memory that the GPU shares") as raised:
            await house.answer("a")
        most_gib = MOST_MIB[name] / GIB
        assert f"needs 130.0 GiB, and models may have {most_gib:.1f} GiB" in str(raised.value)
        assert house.orders() == []


@in_virtual_time
async def test_what_the_owner_gives_models_is_the_most_that_they_get(machine, tmp_path):
    _, card = machine
    known = sized(a=30, b=20)
    settings = known.replace(gpu=known.gpu.replace(vram_gb=40.0))
    async with SharedHouse(
        card, tmp_path, model("a", 30), model("b", 20), resident="a", settings=settings
    ) as house:
        await sleep_until(1.0)
        await house.answer("b")
        assert house.orders() == ["unload a:latest", "load b:latest"]
        # what others use of the rest costs models nothing
        assert house.worker.runtime.view.room_mib == 40 * GIB


@in_virtual_time
async def test_a_split_model_reserves_all_that_it_takes(machine, tmp_path):
    _, card = machine
    async with SharedHouse(
        card, tmp_path, model("a", 10, size_mib=30 * GIB), resident="a"
    ) as house:
        await sleep_until(6.0)
        (resident,) = house.gpu_status["residents"]
        assert resident["reserved_mib"] == 30 * GIB


@in_virtual_time
async def test_a_model_server_elsewhere_has_its_own_memory(tmp_path):
    """A laptop with an APU before an Ollama on another machine: what that loads is not seen in the
    memory here, so nothing is refused or kept waiting for it.
    """
    card = Apu(tmp_path, 62.5 * GIB_BYTES)
    async with SharedHouse(
        card,
        tmp_path,
        model("a", 130),
        model("b", 20),
        settings=sized(a=130, b=20),
        capacity_mib=None,
        url="http://gpu-box:11434",
    ) as house:
        house.machine.taken_mib = list
        await sleep_until(1.0)
        await house.answer("b")
        await house.answer("a")
        assert house.orders() == ["load b:latest", "unload b:latest", "load a:latest"]
        assert house.gpu_status["unified_memory"] is False


@in_virtual_time
async def test_a_model_server_in_a_container_is_here_once_its_memory_is_seen(tmp_path):
    card = Apu(tmp_path, 62.5 * GIB_BYTES)
    async with SharedHouse(
        card, tmp_path, model("a", 20), resident="a", url="http://ollama:11434"
    ) as house:
        await sleep_until(6.0)
        assert house.gpu_status["unified_memory"] is True


MODELS = (
    model("a", 20, load_s=4.0),
    model("b", 35, load_s=8.0),
    model("c", 50, load_s=12.0),
    model("d", 15, file_mib=14 * GIB),  # its need is not known before its first load
)
EVENING_S = 600.0
SEEDS = range(EXAMPLES)


async def evening(house: SharedHouse, seed: int) -> None:
    """Callers ask for four models; other programs take memory, from a browser's to a game's, and
    give it back, at any moment.
    """
    rng = Random(seed)
    callers = asyncio.create_task(ask(house, rng))
    while house.now < EVENING_S:
        await sleep_until(house.now + rng.choice((0.3, 2.0, 7.0, 30.0, 60.0)))
        house.machine.foreign_mib = rng.choice((0.0, 2.0, 10.0, 30.0, 60.0, 80.0, 100.0)) * GIB
    house.machine.foreign_mib = 0.0
    await callers


async def ask(house: SharedHouse, rng: Random) -> None:
    async with asyncio.TaskGroup() as requests:
        while house.now < EVENING_S:
            await sleep_until(house.now + rng.expovariate(1 / 6.0))
            with suppress(QueueFull):
                ticket = house.submit(rng.choice("abcd"), service_s=rng.choice((1.0, 5.0)))
                requests.create_task(answered_or_told(ticket))


async def answered_or_told(ticket: Ticket) -> None:
    with suppress(CardTaken):
        assert text_of(await body_of(ticket)) == FULL_TEXT


@pytest.mark.parametrize("seed", SEEDS)
@in_virtual_time
async def test_no_model_is_loaded_into_swap_whatever_others_take(machine, tmp_path, seed):
    _, card = machine
    settings = sized(a=20, b=35, c=50)
    async with SharedHouse(card, tmp_path, *MODELS, settings=settings) as house:
        await evening(house, seed)
        loads = [order for order in house.orders() if order.startswith("load")]
        answered = [each for each in house.events.of(ItemEnded) if not each.reason]
        assert (len(loads) > 12, len(answered) > 30) == (True, True)


class AsACard(SharedMachine):
    """The same memory, taken for a card's own."""

    async def read(self) -> GpuReading:
        return replace(await super().read(), unified=False, gpu_used_mib=None)


@in_virtual_time
async def test_taken_for_a_cards_own_memory_it_would_be_loaded_into_swap(driver, tmp_path):
    """What the evenings above are judged by can tell."""
    house = SharedHouse(
        Gb10(driver), tmp_path, *MODELS, settings=sized(a=20, b=35, c=50), machine=AsACard
    )
    await house.__aenter__()
    await evening(house, 1)
    await house.gateway.stop(0.0)
    assert any("no room" in broken for broken in house.ollama.gpu.violations)
