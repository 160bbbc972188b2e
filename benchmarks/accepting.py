"""How fast durable jobs are accepted, each answered after its commit has been synced, what that
costs, and how long a start with many of them takes.

64 callers, then one, ask `hearth serve` over HTTP, each again as soon as it has its 202; the model
server holds the few jobs that run, as a GPU does that takes its time. A single caller shares
neither wake-ups nor a transaction with anybody. Callers are a process of their own: `python -m
benchmarks.accepting PORT CALLERS JOBS` prints the seconds it took.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from os import getpid
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import NamedTuple

from benchmarks import house
from benchmarks.findings import Finding
from benchmarks.keys import authorization
from benchmarks.process import Child, cpu_s, free_port
from benchmarks.stub import MODEL
from hearth.clock import SystemClock
from hearth.job_types import Job
from hearth.storage.database import Database
from hearth.storage.jobs import insert
from hearth.types import Lane, Priority

CALLERS = 64
WARM_UP = 2_000
JOBS = 10_000
JOBS_OF_ONE = 2_000
TARGET_PER_S = 2_000.0
CPU_TARGET_US = 500.0
"""All threads of the gateway, with what the kernel does for it; a sync is mostly waited for."""
MOST_ROUNDS = 3
MOST_STARTS = 2
"""A round takes 5 s, a start fills a file with the jobs of an earlier life first."""
QUEUED = 100_000
START_TARGET_S = 5.0
LOOK_S = 0.05
"""Between two questions to a gateway that is starting, which cost it time."""
TIMEOUT_S = 120.0
MORE = "jobs: {max_queued: 1000000, max_stored_mib: 4096}\n"
_AUTHORIZATION = "".join(f"{name}: {value}\r\n" for name, value in authorization().items())
REQUEST = {"model": MODEL, "messages": [{"role": "user", "content": "hold"}]}


def measure(rounds: int, place: Path) -> list[Finding]:
    """One process and one file per round and start."""
    with house.stub() as stub:
        accepted = [_accept(stub, place) for _ in range(min(rounds, MOST_ROUNDS))]
        started_s = [_start(stub, place) for _ in range(min(rounds, MOST_STARTS))]
    typical = median(each.per_s for each in accepted)
    return [
        Finding(
            subject="accepting",
            name=f"jobs, {CALLERS} callers",
            unit="jobs/s",
            measured=typical,
            target=TARGET_PER_S,
            at_least=True,
            note="each synced",
        ),
        Finding(
            subject="accepting",
            name=f"CPU of a job, {CALLERS} callers",
            unit="µs",
            measured=median(each.cpu_us[CALLERS] for each in accepted),
            target=CPU_TARGET_US,
        ),
        Finding(
            subject="accepting",
            name="CPU of a job, one caller",
            unit="µs",
            measured=median(each.cpu_us[1] for each in accepted),
            note="two threads wake up for each job",
        ),
        Finding(
            subject="accepting",
            name=f"start with {QUEUED:,} jobs queued",
            unit="s",
            measured=median(started_s),
            target=START_TARGET_S,
        ),
    ]


class Accepted(NamedTuple):
    """Jobs a second with `CALLERS`, and what a job cost with so many callers."""

    per_s: float
    cpu_us: dict[int, float]


def _accept(stub: Child, place: Path) -> Accepted:
    with _hearth(stub, place, free_port()) as hearth:
        _drive(hearth.port, CALLERS, WARM_UP)
        took_s = 0.0
        cpu_us = dict[int, float]()
        for callers, jobs in ((1, JOBS_OF_ONE), (CALLERS, JOBS)):
            before_s = cpu_s(hearth.pid)
            took_s = _drive(hearth.port, callers, jobs)
            cpu_us[callers] = (cpu_s(hearth.pid) - before_s) / jobs * 1e6
        return Accepted(JOBS / took_s, cpu_us)


def _hearth(stub: Child, place: Path, port: int) -> Child:
    file = house.write_config(stub, place, port=port, parallel=1)
    file.write_text(file.read_text() + MORE)
    return Child(house.serve_command(file), port, log=place / f"accepting-{port}.log")


def _drive(port: int, callers: int, jobs: int) -> float:
    command = [sys.executable, "-m", "benchmarks.accepting", str(port), str(callers), str(jobs)]
    return float(
        subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S).stdout  # noqa: S603 - a command of our own
    )


def _start(stub: Child, place: Path) -> float:
    """Seconds from the start of the process until it has taken over all the jobs of an earlier
    one.
    """
    port = free_port()
    _fill(place / f"hearth-{port}.db")
    began = perf_counter()
    with _hearth(stub, place, port) as hearth:
        while _waiting(hearth.url) < QUEUED - 100:
            sleep(LOOK_S)
        return perf_counter() - began


def _fill(path: Path) -> None:
    Database.open(path, reserve_mib=0, clock=SystemClock()).close()
    now = SystemClock().wall()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.row_factory = sqlite3.Row
        for new in _jobs():
            insert(connection, new, now)


def _jobs() -> Iterator[Job]:
    body = json.dumps(REQUEST).encode()
    for number in range(QUEUED):
        yield Job(
            job_id=f"job_{number:032x}",
            caller="bench",
            lane=Lane.EXTERNAL,
            priority=Priority.NORMAL,
            task_type=f"type-{number % 10}",
            job_key=None,
            path="/api/chat",
            model=MODEL,
            request=body,
        )


def _waiting(url: str) -> int:
    return int(json.loads(house.get(f"{url}/llm/queue/status", TIMEOUT_S))["jobs"]["waiting"])


class Submitter(asyncio.Protocol):
    """One connection; a new job as soon as the last one is accepted, until there are no more."""

    def __init__(self, port: int, keys: Iterator[int], ended: asyncio.Future[None]) -> None:
        self._port = port
        self._keys = keys
        self._ended = ended
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """As asyncio says."""
        if not self._ended.done():
            self._ended.set_exception(ConnectionError("the connection ended before the answer"))

    def data_received(self, data: bytes) -> None:
        """As asyncio says; the answer is JSON, so its last byte is the only closing brace at an
        end.
        """
        self._received += data
        if not self._received.startswith(b"HTTP/1.1 202"):
            self._ended.set_exception(ConnectionError(self._received.decode("latin-1")))
            self._transport.abort()
        elif self._received.endswith(b"}"):
            self._received = b""
            self._ask()

    def _ask(self) -> None:
        key = next(self._keys, None)
        if key is None:
            self._ended.set_result(None)
            self._transport.close()
            return
        body = json.dumps(
            {"request": REQUEST, "task_type": f"type-{key % 10}"}, separators=(",", ":")
        )
        head = (
            f"POST /llm/jobs HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type:"
            f" application/json\r\n{_AUTHORIZATION}"
        )
        fields = f"Idempotency-Key: {getpid()}-{key}\r\nContent-Length: {len(body)}\r\n"
        self._transport.write(f"{head}{fields}\r\n{body}".encode())


async def submit(port: int, callers: int, jobs: int) -> float:
    """Seconds from the first question to the last answer."""
    loop = asyncio.get_running_loop()
    keys = iter(range(jobs))

    async def call() -> None:
        ended = loop.create_future()
        await loop.create_connection(lambda: Submitter(port, keys, ended), "127.0.0.1", port)
        await ended

    began = perf_counter()
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(call() for _ in range(callers)))
    return perf_counter() - began


if __name__ == "__main__":
    print(asyncio.run(submit(*map(int, sys.argv[1:4]))))
