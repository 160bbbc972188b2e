"""A model server and a receiver of webhooks that live through every death of the gateway, and remember what they saw.

The prompt of a generation is the marker of its job. The answer names it together with the number of this run, so that two runs of one job
have two results. Markers that begin with `hold` are not answered when they come for the first time, while `holding`.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any, Self

MODELS = ("one:latest", "two:latest")


class ModelServer:
    """For the time of the block, on a free port of loopback.

    Attributes:
        arrivals: the markers of all generations, in the order in which they came.
        told: how often the webhook of each job was called, by job id.
    """

    def __init__(self) -> None:
        self.arrivals: list[str] = []
        self.told: Counter[str] = Counter()
        self.moved = asyncio.Event()
        self.holding = True
        self._loaded: list[str] = []
        self._seen: set[str] = set()
        self._server: asyncio.Server
        self._connections: set[_Connection] = set()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in tuple(self._connections):
            connection.transport.abort()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        port: int = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    def opened(self, connection: _Connection) -> None:
        self._connections.add(connection)

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def answer(self, path: str, headers: bytes, body: bytes) -> object | None:
        """What to answer; None keeps the caller waiting for ever."""
        self.moved.set()
        if path == "/api/generate":
            return self._generate(json.loads(body))
        if path == "/hook":
            self.told[_field(headers, b"webhook-id")] += 1
            return {}
        return {"/api/tags": {"models": _listed(MODELS)}, "/api/ps": {"models": _listed(self._loaded)}}.get(path, {"version": "0.99.0"})

    def _generate(self, asked: dict[str, Any]) -> object | None:
        model, marker = asked["model"], asked.get("prompt", "")
        said = {"model": model, "created_at": "2026-01-05T12:00:00Z", "done": True, "done_reason": "stop"}
        if not marker:
            self._loaded = [name for name in self._loaded if name != model] + [model] * (asked.get("keep_alive") != 0)
            return {**said, "response": ""}
        self.arrivals.append(marker)
        if self.holding and marker.startswith("hold") and marker not in self._seen:
            self._seen.add(marker)
            return None
        return {**said, "response": f"{marker} run {len(self.arrivals)}", "prompt_eval_count": 3, "eval_count": 3}


def _listed(names: list[str] | tuple[str, ...]) -> list[dict[str, Any]]:
    one = {"size": 1 << 30, "size_vram": 1 << 30, "context_length": 4096, "details": {}}
    return [{"name": name, "model": name, "digest": name[0] * 64, **one} for name in names]


def _field(headers: bytes, name: bytes) -> str:
    return next(line.partition(b":")[2].strip().decode() for line in headers.split(b"\r\n") if line.lower().startswith(name))


class _Connection(asyncio.Protocol):
    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._received = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        _, declared, length = head.lower().partition(b"content-length:")
        if not found or len(body) < (int(length.partition(b"\r\n")[0]) if declared else 0):
            return
        self._received = b""
        said = self._server.answer(head.split(b" ", 2)[1].decode(), head, body)
        if said is not None:
            text = json.dumps(said).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
