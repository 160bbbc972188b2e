"""Memory and time: mixed traffic at 20 requests/s for as long as `HEARTH_SOAK_MINUTES` says, while
the model server has one bad minute after the other. Real processes, real time: half a minute with
three of the faults here, 60 minutes with one a minute in `make reliability`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from itertools import cycle, islice
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple, Self

import aiohttp
import pytest

from tests.reliability.served import Process
from tests.soak.callers import Callers, Ended
from tests.soak.model_server import CARD_GIB, FAULTS, HOME, SLOTS, Bench, ModelServer, rehearsal

RATE_PER_S = 20.0
LOOK_EVERY_S = 1.0
POLL_S = 0.5
REST_WITHIN_S = 300.0
SETTLE_S = 2.0
LAST_S = 1.0
BUSY = (
    'hearth_requests_under_way{phase="total"}',
    "hearth_jobs_waiting",
    "hearth_jobs_running",
    "hearth_swap_in_progress",
)
_LAG = "hearth_loop_lag_seconds"
METRICS = (
    "process_resident_memory_bytes",
    "process_open_fds",
    "hearth_loop_tasks",
    f"{_LAG}_count",
    f'{_LAG}_bucket{{le="0.25"}}',
)
CONFIG = """
gpu: {{home_model: "{home}", parallel: {slots}, vram_gb: {card_gib}, nvml: false}}
backend: {{mode: ollama}}
ollama: {{url: "{url}", first_byte_timeout_s: 15}}
queue: {{max_external_depth: 1000}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
jobs: {{max_attempts: 50, keep_results_days: 1}}
server: {{log_format: json, log_level: info}}
"""


class Plan(NamedTuple):
    """How long, and how often something goes wrong; all in seconds.

    First the warm-up, so often a second and with every fault once; then the traffic that is judged,
    with faults that last `fault_s` and in a long run must be healed `healed_s` after that. A short
    one may run beside much else: there all must be healed at the end.
    """

    warm_up_s: float
    warm_up_per_s: float
    rehearsed_s: float
    seconds: float
    fault_every_s: float
    fault_s: float
    healed_s: float


MINUTES = float(os.environ.get("HEARTH_SOAK_MINUTES", "0.4"))
LONG = MINUTES >= 30
PLAN = (  # how many wait at worst decides how large the heap becomes, so that has to happen before
    Plan(
        warm_up_s=600,
        warm_up_per_s=RATE_PER_S,
        rehearsed_s=5,
        seconds=MINUTES * 60,
        fault_every_s=60,
        fault_s=5,
        healed_s=10,
    )
    if LONG
    else Plan(
        warm_up_s=6,
        warm_up_per_s=40,
        rehearsed_s=0.3,
        seconds=MINUTES * 60,
        fault_every_s=8,
        fault_s=1.5,
        healed_s=0,
    )
)
MB = 1e6
GROWTH_MB = 1.0
"""A slope, per 10,000 requests; in a few hundred the histories that are kept (the last 4,000 spans
and the like) still fill.
"""
SHORT_GROWTH_MB = 15.0
"""Of the whole short run: some 1,000 requests."""
WAL_MB = 64.0
SPARE = 2
"""Descriptors and tasks by which two moments of rest may differ: a thread that happens to have a
file open, the look itself.
"""


class Sample(NamedTuple):
    """One look at the gateway; `asked`: requests, `lags`: late timers until then, `wal_bytes`: the
    store's write-ahead log on the disk.
    """

    asked: int
    rss_bytes: float
    descriptors: float
    tasks: float
    lags: float
    wal_bytes: int


class Gateway:
    """For the time of the block; it must live through all of it and end in order.

    `config` is its file, which may be saved again.
    """

    def __init__(self, directory: Path, model_server: str, session: aiohttp.ClientSession) -> None:
        self.config = directory / "config.yaml"
        self._database = directory / "hearth.db"
        self._session = session
        self._text = CONFIG.format(home=HOME, card_gib=CARD_GIB, slots=SLOTS, url=model_server)
        self._stack = AsyncExitStack()
        self._process: Process
        self.url = ""

    async def __aenter__(self) -> Self:
        self._process = await self._stack.enter_async_context(
            Process.start(self.config.parent, self._text, options=())
        )
        self.url = await self._process.url()
        return self

    async def __aexit__(self, *_: object) -> None:
        async with self._stack:
            assert self._process.process.returncode is None, self.complaints()
            await self._process.ended_s(signal.SIGTERM, 0)

    def complaints(self) -> str:
        """Warnings and worse of its log."""
        return "\n".join(map(str, (line for line in self._process.said if line["level"] != "info")))

    async def numbers(self) -> dict[str, float]:
        """Every line of its page of metrics by its name with its labels."""
        async with self._session.get(f"{self.url}/metrics") as answer:
            found = re.findall(r"(?m)^(\w+(?:\{[^}]*\})?) (\S+)$", await answer.text())
        return {name: float(value) for name, value in found}

    async def look(self, asked: int) -> Sample:
        numbers, wal = await self.numbers(), self._database.with_name("hearth.db-wal")
        rss_bytes, descriptors, tasks, timers, in_time = map(numbers.__getitem__, METRICS)
        return Sample(
            asked,
            rss_bytes,
            descriptors,
            tasks,
            timers - in_time,
            wal.stat().st_size if wal.exists() else 0,
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
    """One run, and what was seen of it.

    `samples`: a look every second under traffic; `before`, `after`: the looks at rest.
    """

    def __init__(
        self, gateway: Gateway, server: ModelServer, session: aiohttp.ClientSession, *, seed: int
    ) -> None:
        self.gateway = gateway
        self.callers = Callers(gateway.url, session, random.Random(seed))
        self.samples: list[Sample] = []
        # with the instants at which each began and ended
        self.faults: list[tuple[str, float, float]] = []
        self.before: Sample
        self.after: Sample
        self.last: list[Ended]  # of what was asked when all faults were over
        self._bench = Bench(server, session, gateway.config, PLAN.fault_s)
        self._first_fault = seed % len(FAULTS)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.callers.call(PLAN.warm_up_per_s, PLAN.warm_up_s))
            group.create_task(rehearsal(self._bench, PLAN.rehearsed_s))
        self.before = await self._rest()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            calling = group.create_task(self.callers.call(RATE_PER_S, PLAN.seconds))
            await self._misfortunes()
            await calling
            watching.cancel()
        self.after = await self._rest()
        asked_before = len(self.callers.ends)
        await self.callers.call(RATE_PER_S, LAST_S)
        await self._rest()
        self.last = self.callers.ends[asked_before:]

    async def _misfortunes(self) -> None:
        start_at = time.monotonic()
        count = int(PLAN.seconds / PLAN.fault_every_s)
        for number, (name, fault) in enumerate(
            islice(cycle(FAULTS.items()), self._first_fault, self._first_fault + count)
        ):
            await asyncio.sleep(max(0.0, start_at + number * PLAN.fault_every_s - time.monotonic()))
            began_at = time.monotonic()
            await fault(self._bench)
            self.faults.append((name, began_at, time.monotonic()))

    async def _watch(self) -> None:
        while True:
            self.samples.append(await self.gateway.look(self.callers.asked))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _rest(self) -> Sample:
        """Nobody asks, nothing runs, no connection to the model server is open: what is left is the
        gateway's own.
        """
        await self.callers.answered()
        await self.gateway.idle()
        self._bench.server.hang_up()
        await asyncio.sleep(SETTLE_S)
        return await self.gateway.look(self.callers.asked)

    def unhealed(self) -> list[str]:
        """Requests that failed though the last fault was long over and the next had not begun, and
        faults after which nothing went.
        """
        found = []
        beginnings = [*(began_at for _, began_at, _ in self.faults[1:]), time.monotonic()]
        for (name, _, ended_at), next_at in zip(self.faults, beginnings, strict=True):
            calm = [
                ended
                for ended in self.callers.ends
                if ended_at + PLAN.healed_s <= ended.asked_at < next_at
            ]
            found += [
                f"after '{name}': {ended}"
                for ended in calm
                if ended.ended_at < next_at and ended.end not in {"whole", "left"}
            ]
            if not any(ended.end == "whole" for ended in calm):
                found.append(f"nothing was answered after '{name}'")
        return found

    @property
    def mb_per_10k(self) -> float:
        """Slope of the resident memory over the requests, by least squares."""
        return linear_regression(
            [each.asked / 10_000 for each in self.samples],
            [each.rss_bytes / MB for each in self.samples],
        ).slope

    def __str__(self) -> str:
        before = self.before
        after = self.after
        ends = Counter(ended.end for ended in self.callers.ends)
        lines = (
            (
                f"{self.callers.asked} requests, {dict(ends)}, {len(self.callers.jobs)} jobs, "
                f"{len(self.faults)} faults"
            ),
            (
                f"RSS {before.rss_bytes / MB:.1f} -> {after.rss_bytes / MB:.1f} MB, "
                f"{self.mb_per_10k:.2f} MB per 10,000 requests"
            ),
            (
                f"descriptors {before.descriptors:.0f} -> {after.descriptors:.0f}, tasks "
                f"{before.tasks:.0f} -> {after.tasks:.0f} at rest"
            ),
            (
                "write-ahead log: at most "
                f"{max(sample.wal_bytes for sample in self.samples) / MB:.1f} MB"
            ),
            (
                "the loop was late by more than a quarter of a second "
                f"{after.lags - before.lags:.0f} times"
            ),
        )
        return "\n".join(lines) + "\n"


@pytest.mark.timeout(PLAN.warm_up_s + PLAN.seconds + 1800)
async def test_memory_descriptors_and_tasks_stand_still_under_traffic_and_faults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    # connections that break off under the emulator are the point
    caplog.set_level(logging.CRITICAL, logger="aiohttp.server")
    seed = int(os.environ.get("HEARTH_SOAK_SEED") or random.SystemRandom().randrange(2**32))
    sys.stdout.write(f"seed {seed}\n")
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        ModelServer() as server,
        Gateway(tmp_path, server.url, session) as gateway,
    ):
        soak = Soak(gateway, server, session, seed=seed)
        await soak.run()
        sys.stdout.write(str(soak))
        assert [ended for ended in soak.callers.ends if ended.end == "broken"] == [], (
            "what no caller must ever see"
        )
        assert not LONG or soak.unhealed() == []
        assert {ended.end for ended in soak.last} <= {"whole", "left"}, soak.last
        assert {(await gateway.told(f"/llm/jobs/{job}"))["state"] for job in soak.callers.jobs} <= {
            "completed"
        }
        numbers = await gateway.numbers()
        assert numbers["hearth_requests_lost_total"] == 0
        assert numbers["hearth_internal_faults_total"] == 0, gateway.complaints()
    assert soak.after.descriptors <= soak.before.descriptors + SPARE
    assert soak.after.tasks <= soak.before.tasks + SPARE
    assert max(sample.wal_bytes for sample in soak.samples) <= WAL_MB * MB
    if LONG:
        assert soak.mb_per_10k <= GROWTH_MB
        assert soak.after.lags - soak.before.lags <= MINUTES
    else:
        assert soak.after.rss_bytes - soak.before.rss_bytes <= SHORT_GROWTH_MB * MB
