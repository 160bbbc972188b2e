"""A TCP server that says exactly the bytes a test tells it to, and knows when its peer has left."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Self, cast

from hearth.engines.data_path import DataPath
from hearth.engines.port import Exchange
from hearth.errors import BackendError
from tests.support.fields import Fields
from tests.support.ollama_wire import Answer
from tests.support.patience import in_time
from tests.support.taking import chunks_of

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def chunked(*chunks: bytes) -> bytes:
    """HTTP chunks, without the last one."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)


def head_of(answer: Answer | Exchange) -> bytes:
    """Status line and headers as Ollama frames them: a length where there is one, else chunked."""
    fields = [b"%b: %b" % field for field in answer.headers]
    if not any(name == b"content-length" for name, _ in answer.headers):
        fields.append(b"transfer-encoding: chunked")
    return (
        b"HTTP/1.1 %d Whatever\r\n" % answer.status
        + b"\r\n".join([*fields, b"Connection: close"])
        + b"\r\n\r\n"
    )


async def read(exchange: Exchange) -> list[bytes]:
    """The whole body, chunk by chunk."""
    return [chunk async for chunk in chunks_of(exchange)]


async def read_until_broken(exchange: Exchange) -> tuple[list[bytes], BackendError | None]:
    """What came, and what ended it."""
    came: list[bytes] = []
    try:
        while chunks := await exchange.take():
            came += chunks
    except BackendError as error:
        return came, error
    return came, None


@dataclass
class Peer:
    """One accepted connection, its request already read."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    head: bytes
    body: bytes = b""

    def __post_init__(self) -> None:
        self.port: int = self._writer.get_extra_info("sockname")[1]
        self.connection: int = self._writer.get_extra_info("peername")[1]
        self.method, self.path, _ = self.head.split(b"\r\n")[0].decode().split(" ")

    @property
    def json(self) -> Fields:
        parsed: Fields = json.loads(self.body or b"{}")
        return parsed

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        lines = self.head.split(b"\r\n")[1:]
        return [
            (name.lower(), value.strip())
            for name, _, value in (line.partition(b":") for line in lines if line)
        ]

    async def send(self, *pieces: bytes) -> None:
        """Each piece leaves in a TCP segment of its own, as far as the kernel allows."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0)

    def hang_up(self) -> None:
        """Close in an orderly way."""
        self._writer.close()

    def stop_reading(self) -> None:
        """From now on the client's bytes pile up in the kernel."""
        transport = cast("asyncio.Transport", self._writer.transport)
        if transport.is_reading():
            transport.pause_reading()

    def reset(self) -> None:
        """Close with RST."""
        connection: socket.socket = self._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def left(self) -> None:
        """Returns when the client has closed the connection."""
        with suppress(ConnectionError):
            while await self._reader.read(65_536):
                pass


def backend_at(url: str, **limits: Any) -> aclosing[DataPath]:
    """The adapter, closed at the end of the block."""
    return aclosing(DataPath(url, connect_timeout_s=30.0, **limits))


Serve = Callable[[Peer], Awaitable[None]]


class StubServer:
    """Serves every connection by one call of `serve`, then closes it; `keeps` goes on with the next
    request instead.

    `async with` starts and stops it.
    """

    def __init__(
        self,
        serve: Serve,
        *,
        reads_body: bool = True,
        keeps: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._serve = serve
        self._keeps = keeps
        self._reads_body = reads_body
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""
        self.connections = 0
        self.peers: asyncio.Queue[Peer] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, backlog=512, ssl=self._tls
        )
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def left(self, count: int) -> None:
        """Returns when so many connections have ended; fails where that takes longer than it
        may.
        """
        waiting_for = len(self._tasks) - count
        async with in_time():
            while len(self._tasks) > waiting_for:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def all_left(self) -> None:
        """Returns when every connection so far has ended; fails where that takes longer than it
        may.
        """
        async with in_time():
            await asyncio.gather(*self._tasks)

    def stop_listening(self) -> None:
        assert self._server is not None
        self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._talk(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                peer = Peer(reader, writer, await reader.readuntil(b"\r\n\r\n"))
                if self._reads_body:
                    peer.body = await _body(reader, dict(peer.fields))
                self.peers.put_nowait(peer)
                await self._serve(peer)
                if not self._keeps or writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _body(reader: asyncio.StreamReader, fields: dict[bytes, bytes]) -> bytes:
    if fields.get(b"transfer-encoding") != b"chunked":
        return await reader.readexactly(int(fields.get(b"content-length", b"0")))
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def saying(*pieces: bytes, waits: bool = False) -> Serve:
    """Send these bytes, then close, or wait for the client to leave."""

    async def serve(peer: Peer) -> None:
        await peer.send(*pieces)
        if waits:
            await peer.left()

    return serve


def saying_in_two(first: bytes, *rest: bytes, opened: asyncio.Event, waits: bool = False) -> Serve:
    """Send the head with what belongs to it, and the rest once the client has `opened` the answer:
    what arrives together with a head is read together with it.
    """

    async def serve(peer: Peer) -> None:
        await peer.send(first)
        await opened.wait()
        await peer.send(*rest)
        if waits:
            await peer.left()

    return serve
