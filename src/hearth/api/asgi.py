"""The wire side of one request: reading its body under a cap, and writing its answer.

Plain ASGI messages on purpose: the inference routes pay for nothing else. Must never decide what is answered. Called by the other
modules of `api`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from hearth.errors import BodyTooLarge, CallerGone
from hearth.types import Headers

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Answer:
    """One HTTP answer being written; after the caller has left every write returns without effect."""

    __slots__ = ("_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def head(self, status: int, headers: Headers) -> None:
        """Status line and headers; only the first call of an answer may be this one."""
        await self.raw({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def chunk(self, data: bytes) -> None:
        """One piece of the body, as one HTTP chunk where the answer is chunked. Waits while the socket is full."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """The body is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A complete answer; Content-Length is added."""
        await self.head(status, (*headers, (b"content-length", b"%d" % len(body))))
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def raw(self, message: Message) -> None:
        """An ASGI message as another framework made it."""
        self.started = True
        await self._send(message)


async def read_body(receive: Receive, *, limit_bytes: int, declared: bytes | None) -> bytes:
    """The whole request body.

    Args:
        declared: the Content-Length field, which may refuse a body before it is read but is never believed to be true.

    Raises:
        BodyTooLarge: more than `limit_bytes`, declared or received.
        CallerGone: the caller left while sending.
    """
    if declared is not None and declared.isdigit() and int(declared[:20]) > limit_bytes:
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallerGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLarge
        parts.append(part)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


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
