"""A gateway over an Ollama and a server whose models stay."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from hearth.api.app import HearthApp
from hearth.config.settings import GpuSettings, ModelSettings, Settings
from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from hearth.errors import OrderRefused
from hearth.events import (
    BackendCameUp,
    BackendWentDown,
    EngineMovedModels,
    ResidencyDrifted,
    SwapCompleted,
)
from hearth.execution.backend_watch import LONG_LIST
from tests.support.house import House, settings_with, settle
from tests.support.http import Got, ask
from tests.support.staying_engine import StayingEngine
from tests.support.virtual_time import in_virtual_time, sleep_until

SETTINGS = settings_with(backend={"wait_when_down_s": 10.0, "check_interval_s": 5.0})


class Home(House):
    """`a` and `b` of an Ollama whose card has room for one of them, `Stays` beside them."""

    def __init__(
        self, *, on_card: bool = False, alias: bool = False, settings: Settings = SETTINGS
    ) -> None:
        self.server = StayingEngine("Stays", on_card=on_card)
        aliases = {"aliases": {"any": ("stays", "a")}} if alias else {}
        super().__init__(
            "a",
            "b",
            resident="a",
            settings=settings.replace(**aliases),
            capacity_mib=9_000.0,
            table=self._table,
        )
        self.app = HearthApp(self.gateway)

    def _table(self, ollama: Engine) -> EngineTable:
        rows = [
            Row(name="cards", engine=ollama, url="http://cards", kind="ollama"),
            Row(name="big", engine=self.server, url="http://big", kind="llama_server"),
        ]
        return EngineTable(rows)

    async def get(self, path: str) -> Got:
        return await ask(self.app, "GET", path)

    async def generated(self, model: str) -> tuple[int, str]:
        asked = {"model": model, "prompt": "one two", "stream": False}
        got = await ask(self.app, "POST", "/api/generate", asked)
        return got.status, got.body.decode()


@pytest.mark.parametrize("on_card", [True, False])
@in_virtual_time
async def test_each_model_is_answered_by_its_engine_and_what_stays_is_never_swapped(
    *, on_card: bool
):
    async with Home(on_card=on_card) as house:
        for model in ("a", "stays", "b", "STAYS:latest", "a"):
            status, said = await house.generated(model)
            assert status == 200, said
            assert ("one two" in said) == model.lower().startswith("stays")
        assert [swap.to_model for swap in house.events.of(SwapCompleted)] == ["b", "a"]
        assert [json.loads(body)["model"] for body in house.server.asked] == ["Stays", "Stays"]
        assert house.events.of(ResidencyDrifted) == []


@in_virtual_time
async def test_the_lists_are_one_and_say_who_has_what():
    async with Home() as house:
        shown = json.loads((await house.get("/llm/models")).body)["models"]
        assert {each["name"]: each["engine"] for each in shown} == {
            "a": "cards",
            "b": "cards",
            "Stays": "big",
        }
        backend = json.loads((await house.get("/llm/health")).body)["backend"]
        assert [(each["name"], each["up"]) for each in backend["engines"]] == [
            ("cards", True),
            ("big", True),
        ]
        metrics = (await house.get("/metrics")).body.decode()
        assert 'hearth_engine_up{engine="big",kind="llama_server"} 1.0' in metrics


@in_virtual_time
async def test_an_engine_that_is_down_takes_only_its_models_away():
    async with Home() as house:
        house.server.is_down = True
        await sleep_until(6.0)
        assert [event.engine for event in house.events.of(BackendWentDown)] == ["big"]
        waiting = asyncio.ensure_future(house.generated("stays"))
        await settle()
        assert (await house.generated("b"))[0] == 200
        assert (await house.get("/readyz")).status == 200
        shown = json.loads((await house.get("/llm/models")).body)["models"]
        assert [each["name"] for each in shown if each["away"]] == ["Stays"]
        assert house.gateway.warnings() == [
            "the engine big (Staying at http://big) does not answer, so its models are away"
        ]
        status, said = await waiting
        assert (status, "the engine of model 'Stays' does not answer" in said) == (503, True)
        assert house.now == pytest.approx(16.0, abs=0.5)
        later = asyncio.ensure_future(house.generated("stays"))
        await settle()
        house.server.is_down = False
        assert (await later)[0] == 200
        up = [event.engine for event in house.events.of(BackendCameUp)]
        assert sorted(up) == ["big", "big", "cards"]


@in_virtual_time
async def test_an_alias_may_stand_for_models_of_two_engines():
    async with Home(alias=True) as house:
        assert "one two" in (await house.generated("any"))[1]
        house.server.is_down = True
        await sleep_until(6.0)
        status, said = await house.generated("any")
        assert (status, "one two" in said) == (200, False)


@in_virtual_time
async def test_a_name_that_an_engine_may_have_which_has_not_answered_yet_is_no_unknown_model():
    house = Home()
    house.server.is_down = True
    async with house:
        status, said = await house.generated("stays")
        assert (status, "big has not answered yet" in said) == (503, True)
        assert (await house.generated("a"))[0] == 200
        house.server.is_down = False
        await sleep_until(house.now + 2.0)
        assert (await house.generated("stays"))[0] == 200
        assert (await house.generated("nobody-has-this"))[0] == 404


@in_virtual_time
async def test_orders_reach_what_is_loaded_and_are_refused_for_what_stays():
    async with Home() as house:
        assert await house.gateway.orders.unload("a")
        with pytest.raises(OrderRefused, match="Stays"):
            await house.gateway.orders.unload("stays")
        assert await house.gateway.orders.wish_unloaded("stays", "caller")
        await sleep_until(5.0)
        assert house.worker.runtime.view.residents.keys() == {"Stays"}
        await house.gateway.orders.load("stays")
        house.server.is_down = True
        await sleep_until(11.0)
        for order in (house.gateway.orders.load, house.gateway.orders.unload):
            with pytest.raises(OrderRefused, match="Stays is away: its engine does not answer"):
                await order("stays")


@in_virtual_time
async def test_orders_are_refused_for_what_is_loaded_on_request_by_an_engine_that_is_down():
    async with Home() as house:
        house.ollama.go_down()
        await sleep_until(6.0)
        for order in (house.gateway.orders.load, house.gateway.orders.unload):
            with pytest.raises(OrderRefused, match="a is away: its engine does not answer"):
                await order("a")


@in_virtual_time
async def test_who_waits_for_an_engine_that_is_down_fills_the_queue_for_nobody_else():
    settings = settings_with(
        backend={"wait_when_down_s": 30.0, "check_interval_s": 5.0},
        queue={"max_external_depth": 5},
    )
    async with Home(settings=settings) as house:
        house.server.is_down = True
        await sleep_until(6.0)
        waiting = [asyncio.ensure_future(house.generated("stays")) for _ in range(6)]
        await settle()
        assert (await house.generated("a"))[0] == 200
        full = [await each for each in waiting if each.done()]
        assert [(status, "the queue is full" in said) for status, said in full] == [(503, True)]
        assert [(await each)[0] for each in waiting] == [503] * 6


@in_virtual_time
async def test_a_trace_names_the_kind_of_the_engine_that_answers():
    async with Home() as house:
        traced = list[str]()
        requests = house.gateway.records.requests
        requests.on_trace = lambda request, *_: traced.append(request.origin.provider)
        for model in ("a", "stays"):
            await house.generated(model)
        await settle()
        assert traced == ["ollama", "llama_server"]


@in_virtual_time
async def test_another_list_of_a_server_whose_models_stay_is_no_drift():
    async with Home() as house:
        house.server.set_models("Stays", "other")
        await sleep_until(6.0)
        house.server.set_models("other")
        await sleep_until(12.0)
        moved = [(event.appeared, event.vanished) for event in house.events.of(EngineMovedModels)]
        assert moved == [(("other",), ()), ((), ("Stays",))]
        assert house.events.of(ResidencyDrifted) == []


@in_virtual_time
async def test_who_asks_whether_it_is_ready_hears_of_all_engines():
    async with Home() as house:
        house.ollama.list_oddly("GET /api/ps answered 404.")
        house.server.is_down = True
        await sleep_until(6.0)
        said = json.loads((await house.get("/readyz")).body)["error"]
        assert said == "the model servers do not answer: GET /api/ps answered 404"


@in_virtual_time
async def test_who_never_fits_beside_what_stays_hears_what_that_takes():
    sizes = {"stays": ModelSettings(vram_gb=20.0), "a": ModelSettings(vram_gb=6.0)}
    settings = SETTINGS.replace(gpu=GpuSettings(vram_gb=24.0, home_model=""), models=sizes)
    async with Home(on_card=True, settings=settings) as house:
        status, said = await house.generated("a")
        assert status == 503
        assert "needs 6.0 GiB of GPU memory, the GPU has 24.0 GiB, of which" in said
        assert "models that stay take 20.0 GiB" in said


class LateThreads(ThreadPoolExecutor):
    """Does what it is given when the test says so."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)
        self.given: list[Callable[[], None]] = []

    def submit(self, work: Any, /, *args: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self.given.append(lambda: done.set_result(work(*args, **named)))
        return done


@in_virtual_time
async def test_long_lists_that_come_together_are_both_known():
    async with Home() as house:
        threads = LateThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        watch = house.worker.watch
        house.server.set_models("Stays", *(f"s{number}" for number in range(LONG_LIST)))
        first = asyncio.ensure_future(watch.refresh_installed("big"))
        await settle()
        house.ollama.install("new:latest")
        second = asyncio.ensure_future(watch.refresh_installed("cards"))
        await settle()
        for work in reversed(threads.given):
            work()
            await settle()
        await first
        await second
        assert (watch.name_of("new"), watch.name_of("s7")) == ("new", "s7")
