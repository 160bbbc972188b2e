"""`hearth serve --emulator` with a store, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.patience import WITHIN_S
from tests.support.processes import started

Phase = Callable[[list[dict[str, Any]]], bool]


def of(said: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in said if line["event"] == event]


def some(event: str, count: int) -> Phase:
    return lambda said: len(of(said, event)) >= count


class Process:
    """A gateway and what it logged; `start_s`: what it took until it said its address."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []
        self.moved = asyncio.Event()
        self.start_s = 0.0
        self._began_at = time.monotonic()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    @asynccontextmanager
    async def start(cls, directory: Path, config: str) -> AsyncIterator[Process]:
        """For the time of the block; its file is `hearth.db` in the directory."""
        file = directory / "config.yaml"
        file.write_text(f"{config}storage: {{path: {directory / 'hearth.db'}, reserve_mib: 0}}\n")
        command = ("-c", "from hearth.cli import main; main()", "serve", "--emulator", "--port", "0", "--config", str(file))
        pipes: dict[str, Any] = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL, "limit": 1 << 20}
        environ = {"HOME": str(directory), "PATH": ""}
        async with started(sys.executable, *command, cwd=directory, env=environ, **pipes) as process:
            yield cls(process)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.said.append(json.loads(line))
                self.moved.set()

    async def until(self, phase: Phase) -> None:
        """Wait for what the log says."""
        async with asyncio.timeout(WITHIN_S):
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
        self.process.send_signal(by)
        assert await asyncio.wait_for(self.process.wait(), WITHIN_S) == code
        took_s = time.monotonic() - began_at
        await self._reading
        return took_s

    async def stopped_s(self) -> float:
        """Ask it to stop. It must end by itself, and well."""
        took_s = await self.ended_s(signal.SIGTERM, 0)
        assert of(self.said, "internal_fault") == []
        return took_s
