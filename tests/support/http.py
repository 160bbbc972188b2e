"""Asking over HTTP: `ask` drives an application in process, `Caller` speaks over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hearth.api.app import HearthApp
from hearth.api.request import DISCONNECTED
from tests.support.fields import Fields
from tests.support.patience import for_ever, in_time

IN_EVERY_DIALECT = ("/api/chat", "/llm/health", "/v1/chat/completions", "/v1/messages")
"""An address of each."""


@dataclass(frozen=True)
class Got:
    """An answer as the ASGI messages had it; `chunks` keeps the boundaries."""

    status: int
    headers: dict[str, str]
    chunks: tuple[bytes, ...]
    complete: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """What is wrong, in whatever dialect it is said."""
        error = self.json["error"]
        return str(error["message"] if isinstance(error, dict) else error)


def http_scope(
    method: str, path: str, headers: tuple[tuple[bytes, bytes], ...], peer: str
) -> Fields:
    target, _, query = path.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "headers": list(headers),
        "client": (peer, 50000),
        DISCONNECTED: asyncio.get_running_loop().create_future(),
    }


async def ask(
    app: HearthApp,
    method: str,
    path: str,
    body: bytes | Mapping[str, Any] = b"",
    *,
    key: str | None = None,
    peer: str = "127.0.0.1",
    host: str = "localhost:8411",
    **headers: str,
) -> Got:
    """Drive the application in process. Header names are keyword arguments with `_` for `-`."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    if key is not None:
        fields["authorization"] = f"Bearer {key}"
    wire = tuple((name.encode(), value.encode()) for name, value in fields.items())
    return await drive(app, http_scope(method, path, wire, peer), raw)


async def drive(
    app: HearthApp,
    scope: Fields,
    body: bytes,
    take: Callable[[Any], Awaitable[None]] | None = None,
) -> Got:
    """Run the application over one scope, with a caller who stays until the answer is complete, and
    takes each message when `take` says.
    """
    sent: list[Fields] = []
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Fields:
        if incoming:
            return incoming.pop()
        await for_ever()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if take is not None:
            await take(message)
        sent.append(dict(message))

    await app(scope, receive, send)
    head = sent[0]
    bodies = sent[1:]
    headers = {name.decode(): value.decode() for name, value in head["headers"]}
    chunks = tuple(message["body"] for message in bodies if message.get("body"))
    return Got(
        head["status"], headers, chunks, bool(bodies) and not bodies[-1].get("more_body", False)
    )


class Caller:
    """One connection to a real server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, url: str, **options: Any) -> Caller:
        host, _, port = url.removeprefix("http://").rpartition(":")
        return cls(*await asyncio.open_connection(host.strip("[]"), int(port), **options))

    async def send(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def post(self, path: str, body: bytes, *extra: bytes) -> None:
        lines = [
            b"POST %s HTTP/1.1" % path.encode(),
            b"Host: localhost",
            b"Content-Type: application/json",
            *extra,
        ]
        await self.send(b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", b""]) + body)

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = await self.reader.readuntil(b"\r\n\r\n")
        status_line, *lines = raw.decode("latin-1").strip().split("\r\n")
        fields = (line.partition(": ") for line in lines)
        return int(status_line.split(" ")[1]), {name.lower(): value for name, _, value in fields}

    async def until_closed(self) -> bytes:
        return await self.reader.read()

    def leave(self) -> None:
        self.writer.transport.abort()


async def answer_to(url: str, raw: bytes) -> bytes:
    """All that comes back until the connection is closed; nothing where it is reset."""
    caller = await Caller.to(url)
    try:
        async with in_time():
            await caller.send(raw)
            return await caller.until_closed()
    except ConnectionError:
        return b""
    finally:
        caller.leave()
