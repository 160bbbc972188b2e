"""A model server that has bad minutes: the emulator behind a wire that can hang, crawl, break answers off, garble and refuse them.

The wire carries bytes both ways between the gateway and the emulator and knows of HTTP only how a request begins. One request at a time on
each connection, as the gateway sends them.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from enum import Enum, auto
from typing import Self

from hearth.clock import SystemClock
from hearth.emulator.models import default_profiles
from hearth.emulator.server import Emulator

SPEED = 10.0
SLOTS = 4
CARD_GIB = 12.0
HOME, SECOND, EMBEDDER = "llama3.1:8b", "qwen2.5-coder:14b", "nomic-embed-text"
BREAKS_AFTER_BYTES = 700
"""The head of an answer and a few pieces of a stream."""
CRAWL_S = 0.02
_BUSY_BODY = b'{"error":"server busy, please try again.  maximum pending requests exceeded"}'
_BUSY_HEAD = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\n"
BUSY = _BUSY_HEAD + b"Content-Length: %d\r\n\r\n" % len(_BUSY_BODY) + _BUSY_BODY
GARBAGE = b"\x00\xff\x13\x37 this is no HTTP \r\n\r\n"


class Weather(Enum):
    """What the wire does to work; only `HUNG` holds up everything else, too."""

    FINE = auto()
    HUNG = auto()
    BUSY = auto()
    BREAKING = auto()
    GARBLED = auto()
    CRAWLING = auto()


class ModelServer:
    """For the time of the block, on one port of loopback, whatever happens behind it."""

    def __init__(self) -> None:
        self.emulator = _emulator()
        self._weather = Weather.FINE
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
        if weather is Weather.HUNG:
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
                behind, to_server = await asyncio.open_connection("127.0.0.1", int(self._upstream.rpartition(":")[2]))
                closing.callback(to_server.transport.abort)
                line = _Line(self, writer)
                ways = (asyncio.ensure_future(line.up(reader, to_server)), asyncio.ensure_future(line.down(behind)))
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def weather(self) -> Weather:
        """What it does now, once it does anything."""
        await self._flowing.wait()
        return self._weather

    def breaks_rudely(self) -> bool:
        """Every other answer that breaks off is reset; the rest end as if they were complete."""
        self._broken += 1
        return self._broken % 2 == 0


class _Line:
    """One connection of the gateway."""

    def __init__(self, server: ModelServer, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._writer = writer
        self._works = False
        self._answered_bytes = 0

    async def up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            weather = await self._server.weather()
            if data.startswith((b"POST ", b"GET ", b"HEAD ")):
                self._works, self._answered_bytes = data.startswith(b"POST "), 0
            if weather is Weather.BUSY and self._works:
                await self._end(BUSY)
                return
            to_server.write(data)
            await to_server.drain()

    async def down(self, behind: asyncio.StreamReader) -> None:
        while data := await behind.read(1 << 16):
            weather = await self._server.weather()
            self._answered_bytes += len(data)
            if self._works and weather is Weather.GARBLED:
                await self._end(GARBAGE)
                return
            if self._works and weather is Weather.BREAKING and self._answered_bytes > BREAKS_AFTER_BYTES:
                await self._break_off(data)
                return
            if self._works and weather is Weather.CRAWLING:
                await asyncio.sleep(CRAWL_S)
            self._writer.write(data)
            await self._writer.drain()

    async def _break_off(self, data: bytes) -> None:
        if self._server.breaks_rudely():
            self._writer.transport.abort()
        else:
            await self._end(data[: len(data) // 2])

    async def _end(self, data: bytes) -> None:
        self._writer.write(data)
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


def _emulator() -> Emulator:
    """Three models; the two that talk do not fit the card together."""
    profiles = [one for one in default_profiles() if one.name in (HOME, SECOND, EMBEDDER)]
    return Emulator(profiles, clock=SystemClock(), speed=SPEED, num_parallel=SLOTS, vram_gib=CARD_GIB, seed=1)
