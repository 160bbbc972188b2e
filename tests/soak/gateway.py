"""`hearth serve` as a process of its own, looked at through its own pages."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.soak.verdict import Sample, numbers_of, sample_of
from tests.soak.wire import CARD_GIB, HOME, SLOTS
from tests.support.processes import die_with_parent

WITHIN_S = 120.0
POLL_S = 0.5
CONFIG = """
gpu: {{home_model: "{home}", parallel: {slots}, vram_gb: {card_gib}, nvml: false}}
backend: {{mode: ollama}}
ollama: {{url: "{url}", first_byte_timeout_s: 15}}
queue: {{max_external_depth: 1000}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
storage: {{path: "{database}", reserve_mib: 0}}
jobs: {{max_attempts: 50, keep_results_days: 1}}
server: {{port: {port}, log_format: json, log_level: info}}
"""


class Gateway:
    """For the time of the block; it must live through all of it and end in order.

    Attributes:
        config: the file, which may be saved again; complaints: what it logged, warnings and worse.
    """

    def __init__(self, directory: Path, model_server: str, session: aiohttp.ClientSession) -> None:
        self.config = directory / "config.yaml"
        self._directory = directory
        self._session = session
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        database = directory / "hearth.db"
        self.config.write_text(CONFIG.format(home=HOME, card_gib=CARD_GIB, slots=SLOTS, url=model_server, database=database, port=port))
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        command = ("-c", "from hearth.cli import main; main()", "serve", "--config", str(self.config))
        environment = {"HOME": str(self._directory), "PATH": ""}
        with (self._directory / "hearth.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *command, cwd=self._directory, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        async with asyncio.timeout(WITHIN_S):
            while not await self._ready():
                assert self._process.returncode is None, self.complaints()
                await asyncio.sleep(0.05)
        return self

    async def _ready(self) -> bool:
        with suppress(aiohttp.ClientError):
            async with self._session.get(f"{self.url}/readyz") as answer:
                return answer.status == 200
        return False

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._process.returncode is None:
                self._process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(self._process.wait(), WITHIN_S) == 0, self.complaints()
        finally:
            if self._process.returncode is None:
                self._process.kill()

    def complaints(self) -> str:
        lines = (self._directory / "hearth.log").read_text().splitlines()
        return "\n".join(line for line in lines if '"level":"info"' not in line)

    async def look(self, *, at: float, asked: int) -> Sample:
        wal = self._directory / "hearth.db-wal"
        return sample_of(await self.page(), at=at, asked=asked, wal_bytes=wal.stat().st_size if wal.exists() else 0)

    async def page(self) -> str:
        async with self._session.get(f"{self.url}/metrics") as answer:
            return await answer.text()

    async def idle(self, *, within_s: float) -> None:
        """Wait until no request and no job is under way. Raises TimeoutError."""
        async with asyncio.timeout(within_s):
            while not _is_idle(await self.numbers()):  # noqa: ASYNC110 - another process, which says so on its page only
                await asyncio.sleep(POLL_S)

    async def numbers(self) -> dict[str, float]:
        return numbers_of(await self.page())

    async def told(self, address: str) -> Any:
        async with self._session.get(f"{self.url}{address}") as answer:
            return await answer.json()


BUSY = ('hearth_requests_under_way{phase="total"}', "hearth_jobs_waiting", "hearth_jobs_running", "hearth_swap_in_progress")


def _is_idle(numbers: dict[str, float]) -> bool:
    return not any(numbers[name] for name in BUSY)
