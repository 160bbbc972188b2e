"""A model server that has bad minutes: the emulator behind a wire that can hang, crawl, break
answers off, garble and refuse them.

The wire carries bytes both ways between the gateway and the emulator and knows of HTTP only how a
request begins. One request at a time on each connection, as the gateway sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Literal, NamedTuple, Self

import aiohttp

from hearth.clock import SystemClock
from hearth.emulator.models import default_profiles
from hearth.emulator.server import Emulator
from hearth.errors import HearthError

SPEED = 10.0
SLOTS = 4
CARD_GIB = 12.0
HOME = "llama3.1:8b"
SECOND = "qwen2.5-coder:14b"
EMBEDDER = "nomic-embed-text"
BREAKS_AFTER_BYTES = 700
"""The head of an answer and a few pieces of a stream."""
CRAWL_S = 0.02
_BUSY_BODY = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
_BUSY_HEAD = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; "
    b"charset=utf-8\r\nConnection: close\r\n"
)
BUSY = _BUSY_HEAD + b"Content-Length: %d\r\n\r\n" % len(_BUSY_BODY) + _BUSY_BODY
GARBAGE = b"\x00\xff\x13\x37 this is no HTTP \r\n\r\n"
STEPS = 5

Weather = Literal["fine", "hung", "busy", "breaking", "garbled", "crawling"]
"""What the wire does to work; only `hung` holds up everything else, too."""


class ModelServer:
    """For the time of the block, on one port of loopback, whatever happens behind it."""

    def __init__(self) -> None:
        self.emulator = _emulator()
        self._weather: Weather = "fine"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._upstream = ""
        self._writers: set[asyncio.StreamWriter] = set()
        self._broken = 0

    async def __aenter__(self) -> Self:
        await self.come_back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.die()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def become(self, weather: Weather) -> None:
        """From now on, for what is under way as well."""
        self._weather = weather
        if weather == "hung":
            self._flowing.clear()
        else:
            self._flowing.set()

    async def die(self) -> None:
        """Refuse connections and break all of them off; what was in memory is lost."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self.hang_up()
            await self.emulator.stop()

    async def come_back(self) -> None:
        """Listen where it always did, with nothing in memory."""
        self.emulator = _emulator()
        self._upstream = await self.emulator.start()
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def hang_up(self) -> None:
        """End every connection, idle ones too."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with AsyncExitStack() as closing:
            closing.callback(writer.transport.abort)
            self._writers.add(writer)
            closing.callback(self._writers.discard, writer)
            with suppress(OSError):
                behind, to_server = await asyncio.open_connection(
                    "127.0.0.1", int(self._upstream.rpartition(":")[2])
                )
                closing.callback(to_server.transport.abort)
                # of the request under way: is it work, and how much of its answer has come
                works = False
                answered_bytes = 0

                async def up() -> None:
                    nonlocal works, answered_bytes
                    while data := await reader.read(1 << 16):
                        weather = await self._now()
                        if data.startswith((b"POST ", b"GET ", b"HEAD ")):
                            works = data.startswith(b"POST ")
                            answered_bytes = 0
                        if weather == "busy" and works:
                            await _end(writer, BUSY)
                            return
                        to_server.write(data)
                        await to_server.drain()

                async def down() -> None:
                    nonlocal answered_bytes
                    while data := await behind.read(1 << 16):
                        now = await self._now()
                        weather = now if works else "fine"
                        answered_bytes += len(data)
                        if weather == "garbled":
                            await _end(writer, GARBAGE)
                            return
                        if weather == "breaking" and answered_bytes > BREAKS_AFTER_BYTES:
                            await self._break_off(writer, data)
                            return
                        await asyncio.sleep(CRAWL_S if weather == "crawling" else 0.0)
                        writer.write(data)
                        await writer.drain()

                ways = (asyncio.ensure_future(up()), asyncio.ensure_future(down()))
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _now(self) -> Weather:
        """What it does, once it does anything."""
        await self._flowing.wait()
        return self._weather

    async def _break_off(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Every other answer that breaks off is reset; the rest end as if they were complete."""
        self._broken += 1
        if self._broken % 2 == 0:
            writer.transport.abort()
        else:
            await _end(writer, data[: len(data) // 2])


async def _end(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _emulator() -> Emulator:
    """Three models; the two that talk do not fit the card together."""
    profiles = [one for one in default_profiles() if one.name in (HOME, SECOND, EMBEDDER)]
    return Emulator(
        profiles, clock=SystemClock(), speed=SPEED, num_parallel=SLOTS, vram_gib=CARD_GIB, seed=1
    )


class Bench(NamedTuple):
    """What a fault may touch, and how long it lasts."""

    server: ModelServer
    session: aiohttp.ClientSession
    config: Path
    lasts_s: float


Fault = Callable[[Bench], Awaitable[None]]


async def dies(bench: Bench) -> None:
    """Gone, connections and memory with it; comes back empty."""
    await bench.server.die()
    await asyncio.sleep(bench.lasts_s)
    await bench.server.come_back()


async def crashes(bench: Bench) -> None:
    """The process of the loaded model dies, again and again."""
    for _ in range(STEPS):
        for model in bench.server.emulator.resident:
            bench.server.emulator.kill_runner(model)
        await asyncio.sleep(bench.lasts_s / STEPS)


async def is_used_by_another(bench: Bench) -> None:
    """Somebody takes models out and loads others, behind the gateway's back."""
    for step in range(STEPS):
        for model, keep in ((HOME, 0), (SECOND, 0), ((HOME, SECOND)[step % 2], -1)):
            body = {"model": model, "keep_alive": keep, "stream": False}
            with suppress(aiohttp.ClientError, TimeoutError, HearthError):
                async with (
                    asyncio.timeout(bench.lasts_s),
                    bench.session.post(f"{bench.server.url}/api/generate", json=body) as answer,
                ):
                    await answer.read()
        await asyncio.sleep(bench.lasts_s / STEPS)


async def gets_a_bad_owner(bench: Bench) -> None:
    """The configuration is saved with mistakes in it, then restored, again and again."""
    good = bench.config.read_text()
    for step in range(STEPS):
        bench.config.write_text(
            good + "nonsense: [" if step % 2 else good.replace("parallel: 4", "parallel: 3")
        )
        await asyncio.sleep(bench.lasts_s / STEPS)
    bench.config.write_text(good)


def turns(weather: Weather) -> Fault:
    """Bad weather on the wire for a while."""

    async def fault(bench: Bench) -> None:
        bench.server.become(weather)
        await asyncio.sleep(bench.lasts_s)
        bench.server.become("fine")

    return fault


FAULTS: dict[str, Fault] = {
    "dies": dies,
    "hangs": turns("hung"),
    "refuses": turns("busy"),
    "breaks off": turns("breaking"),
    "garbles": turns("garbled"),
    "crawls": turns("crawling"),
    "crashes": crashes,
    "is used by another": is_used_by_another,
    "gets a bad owner": gets_a_bad_owner,
}


async def rehearsal(bench: Bench, lasts_s: float) -> None:
    """Every fault once: what the gateway needs for each of them only once is there afterwards."""
    for fault in FAULTS.values():
        await fault(bench._replace(lasts_s=lasts_s))
        await asyncio.sleep(lasts_s)
