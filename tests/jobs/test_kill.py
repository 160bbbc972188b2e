"""`kill -9` at any moment, again and again: every accepted job ends exactly once, and a retry with its key never makes a second one.

Real processes: `hearth serve --emulator` with a store. `HEARTH_EXAMPLES` multiplies the number of deaths.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from tests.support.examples import EXAMPLES
from tests.support.patience import WITHIN_S
from tests.support.processes import started

DEATHS = 4 * EXAMPLES
JOBS_PER_LIFE = 25
LIFE_S = 1.5
CONFIG = """
gpu: {home_model: ""}
rate_limits: {default: {requests_per_minute: 1000000, requests_per_hour: 1000000}}
storage: {path: %s, reserve_mib: 0}
jobs: {max_attempts: 100, max_in_queue: 3}
server: {log_format: json}
"""


@dataclass
class Ledger:
    """What the client knows: what it wants done, by key, and what was promised."""

    accepted: dict[str, str] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    def open(self) -> list[str]:
        return [key for key in self.wanted if key not in self.accepted]


class Process:
    """One life of the gateway."""

    def __init__(self, process: asyncio.subprocess.Process, ledger: Ledger) -> None:
        self._process = process
        self._ledger = ledger
        self._started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.moved = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    @asynccontextmanager
    async def start(cls, directory: Path, ledger: Ledger) -> AsyncIterator[Process]:
        """For the time of the block."""
        config = directory / "config.yaml"
        config.write_text(CONFIG % (directory / "hearth.db"))
        command = (
            sys.executable,
            "-c",
            "from hearth.cli import main; main()",
            "serve",
            "--emulator",
            "--port",
            "0",
            "--config",
            str(config),
        )
        environ = {"HOME": str(directory), "PATH": ""}
        pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.DEVNULL}
        async with started(*command, cwd=directory, env=environ, **pipes) as process:
            yield cls(process, ledger)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break
            said = json.loads(line)
            if said["event"] == "gateway_started":
                self._started.set_result(said["url"])
            if said["event"] == "job_ended":
                self._ledger.ends[said["job_id"]] += 1
            self.moved.set()

    async def url(self) -> str:
        return await asyncio.wait_for(self._started, WITHIN_S)

    async def die(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        code = await self._process.wait()
        await self._reading
        return code


async def submit(session: aiohttp.ClientSession, url: str, key: str, ledger: Ledger) -> None:
    """Ask once; whatever breaks is asked again in the next life."""
    body = {"request": {"model": "nomic-embed-text", "input": key}, "endpoint": "/api/embed"}
    try:
        async with session.post(f"{url}/llm/jobs", json=body, headers={"Idempotency-Key": key}) as got:
            said = await got.json()
    except (aiohttp.ClientError, ConnectionError, ValueError):
        return
    assert got.status == 202, said
    ledger.accepted[key] = said["id"]


async def one_life(directory: Path, ledger: Ledger, chance: random.Random, life: int) -> None:
    async with Process.start(directory, ledger) as process:
        if chance.random() < 0.2:
            await asyncio.sleep(chance.random() * LIFE_S)
            await process.die()
            return
        url = await process.url()
        ledger.wanted += [f"key-{life}-{n}" for n in range(JOBS_PER_LIFE)]
        async with aiohttp.ClientSession(trust_env=False, connector=aiohttp.TCPConnector(limit=4)) as session:
            asking = [asyncio.ensure_future(submit(session, url, key, ledger)) for key in ledger.open()]
            await asyncio.sleep(chance.random() * LIFE_S)
            await process.die()
            await asyncio.gather(*asking)


async def last_life(directory: Path, ledger: Ledger) -> None:
    async with Process.start(directory, ledger) as process:
        url = await process.url()
        async with aiohttp.ClientSession(trust_env=False) as session:
            ledger.wanted.append("last")
            await asyncio.gather(*(submit(session, url, key, ledger) for key in ledger.open()))
            async with asyncio.timeout(WITHIN_S):
                while await is_busy(session, process, url):
                    await process.moved.wait()
        assert await process.stop() == 0


async def is_busy(session: aiohttp.ClientSession, process: Process, url: str) -> bool:
    """Whether jobs are left, in one look, since a job may be put back into the queue at any moment; what moves then is not missed."""
    process.moved.clear()
    async with session.get(f"{url}/llm/jobs?unended=true&limit=1") as got:
        return bool((await got.json())["jobs"])


@pytest.mark.timeout(120 + 30 * DEATHS)
async def test_every_accepted_job_ends_exactly_once_however_often_the_gateway_is_killed(tmp_path):
    seed = random.SystemRandom().randrange(2**32)
    chance, ledger = random.Random(seed), Ledger()
    for life in range(DEATHS):
        await one_life(tmp_path, ledger, chance, life)
    await last_life(tmp_path, ledger)
    with closing(sqlite3.connect(tmp_path / "hearth.db")) as connection:
        rows = connection.execute("SELECT id, idempotency_key, state, length(result), length(request) FROM jobs").fetchall()
    kept = {key: job_id for job_id, key, _, _, _ in rows}
    assert kept == ledger.accepted, seed
    assert len(rows) == len(kept) == len(ledger.wanted), seed
    assert {state for _, _, state, _, _ in rows} <= {"completed"}, seed
    assert all(result > 0 and request == 0 for _, _, _, result, request in rows), seed
    assert ledger.ends[ledger.accepted["last"]] == max(ledger.ends.values()) == 1, seed
