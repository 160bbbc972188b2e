"""The ASGI side of a connection: messages, one answer, who has left, writes put together, and HTTP/1.0.

A transport that sends what was written within one turn of the event loop in one piece.

Each call of the operating system costs more than all that is done to a chunk here, and an answer is written in many small pieces. Bytes
and their order stay as they are; nothing waits longer than the turn in which it was written. Must never look at the bytes. Put in front
of each connection's own transport by `api.protocol`.

Answers for callers of HTTP/1.0, who cannot read chunks; nginx asks like that unless it is told otherwise.

A stream goes on as it comes, and the end of the connection is its end. Any other answer without a declared length is gathered and sent as a
whole: nobody could tell half of it from all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from io import BytesIO
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

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


SEND_FROM_BYTES = 64 * 1024
"""So much is sent at once, so that the transport's own limit keeps its meaning."""


class GatheringTransport(asyncio.Transport):
    """Stands in front of another transport."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self.is_closing = transport.is_closing  # type: ignore[method-assign]  # asked four times for each request
        self._gathered: list[bytes] = []
        self._size_bytes = 0
        self.lingers: Callable[[], bool] = lambda: False
        """Asked when it is to be closed: whether only sending ends now."""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send the data soon."""
        if not data:
            return
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(bytes(data))
        self._size_bytes += len(data)
        if self._size_bytes >= SEND_FROM_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send now."""
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._size_bytes = 0
            self._send(data)

    def _send(self, data: bytes) -> None:
        if not self.is_closing():  # uvloop's transports raise where asyncio's take no notice
            self._transport.write(data)

    def close(self) -> None:
        """Send what was written, then close; where it `lingers`, only say that nothing more will be sent."""
        self.flush()
        if not self.lingers():
            self._transport.close()
        elif not self.is_closing():
            self._transport.write_eof()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        self._gathered.clear()
        self._size_bytes = 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Bytes written and not yet sent."""
        return self._size_bytes + self._transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - the signature is asyncio's
        """As the other transport says."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """As the other transport does."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """As the other transport does."""
        self._transport.resume_reading()


_STREAMS = (b"application/x-ndjson", b"text/event-stream")


def without_chunks(app: App) -> App:
    """`app` for a caller of HTTP/1.0."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, _Unchunked(send).send)

    return served


class _Unchunked:
    """One answer. `send` must be that of uvicorn's own cycle, which would put chunks around whatever has no length."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]  # a bound method
        self._streams = False
        self._head: Message | None = None
        self._parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._head is not None:
            await self._gather(self._head, message)
        else:
            await self._pass_on(message)

    async def _begin(self, head: Message) -> None:
        fields = dict(head["headers"])
        self._streams = b"content-length" not in fields and fields.get(b"content-type", b"").startswith(_STREAMS)
        if self._streams:
            self._cycle.chunked_encoding = False
        if self._streams or b"content-length" in fields:
            await self._send(head)
        else:
            self._head = head

    async def _pass_on(self, message: Message) -> None:
        if self._streams:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)

    async def _gather(self, head: Message, message: Message) -> None:
        self._parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = b"".join(self._parts)
            await self._send({**head, "headers": [*head["headers"], (b"content-length", b"%d" % len(body))]})
            await self._send({**message, "body": body})
