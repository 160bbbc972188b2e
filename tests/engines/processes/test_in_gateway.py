"""A gateway that starts and stops real llama.cpp servers: swaps, streams that go on over them,
loads that are cut, servers that end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.engines import EngineSettings, RunSettings
from hearth.config.settings import GatewayConfig, GpuSettings, ModelSettings
from hearth.engines.processes.engine import Processes
from hearth.events import (
    EngineExited,
    ItemInterrupted,
    ItemResumed,
    LoadCut,
    SwapCompleted,
)
from tests.engines.llamacpp.command import run_settings
from tests.engines.llamacpp.gguf import LETTERS, write_model
from tests.engines.processes.house import left, odd, some_ports
from tests.support.home import house_settings
from tests.support.patience import until
from tests.support.recorder import Recorder

ONE = "one"
TWO = "two"
SILENT = "silent"
HELLO: Any = [{"role": "user", "content": "hello house"}]
AS_HOUSE = {"X-Task-Type": "chat_router"}
MANY_TOKENS = 20_000
COLD: Any = {"temperature": 1e-6}
"""Who asks for 0 is replayed first."""


@dataclass
class Door:
    """A gateway over processes of its own, and a client on it."""

    url: str
    engine: Processes
    events: Recorder
    client: openai.AsyncOpenAI

    async def ask(self, model: str, headers: dict[str, str] | None = None) -> str:
        answer = await self.client.chat.completions.create(
            model=model, messages=HELLO, max_tokens=2, extra_headers=headers, **COLD
        )
        return answer.choices[0].message.content or ""

    async def stream(self, model: str, seen: list[str], tokens: int) -> str:
        stream = await self.client.chat.completions.create(
            model=model, messages=HELLO, max_tokens=tokens, stream=True, **COLD
        )
        async for part in stream:
            seen += [part.choices[0].delta.content or ""]
        return "".join(seen)


@asynccontextmanager
async def open_door(
    runs: dict[str, RunSettings], preemption: str = "at_once"
) -> AsyncIterator[Door]:
    """The models need the whole card each."""
    events = Recorder()
    ports = some_ports()
    settings = house_settings(gpu=GpuSettings(vram_gb=4.0, nvml=False))
    scheduling = settings.scheduling.model_copy(update={"preemption": preemption})
    settings = settings.replace(
        scheduling=scheduling,
        engines={"own": EngineSettings(kind="processes", ports=f"{ports[0]}-{ports[-1]}")},
        models={name: ModelSettings(vram_gb=3.0, run=run) for name, run in runs.items()},
    )
    async with AsyncExitStack() as stack:
        running = running_gateway(
            GatewayConfig(settings=settings), host="127.0.0.1", port=0, sinks=(events,)
        )
        gateway, url = await stack.enter_async_context(running)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        engine = gateway.engines.first.engine
        assert isinstance(engine, Processes)
        yield Door(url, engine, events, await stack.enter_async_context(client))
    assert left() == set()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    file = tmp_path / "letters.gguf"
    write_model(file, tuple(LETTERS))
    run = run_settings(file, context_tokens=2 * MANY_TOKENS)
    async with open_door({ONE: run, TWO: run}) as door:
        yield door


async def resident(door: Door) -> list[str]:
    return [model.name for model in await door.engine.resident()]


async def test_a_swap_ends_one_server_and_starts_the_other(door):
    for model in (ONE, TWO, ONE):
        assert await door.ask(model)
        assert await resident(door) == [model]
    swaps = door.events.of(SwapCompleted)
    directions = [(swap.from_models, swap.to_model) for swap in swaps]
    assert directions == [((), ONE), ((ONE,), TWO), ((TWO,), ONE)]
    assert [swap.unload_s > 0 for swap in swaps] == [False, True, True]
    assert all(swap.load_s > 0 for swap in swaps)


async def test_an_interrupted_answer_goes_on_in_another_process_with_the_same_text(door):
    seen: list[str] = []
    stream = asyncio.ensure_future(door.stream(ONE, seen, MANY_TOKENS))
    await until(lambda: len(seen) > 10)
    before = door.engine.servers[ONE].run
    await door.ask(TWO, AS_HOUSE)
    assert len(door.events.of(ItemInterrupted)) == 1
    resumed = await door.events.first(ItemResumed)
    so_far = len(seen)
    await until(lambda: len(seen) > so_far + 10)
    stream.cancel()
    assert (resumed.how, before is door.engine.servers[ONE].run) == ("continued", False)
    text = "".join(seen)
    assert (await door.stream(ONE, [], len(text))).startswith(text)


async def test_an_answer_goes_on_when_its_server_was_killed_in_the_middle(door):
    seen: list[str] = []
    stream = asyncio.ensure_future(door.stream(ONE, seen, MANY_TOKENS))
    await until(lambda: len(seen) > 10)
    for process in door.engine.servers[ONE].run.tree.processes():
        os.kill(process, signal.SIGKILL)
    resumed = await door.events.first(ItemResumed)
    before = len(seen)
    await until(lambda: len(seen) > before)
    [exited] = door.events.of(EngineExited)
    assert (exited.model, "SIGKILL" in exited.how, resumed.how) == (ONE, True, "continued")
    assert await resident(door) == [ONE]
    stream.cancel()


async def test_an_idle_server_that_was_killed_starts_again_for_the_next_request(door):
    await door.ask(ONE)
    for process in door.engine.servers[ONE].run.tree.processes():
        os.kill(process, signal.SIGKILL)
    await door.events.first(EngineExited)
    assert await door.ask(ONE)


async def test_the_log_of_a_server_is_there_for_admins(door):
    await door.ask(ONE)
    async with aiohttp.ClientSession() as session:
        path = f"{door.url}/llm/admin/models/log"
        async with session.get(path, params={"model": ONE}) as answer:
            found = await answer.json()
        async with session.get(path, params={"model": ONE, "after": found["next"]}) as answer:
            later = (await answer.json())["lines"]
        async with session.get(path, params={"model": "nope"}) as answer:
            assert answer.status == 404
    assert any("listening" in line for line in found["lines"])
    assert not {*later} & {*found["lines"]}


async def test_a_load_is_cut_at_once_for_an_internal_request():
    slow = odd("silent", "ignores-term", stop_grace_s=600.0)
    async with open_door({SILENT: slow, TWO: odd()}, "priced") as door:
        asked = asyncio.ensure_future(door.ask(SILENT))
        await until(lambda: door.engine.servers[SILENT].log.after(0)[1])
        with pytest.raises(openai.NotFoundError):  # all that an odd server says
            await door.ask(TWO, AS_HOUSE)
        assert [cut.clean for cut in door.events.of(LoadCut)] == [True]
        assert await resident(door) == [TWO]
        asked.cancel()
