"""HTTP/1.1 to one server: a connection carries one answer at a time and is kept for the next call where that is safe.

Parsing is httptools' (Node's llhttp) with all its strictness on. A connection is kept only when its answer came to its framed end, the
request was sent whole, and the server wants to keep it. Every other one is aborted: an orderly close first flushes what is unsent, which
never ends while the other side has stopped reading.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

import httptools

from hearth.errors import BackendError, BackendGone, BackendProtocolError, BadRequest
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
STREAMED = (b"application/x-ndjson", b"text/event-stream")

HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade"),
    }
)
CREDENTIALS = frozenset({b"api-key", b"authorization", b"cookie", b"x-api-key"})
WRITTEN_HERE = frozenset({b"accept-encoding", b"content-length", b"expect", b"host"})
REFUSED_BY_OLLAMA = frozenset({b"origin"})
"""An Origin outside OLLAMA_ORIGINS is answered with an empty 403; Hearth has checked it already."""
NOT_SENT = HOP_BY_HOP | CREDENTIALS | WRITTEN_HERE | REFUSED_BY_OLLAMA
WRITTEN_BY_HEARTH = frozenset({b"set-cookie", b"x-request-id", b"x-queue-position", b"x-estimated-wait-seconds", b"x-estimated-wait-rough"})
"""In answers: a model server sets no cookie for Hearth's own host, and says nothing in Hearth's name."""
WRITTEN_BY_HEARTH_PREFIXES = (b"access-control-", b"x-hearth-")
_LINE_BREAK = re.compile(rb"[\r\n\0]")


def to_send(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The caller's fields that a model server may see, names in lower case as given: none that could be a key.

    Raises BadRequest: a field carries a line break.
    """
    kept = _without(NOT_SENT, headers)
    if _LINE_BREAK.search(b"".join([part for field in kept for part in field])):
        raise BadRequest("A header contains a line break.")
    return kept


def to_return(fields: Sequence[tuple[bytes, bytes]]) -> Headers:
    """End-to-end fields of an answer in wire order; which pages may read it is for Hearth to say (`server.allowed_origins`)."""
    kept = _without(HOP_BY_HOP | WRITTEN_BY_HEARTH, fields)
    return tuple([field for field in kept if not field[0].startswith(WRITTEN_BY_HEARTH_PREFIXES)])


def _without(names: frozenset[bytes], fields: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """All fields but those of these names, and those that belong to the connection because it says so (RFC 9110, section 7.6.1)."""
    for name, value in fields:
        if name == b"connection":
            names = names.union(option.strip().lower() for option in value.split(b","))
    return [field for field in fields if field[0] not in names]


class Link(asyncio.Protocol):
    """One TCP connection. `on_lost` hears of its end."""

    transport: asyncio.Transport

    def __init__(self, on_lost: Callable[[Link], None]) -> None:
        self._on_lost = on_lost
        self.answer: Answer | None = None
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of a TCP connection it always is one
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.answer is None:  # nobody asked for it
            self.transport.abort()
        else:
            self.answer.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        if self.answer is not None:
            self.answer.connection_ended(whole=exc is None)

    def cut(self) -> None:
        """End it now, and whatever it carries."""
        if self.answer is not None:
            self.answer.close()
        self.transport.abort()


class Answer:
    """The `Exchange` of one call, and what the parser reports to. Not to be shared between tasks, except that any task may `close` it.

    Args:
        max_body_bytes, max_line_bytes: of the answer in all, and of one line of a streamed one.
        put_back: takes the connection when the answer was read to its end and it can be used again.
    """

    def __init__(
        self, link: Link, put_back: Callable[[Link], None], *, method: str, address: str, max_body_bytes: int, max_line_bytes: int
    ) -> None:
        self.status = 0
        self.headers: Headers = ()
        self.began = False
        self._link: Link | None = link
        self._bodiless = method == "HEAD"
        self._address = address
        self._max_body_bytes, self._max_line_bytes = max_body_bytes, max_line_bytes
        self._put_back = put_back
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._fields: list[tuple[bytes, bytes]] = []
        self._chunked = self._framed = self._streamed = False
        self._part = b""
        self._ready: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._came_bytes = self._body_bytes = self._line_bytes = 0
        self._ended = self._keep = False
        self._error: BackendError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Wait for status and headers.

        Raises:
            BackendGone: the connection ended before.
            BackendProtocolError: it is no HTTP, its head is too large, or it is an answer that is not for us.
        """
        while not self.status:
            await self._news()
        if self.status in REDIRECTS or not 200 <= self.status < 600:
            self._keep = False
            raise self._bad(f"answered {self.status}, which is not an answer.")
        for name, value in self._fields:
            if _is_encoded(name, value):
                self._keep = False
                raise self._bad("sent a Content-Encoding that was not requested.")

    async def take(self) -> tuple[bytes, ...]:
        """The body in the backend's own HTTP chunks (large ones in pieces of at least 64 KiB); as it comes where it is not chunked.

        A body with neither chunks nor a length is whole wherever its connection ends (RFC 9112, section 6.3): only the terminator of
        its dialect tells.

        Raises:
            BackendGone: the body ended short of its framing.
            BackendProtocolError: the framing is garbage, or the body or one line of a stream is larger than any answer.
        """
        while not self._ready:
            if self._ended and self._error is None:
                return ()
            if self._paused and self._link is not None:
                self._paused = False
                self._link.transport.resume_reading()
            await self._news()
        chunks = tuple(self._ready)
        self._ready, self._unread_bytes = [], 0
        return chunks

    def close(self) -> None:
        """Keep the connection where the answer is over, else end it."""
        link, self._link = self._link, None
        if link is None:
            return
        link.answer = None
        if self._ended and self._keep and not link.transport.is_closing() and not link.transport.get_write_buffer_size():
            self._put_back(link)
        else:
            link.transport.abort()
        if not self._ended:
            self._end(BackendGone())

    async def _news(self) -> None:
        """Wait for the next thing that is reported; raises what has ended the answer."""
        if self._error is not None:
            raise self._error.again()
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def feed(self, data: bytes) -> None:
        """Bytes have come on the connection."""
        self.began = True
        if self._parser is None:  # more than the answer: this connection cannot be trusted with another one
            self._keep = False
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            # No name for the context: by its traceback it would keep this frame, and so the whole answer.
            self._end(error.__context__.again() if isinstance(error.__context__, BackendError) else self._misframed())
        self._came_bytes += len(data)
        beside_bytes = self._came_bytes - self._body_bytes - len(self._part)
        if beside_bytes > MAX_HEAD_BYTES + _FRAMING_PER_BODY_BYTE * self._body_bytes:
            self._end(self._misframed())
        self._tell()

    def connection_ended(self, *, whole: bool) -> None:
        """No more bytes will come; `whole`: by an orderly end."""
        is_open_ended = self.status and not self._framed and whole
        self._end(self._flushed() or (None if is_open_ended else BackendGone()))

    # What the parser reports.

    def on_message_begin(self) -> None:
        """An answer begins. A second one was not asked for: the connection cannot be trusted."""
        if self._ended:
            self._keep = False
            raise self._no_http()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of the head, or a trailer, which nobody reads."""
        if not self.status:
            if len(self._fields) >= MAX_FIELDS:
                raise self._no_http()
            self._fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is over; an informational one is followed by the real one."""
        if self._parser is None:
            return
        status = self._parser.get_status_code()
        if status in INFORMATIONAL:
            self._fields.clear()
            return
        self.status = status
        names = dict(self._fields)
        self._chunked = b"transfer-encoding" in names
        self._framed = self._chunked or b"content-length" in names
        self.headers = to_return(self._fields)
        self._streamed = names.get(b"content-type", b"").strip().lower().startswith(STREAMED)
        if self._bodiless:
            self._end(None)

    def on_body(self, data: bytes) -> None:
        """A piece of the body, never more than one chunk's."""
        self._part = self._part + data if self._part else data
        if not self._chunked or len(self._part) >= HOLD_BYTES:
            self.on_chunk_complete()

    def on_chunk_complete(self) -> None:
        """Let what has come of the chunk be read."""
        part, self._part = self._part, b""
        if not part:
            return
        self._body_bytes += len(part)
        if self._streamed:
            last_break = part.rfind(b"\n")
            self._line_bytes = len(part) - last_break - 1 if last_break >= 0 else self._line_bytes + len(part)
        if self._body_bytes > self._max_body_bytes or self._line_bytes > self._max_line_bytes:
            raise self._bad("sent an answer that is too long.")
        self._ready.append(part)
        self._unread_bytes += len(part)
        if self._unread_bytes >= READ_AHEAD_BYTES and not self._paused and self._link is not None:
            self._paused = True
            self._link.transport.pause_reading()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self.status and self._parser is not None:
            self._keep = self._framed and self._parser.should_keep_alive()
            self._end(None)

    def _end(self, error: BackendError | None) -> None:
        """The first ending counts. What has come of an answer is read before its error."""
        if not self._ended:
            self._ended, self._error = True, error
        self._parser = None
        self._tell()

    def _tell(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _flushed(self) -> BackendError | None:
        """Let what came of a chunk be read that will not be whole; an error where it is more than an answer can be."""
        try:
            self.on_chunk_complete()
        except BackendProtocolError as error:
            return error.again()
        return None

    def _misframed(self) -> BackendError:
        if not self.status:
            return self._no_http()
        return self._flushed() or self._bad("sent a body with invalid framing.")

    def _no_http(self) -> BackendError:
        return self._bad("sent an invalid HTTP response.")

    def _bad(self, what: str) -> BackendError:
        return BackendProtocolError(f"The model server at {self._address} {what}")


def _is_encoded(name: bytes, value: bytes) -> bool:
    if name == b"content-encoding":
        return value.strip().lower() not in {b"", b"identity"}
    return name == b"transfer-encoding" and value.strip().lower() not in {b"chunked", b"identity"}
