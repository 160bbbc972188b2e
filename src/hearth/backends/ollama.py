"""The data path to Ollama: bytes in, bytes out, over HTTP/1.1 with one call at a time on a connection.

A connection is kept for a while, since opening one costs more than all else that is done to a small request, but only where its answer came
to the framed end, the request was sent whole, and the server wants to keep it. Every other one is aborted: an orderly close first flushes
what is unsent, which never ends while the other side has stopped reading. Leaving is how a generation is cancelled, so a call that is left
ends its connection. llama-server closes after each stream while announcing keep-alive; so a kept connection that proves dead before
a byte of the answer has come is replaced, once. Nothing else is ever sent twice; no redirect is followed, no body decoded, no proxy of the
environment asked, and only connecting has a time limit. Parsing is httptools' (Node's llhttp) with all its strictness on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import httptools
from yarl import URL

from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendUnreachable,
    BadRequest,
    ConfigError,
    HearthError,
)
from hearth.types import BackendCall, Headers

MAX_LINE_BYTES = 16 * 1024**2
"""Of a streamed body; a native done line with the `context` of a long conversation takes a few MiB."""
MAX_BODY_BYTES = 1024**3
KEPT = 64
"""Idle connections that are kept at most; more than the slots of any card."""
KEPT_FOR_S = 60.0
HEADS = 64
"""Heads of requests that are remembered: a program sends the same one each time."""
PATH = re.compile(r"/[!-~]*")
_WITHOUT_BODY = frozenset({"GET", "HEAD"})
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
NOT_RETURNED = HOP_BY_HOP | {b"set-cookie", b"x-request-id", b"x-queue-position", b"x-estimated-wait-seconds", b"x-estimated-wait-rough"}
"""In answers: a model server sets no cookie for Hearth's own host, and says nothing in Hearth's name."""
WRITTEN_BY_HEARTH_PREFIXES = (b"access-control-", b"x-hearth-")
_LINE_BREAK = re.compile(rb"[\r\n\0]")


class OllamaBackend:
    """`GenerationBackend` over HTTP/1.1 at `http://host:port`, with a path prefix where a proxy wants one; ConfigError for no such URL.

    Args:
        connect_timeout_s: name resolution and connection together.
        max_body_bytes, max_line_bytes: a larger body, or line of a streamed one, ends with BackendProtocolError.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
        kept_for_s: float = KEPT_FOR_S,
    ) -> None:
        url = _parsed(base_url)
        self._host, self._port, self._tls = url.host or "", url.port or 80, url.scheme == "https"
        self._address = f"{url.host}:{url.port}"
        self._prefix = url.raw_path.rstrip("/")
        self._host_line = f"Host: {url.host_port_subcomponent}\r\n".encode("ascii")
        self._head = lru_cache(HEADS)(self._written)
        self._connect_timeout_s = connect_timeout_s
        self._limits = {"max_body_bytes": max_body_bytes, "max_line_bytes": max_line_bytes}
        self._kept_for_s = kept_for_s
        self._links: set[Link] = set()
        self._idle: list[Link] = []
        self._tidying: asyncio.TimerHandle | None = None

    async def open(self, call: BackendCall) -> Answer:
        """As the port says. Of the headers, hop-by-hop fields, Origin and everything that could be a caller's key stay here.

        Raises:
            BackendUnreachable: no connection in time; BackendGone: it ended before a head was read.
            BackendProtocolError: a redirect, an encoded body, a head that is too large or no HTTP at all.
            BadRequest: the path or a header is not fit to be sent.
        """
        request, kept = self._request(call), self._take()
        if kept is not None:
            answer = self._ask(kept, call, request)
            try:
                return await _head_of(answer)
            except BackendGone:
                if answer.began:
                    raise
        return await _head_of(self._ask(await self._connect(), call, request))

    async def aclose(self) -> None:
        """End all connections. The backend can be used again afterwards."""
        links, self._links = self._links, set()
        self._idle.clear()
        for link in links:
            link.cut()

    def _ask(self, link: Link, call: BackendCall, request: bytes) -> Answer:
        answer = Answer(link, self._put_back, method=call.method, address=self._address, **self._limits)
        link.answer = answer
        link.transport.write(request)
        return answer

    def _request(self, call: BackendCall) -> bytes:
        head = self._head(call.method, call.path, call.headers)
        if call.body or call.method not in _WITHOUT_BODY:
            return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(call.body), call.body)
        return head + b"\r\n"

    def _written(self, method: str, path: str, headers: Headers) -> bytes:
        """The head of a request, but for the length of its body."""
        if not PATH.fullmatch(path):
            raise BadRequest("The path is not a plain URL path.")
        lines = [f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode("ascii"), self._host_line]
        lines += [b"%b: %b\r\n" % field for field in to_send(headers)]
        return b"".join((*lines, b"Accept-Encoding: identity\r\n"))

    async def _connect(self) -> Link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, link = await loop.create_connection(lambda: Link(self._lost), self._host, self._port, ssl=self._tls or None)
        except (OSError, TimeoutError) as error:
            raise BackendUnreachable(f"The model server at {self._address} cannot be reached.") from error
        self._links.add(link)
        return link

    def _take(self) -> Link | None:
        """The connection that was used last: the others may then grow old enough to be closed."""
        while self._idle:
            link = self._idle.pop()
            if not link.transport.is_closing():
                return link
        return None

    def _put_back(self, link: Link) -> None:
        if link not in self._links or len(self._idle) >= KEPT:
            link.transport.abort()
            return
        loop = asyncio.get_running_loop()
        link.idle_since = loop.time()
        self._idle.append(link)
        if self._tidying is None:
            self._tidying = loop.call_later(self._kept_for_s, self._tidy)

    def _tidy(self) -> None:
        """Close what nobody has used for long; the oldest come first."""
        loop = asyncio.get_running_loop()
        too_old_at = loop.time() - self._kept_for_s
        while self._idle and self._idle[0].idle_since <= too_old_at:
            self._idle.pop(0).transport.abort()
        due_at = self._idle[0].idle_since + self._kept_for_s if self._idle else None
        self._tidying = None if due_at is None else loop.call_at(due_at, self._tidy)

    def _lost(self, link: Link) -> None:
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)


async def _head_of(answer: Answer) -> Answer:
    """The answer once its head is there; one that fails or is not waited for ends its connection."""
    try:
        await answer.head()
    except (HearthError, asyncio.CancelledError):
        answer.close()
        raise
    return answer


def _parsed(base_url: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError(["ollama.url: must look like http://127.0.0.1:11434"])
    return url


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
    kept = _without(NOT_RETURNED, fields)
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
        size = len(part)
        self._body_bytes += size
        if self._streamed:
            last_break = part.rfind(b"\n")
            self._line_bytes = size - last_break - 1 if last_break >= 0 else self._line_bytes + size
        if self._body_bytes > self._max_body_bytes or self._line_bytes > self._max_line_bytes:
            raise self._bad("sent an answer that is too long.")
        self._ready.append(part)
        self._unread_bytes += size
        if self._unread_bytes >= READ_AHEAD_BYTES and not self._paused and self._link is not None:
            self._paused = True
            self._link.transport.pause_reading()

    def on_message_complete(self) -> None:
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
