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
from hearth.api.asgi import Message


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
        self._gone = asyncio.Event()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._heard = heard
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

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
        self._gone.set()
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
    """The rest of a call's answer."""

    def __init__(self, call: Call, read_s: float | None) -> None:
        self._call = call
        self._read_s = read_s

    async def pieces(self) -> AsyncIterator[bytes]:
        """Each piece of the body as it was sent."""
        while True:
            message = await self._call.next(self._read_s)
            yield message["body"]
            if not message["more_body"]:
                return

    async def close(self) -> None:
        await self._call.close()


class _HttpxBody(httpx.AsyncByteStream):
    def __init__(self, body: _Body) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body.pieces():
                yield piece
        except TimeoutError as error:
            raise httpx.ReadTimeout("nothing came") from error

    async def aclose(self) -> None:
        await self._body.close()


class _Httpx2Body(httpx2.AsyncByteStream):
    def __init__(self, body: _Body) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body.pieces():
                yield piece
        except TimeoutError as error:
            raise httpx2.ReadTimeout("nothing came") from error

    async def aclose(self) -> None:
        await self._body.close()


class HttpxTransport(httpx.AsyncBaseTransport):
    """For clients built on httpx."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call, read_s = await self._wire.open(request), request.extensions["timeout"]["read"]
        try:
            head = await call.next(read_s)
        except TimeoutError as error:
            await call.close()
            raise httpx.ReadTimeout("nothing came", request=request) from error
        return httpx.Response(head["status"], headers=head["headers"], stream=_HttpxBody(_Body(call, read_s)))


class Httpx2Transport(httpx2.AsyncBaseTransport):
    """For clients built on httpx2."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        call, read_s = await self._wire.open(request), request.extensions["timeout"]["read"]
        try:
            head = await call.next(read_s)
        except TimeoutError as error:
            await call.close()
            raise httpx2.ReadTimeout("nothing came", request=request) from error
        return httpx2.Response(head["status"], headers=head["headers"], stream=_Httpx2Body(_Body(call, read_s)))
