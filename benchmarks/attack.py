"""What a stranger on the network can do to the others: the longest that they wait for an answer,
and the memory, under each attack.

`python -m benchmarks.attack NAME PORT CONNECTIONS` is the attacker, a process of its own that sends
until its standard input ends.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter, sleep
from types import MappingProxyType

from benchmarks import house
from benchmarks.driver import chat_request
from benchmarks.findings import Finding
from benchmarks.keys import EXTERNAL, INTERNAL
from benchmarks.process import Child, rss_mib

CONNECTIONS = 250
MIB = 1024 * 1024
BODY_BYTES = 31 * MIB
LASTS_S = 5.0
PROBE_EVERY_S = 0.02
STALL_TARGET_MS = 100.0
MEMORY_TARGET_MIB = 600.0
TIMEOUT_S = 60.0
Attack = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def pipelined(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """245 KB of the smallest requests at once, without a key."""
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5_500)
    while await reader.read(65_536):
        pass


async def bodies_before_the_door(
    port: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """31 MiB to a page that takes none, without a key."""
    await _send(writer, _head("/healthz", BODY_BYTES), BODY_BYTES)
    while await reader.read(65_536):
        pass


async def unfinished_bodies(
    port: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """All but the end of 31 MiB, with the key of an external caller."""
    await _send(writer, _head("/api/chat", BODY_BYTES, EXTERNAL), BODY_BYTES - MIB)
    while await reader.read(65_536):
        pass


def small_objects(path: str) -> Attack:
    """24 MiB of objects of 7 bytes."""

    async def sent(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        piece = b'{"":0},' * (MIB // 7)
        beginning = b'{"model":"m","prompt":"x","request":{"messages":['
        end = b"{}]}}"
        writer.write(_head(path, len(beginning) + 24 * len(piece) + len(end), EXTERNAL) + beginning)
        for _ in range(24):
            writer.write(piece)
            await writer.drain()
        writer.write(end)
        while await reader.read(65_536):
            pass

    return sent


def dense_json(path: str) -> Attack:
    """As many objects as are parsed, over and over."""

    async def sent(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = b'{"model":"m","prompt":"x","request":{"messages":[%b{}]}}' % (b'{"":0},' * 95_000)
        writer.write(_head(path, len(body), EXTERNAL) + body)
        while await reader.read(65_536):
            pass

    return sent


def _head(path: str, body_bytes: int, key: str = "") -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {body_bytes}",
    ]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode()


async def _send(writer: asyncio.StreamWriter, head: bytes, body_bytes: int) -> None:
    writer.write(head)
    for _ in range(body_bytes // MIB):
        writer.write(bytes(MIB))
        await writer.drain()


JSON_PATHS = ("/llm/jobs", "/v1/messages/count_tokens", "/llm/completions", "/api/chat")
ATTACKS: Mapping[str, Attack] = MappingProxyType(
    {
        "pipelined requests": pipelined,
        "bodies to a page without a body": bodies_before_the_door,
        "unfinished bodies": unfinished_bodies,
        **{f"small objects to {path}": small_objects(path) for path in JSON_PATHS},
        **{f"as many objects as are taken to {path}": dense_json(path) for path in JSON_PATHS},
    }
)


def measure(rounds: int, place: Path) -> list[Finding]:
    """Every attack on a gateway of its own."""
    return [finding for name in ATTACKS for finding in _measured(name, place)]


def _measured(name: str, place: Path) -> list[Finding]:
    with house.stub() as stub, house.hearth(stub, place, parallel=1) as hearth:
        idle_ms = _longest_ms(hearth, LASTS_S / 5)
        with subprocess.Popen(  # noqa: S603 - a command of our own
            [sys.executable, "-m", "benchmarks.attack", name, str(hearth.port), str(CONNECTIONS)],
            stdin=subprocess.PIPE,
        ) as attacker:
            sleep(1.0)
            longest_ms = _longest_ms(hearth, LASTS_S)
            answered = _house_is_answered(hearth)
            attacker.kill()
        beyond_ms = longest_ms - idle_ms
        waited = "longest wait for /healthz, beyond idle"
        return [
            Finding(
                subject=name,
                name=waited,
                unit="ms",
                measured=beyond_ms,
                target=STALL_TARGET_MS,
                beside={"idle": idle_ms},
            ),
            Finding(
                subject=name, name="the internal lane's own call", unit="ms", measured=answered
            ),
            Finding(
                subject=name,
                name="peak RSS",
                unit="MiB",
                measured=rss_mib(hearth.pid, peak=True),
                target=MEMORY_TARGET_MIB,
            ),
        ]


def _longest_ms(hearth: Child, seconds: float) -> float:
    longest_s = 0.0
    ends_at = monotonic() + seconds
    while monotonic() < ends_at:
        began = perf_counter()
        house.get(f"{hearth.url}/healthz", TIMEOUT_S)
        longest_s = max(longest_s, perf_counter() - began)
        sleep(PROBE_EVERY_S)
    return longest_s * 1e3


def _house_is_answered(hearth: Child) -> float:
    """Milliseconds of a whole call of the internal lane. Raises TimeoutError, ConnectionError."""

    async def call() -> float:
        began = perf_counter()
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", hearth.port)
            writer.write(chat_request(hearth.port, "", streaming=False, key=INTERNAL))
            if not (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 "):
                raise ConnectionError("the internal lane was refused")
            writer.transport.abort()
        return (perf_counter() - began) * 1e3

    return asyncio.run(call())


async def attack(name: str, port: int, connections: int) -> None:
    """Attack on so many connections, again where one ends, until killed."""

    async def one() -> None:
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await ATTACKS[name](port, reader, writer)
                writer.transport.abort()

    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(one() for _ in range(connections)))


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
