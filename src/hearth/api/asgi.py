"""The wire side of one request as plain ASGI messages: reading its body under a cap, writing its answer, noticing that its caller left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from io import BytesIO
from typing import Any

from hearth.errors import BodyTooLarge, CallerGone
from hearth.types import Headers

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Responder:
    """One HTTP answer being written; after the caller has left every write returns without effect.

    Attributes:
        added: fields of whatever answer it becomes.
    """

    __slots__ = ("_send", "added", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.added: Headers = ()
        self.started = False

    async def head(self, status: int, headers: Headers) -> None:
        """Status line and headers; only the first call of an answer may be this one."""
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
        await self.measured(status, (*headers, (b"content-length", b"%d" % len(body))), body)

    async def measured(self, status: int, headers: Headers, body: bytes) -> None:
        """A complete answer whose headers have its Content-Length."""
        await self.head(status, headers)
        await self.end(body)

    async def raw(self, message: Message) -> None:
        """An ASGI message as another framework made it."""
        self.started = True
        await self._send(message)


async def read_body(
    receive: Receive, *, limit_bytes: int, declared: bytes | None, take: Callable[[int], object] = lambda _more_bytes: None
) -> bytes:
    """The whole request body.

    Args:
        declared: the Content-Length field, which may refuse a body before it is read but is never believed to be true.
        take: hears how many bytes are to be held, before they are read where they are declared, and may refuse them by an exception.

    Raises:
        BodyTooLarge: more than `limit_bytes`, declared or received.
        CallerGone: the caller left while sending.
    """
    taken = 0 if declared is None or not declared.isdigit() else int(declared[:20])
    if taken > limit_bytes:
        raise BodyTooLarge
    take(taken)
    body = BytesIO()  # whose value is no copy, as joined parts would be
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        part: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLarge
        if size > taken:
            take(size - taken)
            taken = size
        if not more and size == len(part):
            return part
        body.write(part)
    return body.getvalue()


class DisconnectWatch:
    """Tells of the end of a caller's connection at once: a task that waits for it would cost more than the rest of a small request.

    In `scope["extensions"]` under `EXTENSION` where the server is Hearth's own; one request at a time asks.
    """

    EXTENSION = "hearth.disconnect"

    __slots__ = ("_tell", "_was")

    def __init__(self) -> None:
        self._was = False
        self._tell: Callable[[], None] | None = None

    def expect(self, tell: Callable[[], None]) -> None:
        """Have `tell` called when the caller leaves, at once where it has left; until `forget`."""
        self._tell = tell
        if self._was:
            tell()

    def forget(self) -> None:
        """Nobody wants to know any more."""
        self._tell = None

    def happened(self) -> None:
        """The connection has ended."""
        self._was = True
        if self._tell is not None:
            self._tell()


async def wait_gone(receive: Receive) -> None:
    """Return when the caller has left; to be awaited only after the whole body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, and cancel it when the caller leaves first.

    Returns:
        True when the work ended by itself; its exceptions are raised.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(wait_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
            return True
        return False
    finally:
        watching.cancel()
        await _cancelled(working)


async def _cancelled(task: asyncio.Future[None]) -> None:
    """Cancel a task and wait until its cleanup has run."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that yields the body that was already read, then goes on with the real one."""
    pending = [body]

    async def receive_again() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return receive_again
