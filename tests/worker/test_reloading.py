"""A new configuration takes effect at the next decision and costs nobody anything; a bad one changes nothing and says why."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import Settings
from hearth.errors import ModelNotFound, QueueFull
from hearth.events import BackendWentDown, ConfigRejected, ConfigReloaded, ItemDispatched
from tests.support.fake_gpu import FakeModel
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import House, body_of, in_house, settings_with, settle


def put_in_force(house: House, settings: Settings) -> None:
    assert house.gateway.reload(GatewayConfig(settings=settings))


@in_house("a", resident=("a",))
async def test_a_reload_keeps_who_waits_who_runs_and_what_was_counted(house: House):
    await body_of(house.submit("a"))
    tickets = [house.submit("a") for _ in range(4)]
    await sleep_until(1.5)
    before = house.worker.get_status()
    put_in_force(house, settings_with(queue={"max_interrupt_count": 9}))
    await settle()
    after = house.worker.get_status()
    for key in ("current_request", "external_queue", "stats_24h", "gpu"):
        assert after[key] == before[key], key
    await asyncio.gather(*map(body_of, tickets))
    assert [event.sequence for event in house.events.of(ItemDispatched)] == [1, 2, 3, 4, 5]


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


@in_house("a")
async def test_a_generation_counts_changes_only_and_names_what_needs_a_restart(house: House):
    changed = settings_with(queue={"max_external_depth": 3}).replace(server=Settings().server.replace(port=9999))
    for _ in range(2):
        put_in_force(house, changed)
    first, second = house.events.of(ConfigReloaded)
    assert (first.generation, second.generation) == (2, 2)
    assert (set(first.changed), first.needs_restart) == ({"queue.max_external_depth", "server.port"}, ("server.port",))
    assert (second.changed, second.needs_restart) == ((), ("server.port",))


@in_virtual_time
async def test_a_file_that_was_edited_badly_changes_nothing_and_one_that_was_mended_counts(tmp_path: Path):
    file = tmp_path / "hearth.yaml"
    async with House("a", source=file) as house:
        file.write_text("queue:\n  max_external_depth: 5\n")
        assert house.gateway.reload() is True
        file.write_text("queue:\n  max_external_depth: many\n")
        assert house.gateway.reload() is False
        (rejected,) = house.events.of(ConfigRejected)
        assert "max_external_depth" in rejected.problems[0]
        assert house.status["config"]["generation"] == 2
        assert house.status["config"]["problems"] == list(rejected.problems)
        assert house.gateway.config.settings.queue.max_external_depth == 5
        file.write_text("queue:\n  max_external_depth: 6\n")
        assert house.gateway.reload() is True
        assert house.status["config"]["generation"] == 3
        assert house.status["config"]["problems"] == []
        assert (house.status["config"]["reload_count"], house.status["config"]["rejected_count"]) == (2, 1)
        assert house.gateway.config.settings.queue.max_external_depth == 6
        assert house.gateway.config.source == file


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
