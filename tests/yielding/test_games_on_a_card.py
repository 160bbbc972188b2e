"""From the start of a game to memory that the card shows free, and back: every launch line, over a
scripted card.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hearth.bootstrap.yielding import join_programs
from hearth.config.scheduler_settings import YieldSettings
from hearth.events import GpuLeaseGranted, GpuLeaseLate
from tests.execution.test_gpu_watch import GIB, CardHouse, model
from tests.support.house import FULL_TEXT, body_of, heard, settings_with, text_of
from tests.support.virtual_time import in_virtual_time, loop_s, sleep_until
from tests.yielding.launch_lines import LAUNCHES, arguments_of
from tests.yielding.machine import Machine

IDLE_S = 2.0
GRACE_S = 5.0
WORDS = 40
REAPER = ("/steam/reaper", "SteamLaunch", "AppId=440", "--", "/steam/game")


class GamingHouse(CardHouse):
    """A card with models on it, and a machine on which games start."""

    def __init__(self, machine: Machine, *models: Any, **wanted: Any) -> None:
        given = {"watch": "games", "grace_s": GRACE_S, **wanted.pop("more", {})}
        settings = settings_with(gpu={"yield": YieldSettings(**given)})
        super().__init__(*models, settings=settings, **wanted)
        join_programs(self.gateway, machine.proc)
        self.machine = machine

    async def granted_after_s(self, start: Callable[[], None]) -> float:
        """Have a game start, and wait until its memory is free."""
        before = len(self.events.of(GpuLeaseGranted))
        began_at = loop_s()
        start()
        await self.events.until(lambda: len(self.events.of(GpuLeaseGranted)) > before)
        return self.events.of(GpuLeaseGranted)[-1].at - began_at


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


@in_virtual_time
async def test_every_launch_has_the_memory_of_an_idle_card_within_two_seconds(machine):
    took_s: dict[str, float] = {}
    async with GamingHouse(machine, model("a", 14), model("b", 7), resident="a b") as house:
        for number, (what, _, line, _, _) in enumerate(LAUNCHES):
            # at any moment between two looks
            await sleep_until(100.0 * (number + 1) + number / len(LAUNCHES))
            assert await house.answer("a") == FULL_TEXT
            took_s[what] = await house.granted_after_s(
                lambda line=line: machine.start(50, *arguments_of(line))  # type: ignore[misc]
            )
            assert house.ollama.gpu.taken_mib(loop_s()) == []
            machine.end(50)
            await sleep_until(loop_s() + 1.5)
            assert not house.gateway.leases.leases
        assert house.events.of(GpuLeaseLate) == []
        await sleep_until(loop_s() + 60.0)
    assert len(took_s) >= 20
    assert {what: took for what, took in took_s.items() if took > IDLE_S} == {}


@in_virtual_time
async def test_every_launch_has_it_from_a_stream_that_goes_on_afterwards(machine):
    took_s: dict[str, float] = {}
    async with GamingHouse(machine, model("a", 14), resident="a") as house:
        for number, (what, _, line, _, _) in enumerate(LAUNCHES):
            await sleep_until(1000.0 * (number + 1) + number / len(LAUNCHES))
            asked = {"service_s": 40.0, "chunks": WORDS}
            ticket = house.submit("a", stream=True, ways=("replayed",), **asked)
            reading = asyncio.ensure_future(heard(ticket))
            await sleep_until(loop_s() + 7.0)
            took_s[what] = await house.granted_after_s(
                lambda line=line: machine.start(50, *arguments_of(line))  # type: ignore[misc]
            )
            await sleep_until(loop_s() + 200.0)
            assert house.ollama.gpu.taken_mib(loop_s()) == []
            machine.end(50)
            said, error = await reading
            assert error is None
            assert len(text_of(said).split()) == WORDS
    assert {what: took for what, took in took_s.items() if took > GRACE_S + IDLE_S} == {}


@in_virtual_time
async def test_a_game_that_starts_within_a_load_has_the_card_afterwards(machine):
    async with GamingHouse(machine, model("a", 14), model("b", 14), resident="a") as house:
        ticket = house.submit("b")
        waiting = asyncio.ensure_future(body_of(ticket))
        await house.events.until(lambda: house.worker.runtime.view.swap is not None)
        took_s = await house.granted_after_s(lambda: machine.start(50, *REAPER))
        assert took_s <= GRACE_S + IDLE_S
        assert house.ollama.gpu.taken_mib(loop_s()) == []
        await sleep_until(loop_s() + 30.0)
        machine.end(50)
        assert text_of(await waiting) == FULL_TEXT


@in_virtual_time
async def test_nothing_is_loaded_at_start_into_the_memory_of_a_game_that_runs(machine):
    machine.start(50, *REAPER)
    async with GamingHouse(machine, model("a", 14)) as house:
        ticket = house.submit("a")
        waiting = asyncio.ensure_future(body_of(ticket))
        await sleep_until(30.0)
        assert house.orders() == []
        machine.end(50)
        assert text_of(await waiting) == FULL_TEXT


@in_virtual_time
async def test_a_game_that_takes_no_memory_has_its_lease_until_it_ends(machine):
    async with GamingHouse(machine, model("a", 14), resident="a") as house:
        await house.granted_after_s(lambda: machine.start(50, *REAPER))
        await sleep_until(3 * 3600.0)
        assert house.ollama.gpu.taken_mib(loop_s()) == []
        assert house.events.of(GpuLeaseLate) == []
        machine.end(50)
        await sleep_until(loop_s() + 2.0)
        assert await house.answer("a") == FULL_TEXT


@in_virtual_time
async def test_only_the_models_in_the_way_of_a_small_game_go(machine):
    models = model("a", 12), model("b", 7)
    more = {"game_gb": 8.0}
    async with GamingHouse(machine, *models, resident="a b", more=more) as house:
        await house.answer("a")
        assert await house.granted_after_s(lambda: machine.start(50, *REAPER)) <= IDLE_S
        assert house.ollama.gpu.taken_mib(loop_s()) == [12 * GIB]
        assert await house.answer("a") == FULL_TEXT


@in_virtual_time
async def test_a_game_is_seen_while_the_card_says_nothing(machine):
    async with GamingHouse(machine, model("a", 14), resident="a") as house:
        await sleep_until(6.0)
        house.card.fault = "gpu_lost"
        assert await house.granted_after_s(lambda: machine.start(50, *REAPER)) <= IDLE_S + 1.0
        assert house.ollama.gpu.taken_mib(loop_s()) == []
        await sleep_until(100.0)
        assert len(house.gateway.leases.leases) == 1
