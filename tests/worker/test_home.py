"""Back to the home model when nobody needs another: when, how often, and what an arrival changes."""

from __future__ import annotations

import pytest

from hearth.errors import ModelNotFound
from hearth.events import HomeModelMissing, SwapStarted
from tests.support.cases import for_each
from tests.support.virtual_time import sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, in_house, settings_with, text_of

HOME = settings_with(gpu={"home_model": "h", "restore_home_delay_s": 30.0})


def loads_at(house: House) -> list[float]:
    return [record.at for record in house.ollama.control if record.kind == "load"]


@in_house("h", "a", resident=("a",), settings=HOME)
async def test_the_home_model_comes_back_after_the_delay_and_once(house: House):
    await body_of(house.submit("a"))
    await sleep_until(500.0)
    assert loads_at(house) == [1.0 + 30.0 + 0.5]
    (started,) = house.events.of(SwapStarted)
    assert (started.why, started.to_model) == ("home", "h:latest")
    assert house.gpu_status["is_home"] is True


@for_each("after_s", [0.0, 0.25, 0.5, 1.0, 2.4])
@in_house("h", "a", resident=("a",), settings=HOME)
async def test_an_arrival_at_any_instant_of_a_restore_is_served(house: House, after_s: float):
    await sleep_until(30.0 + after_s)
    assert text_of(await body_of(house.submit("a"))) == FULL_TEXT
    assert house.now <= 30.0 + 2.5 + 2.5 + 1.0


@in_house("h", "llama3.2:3b", resident=("llama3.2:3b",), settings=settings_with(gpu={"home_model": "h"}))
async def test_a_home_model_that_is_not_installed_empties_nothing_and_comes_home_once_it_is_pulled(house: House):
    house.ollama.delete("h:latest")
    await sleep_until(10.0)
    await body_of(house.submit("llama3.2:3b"))
    await sleep_until(4 * 3600.0)
    assert [record.kind for record in house.ollama.control if record.kind in {"load", "unload"}] == []
    assert [event.model for event in house.events.of(HomeModelMissing)] == ["h:latest"]
    assert house.gateway.warnings() == ["home model h is not installed: ollama pull h"]
    house.ollama.install("h:latest")
    await sleep_until(4 * 3600.0 + 60.0)
    assert house.gpu_status["is_home"] is True
    assert house.gateway.warnings() == []


@in_house("h", "a", "p", resident=("a",), settings=HOME)
async def test_a_pinned_model_that_was_deleted_empties_nothing_and_the_home_model_stands_in(house: House):
    await house.gateway.orders.pin("p")
    await sleep_until(10.0)
    house.ollama.delete("p:latest")
    await body_of(house.submit("a"))
    await sleep_until(3600.0)
    assert [record.model for record in house.ollama.control if record.kind == "load"] == ["p:latest", "a:latest", "h:latest"]
    assert house.gateway.warnings() == ["pinned model p:latest is not installed: ollama pull p:latest"]


@in_house("a", "b", resident=("a",), settings=settings_with(backend={"check_interval_s": 0.25}))
async def test_who_waits_for_a_model_that_is_deleted_meanwhile_is_told_and_nothing_is_unloaded_for_it(house: House):
    busy, late = house.submit("a"), house.submit("b")
    house.ollama.delete("b:latest")
    with pytest.raises(ModelNotFound):
        await body_of(late)
    await body_of(busy)
    await sleep_until(300.0)
    assert [record.kind for record in house.ollama.control if record.kind in {"load", "unload"}] == []
