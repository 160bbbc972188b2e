"""Two Ollamas, of which one accepts connections and says nothing: the other one is not kept
waiting.
"""

from __future__ import annotations

import asyncio

from hearth.dialects.capabilities import Needs
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from hearth.errors import BackendUnreachable, ModelNotFound
from hearth.execution.backend_watch import FIRST_LOOK_S
from tests.jobs.batch_house import BatchHouse, jsonl, line
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.house import House, settings_with
from tests.support.silent_ollama import SilentOllama
from tests.support.virtual_time import in_virtual_time, sleep_until


class Home(House):
    """`a` of an Ollama that answers, `b` of one that may not."""

    def __init__(self, *, is_silent: bool = False) -> None:
        self.second = SilentOllama(FakeModel(name="b:latest"))
        self.second.is_silent = is_silent
        self.second.lists_capabilities = False
        settings = settings_with(backend={"check_interval_s": 5.0})
        super().__init__("a", resident="a", settings=settings, table=self._table)
        self.ollama.lists_capabilities = False

    def _table(self, ollama: Engine) -> EngineTable:
        rows = [Row(name="one", engine=ollama), Row(name="two", engine=self.second)]
        return EngineTable(rows)


@in_virtual_time
async def test_the_start_does_not_wait_for_an_engine_that_says_nothing():
    house = Home(is_silent=True)
    async with house:
        assert house.now <= FIRST_LOOK_S
        assert await house.gateway.resolve("a") == "a"
        assert [watch.up for watch in house.worker.watch.watches.values()] == [True, False]
        house.second.is_silent = False
        await sleep_until(20.0)
        assert await house.gateway.resolve("b") == "b"


@in_virtual_time
async def test_unknown_names_do_not_wait_for_an_engine_that_is_known_to_say_nothing():
    async with Home(is_silent=True) as house:
        await sleep_until(30.0)
        asked = (house.gateway.resolve(f"nobody-{each}") for each in range(4))
        failed = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in failed] == [BackendUnreachable] * 4
        assert house.now == 30.0


@in_virtual_time
async def test_unknown_names_that_wait_for_a_list_together_wait_for_two_at_most():
    async with Home() as house:
        house.second.is_silent = True
        asked = (house.gateway.resolve(f"nobody-{each}") for each in range(4))
        failed = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in failed] == [ModelNotFound] * 4
        assert house.now <= 20.0


@in_virtual_time
async def test_what_a_model_can_do_is_asked_of_its_engine_alone():
    async with Home() as house:
        house.second.is_silent = True
        route = INFERENCE_ROUTES[Endpoint.CHAT]
        b, a = (Needs(route=route, model=name, capabilities=("completion",)) for name in "ba")
        silent = asyncio.ensure_future(house.gateway.check_capable(b))
        await asyncio.sleep(0)
        await asyncio.wait_for(house.gateway.check_capable(a), 1.0)
        await silent


@in_virtual_time
async def test_a_batch_may_name_models_of_an_engine_that_has_not_answered_yet():
    second = FakeOllama(FakeModel(name="b:latest"))
    second.go_down()

    def both(ollama: Engine) -> EngineTable:
        return EngineTable([Row(name="one", engine=ollama), Row(name="two", engine=second)])

    async with BatchHouse("a", resident="a", table=both) as house:
        asked = ("b", "a", "nobody")
        await house.started(jsonl(*(line(f"of {model}", model) for model in asked)))
        await sleep_until(20.0)
        second.come_up()
        assert await house.outcome() == (["of b", "of a"], {"of nobody": "model_not_found"})
