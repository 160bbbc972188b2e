"""The card in the whole gateway: what it changes in what is loaded, what an owner sees, and what
happens when it is gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hearth.bootstrap import build_gateway
from hearth.clock import SystemClock
from hearth.config.scheduler_settings import YieldSettings
from hearth.config.settings import BackendMode, GatewayConfig, GpuSettings, ModelSettings, Settings
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from hearth.engines.ollama.traits import OllamaTraits
from hearth.errors import GpuFault, GpuUnavailable
from hearth.events import (
    EnergyMeasured,
    GpuCooledDown,
    GpuFound,
    GpuLost,
    GpuOverheated,
    GpuRecovered,
    GpuUnreadable,
    ModelOffloaded,
    ResidencyDrifted,
    SwapCompleted,
)
from hearth.execution.gpu_tracker import CardUse
from hearth.execution.gpu_watch import UNKNOWN_RETRY_S, GpuWatch, foreign_memory_mib, holds_models
from hearth.scheduling.inputs import GpuSampled, Input
from hearth.types import GpuProcess, GpuReading, ResidentModel
from tests.backends.stub_driver import UUID, StubDriver
from tests.support.fake_gpu import FakeGpu
from tests.support.fake_ollama import FakeModel
from tests.support.fields import Fields
from tests.support.house import FULL_TEXT, House, body_of, settings_with, settle
from tests.support.patience import in_time
from tests.support.recorder import Recorder
from tests.support.virtual_time import in_virtual_time, loop_s, sleep_until

GIB = 1024.0
TOTAL_MIB = 24 * GIB


class FakeCard:
    """A `GpuReader` over the memory of a fake Ollama."""

    def __init__(self, house: House) -> None:
        self.gpu = house.ollama.gpu
        self.names = True  # the driver names processes; else only sums are known, as in a container
        self.total_mib: float | None = TOTAL_MIB
        # what the driver keeps for itself, and what other programs hold
        self.reserved_mib = self.foreign_mib = 0.0
        self.overhead_mib = 0.0  # what each model takes beside what Ollama says
        self.temperature_c: float | None = 50.0
        self.power_w: float | None = None
        self.fault: GpuFault | None = None  # while set, there is no reading
        self.hangs = False  # while set, a reading never ends
        self.reads: list[float] = []

    async def read(self) -> GpuReading:
        self.reads.append(loop_s())
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        if self.fault is not None:
            raise GpuUnavailable(self.fault, "it is gone")
        own = [mib + self.overhead_mib for mib in self.gpu.taken_mib(loop_s())]
        return GpuReading(
            name="Fake 3090",
            total_mib=self.total_mib,
            used_mib=sum(own) + self.foreign_mib,
            reserved_mib=self.reserved_mib,
            processes=self._processes(own) if self.names else None,
            utilisation_pct=3.14159,
            temperature_c=self.temperature_c,
            power_w=self.power_w,
            throttle_reasons=(),
        )

    def _processes(self, own: list[float]) -> tuple[GpuProcess, ...]:
        models = [
            GpuProcess(pid=100 + n, name="/usr/lib/ollama/llama-server", used_mib=mib)
            for n, mib in enumerate(own)
        ]
        return (*models, GpuProcess(pid=7, name="/usr/bin/game", used_mib=self.foreign_mib))


class CardHouse(House):
    """As `House`; `card` is read from the start, `told` is what the scheduler was told of it.

    Args:
        card: attributes of the card, from before the first reading.
    """

    def __init__(
        self,
        *models: str | FakeModel,
        card: Fields | None = None,
        card_type: type[FakeCard] = FakeCard,
        **wanted: Any,
    ) -> None:
        super().__init__(*models, **{"capacity_mib": TOTAL_MIB} | wanted)
        self.card: Any = card_type(self)
        for name, value in (card or {}).items():
            setattr(self.card, name, value)
        self.told: list[GpuSampled] = []
        gateway = self.gateway
        runtime = replace(gateway.worker.runtime, post=self._post)
        watch = GpuWatch(runtime, self.card, gateway.engines)
        gateway.accompany("gpu watch", watch.run)

    def _post(self, fact: Input) -> None:
        assert isinstance(fact, GpuSampled)
        self.told.append(fact)
        self.gateway.worker.post(fact)

    def orders(self) -> list[str]:
        """What Ollama was told to do with models."""
        return [f"{call.kind} {call.model}" for call in self.ollama.control]


def model(name: str, gib: float) -> FakeModel:
    return FakeModel(name=name, vram_mib=gib * GIB)


def sized(**gib: float) -> Settings:
    """Settings that know the sizes of models and nothing of the card."""
    return settings_with().replace(
        models={name: ModelSettings(vram_gb=size) for name, size in gib.items()}
    )


UNLOADED_FIRST = ["unload a:latest", "load b:latest"]
ROOM: dict[str, tuple[float, float, Fields, float | None, list[str]]] = {
    # GiB of the models, the card, the owner's number for it, what Ollama was told to do
    "the card's own size lets models share it": (10, 10, {}, None, ["load b:latest"]),
    "what the driver keeps for itself is no room for models": (
        12,
        12,
        {"reserved_mib": 400.0},
        None,
        UNLOADED_FIRST,
    ),
    "without a reading": (10, 10, {"fault": "no_driver"}, None, UNLOADED_FIRST),
    "a card without a size": (10, 10, {"total_mib": None}, None, UNLOADED_FIRST),
    "a card that the models cannot be on": (10, 10, {"gpu": FakeGpu(())}, None, UNLOADED_FIRST),
    "what others hold counts against the owner's number too": (
        10,
        10,
        {"foreign_mib": 8 * GIB},
        24.0,
        UNLOADED_FIRST,
    ),
    "a model larger than the card is loaded alone and not refused": (
        4,
        30,
        {},
        None,
        UNLOADED_FIRST,
    ),
}


@pytest.mark.parametrize("name", ROOM)
@in_virtual_time
async def test_where_there_is_no_room_for_both_one_model_is_loaded_at_a_time(name):
    a_gib, b_gib, card, vram_gb, orders = ROOM[name]
    known = sized(a=a_gib, b=b_gib)
    settings = known.replace(gpu=known.gpu.replace(vram_gb=vram_gb))
    capacity: Fields = {"capacity_mib": None} if b_gib > 24 else {}
    async with CardHouse(
        model("a", a_gib),
        model("b", b_gib),
        resident="a",
        settings=settings,
        card=card,
        **capacity,
    ) as house:
        assert await house.answer("b") == FULL_TEXT
        assert house.orders() == orders
        assert [(found.name, found.total_mib) for found in house.events.of(GpuFound)] in (
            [("Fake 3090", house.card.total_mib)],
            [],
        )


@pytest.mark.parametrize(
    ("foreign_mib", "told_mib"),
    [
        ([0.0, 3 * GIB, 3 * GIB, 1 * GIB], [0.0, 3 * GIB, 1 * GIB]),
        # a desktop that breathes is no news for the scheduler
        ([500.0 + 50.0 * (beat % 3) for beat in range(20)], [500.0]),
    ],
)
@in_virtual_time
async def test_a_rise_counts_when_it_is_seen_twice_and_a_fall_at_once(foreign_mib, told_mib):
    async with CardHouse("a", card={"foreign_mib": foreign_mib[0]}) as house:
        shown = []
        for beat, mib in enumerate(foreign_mib):
            await sleep_until(max(0.0, beat * 5.0 - 1.0))
            house.card.foreign_mib = mib
            await sleep_until(beat * 5.0 + 1.0)
            shown.append(house.gpu_status["foreign_mib"])
        assert [told.foreign_mib for told in house.told] == told_mib
        assert len(house.card.reads) == len(foreign_mib)
        if len(told_mib) > 1:
            assert shown == [0.0, 0.0, 3 * GIB, 1 * GIB]


@pytest.mark.parametrize("names", [True, False])
@in_virtual_time
async def test_swaps_never_look_like_other_programs(names):
    large = [replace(model(name, 14), load_s=12.0) for name in ("a", "b")]
    async with CardHouse(*large, card={"names": names, "overhead_mib": 100.0}) as house:
        for _ in range(20):
            await house.answer("a", service_s=0.7)
            await house.answer("b", service_s=1.3)
        assert (len(house.events.of(SwapCompleted)), house.gpu_status["drift_count"]) == (40, 0)
        assert len(house.card.reads) > 100
        assert max(told.foreign_mib for told in house.told) <= 100.0


@pytest.mark.parametrize("names", [True, False])
@in_virtual_time
async def test_a_game_that_starts_during_a_load_is_seen_if_the_driver_lists_it(names):
    slow = replace(model("b", 4), load_s=60.0)
    async with CardHouse(slow, card={"names": names, "foreign_mib": 500.0}) as house:
        load = house.submit("b")
        await sleep_until(11.0)
        house.card.foreign_mib = 8 * GIB
        await sleep_until(31.0)
        assert [told.foreign_mib for told in house.told] == ([500.0, 8 * GIB] if names else [500.0])
        house.card.foreign_mib = 600.0
        await sleep_until(36.0)
        assert house.told[-1].foreign_mib == (600.0 if names else 500.0)
        assert house.worker.tracker.models_mib == pytest.approx(0.6 * 4 * GIB, rel=0.1)
        house.card.foreign_mib = 8 * GIB
        await body_of(load)
        await sleep_until(house.now + 10.0)
        assert house.told[-1].foreign_mib == 8 * GIB


class Releasing(FakeCard):
    """Memory of models that are gone is taken until an instant."""

    kept_mib = 14 * GIB
    kept_until = 0.0

    async def read(self) -> GpuReading:
        reading = await super().read()
        if loop_s() >= self.kept_until or self.gpu.taken_mib(loop_s()):
            return reading
        return replace(reading, used_mib=self.foreign_mib + self.kept_mib)


@in_virtual_time
async def test_memory_that_a_model_gives_back_late_is_not_another_programs():
    settings = settings_with(gpu={"yield": YieldSettings(watch="pressure")})
    card = {"names": False, "kept_until": 8.5}
    async with CardHouse(
        model("a", 14), resident="a", settings=settings, card_type=Releasing, card=card
    ) as house:
        await sleep_until(1.0)
        await house.gateway.orders.unload("a")
        await sleep_until(8.2)
        assert house.card.reads[-3:] == [6.0, 7.0, 8.0]
        assert house.worker.tracker.models_mib == 14 * GIB  # though no engine lists it any more
        await sleep_until(20.0)
        assert max(told.foreign_mib for told in house.told) == 0.0
        assert house.worker.tracker.models_mib == 0.0


@pytest.mark.parametrize(("watch", "beat_s"), [("pressure", 1.0), ("named", 5.0)])
@in_virtual_time
async def test_the_card_is_read_more_often_while_other_programs_take_memory(watch, beat_s):
    settings = settings_with(gpu={"yield": YieldSettings(watch=watch)})
    async with CardHouse("a", settings=settings, resident="a") as house:
        for beat in range(4):
            await sleep_until(9.0 + beat_s * beat)
            house.card.foreign_mib += GIB
        await sleep_until(30.0)
        gaps = [later - earlier for earlier, later in pairwise(house.card.reads)]
        assert gaps[:7] == [5.0, 5.0, beat_s, beat_s, beat_s, 5.0, 5.0][: len(gaps)]


@in_virtual_time
async def test_other_programs_are_listed_by_name():
    async with CardHouse("a", resident="a", card={"foreign_mib": 2 * GIB}) as house:
        listed = house.worker.tracker.use.foreign_programs
        assert listed == (GpuProcess(pid=7, name="/usr/bin/game", used_mib=2 * GIB),)
        house.card.fault = "gpu_lost"
        await sleep_until(6.0)
        assert house.worker.tracker.use == CardUse()


@in_virtual_time
async def test_without_a_driver_there_is_one_quiet_word_and_hardly_a_question():
    async with CardHouse(card={"fault": "no_driver"}) as house:
        await sleep_until(3600.0)
        (word,) = house.events.of(GpuUnreadable)
        assert (word.at, word.reason) == (0.0, "no_driver")
        assert house.events.of(GpuLost) == []
        assert house.card.reads[:7] == [
            0.0,
            10.0,
            30.0,
            70.0,
            150.0,
            310.0,
            310.0 + UNKNOWN_RETRY_S,
        ]
        assert len(house.card.reads) == 16
        assert (house.told, house.gpu_status["readings"]) == ([], "unknown")
        house.card.fault = None
        await sleep_until(3600.0 + UNKNOWN_RETRY_S)
        assert [event.name for event in house.events.of(GpuFound)] == ["Fake 3090"]
        first, second = house.card.reads[-2:]
        assert second - first == 5.0


@in_virtual_time
async def test_a_card_that_is_lost_and_comes_back_is_told_of_once_each():
    async with CardHouse(
        model("a", 10), model("b", 10), resident="a", settings=sized(a=10, b=10)
    ) as house:
        await sleep_until(1.0)
        house.card.fault = "gpu_lost"
        await sleep_until(500.0)
        (lost,) = house.events.of(GpuLost)
        assert (lost.at, lost.reason, lost.detail) == (5.0, "gpu_lost", "it is gone")
        assert house.told[-1] == GpuSampled(capacity_mib=None, foreign_mib=0.0)
        assert max(later - earlier for earlier, later in pairwise(house.card.reads)) == 60.0
        shown = house.gpu_status
        assert (
            shown["readings"],
            shown["memory_used_mib"],
            shown["temperature_c"],
            shown["device"],
        ) == ("lost", None, None, "Fake 3090")
        house.card.fault = None
        await sleep_until(560.0)
        (back,) = house.events.of(GpuRecovered)
        assert back.lost_s == back.at - 5.0
        assert house.told[-1] == GpuSampled(capacity_mib=TOTAL_MIB, foreign_mib=0.0)
        await house.answer("b")
        assert house.orders() == ["load b:latest"]
        assert len(house.events.of(GpuFound)) == 1


@in_virtual_time
async def test_a_reading_that_never_ends_delays_nobody():
    async with CardHouse(card={"hangs": True}) as house:
        assert await house.answer("a") == FULL_TEXT
        assert (house.now, house.gpu_status["readings"]) == (1.0, "unknown")
    async with CardHouse("a", card={"names": False}) as house:
        await sleep_until(house.now + 1.0)
        house.ollama.go_down()
        house.card.temperature_c = 77.0
        await sleep_until(house.now + 5.0)
        assert (
            house.gpu_status["temperature_c"],
            house.gpu_status["readings"],
            len(house.told),
        ) == (77.0, "ok", 1)
        house.ollama.come_up()


@in_virtual_time
async def test_a_card_that_hovers_at_the_limit_is_hot_once():
    async with CardHouse("a") as house:
        for beat, temperature_c in enumerate(
            (84.9, 85.0, 84.0, 91.0, 80.1, 80.0, 84.0, 85.5, None, 50.0)
        ):
            await sleep_until(max(0.0, beat * 5.0 - 1.0))
            house.card.temperature_c = temperature_c
            await sleep_until(beat * 5.0)
            await settle()
        assert [
            (event.at, event.temperature_c, event.limit_c)
            for event in house.events.of(GpuOverheated)
        ] == [
            (5.0, 85.0, 85.0),
            (35.0, 85.5, 85.0),
        ]
        assert [
            (event.at, event.temperature_c, event.hot_s) for event in house.events.of(GpuCooledDown)
        ] == [
            (25.0, 80.0, 20.0),
            (45.0, 50.0, 10.0),
        ]


@in_virtual_time
async def test_what_the_card_draws_is_added_up_while_it_is_read():
    async with CardHouse("a", card={"power_w": 100.0}) as house:
        await sleep_until(7.0)
        house.card.fault = "gpu_lost"
        await sleep_until(30.0)
        house.card.fault = None
        await sleep_until(301.0)
        (first,) = house.events.of(EnergyMeasured)
        assert 250.0 <= first.measured_s <= 290.0
    _, rest = house.events.of(EnergyMeasured)
    for event in (first, rest):
        assert event.energy_j == pytest.approx(100.0 * event.measured_s)


# Whose memory it is: what counts as the model server's, and what is left for others.


def reading(used_mib: float | None, **held: float | None) -> GpuReading:
    """`held` by program, `/` written as `_`; no program at all is a driver that lists none."""
    programs = tuple(
        GpuProcess(pid=n, name=name.replace("_", "/"), used_mib=mib)
        for n, (name, mib) in enumerate(held.items())
    )
    return GpuReading(used_mib=used_mib, processes=programs or None)


def models(*vram_mib: float) -> tuple[ResidentModel, ...]:
    return tuple(
        ResidentModel(name=f"m{n}", size_mib=mib, vram_mib=mib) for n, mib in enumerate(vram_mib)
    )


@pytest.mark.parametrize(
    ("said", "resident", "foreign_mib"),
    [
        pytest.param(
            reading(9000.0, _usr_bin_ollama=8500.0, game=500.0),
            models(8000.0),
            500.0,
            id="the runner of an older Ollama",
        ),
        pytest.param(
            reading(9000.0, _opt_ollama_lib_runner=8500.0),
            models(8000.0),
            500.0,
            id="its name anywhere in the path",
        ),
        pytest.param(
            reading(9000.0, **{"/x/llama-server": 8500.0}),
            models(8000.0),
            500.0,
            id="the runner of a newer Ollama",
        ),
        pytest.param(
            reading(9000.0, a_ollama=4000.0, b_ollama=4000.0),
            models(9000.0),
            1000.0,
            id="several of its processes",
        ),
        pytest.param(
            reading(9000.0, OLLAMA=None, game=500.0),
            models(8000.0),
            1000.0,
            id="a driver that hides how much",
        ),
        pytest.param(
            reading(9000.0, **{"": 8500.0}),
            models(8000.0),
            1000.0,
            id="a container that hides the names",
        ),
        pytest.param(reading(9000.0), models(4000.0, 3000.0), 2000.0, id="no list at all"),
        pytest.param(reading(9000.0, game=9000.0), (), 9000.0, id="nothing loaded"),
        pytest.param(
            reading(9000.0, game=9000.0), None, None, id="a model server that does not answer"
        ),
        pytest.param(
            reading(9000.0, ollama=8000.0),
            None,
            1000.0,
            id="one that does not answer and still holds memory",
        ),
        pytest.param(
            reading(None, ollama=8000.0),
            models(8000.0),
            None,
            id="a card that does not say how much is in use",
        ),
        pytest.param(
            reading(8000.0, ollama=8100.0), models(8000.0), 0.0, id="two numbers of two instants"
        ),
    ],
)
def test_what_is_in_use_and_not_the_model_servers_is_foreign(said, resident, foreign_mib):
    assert foreign_memory_mib(said, resident, OllamaTraits.processes) == foreign_mib


@pytest.mark.parametrize(
    ("used_mib", "resident", "held"),
    [
        (9000.0, models(8000.0), True),
        (9000.0, models(5000.0, 4912.0), True),
        (9000.0, models(5000.0, 4913.0), False),
        (300.0, (), True),
        (300.0, None, True),
        (None, models(8000.0), True),
    ],
)
def test_models_cannot_be_on_a_card_that_holds_less_than_they_take(used_mib, resident, held):
    assert holds_models(GpuReading(used_mib=used_mib, reserved_mib=400.0), resident) is held


# What somebody else does to the memory: noticed within the check interval, counted, shown, and told
# where it is slow.


SPLIT = FakeModel(name="split", vram_mib=20_000.0, size_mib=26_900.0)
ON_CPU = FakeModel(name="cpu", vram_mib=0.0, size_mib=8_000.0)
NOTICED_S = 5.0


async def offloaded_models(house: House) -> list[object]:
    return [model["name"] for model in await house.gateway.models() if model["offloaded"]]


@in_virtual_time
async def test_every_change_by_somebody_else_is_counted_and_shown_within_the_interval():
    async with House("a", "b", resident="a", capacity_mib=20_000.0) as house:
        for count, (appears, vanishes, left) in enumerate(
            (
                ((), (), ["a"]),
                (("b",), (), ["a", "b"]),
                ((), ("a",), ["b"]),
                (("a",), ("b",), ["a"]),
                ((), ("a",), []),
            )
        ):  # the last but one, an eviction in favour of another model, is one change
            await sleep_until(count * 10.0 + 1.0)
            for name in vanishes:
                house.ollama.vanish(f"{name}:latest")
            for name in appears:
                house.ollama.appear(f"{name}:latest")
            await sleep_until(count * 10.0 + 1.0 + NOTICED_S)
            shown = house.gpu_status
            assert (shown["drift_count"], shown["resident_models"]) == (
                count,
                [f"{name}:latest" for name in left],
            )
        drifts = house.events.of(ResidencyDrifted)
        assert [event.at for event in drifts] == [15.0, 25.0, 35.0, 45.0]
        assert (drifts[2].appeared, drifts[2].vanished) == (("a:latest",), ("b:latest",))


@pytest.mark.parametrize(
    ("model", "vram_gb", "by_us", "told"),
    [
        (SPLIT, 24.0, False, [("split:latest", 26_900.0, 20_000.0)]),
        (SPLIT, 24.0, True, []),  # its swap tells of it
        (ON_CPU, 24.0, True, [("cpu:latest", 8_000.0, 0.0)]),
        (ON_CPU, 0.0, True, []),  # is worth a word only where there is a GPU
        (ON_CPU, None, True, []),
    ],
)
@in_virtual_time
async def test_a_model_off_the_card_is_told_of_once_and_shown_while_it_is_there(
    model, vram_gb, by_us, told
):
    async with House(model, settings=settings_with(gpu={"vram_gb": vram_gb})) as house:
        if by_us:
            await house.answer(model.name)
        else:
            house.ollama.appear(f"{model.name}:latest")
        for _ in range(3):
            await sleep_until(house.now + NOTICED_S)
        assert [
            (event.model, event.size_mib, event.vram_mib)
            for event in house.events.of(ModelOffloaded)
        ] == told
        assert [swap.offloaded for swap in house.events.of(SwapCompleted)] == [
            model is SPLIT
        ] * by_us
        shown = [f"{model.name}:latest"] * (model is SPLIT or bool(told))
        assert house.gpu_status["offloaded_models"] == await offloaded_models(house) == shown
        house.ollama.vanish(f"{model.name}:latest")
        await sleep_until(house.now + NOTICED_S)
        assert house.gpu_status["offloaded_models"] == await offloaded_models(house) == []


@in_virtual_time
async def test_a_resident_model_that_is_loaded_anew_and_split_is_told_of():
    async with House() as house:
        await sleep_until(1.0)
        house.ollama.gpu.models["a:latest"] = replace(
            house.ollama.gpu.models["a:latest"], size_mib=12_000.0
        )
        await sleep_until(1.0 + NOTICED_S)
        assert [(event.model, event.size_mib) for event in house.events.of(ModelOffloaded)] == [
            ("a:latest", 12_000.0)
        ]


# The assembled gateway reads the card of its machine, through the real binding, unless its answers
# are made up or its owner says no.


@asynccontextmanager
async def gateway_status(
    gpu: GpuSettings, mode: BackendMode, events: Recorder
) -> AsyncIterator[Fields]:
    """The `gpu` part of the status once the first reading is in, where there is one to wait for."""
    emulator = Emulator(default_profiles(), clock=SystemClock())
    url = await emulator.start()
    try:
        config = GatewayConfig(settings=Settings(gpu=gpu))
        async with await build_gateway(
            config, backend_mode=mode, backend_url=url, sinks=(events,)
        ) as gateway:
            async with in_time():
                async for _ in gateway.worker.changes():
                    shown: Any = gateway.worker.get_status()["gpu"]
                    if shown["readings"] != "unknown":
                        break
            yield shown
    finally:
        await emulator.stop()
        give_back_the_driver()


def give_back_the_driver() -> None:
    """Its thread does so when it comes to it, and must not come to it in the next test."""
    for thread in threading.enumerate():
        if thread.name == "gpu reader":
            thread.join(30.0)


async def test_a_gateway_before_an_ollama_shows_the_card_of_its_machine(driver: StubDriver):
    events = Recorder()
    async with gateway_status(
        GpuSettings(home_model="", device=UUID), BackendMode.OLLAMA, events
    ) as shown:
        assert (shown["readings"], shown["device"], shown["memory_used_mib"]) == (
            "ok",
            "NVIDIA GeForce RTX 3090",
            9000.0,
        )
        assert shown["foreign_mib"] == 808.0
        assert [event.total_mib for event in events.of(GpuFound)] == [24576.0]
        assert driver.sessions == 1


@pytest.mark.parametrize(
    ("gpu", "mode"), [({}, BackendMode.EMULATOR), ({"nvml": False}, BackendMode.OLLAMA)]
)
async def test_an_emulator_computes_on_no_card_and_an_owner_can_forbid_it(
    gpu, mode, driver: StubDriver
):
    async with gateway_status(GpuSettings(home_model="", **gpu), mode, Recorder()) as shown:
        assert (shown["readings"], shown["device"], shown["memory_total_mib"]) == (
            "off",
            None,
            None,
        )
    assert driver.calls == []
