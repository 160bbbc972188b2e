"""HTTP without sockets: transports for the official clients that call the gateway's ASGI
application on the test's own event loop.

Chunks reach the client as they are sent, a response that is closed is a caller who has left, and
the client's read timeout counts between any two chunks, all in the loop's time. So a wait of ten
minutes is real for everybody but the test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hearth.api.app import HearthApp
from hearth.api.request import DISCONNECTED, Message
from tests.support.fields import Fields


@dataclass(slots=True)
class Heard:
    """What one call was sent: the instant of its head, and every piece of its body with its
    instant, counted from the call.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    head_s: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)


class Call:
    """One request under way; `close` is the caller leaving."""

    def __init__(self, app: HearthApp, scope: Fields, body: bytes, heard: Heard) -> None:
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
            self._heard.headers = {
                name.decode(): value.decode() for name, value in message["headers"]
            }
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

    async def open(self, request: Any) -> Call:
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


def transport(library: Any, wire: Wire) -> Any:
    """For clients built on `library`, httpx or httpx2."""

    class Body(library.AsyncByteStream):  # type: ignore[misc]  # Any, one of two
        """The rest of a call's answer."""

        def __init__(self, call: Call, read_s: float | None) -> None:
            self._call = call
            self._read_s = read_s

        async def __aiter__(self) -> AsyncIterator[bytes]:
            more = True
            while more:
                try:
                    message = await self._call.next(self._read_s)
                except TimeoutError as error:
                    raise library.ReadTimeout("nothing came") from error
                yield message["body"]
                more = message["more_body"]

        async def aclose(self) -> None:
            await self._call.close()

    class Transport(library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            call, read_s = await wire.open(request), request.extensions["timeout"]["read"]
            try:
                head = await call.next(read_s)
            except TimeoutError as error:
                await call.close()
                raise library.ReadTimeout("nothing came") from error
            return library.Response(
                head["status"], headers=head["headers"], stream=Body(call, read_s)
            )

    return Transport()
