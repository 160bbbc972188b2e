"""Answers for callers of HTTP/1.0, who cannot read chunks; nginx asks like that unless it is told otherwise.

A stream goes on as it comes, and the end of the connection is its end. Any other answer without a declared length is gathered and sent as a
whole: nobody could tell half of it from all of it.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from hearth.api.asgi import App, Message, Receive, Scope, Send

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
