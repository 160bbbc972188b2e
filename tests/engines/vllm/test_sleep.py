"""A vLLM that may sleep, with the routes of its documentation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.engines.vllm.engine import Vllm
from hearth.errors import LoadError, StaysAwake
from hearth.types import LoadOptions, SleepLevel
from tests.engines.openai_server.scripted import Scripted, said
from tests.engines.stub_server import Peer, StubServer
from tests.engines.vllm.test_adapter import ABOUT, MODEL

UNPINNED = LoadOptions()
EMPTY = (200, b"", "text/plain")
BOTH: tuple[SleepLevel, ...] = ("offload", "discard")


class Sleeper(Scripted):
    """It answers 200 with nothing, and says whether it sleeps. `orders`: what it was told."""

    is_asleep = False
    obeys = True
    hangs = False
    orders: list[str]

    async def __call__(self, peer: Peer) -> None:
        if peer.method == "POST" and not peer.path.startswith("/v1/"):
            self.orders.append(f"{peer.path} {peer.body.decode()}".strip())
            if self.hangs:
                await asyncio.Event().wait()
            if self.obeys:
                self.is_asleep = peer.path.startswith("/sleep")
            self.answers.setdefault(peer.path, EMPTY)
        self.answers["/is_sleeping"] = said(200, is_sleeping=self.is_asleep)
        await super().__call__(peer)


@asynccontextmanager
async def before(*levels: SleepLevel, **options: Any) -> AsyncIterator[tuple[Vllm, Sleeper]]:
    script = Sleeper(ABOUT)
    script.orders = []
    times: Any = {"connect_timeout_s": 30.0, "control_timeout_s": 30.0}
    async with StubServer(script) as server:
        engine = Vllm(server.url, clock=SystemClock(), **times, **options)
        engine.allow_sleep(levels)
        async with aclosing(engine):
            await engine.installed()
            yield engine, script


@pytest.mark.parametrize(
    ("level", "orders"),
    [
        ("offload", ["/sleep?level=1&mode=abort", "/wake_up"]),
        (
            "discard",
            [
                "/sleep?level=2&mode=abort",
                "/wake_up?tags=weights",
                '/collective_rpc {"method":"reload_weights"}',
                "/wake_up?tags=kv_cache",
            ],
        ),
    ],
)
async def test_it_sleeps_at_a_level_and_a_load_wakes_it(level: SleepLevel, orders: list[str]):
    async with before(*BOTH) as (engine, script):
        assert engine.loads_on_request
        assert engine.sleeps(MODEL) == BOTH
        await engine.load(MODEL, UNPINNED)
        assert len(await engine.resident()) == 2
        await engine.sleep(MODEL, level)
        assert await engine.resident() == ()
        assert engine.asleep() == {MODEL: level, "org/Toy-2": level}
        await engine.load(MODEL, UNPINNED)
        assert (len(await engine.resident()), dict(engine.asleep())) == (2, {})
        assert script.orders == orders


async def test_one_that_cannot_be_stopped_sleeps_as_deeply_as_it_may():
    async with before("offload") as (engine, script):
        await engine.unload(MODEL)
        await engine.unload(MODEL)
        assert dict(engine.asleep())[MODEL] == "offload"
        assert script.orders == ["/sleep?level=1&mode=abort"]


async def test_one_that_sleeps_is_not_woken_so_that_it_may_sleep_deeper():
    """vLLM reads over such an order, and to be woken it needs the room that others have."""
    async with before(*BOTH) as (engine, script):
        await engine.sleep(MODEL, "offload")
        await engine.sleep(MODEL, "discard")
        await engine.unload(MODEL)
        assert dict(engine.asleep())[MODEL] == "offload"
        assert script.orders == ["/sleep?level=1&mode=abort"]


async def test_one_that_slept_before_the_gateway_began_is_woken():
    async with before("offload") as (engine, script):
        script.is_asleep = True
        assert await engine.resident() == ()
        await engine.load(MODEL, UNPINNED)
        assert script.orders == ["/wake_up"]


async def test_what_it_answers_is_not_believed():
    async with before("offload") as (engine, script):
        script.obeys = False
        with pytest.raises(LoadError, match="says that it is awake"):
            await engine.sleep(MODEL, "offload")
        script.is_asleep = True
        with pytest.raises(LoadError, match="says that it sleeps"):
            await engine.load(MODEL, UNPINNED)


async def test_one_that_hangs_is_not_waited_for_for_ever():
    async with before("offload") as (engine, script):
        script.hangs = True
        engine.sleep_timeout_s = 0.1
        with pytest.raises(LoadError, match="does not sleep within") as caught:
            await engine.unload(MODEL)
        assert not isinstance(caught.value, StaysAwake)


async def test_one_without_the_routes_says_how_it_is_started():
    async with before("offload") as (engine, script):
        script.answers["/sleep?level=1&mode=abort"] = said(404, detail="Not Found")
        with pytest.raises(LoadError, match="--enable-sleep-mode and VLLM_SERVER_DEV_MODE=1"):
            await engine.sleep(MODEL, "offload")


async def test_without_levels_or_for_several_machines_it_is_never_asked():
    async with before() as (engine, script), before("offload", elastic=True) as (other, _):
        assert (engine.loads_on_request, other.loads_on_request) == (False, False)
        assert (engine.sleeps(MODEL), other.sleeps(MODEL)) == ((), ())
        assert len(await engine.resident()) == 2
        assert "/is_sleeping" not in [peer.path for peer in script.asked]
        with pytest.raises(LoadError):
            await engine.unload(MODEL)
        assert script.orders == []
