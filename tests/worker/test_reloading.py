"""A new configuration takes effect at the next decision and costs nobody anything; a bad one changes nothing and says why."""

from __future__ import annotations

import asyncio

import pytest

from hearth.config.settings import GatewayConfig, Settings
from hearth.errors import ModelNotFound, QueueFull
from hearth.events import BackendWentDown, ItemDispatched
from tests.support.fake_gpu import FakeModel
from tests.support.virtual_time import sleep_until
from tests.worker.house import House, body_of, in_house, settings_with, settle


def put_in_force(house: House, settings: Settings) -> None:
    assert house.gateway.reload(GatewayConfig(settings=settings))


@in_house("a", resident=("a",))
async def test_a_lower_depth_drops_nobody_and_admits_nobody_until_there_is_room(house: House):
    tickets = [house.submit("a") for _ in range(4)]
    await settle()
    put_in_force(house, settings_with(queue={"max_external_depth": 2}))
    with pytest.raises(QueueFull):
        house.submit("a")
    await body_of(tickets[1])
    await settle()
    tickets.append(house.submit("a"))
    await asyncio.gather(*(body_of(ticket) for ticket in tickets[2:]))


@in_house(FakeModel(name="a", parallel=2), resident=("a",))
async def test_raising_the_slots_of_a_model_starts_who_waits_at_once(house: House):
    for _ in range(2):
        house.submit("a")
    await sleep_until(0.5)
    put_in_force(house, settings_with(gpu={"parallel": 2}))
    await settle()
    assert [event.at for event in house.events.of(ItemDispatched)] == [0.0, 0.5]
    await sleep_until(5.0)


@in_house("a", resident=("a",), settings=settings_with(backend={"check_interval_s": 86_400.0}))
async def test_a_shorter_check_interval_does_not_wait_for_the_longer_one_to_pass(house: House):
    await sleep_until(100.0)
    put_in_force(house, settings_with(backend={"check_interval_s": 5.0}))
    await sleep_until(101.0)
    house.ollama.go_down()
    await sleep_until(106.5)
    assert len(house.events.of(BackendWentDown)) == 1
    house.ollama.come_up()


@in_house("Mixed:7b", "a")
async def test_names_are_resolved_as_ollama_does_and_asked_for_again_before_one_is_unknown_unless_nobody_answers(house: House):
    resolve = house.gateway.resolve
    assert [await resolve(name) for name in ("mixed:7B", "A", "library/a")] == ["Mixed:7b", "a:latest", "a:latest"]
    with pytest.raises(ModelNotFound, match="'new' not found"):
        await resolve("new")
    house.ollama.gpu.models["new:latest"] = FakeModel(name="new:latest")
    assert await resolve("new") == "new:latest"
    house.ollama.go_down()
    assert await resolve("newer") == "newer:latest"
    house.ollama.come_up()
