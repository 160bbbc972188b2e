"""HTTP/1.1 to one server: a connection carries one answer at a time and is kept for the next call where that is safe.

It must never retry on its own, follow a redirect, decode a body, or set a timeout. It knows HTTP but nothing of what the bytes say. Parsing
is httptools' (Node's llhttp) with all its strictness on.

A connection is kept only when its answer came to its framed end, the request was sent whole, and the server wants to keep it. Every
other one is aborted: an orderly close first flushes what is unsent, which never ends while the other side has stopped reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import httptools

from hearth.backends import headers as fields
from hearth.errors import BackendError, BackendGone, BackendProtocolError
from hearth.types import Headers

MAX_HEAD_BYTES = 64 * 1024
_FRAMING_PER_BODY_BYTE = 8
"""As in `api.protocol`: a chunk of a single byte has 5 beside it. A trailer costs the square of its length."""
MAX_FIELDS = 128
HOLD_BYTES = 64 * 1024
"""Parts of one HTTP chunk are joined up to this size."""
READ_AHEAD_BYTES = 256 * 1024
"""So much of an answer is taken from the server before anybody reads it."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
INFORMATIONAL = frozenset({100, 102, 103})
_CODINGS = MappingProxyType({b"content-encoding": (b"", b"identity"), b"transfer-encoding": (b"chunked", b"identity")})
"""What these fields may say."""
STREAMED = (b"application/x-ndjson", b"text/event-stream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large an answer may be: `body_bytes` in all, `line_bytes` for one line of a streamed one."""

    body_bytes: int
    line_bytes: int


class Link(asyncio.Protocol):
    """One TCP connection. `on_lost` hears of its end."""

    def __init__(self, on_lost: Callable[[Link], None]) -> None:
        self._on_lost = on_lost
        self._answer: Answer | None = None
        self._transport: asyncio.Transport
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a TCP connection it always is one
        """As asyncio says."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Bytes that nobody asked for are the end of the connection."""
        if self._answer is None:
            self._transport.abort()
        else:
            self._answer.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio says."""
        self._on_lost(self)
        if self._answer is not None:
            self._answer.connection_ended(whole=exc is None)

    @property
    def usable(self) -> bool:
        """Nothing is known to speak against another call."""
        return not self._transport.is_closing()

    def send(self, request: bytes, answer: Answer) -> None:
        """Begin a call."""
        self._answer = answer
        self._transport.write(request)

    def release(self) -> bool:
        """The answer is over; True where the connection can carry another one."""
        self._answer = None
        return self.usable and not self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """End it now."""
        self._answer = None
        self._transport.abort()

    def cut(self) -> None:
        """End it now, and whatever it carries."""
        if self._answer is not None:
            self._answer.close()
        self._transport.abort()

    def pause(self) -> None:
        """Let the server wait."""
        self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._transport.resume_reading()


class Answer:
    """The `Exchange` of one call, and what the parser reports to. Not to be shared between tasks, except that any task may `close` it.

    Args:
        put_back: takes the connection when the answer was read to its end and it can be used again.
    """

    def __init__(self, link: Link, *, method: str, address: str, limits: Limits, put_back: Callable[[Link], None]) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.began = False
        self._link: Link | None = link
        self._bodiless = method == "HEAD"
        self._address = address
        self._limits = limits
        self._put_back = put_back
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._raw: list[tuple[bytes, bytes]] = []
        self._chunked = False
        self._framed = False
        self._streamed = False
        self._part = b""
        self._ready: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._came_bytes = self._body_bytes = self._line_bytes = 0
        self._ended = False
        self._keep = False
        self._error: BackendError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Wait for status and headers.

        Raises:
            BackendGone: the connection ended before.
            BackendProtocolError: it is no HTTP, its head is too large, or it is an answer that is not for us.
        """
        while not self.status:
            if self._error is not None:
                raise self._error.again()
            await self._news()
        problem = self._problem()
        if problem is not None:
            self._keep = False
            raise BackendProtocolError(f"The model server at {self._address} {problem}")

    async def take(self) -> tuple[bytes, ...]:
        """The body in the backend's own HTTP chunks (large ones in pieces of at least 64 KiB); as it comes where it is not chunked.

        A body with neither chunks nor a length is whole wherever its connection ends (RFC 9112, section 6.3): only the terminator of
        its dialect tells.

        Raises:
            BackendGone: the body ended short of its framing.
            BackendProtocolError: the framing is garbage, or the body or one line of a stream is larger than any answer.
        """
        while not self._ready:
            if self._error is not None:
                raise self._error.again()
            if self._ended:
                return ()
            self._read_on()
            await self._news()
        chunks = tuple(self._ready)
        self._ready, self._unread_bytes = [], 0
        return chunks

    def close(self) -> None:
        """Keep the connection where the answer is over, else end it."""
        link, self._link = self._link, None
        if link is None:
            return
        if self._ended and self._keep and link.release():
            self._put_back(link)
        else:
            link.abort()
        if not self._ended:
            self._end(BackendGone())

    def _problem(self) -> str | None:
        """Why this answer is not for us."""
        if self.status in REDIRECTS or not 200 <= self.status < 600:
            return f"answered {self.status}, which is not an answer."
        for name, value in self._raw:
            if name in _CODINGS and value.strip().lower() not in _CODINGS[name]:
                return "encoded its answer although it was told not to."
        return None

    def _news(self) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _read_on(self) -> None:
        if self._paused and self._link is not None:
            self._paused = False
            self._link.resume()

    # What the connection reports.

    def feed(self, data: bytes) -> None:
        """Bytes have come."""
        self.began = True
        if self._parser is None:  # more than the answer: this connection cannot be trusted with another one
            self._keep = False
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(self._broken(error))
        self._came_bytes += len(data)
        beside_bytes = self._came_bytes - self._body_bytes - len(self._part)
        if beside_bytes > MAX_HEAD_BYTES + _FRAMING_PER_BODY_BYTE * self._body_bytes:
            self._end(self._misframed())
        self._tell()

    def connection_ended(self, *, whole: bool) -> None:
        """No more bytes will come; `whole`: by an orderly end."""
        open_ended = self.status and not self._framed and whole
        self._end(self._rest() or (None if open_ended else BackendGone()))

    def _end(self, error: BackendError | None) -> None:
        """The first ending counts. What has come of an answer is read before its error."""
        if not self._ended:
            self._ended, self._error = True, error
        self._parser = None
        self._tell()

    def _broken(self, error: httptools.HttpParserError | httptools.HttpParserUpgrade) -> BackendError:
        if isinstance(error.__context__, BackendError):
            return error.__context__.again()
        return self._misframed()

    def _misframed(self) -> BackendError:
        if not self.status:
            return self._no_http()
        return self._rest() or BackendProtocolError(f"The model server at {self._address} sent a body with broken framing.")

    def _rest(self) -> BackendError | None:
        """Let what came of a chunk be read that will not be whole; an error where it is more than an answer can be."""
        try:
            self._flush()
        except BackendProtocolError as error:
            return error.again()
        return None

    def _no_http(self) -> BackendError:
        return BackendProtocolError(f"The model server at {self._address} sent something that is not an HTTP answer.")

    # What the parser reports.

    def on_message_begin(self) -> None:
        """An answer begins. A second one was not asked for: the connection cannot be trusted."""
        if self._ended:
            self._keep = False
            raise self._no_http()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer, which nobody reads."""
        if not self.status:
            if len(self._raw) >= MAX_FIELDS:
                raise self._no_http()
            self._raw.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is over; an informational one is followed by the real one."""
        if self._parser is None:
            return
        status = self._parser.get_status_code()
        if status in INFORMATIONAL:
            self._raw.clear()
            return
        self.status = status
        names = dict(self._raw)
        self._chunked = b"transfer-encoding" in names
        self._framed = self._chunked or b"content-length" in names
        self.headers = fields.to_return(self._raw)
        self._streamed = names.get(b"content-type", b"").strip().lower().startswith(STREAMED)
        if self._bodiless:
            self._end(None)

    def on_body(self, data: bytes) -> None:
        """A piece of the body, never more than one chunk's."""
        if not self._chunked:
            self._push(data)
            return
        self._part = self._part + data if self._part else data
        if len(self._part) >= HOLD_BYTES:
            self._flush()

    def on_chunk_complete(self) -> None:
        """A chunk is whole."""
        self._flush()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self.status and self._parser is not None:
            self._keep = self._framed and self._parser.should_keep_alive()
            self._end(None)

    def _flush(self) -> None:
        if self._part:
            part, self._part = self._part, b""
            self._push(part)

    def _push(self, part: bytes) -> None:
        self._measure(part)
        self._ready.append(part)
        self._unread_bytes += len(part)
        if self._unread_bytes >= READ_AHEAD_BYTES and not self._paused and self._link is not None:
            self._paused = True
            self._link.pause()

    def _measure(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._streamed:
            last_break = part.rfind(b"\n")
            self._line_bytes = len(part) - last_break - 1 if last_break >= 0 else self._line_bytes + len(part)
        if self._body_bytes > self._limits.body_bytes or self._line_bytes > self._limits.line_bytes:
            raise BackendProtocolError(f"The model server at {self._address} sent more than an answer can be.")
