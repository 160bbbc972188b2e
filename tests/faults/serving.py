"""A real `hearth serve` before an emulated model server that lives in the test, so that either can be stopped without the other."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from hearth.clock import SystemClock
from hearth.emulator import Emulator
from tests.emulator.callers import model
from tests.emulator.waiting import until
from tests.support.patience import WITHIN_S
from tests.support.processes import die_with_parent

QUICK, SLOW, THINKER = "quick", "slow", "thinker"
"""Models: one answers at once, one says a hundred words a second, one takes a second for its first word."""
CONFIG = """
gpu: {home_model: "", nvml: false, vram_gb: 0}
models: {slow: {parallel: 8}, quick: {parallel: 4}, thinker: {parallel: 4}}
backend: {mode: ollama}
queue: {max_external_depth: 1000}
rate_limits: {default: {requests_per_minute: 1000000, requests_per_hour: 1000000}}
"""


@dataclass
class Serving:
    """One process and what it said."""

    process: asyncio.subprocess.Process
    said: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, file: Path, *, environ: Mapping[str, str] | None = None, first: str = "") -> Serving:
        """Start it; `first` is Python that runs in the new process before anything else."""
        command = ("-c", f"{first}\nfrom hearth.cli import main\nmain()", "serve", "--port", "0", "--config", str(file))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            cwd=file.parent,
            env=environ if environ is not None else {"HOME": str(file.parent), "PATH": ""},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=1 << 20,
            preexec_fn=die_with_parent,
        )
        made = cls(process)
        made._reading = asyncio.ensure_future(made._read())
        return made

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(json.loads(line))
            self._moved.set()
        self._moved.set()

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.said if line["event"] == event]

    async def until(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for what the log says."""
        async with asyncio.timeout(WITHIN_S):
            while len(self.of(event)) < count:
                assert self._reading is not None
                assert not self._reading.done(), self.said
                self._moved.clear()
                await self._moved.wait()
        return self.of(event)[count - 1]

    async def listening(self) -> Serving:
        self.url = str((await self.until("gateway_started"))["url"])
        return self

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def end(self, *signals: int) -> int:
        """Send signals, one after the other; the exit code."""
        for number in signals:
            self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), WITHIN_S)
        assert self._reading is not None
        await self._reading
        return code


@dataclass
class Home:
    """What the tests of this folder are given."""

    file: Path
    emulator: Emulator
    session: aiohttp.ClientSession
    born: list[Serving] = field(default_factory=list)

    async def serve(self, **how: Any) -> Serving:
        """Another process on the same files."""
        self.born.append(await Serving.start(self.file, **how))
        return self.born[-1]

    async def ask(
        self, url: str, name: str = QUICK, tokens: int = 3, *, stream: bool = False, prompt: str = "hi"
    ) -> tuple[int, list[dict[str, Any]]]:
        """Status and lines of one generation, read to its proper end: a connection that breaks off raises. No `prompt` loads."""
        body = {"model": name, "prompt": prompt, "stream": stream, "options": {"num_predict": tokens}}
        async with self.session.post(f"{url}/api/generate", json=body) as got:
            return got.status, [json.loads(line) for line in (await got.read()).splitlines()]

    async def begin(self, url: str, tokens: int, name: str = SLOW) -> asyncio.Task[tuple[int, list[dict[str, Any]]]]:
        """A stream which the model server has begun to serve."""
        before = sum(self.emulator.in_flight.values())
        task = asyncio.ensure_future(self.ask(url, name, tokens, stream=True))
        await self.until(lambda: task.done() or sum(self.emulator.in_flight.values()) > before)
        return task

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds, within_s=WITHIN_S)


@asynccontextmanager
async def home(directory: Path, settings: str = "", *, storage: bool = True) -> AsyncIterator[Home]:
    """A directory with a configuration, and the model server that it names; no process outlives the block."""
    emulator = Emulator(
        (model(QUICK), model(SLOW, decode_tokens_per_s=100.0), model(THINKER, prompt_tokens_per_s=9.0)),
        clock=SystemClock(),
        seed=1,
        vram_gib=0,
        num_parallel=8,
    )
    url = await emulator.start("127.0.0.1", 0)
    file = directory / "hearth.yaml"
    store = f'storage: {{path: "{directory}/hearth.db", reserve_mib: 0}}\n' if storage else ""
    file.write_text(f'{CONFIG}{store}ollama: {{url: "{url}", first_byte_timeout_s: 3, idle_timeout_s: 2}}\n{settings}')
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trust_env=False) as session:
        made = Home(file, emulator, session)
        try:
            yield made
        finally:
            for each in made.born:
                if each.process.returncode is None:
                    each.process.kill()
                    await each.process.wait()
            await emulator.stop()
