"""Answers of a server that are made here: whole ones, and translated streams."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from hearth.dialects.translation.answering import DialectStream
from hearth.engines.port import Exchange
from hearth.types import Headers

NDJSON: Headers = ((b"content-type", b"application/x-ndjson"),)
EVENTS: Headers = ((b"content-type", b"text/event-stream"),)
JSON: Headers = ((b"content-type", b"application/json; charset=utf-8"),)
PLAIN: Headers = ((b"content-type", b"text/plain; charset=utf-8"),)
_BLOCK = b"event: content_block_start"
_COMMENTS = re.compile(rb"\A(?:\r?\n|:[^\n]*\n)+")


class Ready:
    """An `Exchange` whose answer is there already."""

    def __init__(self, status: int, body: bytes, headers: Headers = JSON) -> None:
        self.status = status
        self.headers = headers
        self._chunks = (body,) if body else ()

    async def take(self) -> tuple[bytes, ...]:
        chunks = self._chunks
        self._chunks = ()
        return chunks

    def close(self) -> None:
        """There is no connection any more."""


class TranslatedStream:
    """An `Exchange` that says a stream of chunks again in another dialect. A part of a tool call,
    and a comment, which some servers send while they read a long prompt, is an empty chunk: a sign
    of life.

    Args:
        now: wall time in seconds since 1970, and the nanoseconds since the call was sent.
    """

    def __init__(
        self,
        exchange: Exchange,
        stream: DialectStream,
        headers: Headers,
        now: Callable[[], tuple[float, int]],
    ) -> None:
        self.status = exchange.status
        self.headers = headers
        self._exchange = exchange
        self._stream = stream
        self._now = now

    async def take(self) -> tuple[bytes, ...]:
        while chunks := await self._exchange.take():
            came = b"".join(chunks)
            frames = self._stream.feed(came, *self._now())
            if frames:
                return tuple(frames)
            if came.startswith(b":") or self._stream.is_in_call:
                return (b"",)
        return tuple(self._stream.end(*self._now()))

    def close(self) -> None:
        self._exchange.close()


class CommentsApart:
    """An `Exchange` whose comments before the first event are empty chunks: signs of life while a
    prompt is read, and no beginning of an answer.

    Args:
        start: makes the first event of a message, for servers that leave it out: llama.cpp's does
        where the first sign of the text is in several tokens.
    """

    def __init__(
        self, exchange: Exchange, start: Callable[[], Awaitable[bytes]] | None = None
    ) -> None:
        self._start = start
        self.status = exchange.status
        self.headers = exchange.headers
        self.close = exchange.close
        self._exchange = exchange
        self._held = b""

    async def take(self) -> tuple[bytes, ...]:
        chunks = await self._exchange.take()
        for place, chunk in enumerate(chunks):
            rest = _COMMENTS.sub(b"", self._held + chunk, count=1)
            self._held = rest
            if rest and not rest.startswith(b":"):
                self.take = self._exchange.take  # type: ignore[method-assign]
                return (*await self._left_out(rest), rest, *chunks[place + 1 :])
        return (b"",) if chunks else tuple(filter(None, (self._held,)))

    async def _left_out(self, rest: bytes) -> tuple[bytes, ...]:
        is_begun = self._start is None or not rest.startswith(_BLOCK)
        return () if is_begun or self._start is None else (await self._start(),)


class LineFeeds:
    """An `Exchange` of a stream whose lines end with LF, also where the server ends them with CRLF,
    as many in Python do. JSON has neither sign within its texts.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.status = exchange.status
        self.headers = exchange.headers
        self.close = exchange.close
        self._exchange = exchange
        self._held = b""

    async def take(self) -> tuple[bytes, ...]:
        chunks = await self._exchange.take()
        if not (self._held or any(b"\r" in chunk for chunk in chunks)):
            return chunks
        if not chunks:
            held = self._held
            self._held = b""
            return (held,)
        came = self._held + b"".join(chunks)
        self._held = b"\r" if came.endswith(b"\r") else b""
        return (came[: len(came) - len(self._held)].replace(b"\r\n", b"\n"),)


async def whole_body(exchange: Exchange) -> bytes:
    """All of an answer; its connection is given back."""
    parts: list[bytes] = []
    try:
        while chunks := await exchange.take():
            parts += chunks
    finally:
        exchange.close()
    return b"".join(parts)
