"""One `hearth serve` as an owner starts it, in front of a model server that takes its time, with another environment or under a tracer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.reliability.model_server import ModelServer
from tests.support.patience import WITHIN_S

CONFIG = """
gpu: {{home_model: "", nvml: false}}
backend: {{mode: ollama}}
ollama: {{url: "{url}"}}
rate_limits: {{default: {{requests_per_minute: 100000000, requests_per_hour: 100000000}}}}
storage: {{path: "{path}", reserve_mib: 0}}
server: {{log_format: json, shutdown_grace_s: 0.05}}
"""


class Served:
    """For the time of the block."""

    def __init__(self, directory: Path, *, environ: Mapping[str, str] | None = None, before: Sequence[str] = ()) -> None:
        self.path = directory / "hearth.db"
        self.model = ModelServer()
        self.url = ""
        self._config = directory / "config.yaml"
        self._environ = {**os.environ, **(environ or {})}
        serve = (sys.executable, "-c", "from hearth.cli import main; main()", "serve", "--port", "0", "--config", str(self._config))
        self._command = (*before, *serve)
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        await self.model.__aenter__()
        self._config.write_text(CONFIG.format(url=self.model.url, path=self.path))
        self._process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environ, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdout is not None
        try:
            self.url = await self._url_in(self._process.stdout)
        except BaseException:
            await self._end(signal.SIGKILL)
            raise
        self._reading = asyncio.ensure_future(self._read_on(self._process.stdout))
        return self

    async def _url_in(self, output: asyncio.StreamReader) -> str:
        async with asyncio.timeout(WITHIN_S):
            while line := await output.readline():
                if b"gateway_started" in line:
                    return str(json.loads(line)["url"])
        raise AssertionError("it did not start")

    async def _read_on(self, output: asyncio.StreamReader) -> None:
        while await output.readline():
            pass

    async def __aexit__(self, *_: object) -> None:
        await self._end(signal.SIGTERM)
        await self._reading

    async def _end(self, by: signal.Signals) -> None:
        """With all of its group, which a tracer and what it traces are; what does not end in time is killed."""
        try:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, by)
            async with asyncio.timeout(WITHIN_S):
                await self._process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self.model.__aexit__()
