"""An SGLang that may sleep, with the routes of its documentation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from hearth.clock import SystemClock
from hearth.engines.sglang.engine import Sglang
from hearth.errors import BackendUnreachable, LoadError, StaysAwake
from hearth.types import LoadOptions, SleepLevel
from tests.engines.openai_server.scripted import JSON, Scripted, said
from tests.engines.stub_server import Peer, StubServer

MODEL = "Qwen/Qwen3-8B"
UNPINNED = LoadOptions()
RELEASE = '/release_memory_occupation {"tags":["kv_cache","weights"]}'
RESUME = [
    '/resume_memory_occupation {"tags":["weights"]}',
    '/resume_memory_occupation {"tags":["kv_cache"]}',
]
MODELS = said(200, object="list", data=[{"id": MODEL, "object": "model", "max_model_len": 4096}])


class Sleeper(Scripted):
    """It answers 200 with `null`, and fails where what is to be resumed was not released.

    `orders`: what it was told.
    """

    def __init__(self, **about: Any) -> None:
        super().__init__({"/v1/models": MODELS, "/get_server_info": said(200, **about)})
        self.orders: list[str] = []
        self.released: set[str] = set()

    async def __call__(self, peer: Peer) -> None:
        if peer.path.endswith("_memory_occupation"):
            self.orders.append(f"{peer.path} {peer.body.decode()}")
            self.answers[peer.path] = self._obeyed(peer)
        await super().__call__(peer)

    def _obeyed(self, peer: Peer) -> tuple[int, bytes, str]:
        tags = set(peer.json["tags"])
        releases = peer.path.startswith("/release")
        if tags & self.released if releases else not tags <= self.released:
            return said(400, error={"message": "not in such a state"})
        self.released = self.released | tags if releases else self.released - tags
        return 200, b"null", JSON


ABOUT = {"version": "0.5.6", "enable_memory_saver": True, "enable_weights_cpu_backup": True}


def engine_at(url: str, *levels: SleepLevel) -> Sglang:
    times: Any = {"connect_timeout_s": 30.0, "control_timeout_s": 30.0}
    engine = Sglang(url, clock=SystemClock(), **times)
    engine.allow_sleep(levels)
    return engine


@asynccontextmanager
async def before(*levels: SleepLevel, **about: Any) -> AsyncIterator[tuple[Sglang, Sleeper]]:
    script = Sleeper(**ABOUT | about)
    async with (
        StubServer(script) as server,
        aclosing(engine_at(server.url, *levels)) as engine,
    ):
        await engine.installed()
        yield engine, script


async def test_it_sleeps_and_a_load_wakes_its_weights_before_its_cache():
    async with before("offload") as (engine, script):
        assert await engine.version() == "0.5.6"
        assert (engine.loads_on_request, engine.sleeps(MODEL)) == (True, ("offload",))
        await engine.load(MODEL, UNPINNED)
        await engine.sleep(MODEL, "offload")
        assert await engine.resident() == ()
        assert engine.asleep() == {MODEL: "offload"}
        await engine.load(MODEL, UNPINNED)
        await engine.load(MODEL, UNPINNED)
        assert (len(await engine.resident()), dict(engine.asleep())) == (1, {})
        assert script.orders == [RELEASE, *RESUME]


async def test_one_that_cannot_be_stopped_sleeps():
    async with before("offload") as (engine, script):
        await engine.unload(MODEL)
        await engine.unload(MODEL)
        assert dict(engine.asleep()) == {MODEL: "offload"}
        assert script.orders == [RELEASE]


@pytest.mark.parametrize("missing", ["enable_memory_saver", "enable_weights_cpu_backup"])
async def test_one_that_would_lose_its_weights_is_not_put_to_sleep(missing: str):
    async with before("offload", **{missing: False}) as (engine, script):
        with pytest.raises(LoadError, match="--enable-weights-cpu-backup"):
            await engine.sleep(MODEL, "offload")
        with pytest.raises(StaysAwake, match="--enable-weights-cpu-backup"):
            await engine.unload(MODEL)
        assert script.orders == []
        assert len(await engine.resident()) == 1


async def test_one_that_was_started_anew_asleep_is_released_before_it_is_resumed():
    async with before("offload") as (engine, script):
        await engine.sleep(MODEL, "offload")
        script.released.clear()
        with pytest.raises(LoadError, match="not in such a state"):
            await engine.load(MODEL, UNPINNED)
        await engine.unload(MODEL)
        await engine.load(MODEL, UNPINNED)
        assert script.orders == [RELEASE, RESUME[0], RELEASE, *RESUME]


async def test_one_that_was_away_is_awake():
    async with StubServer(Sleeper(**ABOUT)) as server:
        engine = engine_at(server.url, "offload")
        await engine.sleep(MODEL, "offload")
        assert dict(engine.asleep()) == {MODEL: "offload"}
    async with aclosing(engine):
        with pytest.raises(BackendUnreachable):
            await engine.installed()
        assert dict(engine.asleep()) == {}


async def test_without_levels_it_is_never_put_to_sleep():
    async with before() as (engine, script):
        assert (engine.loads_on_request, engine.sleeps(MODEL)) == (False, ())
        with pytest.raises(LoadError):
            await engine.unload(MODEL)
        assert script.orders == []
