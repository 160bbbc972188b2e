"""`hearth serve` with a store as a process of its own: with the emulator, or as an owner starts it
in front of a model server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType

from tests.reliability.model_server import ModelServer
from tests.support.fields import Fields
from tests.support.patience import in_time, within_limit
from tests.support.processes import started

CONFIG = """
gpu: {{home_model: "", nvml: false, parallel: 1}}
backend: {{mode: ollama}}
ollama: {{url: "{url}"}}
queue: {{max_external_depth: 10000}}
rate_limits: {{default: {{requests_per_minute: 100000000, requests_per_hour: 100000000}}}}
server: {{log_format: json, shutdown_grace_s: 0.05}}
"""
"""In front of a model server."""
NOTHING: Mapping[str, str] = MappingProxyType({})
Phase = Callable[[list[Fields]], bool]


def of(said: list[Fields], event: str) -> list[Fields]:
    return [line for line in said if line["event"] == event]


def some(event: str, count: int) -> Phase:
    return lambda said: len(of(said, event)) >= count


class Process:
    """A gateway and what it logged; `start_s`: what it took until it said its address."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[Fields] = []
        self.moved = asyncio.Event()
        self.start_s = 0.0
        self._began_at = time.monotonic()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        directory: Path,
        config: str,
        *,
        options: Sequence[str] = ("--emulator",),
        environ: Mapping[str, str] = NOTHING,
        before: Sequence[str] = (),
    ) -> AsyncIterator[Process]:
        """For the time of the block; its file is `hearth.db` in the directory.

        `before`: a program that runs it.
        """
        file = directory / "config.yaml"
        file.write_text(f"{config}storage: {{path: {directory / 'hearth.db'}, reserve_mib: 0}}\n")
        serve = (
            sys.executable,
            "-c",
            "from hearth.cli import main; main()",
            "serve",
            *options,
            "--port",
            "0",
            "--config",
            str(file),
        )
        pipes: Fields = {
            "stdout": asyncio.subprocess.PIPE,
            "stderr": asyncio.subprocess.DEVNULL,
            "limit": 1 << 20,
        }
        environ = {"HOME": str(directory), "PATH": "", **environ}
        async with started(
            *before, *serve, cwd=directory, env=environ, start_new_session=True, **pipes
        ) as process:
            try:
                yield cls(process)
            finally:
                with suppress(ProcessLookupError):  # a tracer, and what it traces
                    os.killpg(process.pid, signal.SIGKILL)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.said.append(json.loads(line))
                self.moved.set()

    async def until(self, phase: Phase) -> None:
        """Wait for what the log says."""
        async with in_time():
            while not phase(self.said):
                self.moved.clear()
                await self.moved.wait()

    async def url(self) -> str:
        await self.until(some("gateway_started", 1))
        self.start_s = time.monotonic() - self._began_at
        return str(of(self.said, "gateway_started")[0]["url"])

    async def ended_s(self, by: signal.Signals, code: int) -> float:
        """Send a signal; the seconds until the process is gone with this code."""
        began_at = time.monotonic()
        os.killpg(self.process.pid, by)
        assert await within_limit(self.process.wait()) == code
        took_s = time.monotonic() - began_at
        await self._reading
        return took_s

    async def stopped_s(self) -> float:
        """Ask it to stop. It must end by itself, and well."""
        took_s = await self.ended_s(signal.SIGTERM, 0)
        assert of(self.said, "internal_fault") == []
        return took_s


@asynccontextmanager
async def served(
    directory: Path, *, environ: Mapping[str, str], before: Sequence[str] = ()
) -> AsyncIterator[str]:
    """The address of a gateway in front of a model server that takes its time; it ends in order,
    with what runs it.
    """
    async with ModelServer() as model:
        config = CONFIG.format(url=model.url)
        async with Process.start(
            directory, config, options=(), environ=environ, before=before
        ) as gateway:
            yield await gateway.url()
            os.killpg(gateway.process.pid, signal.SIGTERM)
            await within_limit(gateway.process.wait())
