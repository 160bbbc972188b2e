"""The ASGI side of a request: the messages, one answer, and the end of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from hearth.types import Headers

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
DISCONNECTED = "hearth.disconnected"
"""In the scope: a future that is done when the connection has ended. To wait for that by `receive` would take a task of each request."""


class Responder:
    """One HTTP answer being written, with `added` header fields; after the caller has left every write returns without effect."""

    __slots__ = ("_send", "added", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.added: Headers = ()
        self.started = False

    async def head(self, status: int, headers: Headers) -> None:
        """Status line and headers, once."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.added]})

    async def chunk(self, data: bytes) -> None:
        """One piece of the body, as one HTTP chunk where the answer is chunked. Waits while the socket is full."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, last: bytes = b"") -> None:
        """The body is complete, with `last` as its last piece."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A complete answer; Content-Length is added."""
        await self.head(status, (*headers, (b"content-length", b"%d" % len(body))))
        await self.end(body)

    async def raw(self, message: Message) -> None:
        """An ASGI message as another framework made it."""
        self.started = True
        await self._send(message)


async def until_disconnected(disconnected: asyncio.Future[None], work: Coroutine[Any, Any, None]) -> None:
    """Run `work`, and cancel it when the caller leaves first; returns when its cleanup has run. Raises what it raises."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        working.cancel()
        await asyncio.wait({working})
