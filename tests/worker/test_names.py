"""Models under several names and spellings: each is one model, whoever uses which of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from hearth.config.settings import GatewayConfig, ModelSettings
from hearth.errors import ModelNotFound
from hearth.events import ResidencyDrifted, SwapCompleted, SwapFailed
from hearth.job_types import Job
from hearth.jobs.queue import item_of
from hearth.types import BackendCall, InstalledModel, Lane, LoadOptions, Priority
from tests.support.cases import for_each
from tests.support.fake_gpu import Place
from tests.support.fake_ollama import ControlRecord, FakeModel, FakeOllama, LoadFault
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, in_house, settings_with, text_of

HOME_S = 2.0


class Twins(FakeOllama):
    """All that is installed is one model under several names."""

    def _listed(self) -> tuple[InstalledModel, ...]:
        return tuple(InstalledModel(name=name, digest="one") for name in self.gpu.models)


class WithCloud(FakeOllama):
    """One of its models runs at ollama.com."""

    def _listed(self) -> tuple[InstalledModel, ...]:
        return tuple(replace(model, remote_host="https://ollama.com:443" if model.name == "b:cloud" else "") for model in super()._listed())


def swapped_to(house: House) -> list[str]:
    return [event.to_model for event in house.events.of(SwapCompleted)]


@for_each(
    ("models", "how", "home", "later", "name"),
    [
        *((("a",), {}, spelling, None, "a:latest") for spelling in ("A", "A:Latest", "library/a")),
        (("x", "y", "z"), {"ollama": Twins}, "z", None, "y:latest"),
        (("b",), {}, "A", "a:latest", "a:latest"),
    ],
)
@in_virtual_time
async def test_a_home_model_in_any_spelling_under_any_of_its_names_or_installed_later_comes_home_once(
    models: tuple[str, ...], how: dict[str, Any], home: str, later: str | None, name: str
):
    settings = settings_with(gpu={"home_model": home, "restore_home_delay_s": HOME_S}).replace(models={"y": ModelSettings(parallel=2)})
    async with House(*models, settings=settings, **how) as house:
        if later is not None:
            house.ollama.gpu.models[later] = FakeModel(name=later)
        await sleep_until(100.0)
        assert swapped_to(house) == [name]
        assert (house.gpu_status["is_home"], house.gpu_status["home_model"]) == (True, name)
        assert [model["name"] for model in await house.gateway.models() if model["home"]] == [name]
        assert house.events.of(ResidencyDrifted) == []


@in_house(FakeModel(name="a", parallel=2), settings=settings_with().replace(models={"A": ModelSettings(parallel=2)}))
async def test_what_is_set_for_a_model_counts_in_every_spelling(house: House):
    tickets = [house.submit("a", service_s=4.0) for _ in range(2)]
    for ticket in tickets:
        await body_of(ticket)
    assert house.ollama.calls[0].opened_at == house.ollama.calls[1].opened_at


@in_house("a", resident=("a",))
async def test_a_reload_may_name_the_home_model_in_any_spelling(house: House):
    assert house.gateway.reload(GatewayConfig(settings=settings_with(gpu={"home_model": "A", "restore_home_delay_s": HOME_S})))
    await sleep_until(100.0)
    assert swapped_to(house) == []
    assert house.gpu_status["is_home"]


@in_house("b", ollama=Twins, settings=settings_with(backend={"check_interval_s": 1.0}))
async def test_a_copy_of_a_model_under_another_name_changes_nothing_for_those_who_wait(house: House):
    tickets = [house.submit("b", service_s=3.0) for _ in range(3)]
    await sleep_until(1.0)
    house.ollama.gpu.models["a:latest"] = FakeModel(name="a:latest")
    for ticket in tickets:
        await body_of(ticket)
    assert swapped_to(house) == ["b:latest"]
    assert house.events.of(ResidencyDrifted) == []


class OneRunner(FakeOllama):
    """All that is installed was made from the same weights: what is in memory serves for the others, under its own name."""

    async def load(self, model: str, options: LoadOptions, timeout_s: float) -> None:
        if any(self.gpu.place(other) is Place.LOADED for other in self.gpu.models if other != model):
            self.control.append(ControlRecord(at=self._now(), kind="load", model=model, options=options))
            return
        await super().load(model, options, timeout_s)


@pytest.mark.parametrize("vram_gb", [24.0, 0.0])
@in_virtual_time
async def test_models_made_from_the_same_weights_are_served_one_after_the_other(vram_gb):
    models = dict.fromkeys(("a", "butler"), ModelSettings(vram_gb=8.0))
    settings = settings_with(gpu={"vram_gb": vram_gb}).replace(models=models)
    async with House("a", "butler", settings=settings, ollama=OneRunner, capacity_mib=math.inf) as house:
        for model in ("a", "butler", "a", "butler"):
            assert text_of(await body_of(house.submit(model))) == FULL_TEXT
        assert swapped_to(house) == ["a:latest", "butler:latest", "a:latest", "butler:latest"]
        assert len(house.events.of(SwapFailed)) == 1


@in_virtual_time
async def test_a_model_that_is_not_listed_though_nothing_else_is_there_may_share_the_memory_later():
    models = dict.fromkeys(("a", "b"), ModelSettings(vram_gb=8.0))
    settings = settings_with(gpu={"vram_gb": 24.0}).replace(models=models)
    async with House("a", "b", settings=settings, capacity_mib=math.inf) as house:
        house.ollama.next_loads(LoadFault.LIE)
        await body_of(house.submit("a"))
        await body_of(house.submit("b"))
        assert house.gpu_status["resident_models"] == ["a:latest", "b:latest"]


def test_a_job_under_another_name_asks_for_the_context_that_the_model_was_loaded_with():
    settings = settings_with().replace(models={"b": ModelSettings(num_ctx=8192)})
    job = Job(
        job_id="job_1",
        caller="me",
        lane=Lane.EXTERNAL,
        priority=Priority.NORMAL,
        path="/api/generate",
        model="a:latest",
        request=b'{"model": "a", "prompt": "?"}',
    )
    call = item_of(job, "b:latest", settings).call
    assert isinstance(call, BackendCall)
    assert json.loads(call.body) == {"model": "a", "prompt": "?", "options": {"num_ctx": 8192}}


@for_each("spelling", ["b:cloud", "B:Cloud", "library/b:cloud"])
@in_house("a", "b:cloud", resident=("a",), ollama=WithCloud)
async def test_a_model_that_runs_elsewhere_is_refused_so_that_no_prompt_leaves_the_house_and_nothing_is_unloaded_for_it(
    house: House, spelling
):
    with pytest.raises(ModelNotFound, match=r"runs at https://ollama\.com:443, not on this machine"):
        await house.gateway.resolve(spelling)
    assert [model["name"] for model in await house.gateway.models()] == ["a:latest"]
    assert house.gateway.models_elsewhere == {"b:cloud"}
    assert swapped_to(house) == []
