"""Answers of a llama-server that are made here: whole ones, and translated streams."""

from __future__ import annotations

from collections.abc import Callable

from hearth.dialects.translation.answering import NativeStream
from hearth.engines.port import Exchange
from hearth.types import Headers

NDJSON: Headers = ((b"content-type", b"application/x-ndjson"),)
JSON: Headers = ((b"content-type", b"application/json; charset=utf-8"),)
PLAIN: Headers = ((b"content-type", b"text/plain; charset=utf-8"),)


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
    """An `Exchange` that says a stream of chunks again as lines of Ollama's. A part of a tool
    call, and a comment, which the server sends while it reads a long prompt, is an empty chunk: a
    sign of life.

    Args:
        now: wall time in seconds since 1970, and the nanoseconds since the call was sent.
    """

    def __init__(
        self, exchange: Exchange, stream: NativeStream, now: Callable[[], tuple[float, int]]
    ) -> None:
        self.status = exchange.status
        self.headers = NDJSON
        self._exchange = exchange
        self._stream = stream
        self._now = now

    async def take(self) -> tuple[bytes, ...]:
        while chunks := await self._exchange.take():
            came = b"".join(chunks)
            wall_s, total_ns = self._now()
            lines = self._stream.feed(came, wall_s, total_ns)
            if lines:
                return tuple(lines)
            if came.startswith(b":") or self._stream.is_in_call:
                return (b"",)
        return ()

    def close(self) -> None:
        self._exchange.close()
