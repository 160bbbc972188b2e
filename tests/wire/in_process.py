"""HTTP without sockets: transports for the official clients that call the gateway's ASGI application on the test's own event loop.

Chunks reach the client as they are sent, a response that is closed is a caller who has left, and the client's read timeout counts
between any two chunks, all in the loop's time. So a wait of ten minutes is real for everybody but the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import httpx2

from hearth.api.app import HearthApp
from hearth.api.asgi import DISCONNECTED, Message


@dataclass(slots=True)
class Heard:
    """What one call was sent: the instant of its head, and every piece of its body with its instant, counted from the call."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    head_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)


class Call:
    """One request under way; `close` is the caller leaving."""

    def __init__(self, app: HearthApp, scope: dict[str, Any], body: bytes, heard: Heard) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._body: list[bytes] = [body]
        self._gone = scope[DISCONNECTED] = self._loop.create_future()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._heard = heard
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        return {"type": "http.request", "body": self._body.pop(), "more_body": False}

    async def _send(self, message: Message) -> None:
        passed_s = self._loop.time() - self._began_at
        if message["type"] == "http.response.start":
            self._heard.status, self._heard.head_s = message["status"], passed_s
            self._heard.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        elif message["body"]:
            self._heard.pieces.append((passed_s, message["body"]))
        self._messages.put_nowait(message)

    async def next(self, read_s: float | None) -> Message:
        """The next message. Raises TimeoutError after `read_s`."""
        async with asyncio.timeout(read_s):
            return await self._messages.get()

    async def close(self) -> None:
        """Leave, and wait until the application has noticed."""
        if not self._gone.done():
            self._gone.set_result(None)
        with suppress(asyncio.CancelledError):
            await self._task


class Wire:
    """The gateway's application as clients reach it; `calls` has what each was sent, in order."""

    def __init__(self, app: HearthApp) -> None:
        self._app = app
        self.calls: list[Heard] = []

    async def open(self, request: httpx.Request | httpx2.Request) -> Call:
        """Begin a call."""
        target, _, query = request.url.raw_path.partition(b"?")
        scope = {
            "type": "http",
            "method": request.method,
            "path": request.url.path,
            "raw_path": target,
            "query_string": query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": ("127.0.0.1", 50_000),
        }
        self.calls.append(Heard())
        return Call(self._app, scope, await request.aread(), self.calls[-1])


class _Body:
    """The rest of a call's answer; `late` is what the client's library raises when nothing comes."""

    late: type[Exception]

    def __init__(self, call: Call, read_s: float | None) -> None:
        self._call = call
        self._read_s = read_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            try:
                message = await self._call.next(self._read_s)
            except TimeoutError as error:
                raise self.late("nothing came") from error
            yield message["body"]
            more = message["more_body"]

    async def aclose(self) -> None:
        await self._call.close()


class _HttpxBody(_Body, httpx.AsyncByteStream):
    late = httpx.ReadTimeout


class _Httpx2Body(_Body, httpx2.AsyncByteStream):
    late = httpx2.ReadTimeout


class HttpxTransport(httpx.AsyncBaseTransport):
    """For clients built on httpx."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        head, call, read_s = await _answered(self._wire, request, httpx.ReadTimeout)
        return httpx.Response(head["status"], headers=head["headers"], stream=_HttpxBody(call, read_s))


class Httpx2Transport(httpx2.AsyncBaseTransport):
    """For clients built on httpx2."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        head, call, read_s = await _answered(self._wire, request, httpx2.ReadTimeout)
        return httpx2.Response(head["status"], headers=head["headers"], stream=_Httpx2Body(call, read_s))


async def _answered(wire: Wire, request: httpx.Request | httpx2.Request, late: type[Exception]) -> tuple[Message, Call, float | None]:
    """The head of the answer, its call, and how long the client waits for each piece of the rest."""
    call, read_s = await wire.open(request), request.extensions["timeout"]["read"]
    try:
        return await call.next(read_s), call, read_s
    except TimeoutError as error:
        await call.close()
        raise late("nothing came") from error
