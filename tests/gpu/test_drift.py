"""What somebody else does to the memory: noticed within the check interval, counted, shown, and told where it is slow."""

from __future__ import annotations

from dataclasses import replace

from hearth.events import ModelOffloaded, ResidencyDrifted, SwapCompleted
from tests.support.cases import for_each
from tests.support.fake_ollama import FakeModel
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import House, body_of, settings_with

SPLIT = FakeModel(name="split", vram_mib=20_000.0, size_mib=26_900.0)
ON_CPU = FakeModel(name="cpu", vram_mib=0.0, size_mib=8_000.0)
WHOLE = FakeModel(name="a")
WITHIN_S = 5.0


async def offloaded_models(house: House) -> list[object]:
    return [model["name"] for model in await house.gateway.models() if model["offloaded"]]


@in_virtual_time
async def test_every_change_by_somebody_else_is_counted_and_shown_within_the_interval():
    async with House("a", "b", resident=("a",), capacity_mib=20_000.0) as house:
        assert (house.gpu_status["drift_count"], house.gpu_status["resident_models"]) == (0, ["a:latest"])
        await sleep_until(1.0)
        house.ollama.appear("b:latest")
        await sleep_until(1.0 + WITHIN_S)
        assert (house.gpu_status["drift_count"], house.gpu_status["resident_models"]) == (1, ["a:latest", "b:latest"])
        for count, (at, name, left) in enumerate(((11.0, "a:latest", ["b:latest"]), (21.0, "b:latest", [])), start=2):
            await sleep_until(at)
            house.ollama.vanish(name)
            await sleep_until(at + WITHIN_S)
            assert (house.gpu_status["drift_count"], house.gpu_status["resident_models"]) == (count, left)
        assert [event.at for event in house.events.of(ResidencyDrifted)] == [5.0, 15.0, 25.0]


@in_virtual_time
async def test_an_eviction_in_favour_of_another_model_is_one_drift():
    async with House("a", "b", resident=("a",), capacity_mib=20_000.0) as house:
        await sleep_until(1.0)
        house.ollama.vanish("a:latest")
        house.ollama.appear("b:latest")
        await sleep_until(1.0 + WITHIN_S)
        (drift,) = house.events.of(ResidencyDrifted)
        assert (drift.appeared, drift.vanished) == (("b:latest",), ("a:latest",))
        assert (house.gpu_status["drift_count"], house.gpu_status["loaded_model"]) == (1, "b:latest")


@in_virtual_time
async def test_the_gateways_own_swaps_are_no_drift():
    async with House("a", "b") as house:
        for name in "abab":
            await body_of(house.submit(name, service_s=6.5))
        assert len(house.events.of(SwapCompleted)) == 4
        assert house.gpu_status["drift_count"] == 0


@in_virtual_time
async def test_a_split_model_that_somebody_else_loaded_is_told_of_once_and_shown_as_long_as_it_is_there():
    async with House(SPLIT) as house:
        await sleep_until(1.0)
        house.ollama.appear("split:latest")
        await sleep_until(30.0)
        (event,) = house.events.of(ModelOffloaded)
        assert (event.model, event.size_mib, event.vram_mib) == ("split:latest", 26_900.0, 20_000.0)
        assert event.at <= 1.0 + WITHIN_S
        assert house.gpu_status["offloaded_models"] == await offloaded_models(house) == ["split:latest"]
        house.ollama.vanish("split:latest")
        await sleep_until(30.0 + WITHIN_S)
        assert house.gpu_status["offloaded_models"] == await offloaded_models(house) == []


@in_virtual_time
async def test_a_split_load_of_our_own_is_told_by_its_swap_alone():
    async with House(SPLIT) as house:
        await body_of(house.submit("split"))
        await sleep_until(house.now + WITHIN_S)
        assert [event.offloaded for event in house.events.of(SwapCompleted)] == [True]
        assert house.events.of(ModelOffloaded) == []
        assert house.gpu_status["offloaded_models"] == ["split:latest"]


@in_virtual_time
async def test_a_resident_model_that_is_loaded_anew_and_split_is_told_of():
    async with House(WHOLE, resident=("a",)) as house:
        await sleep_until(1.0)
        house.ollama.gpu.models["a:latest"] = replace(house.ollama.gpu.models["a:latest"], size_mib=12_000.0)
        await sleep_until(1.0 + WITHIN_S)
        assert [(event.model, event.size_mib) for event in house.events.of(ModelOffloaded)] == [("a:latest", 12_000.0)]


@for_each(("vram_gb", "told"), [(24.0, 1), (0.0, 0), (None, 0)])
@in_virtual_time
async def test_a_model_wholly_on_the_cpu_is_worth_a_word_only_where_there_is_a_gpu(vram_gb, told):
    async with House(ON_CPU, settings=settings_with(gpu={"vram_gb": vram_gb})) as house:
        await body_of(house.submit("cpu"))
        await sleep_until(house.now + WITHIN_S)
        assert [event.model for event in house.events.of(ModelOffloaded)] == ["cpu:latest"] * told
        assert house.gpu_status["offloaded_models"] == ["cpu:latest"] * told
