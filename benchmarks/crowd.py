"""Ten thousand callers who wait: what they cost in memory, whether status still answers, and how
fast they are gone when they leave.

`python -m benchmarks.crowd PORT CALLERS` is one driver process: it opens that many connections,
asks once on each, says so in a line on standard output, and closes all of them when its standard
input ends.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, perf_counter, sleep

from benchmarks import house
from benchmarks.driver import chat_request
from benchmarks.findings import Finding, quantile
from benchmarks.process import Child, rss_mib

CALLERS = 10_000
DRIVERS = 2
AT_ONCE = 200
STATUS_CALLS = 100
RSS_TARGET_MIB = 350e6 / 2**20
STATUS_TARGET_MS = 100.0
LEAVE_TARGET_S = 5.0
HEALTH_TARGET_MS = 250.0
SPARE_FILES = 200
POLL_S = 0.02
TIMEOUT_S = 60.0


def measure(rounds: int, place: Path) -> list[Finding]:
    """Fill the queue, look, empty it."""
    callers = raise_file_limit(CALLERS)
    with ExitStack() as stack:
        stub = stack.enter_context(house.stub())
        hearth = stack.enter_context(
            house.wide_hearth(stub, place, connections=callers + SPARE_FILES)
        )
        empty_mib = rss_mib(hearth.pid)
        began = perf_counter()
        drivers = [
            stack.enter_context(_driver(hearth.port, callers // DRIVERS)) for _ in range(DRIVERS)
        ]
        refused = sum(_arrived(driver) for driver in drivers)
        _until_waiting(hearth, at_least=callers - refused - 1)
        filled_s = perf_counter() - began
        full_mib = rss_mib(hearth.pid)
        waiting = _waiting(hearth)
        status_ms = [_status_ms(hearth) for _ in range(STATUS_CALLS)]
        left_s, health_ms = _leave(drivers, hearth)
    said = f"{waiting:,} waiting" + (f", {refused:,} refused" if refused else "")
    each_kib = (full_mib - empty_mib) * 1024 / max(1, waiting)
    name = f"{callers:,} callers"
    rss = "RSS while they wait"
    return [
        Finding(
            subject=name,
            name=rss,
            unit="MiB",
            measured=full_mib,
            target=RSS_TARGET_MIB,
            note=f"{said}, {each_kib:.0f} KiB each",
        ),
        Finding(subject=name, name="until all are queued", unit="s", measured=filled_s),
        Finding(
            subject=name,
            name="status p99",
            unit="ms",
            measured=quantile(status_ms, 0.99),
            target=STATUS_TARGET_MS,
        ),
        Finding(
            subject=name,
            name="until all have left",
            unit="s",
            measured=left_s,
            target=LEAVE_TARGET_S,
        ),
        Finding(
            subject=name,
            name="health meanwhile, longest",
            unit="ms",
            measured=health_ms,
            target=HEALTH_TARGET_MS,
        ),
    ]


def raise_file_limit(callers: int) -> int:
    """Let this process and those it starts open a file per caller, as far as the system allows.

    Returns how many callers that is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = callers + SPARE_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return min(callers, max(soft, allowed) - SPARE_FILES)


def _driver(port: int, callers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.crowd", str(port), str(callers)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 - a command of our own


def _arrived(driver: subprocess.Popen[bytes]) -> int:
    """Wait until the driver's callers have all asked.

    Returns how many were answered at once, which is to say refused.
    """
    assert driver.stdout is not None
    line = driver.stdout.readline()
    if not line:
        raise RuntimeError("a driver of the crowd ended early")
    return int(line)


def _leave(drivers: list[subprocess.Popen[bytes]], hearth: Child) -> tuple[float, float]:
    """Seconds from telling the callers to leave until nobody waits, and the longest wait for
    `/healthz` meanwhile in milliseconds.
    """
    began = perf_counter()
    longest_s = 0.0
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.close()
    give_up_at = monotonic() + TIMEOUT_S
    while _waiting(hearth) and monotonic() < give_up_at:
        asked_at = perf_counter()
        house.get(f"{hearth.url}/healthz", TIMEOUT_S)
        longest_s = max(longest_s, perf_counter() - asked_at)
        sleep(POLL_S)
    return perf_counter() - began, longest_s * 1e3


def _until_waiting(hearth: Child, *, at_least: int) -> None:
    give_up_at = monotonic() + TIMEOUT_S
    while _waiting(hearth) < at_least:
        if monotonic() > give_up_at:
            raise TimeoutError("the callers do not arrive")
        sleep(POLL_S)


def _waiting(hearth: Child) -> int:
    health = json.loads(house.get(f"{hearth.url}/llm/health", TIMEOUT_S))
    return int(health["queue"]["waiting"])


def _status_ms(hearth: Child) -> float:
    began = perf_counter()
    house.get(f"{hearth.url}/llm/queue/status", TIMEOUT_S)
    return (perf_counter() - began) * 1e3


class _Waiting(asyncio.Protocol):
    """A caller; the first byte of an answer while it waits counts as a refusal."""

    answered = False

    def data_received(self, data: bytes) -> None:
        self.answered = self.answered or bool(data)


async def wait_in_line(port: int, callers: int) -> None:
    """Ask on that many connections, tell how many were refused, stay until standard input ends."""
    loop = asyncio.get_running_loop()
    room = asyncio.Semaphore(AT_ONCE)
    request = chat_request(port, "hold", streaming=False)

    async def call() -> tuple[asyncio.Transport, _Waiting]:
        async with room:
            transport, caller = await loop.create_connection(_Waiting, "127.0.0.1", port)
        transport.write(request)
        return transport, caller

    called = await asyncio.gather(*(call() for _ in range(callers)))
    await asyncio.sleep(1.0)
    print(sum(caller.answered for _, caller in called), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for transport, _ in called:
        transport.abort()
    await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(wait_in_line(int(sys.argv[1]), int(sys.argv[2])))
