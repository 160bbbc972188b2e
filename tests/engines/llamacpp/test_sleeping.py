"""A real llama-server that sleeps once it has had nothing to do for a second."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import openai
import pytest

from hearth.bootstrap import running_gateway
from hearth.clock import SystemClock
from hearth.config.engines import RunSettings
from hearth.config.settings import BackendSettings, EngineSettings, GatewayConfig, GpuSettings
from hearth.engines.llama_server.engine import LlamaServer
from hearth.events import EngineMovedModels, ResidencyDrifted, SwapCompleted
from hearth.types import LoadOptions
from tests.engines.llamacpp.gguf import write_model
from tests.engines.llamacpp.server_command import llama_server
from tests.engines.processes.house import house
from tests.support.home import house_settings
from tests.support.patience import WITHIN_S, until
from tests.support.places import ROOT
from tests.support.recorder import Recorder

MODEL = "tiny"
SLEEPS = ("-c", "512", "--sleep-idle-seconds", "1")
COMMAND = (sys.executable, "-m", "tests.engines.llamacpp.server_command")
UNPINNED = LoadOptions()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sleeping") / "tiny.gguf"
    write_model(path)
    return path


@pytest.fixture(scope="module")
def url(file: Path) -> Iterator[str]:
    arguments = ("-m", str(file), "--alias", MODEL, *SLEEPS)
    with llama_server(*arguments, log=file.with_suffix(".log")) as (url, _):
        yield url


async def until_so(said: Callable[[], Awaitable[bool]]) -> None:
    """What a server says of itself on its own time."""
    async with asyncio.timeout(WITHIN_S):
        while not await said():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_one_that_sleeps_is_not_in_memory_and_a_load_wakes_it(url: str):
    times: Any = {"connect_timeout_s": WITHIN_S, "control_timeout_s": WITHIN_S}
    async with aclosing(LlamaServer(url, clock=SystemClock(), **times)) as engine:
        await engine.load(MODEL, UNPINNED)
        assert [model.name for model in await engine.resident()] == [MODEL]
        loading = [engine.loads_on_request]
        await until_so(engine.is_asleep)
        listed = await engine.installed()
        assert [model.name for model in listed] == [MODEL]
        assert await engine.resident() == ()
        loading.append(engine.loads_on_request)
        assert loading == [False, True]
        await engine.unload(MODEL)  # nothing is there
        assert await engine.is_asleep()  # no look has woken it
        await engine.load(MODEL, UNPINNED)
        assert [model.name for model in await engine.resident()] == [MODEL]
        assert await engine.installed() is listed


async def test_a_process_that_sleeps_is_not_in_memory_and_a_load_wakes_it(file: Path):
    command = [*COMMAND, "--host", "127.0.0.1", "--port", "${PORT}", "-t", "1", "-m", str(file)]
    env = {"PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    run = RunSettings.model_validate({"command": [*command, *SLEEPS], "env": env})
    async with house({MODEL: run}) as home:
        engine = home.engine

        async def is_away() -> bool:
            return await engine.resident() == ()

        await engine.load(MODEL, UNPINNED)
        assert [model.name for model in await engine.resident()] == [MODEL]
        await until_so(is_away)
        await engine.load(MODEL, UNPINNED)
        assert [model.name for model in await engine.resident()] == [MODEL]
        await until_so(is_away)
        await engine.unload(MODEL)
        assert engine.servers[MODEL].ready is None


async def test_a_request_for_one_that_sleeps_has_it_woken_as_a_load(url: str):
    own = EngineSettings(kind="llama_server", url=url)
    engines = {"main": own, "others": EngineSettings(kind="processes")}
    beat = BackendSettings(check_interval_s=0.5)
    settings = house_settings(gpu=GpuSettings(restore_home_delay_s=0.0)).replace(
        engines=engines, models={}, backend=beat
    )
    events = Recorder()
    running = running_gateway(
        GatewayConfig(settings=settings), host="127.0.0.1", port=0, sinks=(events,)
    )
    async with running as (_, address):
        client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0)
        for _ in range(2):  # it may sleep already, and sleeps again
            answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=2)
            assert answer.choices[0].text
            known = len(events.of(EngineMovedModels))
            await until(lambda: len(events.of(EngineMovedModels)) > known)  # noqa: B023
            assert events.of(EngineMovedModels)[-1].vanished == (MODEL,)
        assert {swap.to_model for swap in events.of(SwapCompleted)} == {MODEL}
        assert not events.of(ResidencyDrifted)
        await client.close()
