"""One soak: `hearth serve` as a process of its own, and traffic, faults and looks at its pages side by side in real time."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.faults.serving import Serving
from tests.soak.callers import Callers, End
from tests.soak.faults import FAULTS, House, rehearsal
from tests.soak.wire import CARD_GIB, HOME, SLOTS, ModelServer

RATE_PER_S = 20.0
LOOK_EVERY_S = 1.0
POLL_S = 0.5
REST_WITHIN_S = 300.0
SETTLE_S = 2.0
BUSY = ('hearth_requests_under_way{phase="total"}', "hearth_jobs_waiting", "hearth_jobs_running", "hearth_swap_in_progress")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long, and how often something goes wrong; all in seconds.

    First the warm-up, so often a second and with every fault once; then the traffic that is judged, with faults that last `fault_s` and
    must be healed `healed_s` after that.
    """

    warm_up_s: float
    warm_up_per_s: float
    rehearsed_s: float
    seconds: float
    fault_every_s: float
    fault_s: float
    healed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the gateway; `asked`: requests until then, `wal_bytes`: the store's write-ahead log on the disk."""

    asked: int
    rss_bytes: float
    descriptors: float
    tasks: float
    wal_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bad:
    """One fault, in seconds of the monotonic clock."""

    name: str
    began_at: float
    ended_at: float


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

    async def numbers(self) -> dict[str, float]:
        """Every line of its page of metrics by its name with its labels."""
        async with self._session.get(f"{self.url}/metrics") as answer:
            found = re.findall(r"(?m)^(\w+(?:\{[^}]*\})?) (\S+)$", await answer.text())
        return {name: float(value) for name, value in found}

    async def look(self, asked: int) -> Sample:
        numbers, wal = await self.numbers(), self._database.with_name("hearth.db-wal")
        return Sample(
            asked=asked,
            rss_bytes=numbers["process_resident_memory_bytes"],
            descriptors=numbers["process_open_fds"],
            tasks=numbers["hearth_loop_tasks"],
            wal_bytes=wal.stat().st_size if wal.exists() else 0,
        )

    async def idle(self) -> None:
        """Wait until no request and no job is under way. Raises TimeoutError."""
        async with asyncio.timeout(REST_WITHIN_S):
            while True:
                numbers = await self.numbers()
                if not any(numbers[name] for name in BUSY):
                    return
                await asyncio.sleep(POLL_S)

    async def told(self, address: str) -> Any:
        async with self._session.get(f"{self.url}{address}") as answer:
            return await answer.json()


class Soak:
    """One run, and what was seen of it. `samples`: a look every second under traffic; `before`, `after`: the looks at rest."""

    def __init__(self, plan: Plan, gateway: Gateway, server: ModelServer, session: aiohttp.ClientSession, *, seed: int) -> None:
        self.gateway = gateway
        self.callers = Callers(gateway.url, session, random.Random(seed))
        self.samples: list[Sample] = []
        self.faults: list[Bad] = []
        self.before: Sample
        self.after: Sample
        self._house = House(server=server, session=session, config=gateway.config, lasts_s=plan.fault_s)
        self._plan = plan
        self._first_fault = seed % len(FAULTS)

    async def run(self) -> None:
        plan = self._plan
        async with asyncio.TaskGroup() as group:
            group.create_task(self.callers.call(plan.warm_up_per_s, plan.warm_up_s))
            group.create_task(rehearsal(self._house, plan.rehearsed_s))
        self.before = await self._rest()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            calling = group.create_task(self.callers.call(RATE_PER_S, plan.seconds))
            await self._misfortunes()
            await calling
            watching.cancel()
        self.after = await self._rest()

    async def _misfortunes(self) -> None:
        plan, start_at = self._plan, time.monotonic()
        count = int(plan.seconds / plan.fault_every_s)
        for number, (name, fault) in enumerate(islice(cycle(FAULTS.items()), self._first_fault, self._first_fault + count)):
            await asyncio.sleep(max(0.0, start_at + number * plan.fault_every_s - time.monotonic()))
            began_at = time.monotonic()
            await fault(self._house)
            self.faults.append(Bad(name=name, began_at=began_at, ended_at=time.monotonic()))

    async def _watch(self) -> None:
        while True:
            self.samples.append(await self.gateway.look(self.callers.asked))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _rest(self) -> Sample:
        """Nobody asks, nothing runs, no connection to the model server is open: what is left is the gateway's own."""
        await self.callers.answered()
        await self.gateway.idle()
        self._house.server.hang_up()
        await asyncio.sleep(SETTLE_S)
        return await self.gateway.look(self.callers.asked)

    def unhealed(self) -> list[str]:
        """Requests that failed though the last fault was long over and the next had not begun, and faults after which nothing went."""
        found = []
        beginnings = [*(bad.began_at for bad in self.faults[1:]), time.monotonic()]
        for bad, next_at in zip(self.faults, beginnings, strict=True):
            calm_at = bad.ended_at + self._plan.healed_s
            calm = [ended for ended in self.callers.ends if calm_at <= ended.asked_at and ended.ended_at < next_at]
            found += [f"after '{bad.name}': {ended}" for ended in calm if ended.end not in (End.WHOLE, End.LEFT)]
            if not any(ended.end is End.WHOLE for ended in calm):
                found.append(f"nothing was answered after '{bad.name}'")
        return found

    def broken(self) -> list[str]:
        """What no caller must ever see."""
        return [str(ended) for ended in self.callers.ends if ended.end is End.BROKEN]

    async def jobs(self) -> Counter[str]:
        """How the jobs that were accepted have ended."""
        return Counter([(await self.gateway.told(f"/llm/jobs/{job}"))["state"] for job in self.callers.jobs])
