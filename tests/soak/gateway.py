"""`hearth serve` as a process of its own, looked at through its own pages."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.faults.serving import Serving
from tests.soak.verdict import Sample, numbers_of, sample_of
from tests.soak.wire import CARD_GIB, HOME, SLOTS

POLL_S = 0.5
CONFIG = """
gpu: {{home_model: "{home}", parallel: {slots}, vram_gb: {card_gib}, nvml: false}}
backend: {{mode: ollama}}
ollama: {{url: "{url}", first_byte_timeout_s: 15}}
queue: {{max_external_depth: 1000}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
storage: {{path: "{database}", reserve_mib: 0}}
jobs: {{max_attempts: 50, keep_results_days: 1}}
server: {{log_format: json, log_level: info}}
"""


class Gateway:
    """For the time of the block; it must live through all of it and end in order. `config` is its file, which may be saved again."""

    def __init__(self, directory: Path, model_server: str, session: aiohttp.ClientSession) -> None:
        self.config = directory / "config.yaml"
        self._database = directory / "hearth.db"
        self._session = session
        self.config.write_text(CONFIG.format(home=HOME, card_gib=CARD_GIB, slots=SLOTS, url=model_server, database=self._database))
        self._serving: Serving

    @property
    def url(self) -> str:
        return self._serving.url

    async def __aenter__(self) -> Self:
        self._serving = await Serving.start(self.config)
        await self._serving.listening()
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._serving.process
        try:
            assert (process.returncode or await self._serving.end(signal.SIGTERM)) == 0, self.complaints()
        finally:
            if process.returncode is None:
                process.kill()

    def complaints(self) -> str:
        """Warnings and worse of its log."""
        return "\n".join(map(str, (line for line in self._serving.said if line["level"] != "info")))

    async def look(self, *, at: float, asked: int) -> Sample:
        wal = self._database.with_name("hearth.db-wal")
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
