"""A gateway whose llama.cpp servers keep their conversations over a swap."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.engines import EngineSettings, RunSettings
from hearth.config.settings import (
    ConversationSettings,
    GatewayConfig,
    GpuSettings,
    ModelSettings,
)
from hearth.engines.processes.engine import Processes
from hearth.events import (
    ConversationRestored,
    ConversationsSaved,
    ConversationUnsaved,
    ItemInterrupted,
    ItemResumed,
    ItemStreaming,
)
from hearth.gateway import Gateway
from tests.engines.llamacpp.gguf import LETTERS, WORDS, write_model
from tests.engines.processes.house import left, some_ports
from tests.support.examples import EXAMPLES
from tests.support.home import house_settings
from tests.support.patience import until
from tests.support.places import ROOT
from tests.support.recorder import Recorder

ONE = "one"
TWO = "two"
AS_HOUSE = {"X-Task-Type": "chat_router"}
COLD: Any = {"temperature": 1e-6}
"""Who asks for 0 is replayed first."""
MANY_TOKENS = 20_000
TOKENS = 3_000
PATHS = ("/v1/chat/completions", "/v1/messages", "/api/chat", "/api/generate")
TURNS = [{"role": "assistant", "content": "house"}, {"role": "user", "content": "and"}]


def long(seed: int, words: int = 150) -> list[dict[str, str]]:
    """A conversation of some 900 tokens."""
    chance = random.Random(seed)
    return [{"role": "user", "content": " ".join(chance.choice(WORDS) for _ in range(words))}]


def run_with(file: Path, *arguments: str, **env: str) -> RunSettings:
    """A server by its own command line, as an owner starts it: nothing in it saves."""
    module = "tests.engines.llamacpp.server_command"
    fixed = ["-m", str(file), "--alias", "${MODEL}", "--port", "${PORT}", "-t", "1"]
    return RunSettings.model_validate(
        {
            "command": [sys.executable, "-m", module, *fixed, *arguments],
            "env": {"PYTHONPATH": f"{ROOT}/src:{ROOT}", **env},
        }
    )


@dataclass
class Door:
    """A gateway, and a client on it."""

    gateway: Gateway
    engine: Processes
    events: Recorder
    client: openai.AsyncOpenAI
    url: str

    async def ask(self, model: str, messages: Any, headers: Any = None) -> tuple[str, int]:
        """The text, and how many tokens of the prompt were not read."""
        answer = await self.client.chat.completions.create(
            model=model, messages=messages, max_tokens=4, extra_headers=headers, **COLD
        )
        usage = answer.usage
        assert usage is not None
        details = usage.prompt_tokens_details
        cached_tokens = details.cached_tokens if details is not None else 0
        return answer.choices[0].message.content or "", cached_tokens or 0

    async def stream(self, model: str, messages: Any, seen: list[str], tokens: int) -> str:
        stream = await self.client.chat.completions.create(
            model=model, messages=messages, max_tokens=tokens, stream=True, **COLD
        )
        async for part in stream:
            seen += [part.choices[0].delta.content or ""]
        return "".join(seen)

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as session:
            return await (await session.get(f"{self.url}/metrics")).text()

    async def status(self) -> Any:
        async with aiohttp.ClientSession() as session:
            answer = await session.get(f"{self.url}/llm/queue/status")
            return (await answer.json())["conversations"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "letters.gguf"
    write_model(path, tuple(LETTERS))
    return path


@asynccontextmanager
async def open_door(folder: Path, run: RunSettings, **saving: Any) -> AsyncIterator[Door]:
    """Two models that need the whole card each."""
    events = Recorder()
    ports = some_ports()
    settings = house_settings(gpu=GpuSettings(vram_gb=4.0, nvml=False))
    settings = settings.replace(
        scheduling=settings.scheduling.model_copy(update={"preemption": "at_once"}),
        conversations=ConversationSettings(directory=str(folder / "saved"), **saving),
        engines={"own": EngineSettings(kind="processes", ports=f"{ports[0]}-{ports[-1]}")},
        models={name: ModelSettings(vram_gb=3.0, run=run) for name in (ONE, TWO)},
    )
    async with AsyncExitStack() as stack:
        running = running_gateway(
            GatewayConfig(settings=settings), host="127.0.0.1", port=0, sinks=(events,)
        )
        gateway, url = await stack.enter_async_context(running)
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        engine = gateway.engines.first.engine
        assert isinstance(engine, Processes)
        yield Door(gateway, engine, events, await stack.enter_async_context(client), url)
    assert left() == set()


async def test_conversations_go_on_after_their_model_was_swapped(file: Path, tmp_path: Path):
    async with open_door(tmp_path, run_with(file)) as door:
        await door.ask(ONE, long(1))
        await door.ask(TWO, long(2))
        _, cached_tokens = await door.ask(ONE, [*long(1), *TURNS])
        _, other_tokens = await door.ask(TWO, [*long(2), *TURNS])
        status = await door.status()
        assert min(cached_tokens, other_tokens) > 700
        assert 'hearth_conversations_stored_bytes{model="one"}' in await door.metrics()
        assert len(door.events.of(ConversationRestored)) == 2
        assert not door.events.of(ConversationUnsaved)
        assert (door.engine.saves(ONE.upper()), door.engine.saves(TWO)) == (True, True)
    assert [each["model"] for each in status["models"]] == [ONE, TWO]
    assert status["size_bytes"] > 1_000_000


@pytest.mark.parametrize("env", [{}, {"LLAMA_ARG_PORT": "${PORT}"}], ids=["command", "env"])
async def test_conversations_go_on_after_a_restart_of_the_gateway(
    file: Path, tmp_path: Path, env: dict[str, str]
):
    async with open_door(tmp_path, run_with(file, **env)) as door:
        await door.ask(ONE, long(1))
    assert len(door.events.of(ConversationsSaved)) == 1
    async with open_door(tmp_path, run_with(file, **env)) as door:
        _, cached_tokens = await door.ask(ONE, [*long(1), *TURNS])
    assert cached_tokens > 700


async def test_interrupted_stream_goes_on_from_its_slot(file: Path, tmp_path: Path):
    run = run_with(file, "-c", str(2 * MANY_TOKENS))
    async with open_door(tmp_path, run) as door:
        seen: list[str] = []
        stream = asyncio.ensure_future(door.stream(ONE, long(1), seen, MANY_TOKENS))
        await until(lambda: len(seen) > 10)
        await door.ask(TWO, long(2, 2), AS_HOUSE)
        await door.events.first(ItemResumed)
        so_far = len(seen)
        await until(lambda: len(seen) > so_far + 10)
        stream.cancel()
        text = "".join(seen)
        [restored] = door.events.of(ConversationRestored)
        assert restored.cached_tokens > 700
        assert (await door.stream(ONE, long(1), [], len(text))).startswith(text)


async def text_of(door: Door, path: str, seed: int) -> str:
    """The streamed answer of this API."""
    seen = list[str]()
    asked: Any = {"model": ONE, "messages": long(seed), "stream": True, "temperature": 0}
    asked |= {"max_tokens": TOKENS}
    if path.startswith("/api/"):
        asked["options"] = {"temperature": 0, "num_predict": TOKENS}
    if path == "/api/generate":
        asked |= {"prompt": long(seed)[0]["content"]}
    async with (
        aiohttp.ClientSession() as session,
        session.post(door.url + path, json=asked) as said,
    ):
        assert said.status == 200
        async for line in said.content:
            frame = line.removeprefix(b"data: ")
            if frame.startswith(b"{"):
                seen.append(piece_in(json.loads(frame)))
    return "".join(seen)


def piece_in(frame: Any) -> str:
    """The text in a frame of any of them."""
    assert "error" not in frame
    chosen = [choice["delta"].get("content") or "" for choice in frame.get("choices", ())]
    delta = frame.get("delta") or {}
    message = (frame.get("message") or {}) if "done" in frame else {}
    parts = (*chosen, delta.get("text", ""), message.get("content", ""), frame.get("response", ""))
    return "".join(parts) if all(isinstance(part, str) for part in parts) else ""


def has_begun(door: Door, sequence: int) -> bool:
    return any(event.sequence == sequence for event in door.events.of(ItemStreaming))


@pytest.mark.parametrize("path", PATHS)
async def test_interrupted_streams_have_the_text_of_others(file: Path, tmp_path: Path, path: str):
    """In each API, over a stop and a start; `HEARTH_EXAMPLES=20` interrupts twenty of each. Now and
    then one ends before it is interrupted.
    """
    async with open_door(tmp_path, run_with(file, "-c", str(2 * MANY_TOKENS))) as door:
        numbers = itertools.count()
        while len(door.events.of(ItemInterrupted)) < EXAMPLES:
            number = next(numbers)
            whole = await text_of(door, path, number)
            stream = asyncio.ensure_future(text_of(door, path, number))
            begun = 3 * number + 2  # of each three requests the second
            await door.events.until(partial(has_begun, door, begun))
            await door.ask(TWO, long(99, 2), AS_HOUSE)
            assert await stream == whole
        assert len(door.events.of(ItemResumed)) == len(door.events.of(ItemInterrupted))
        assert not door.events.of(ConversationUnsaved)


async def test_nothing_is_saved_where_its_owner_does_not_want_it(file: Path, tmp_path: Path):
    async with open_door(tmp_path, run_with(file), quota_gb=0) as door:
        await door.ask(ONE, long(1))
        await door.ask(TWO, long(2))
        _, cached_tokens = await door.ask(ONE, long(1))
    assert cached_tokens < 10
    assert not (tmp_path / "saved").exists()


async def test_server_that_saves_elsewhere_is_left_alone(file: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = run_with(file, LLAMA_ARG_SLOT_SAVE_PATH=str(elsewhere))
    async with open_door(tmp_path, run) as door:
        await door.ask(ONE, long(1))
        await door.ask(TWO, long(2))
    assert not door.events.of(ConversationsSaved)
    assert not list((tmp_path / "saved").iterdir())
    assert not list(elsewhere.iterdir())


async def test_directory_that_cannot_be_made_costs_only_the_saving(file: Path, tmp_path: Path):
    (tmp_path / "saved").write_text("")
    async with open_door(tmp_path, run_with(file)) as door:
        await door.ask(ONE, long(1))
        assert await door.ask(TWO, long(2))
        status = await door.status()
    assert "File exists" in status["problem"]
    assert {event.step for event in door.events.of(ConversationUnsaved)} == {"save"}


async def test_server_that_was_killed_after_a_restore_is_doubted(file: Path, tmp_path: Path):
    async with open_door(tmp_path, run_with(file)) as door:
        await door.ask(ONE, long(1))
        await door.ask(TWO, long(2))
        seen: list[str] = []
        stream = asyncio.ensure_future(door.stream(ONE, long(1), seen, MANY_TOKENS))
        await until(lambda: bool(seen))
        run = door.engine.servers[ONE].run
        assert run is not None
        for process in run.tree.processes():
            os.kill(process, signal.SIGKILL)
        unsaved = await door.events.first(ConversationUnsaved)
        stream.cancel()
    assert (unsaved.step, unsaved.reason) == ("restore", "the server ended after it")
