"""The data path to a model server: bytes in, bytes out, by aiohttp's client, with one call at a
time on a connection.

Leaving is how a generation is cancelled, so a call that is left aborts its connection: an orderly
close first flushes what is unsent, which never ends while the other side has stopped reading.
llama-server closes after each stream while announcing keep-alive; so a kept connection that proves
dead before a byte of the answer has come is replaced, once. Nothing else is ever sent twice; no
redirect is followed, no body decoded, no proxy of the environment asked, and only connecting has a
time limit.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache
from typing import TypeAlias, cast

import aiohttp
from yarl import URL

from hearth.engines.connection import (
    Connection,
    UpstreamRequest,
    UsedConnection,
    open_session,
)
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendUnreachable,
    BadRequest,
    ConfigError,
)
from hearth.types import EMULATOR_HEADER, BackendCall, Headers

MAX_LINE_BYTES = 16 * 1024**2
"""Of a streamed body; a native done line with the `context` of a long conversation takes a few
MiB.
"""
MAX_BODY_BYTES = 1024**3
KEPT_FOR_S = 60.0
HEADS = 64
"""Heads of requests that are remembered: a program sends the same one each time."""
PATH = re.compile(r"/[!\"$-~]*")
"""A fragment (`#`) is no part of what can be asked for."""
HOLD_BYTES = 64 * 1024
"""Parts of one HTTP chunk are joined up to this size, and a request's body is sent in pieces of
it.
"""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
STREAMED = (b"application/x-ndjson", b"text/event-stream")

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
CREDENTIALS = frozenset({b"api-key", b"authorization", b"cookie", b"x-api-key"})
WRITTEN_HERE = frozenset({b"accept-encoding", b"content-length", b"expect", b"host"})
REFUSED_BY_OLLAMA = frozenset({b"origin"})
"""An Origin outside OLLAMA_ORIGINS is answered with an empty 403; Hearth has checked it already."""
KEEPS_STREAMS = frozenset({b"x-conversation-id"})
"""With it, llama.cpp's server goes on with an answer whose reader has left."""
NOT_SENT = HOP_BY_HOP | CREDENTIALS | WRITTEN_HERE | REFUSED_BY_OLLAMA | KEEPS_STREAMS
NOT_RETURNED = HOP_BY_HOP | {
    b"set-cookie",
    b"x-request-id",
    b"x-queue-position",
    b"x-estimated-wait-seconds",
    b"x-estimated-wait-rough",
    b"x-wait-bound-seconds",
}
"""In answers: a model server sets no cookie for Hearth's own host, and says nothing in Hearth's
name.
"""
WRITTEN_BY_HEARTH_PREFIXES = (b"access-control-", b"x-hearth-")
Fields: TypeAlias = "tuple[tuple[str, str], ...]"
"""Of a request's head, in the order in which they are sent."""
_LINE_BREAK = re.compile(rb"[\r\n\0]")


class DataPath:
    """Calls over HTTP/1.1 at `http://host:port`, with a path prefix where a proxy
    wants one; ConfigError for no such URL.

    Args:
        connect_timeout_s: name resolution and connection together. max_body_bytes, max_line_bytes:
        a larger body, or line of a streamed one, ends with BackendProtocolError. kept_for_s: how
        long a connection that is not used is kept. api_key: sent with every call.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
        kept_for_s: float = KEPT_FOR_S,
        api_key: str = "",
    ) -> None:
        self._own_fields = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
        self.turn_to(base_url)
        self._limits = {"max_body_bytes": max_body_bytes, "max_line_bytes": max_line_bytes}
        self._times = {"connect_timeout_s": connect_timeout_s, "kept_for_s": kept_for_s}
        self._session: aiohttp.ClientSession | None = None
        self._upload_session: aiohttp.ClientSession | None = None
        self._answers: set[HttpAnswer] = set()
        self._is_closed = False

    def turn_to(self, base_url: str) -> None:
        """Send every later call there; those under way end where they are.

        ConfigError for no such URL.
        """
        url = _parsed(base_url)
        self._origin = url.origin()
        self._prefix = url.raw_path.rstrip("/")
        self._address = f"{url.host}:{url.port}"
        self._head = lru_cache(HEADS)(self._written)

    async def open(self, call: BackendCall) -> HttpAnswer:
        """As the port says. Of the headers, hop-by-hop fields, Origin and everything that could be
        a caller's key stay here.

        Raises:
            BackendUnreachable: no connection in time; BackendGone: it ended before a head was read.
            BackendProtocolError: a redirect, an encoded body, a head that is too large or no HTTP
            at all. BadRequest: the path or a header is not fit to be sent.
        """
        if self._is_closed:
            raise BackendGone("The connection to the model server was closed.")
        answer = self._answer()
        try:
            await self._ask(answer, call)
        except BackendGone:
            if not answer.proved_dead or self._is_closed:
                raise
            answer = self._answer(wants_new=True)
            await self._ask(answer, call)
        return answer

    async def aclose(self) -> None:
        """End all connections.

        Whoever waits for an answer, or asks for one afterwards, gets BackendGone.
        """
        self._is_closed = True
        for answer in tuple(self._answers):
            answer.close()
        for session in (self._session, self._upload_session):
            if session is not None:
                await session.close()

    def _answer(self, *, wants_new: bool = False) -> HttpAnswer:
        answer = HttpAnswer(
            self._address, wants_new=wants_new, on_closed=self._answers.discard, **self._limits
        )
        self._answers.add(answer)
        return answer

    async def _ask(self, answer: HttpAnswer, call: BackendCall) -> None:
        """Send the call and wait for the answer's head; one that fails or is not waited for ends
        its connection.
        """
        try:
            url, headers = self._head(call.path, call.headers)
            await answer.ask(self._session_for(call), call, url, headers)
        except BaseException:
            answer.close()
            raise

    def _session_for(self, call: BackendCall) -> aiohttp.ClientSession:
        """An upload cannot be sent twice, so it takes no kept connection, which may be dead."""
        if call.upload is not None or call.form is not None:
            if self._upload_session is None:
                self._upload_session = open_session(**{**self._times, "kept_for_s": 0.0})
            return self._upload_session
        if self._session is None:
            self._session = open_session(**self._times)
        return self._session

    def _written(self, path: str, headers: Headers) -> tuple[URL, Fields]:
        """Where a request goes and the head that it has, but for the length of its body."""
        if not PATH.fullmatch(path):
            raise BadRequest("The path is not a plain URL path.")
        fields = [
            (name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
            for name, value in to_send(headers)
        ]
        url = URL(f"{self._origin}{self._prefix}{path}", encoded=True)
        return url, (*fields, *self._own_fields, ("Accept-Encoding", "identity"))


def _parsed(base_url: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError(["ollama.url: must look like http://127.0.0.1:11434"])
    return url


def to_send(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The caller's fields that a model server may see, names in lower case as given: none that
    could be a key.

    Raises BadRequest: a field carries a line break.
    """
    kept = _without(NOT_SENT, headers)
    if _LINE_BREAK.search(b"".join([part for field in kept for part in field])):
        raise BadRequest("A header contains a line break.")
    return kept


def to_return(fields: Sequence[tuple[bytes, bytes]]) -> Headers:
    """End-to-end fields of an answer in wire order; which pages may read it is for Hearth to say
    (`server.allowed_origins`).
    """
    kept = _without(NOT_RETURNED, fields)
    return tuple(
        [
            field
            for field in kept
            if field[0] == EMULATOR_HEADER or not field[0].startswith(WRITTEN_BY_HEARTH_PREFIXES)
        ]
    )


def _without(
    names: frozenset[bytes], fields: Sequence[tuple[bytes, bytes]]
) -> list[tuple[bytes, bytes]]:
    """All fields but those of these names, and those that belong to the connection because it says
    so (RFC 9110, section 7.6.1).
    """
    for name, value in fields:
        if name == b"connection":
            names = names.union(option.strip().lower() for option in value.split(b","))
    return [field for field in fields if field[0] not in names]


class HttpAnswer:
    """The `Exchange` of one call. Not to be shared between tasks, except that any task may `close`
    it.

    Args:
        wants_new: it is not to come on a connection that has carried another call.
        on_closed: hears when it is closed.
        max_body_bytes, max_line_bytes: of the answer in all, and of one line of a streamed one.
    """

    def __init__(
        self,
        address: str,
        *,
        wants_new: bool,
        on_closed: Callable[[HttpAnswer], None],
        max_body_bytes: int,
        max_line_bytes: int,
    ) -> None:
        self.status = 0
        self.headers: Headers = ()
        self._address = address
        self._wants_new = wants_new
        self._on_closed = on_closed
        self._max_body_bytes = max_body_bytes
        self._max_line_bytes = max_line_bytes
        self._request: UpstreamRequest | None = None
        self._response: aiohttp.ClientResponse | None = None
        self._body = aiohttp.EMPTY_PAYLOAD
        self._is_chunked = False
        self._is_framed = False
        self._is_streamed = False
        self._uploads = False
        self._part = b""
        self._read_bytes = 0
        self._line_bytes = 0
        self._ended = False
        self._closed = False
        self._error: BackendError | None = None

    @property
    def proved_dead(self) -> bool:
        """It was asked for on a kept connection, which ended before a byte of it came."""
        connection = self._connection
        return connection is not None and connection.calls > 1 and not connection.began

    @property
    def _connection(self) -> Connection | None:
        return None if self._request is None else self._request.connection

    async def ask(
        self, session: aiohttp.ClientSession, call: BackendCall, url: URL, headers: Fields
    ) -> None:
        """Send a call and wait for status and headers.

        Raises:
            BackendUnreachable: there is no connection. BackendGone: the connection ended before.
            BackendProtocolError: it is no HTTP, its head is too large, or it is an answer that is
            not for us. BadRequest: a header is not fit to be sent.
        """
        body: bytes | AsyncIterator[bytes] | None = call.upload or call.body or None
        self._uploads = call.upload is not None or call.form is not None
        if call.form is not None:
            body = call.form.pieces()
            headers = (*headers, ("Content-Length", str(call.form.size_bytes)))
        if len(call.body) > HOLD_BYTES:
            body = _pieces(call.body)
            headers = (*headers, ("Content-Length", str(len(call.body))))
        try:
            response = await session.request(
                call.method,
                url,
                headers=headers,
                data=body,
                allow_redirects=False,
                middlewares=(self._send,),
            )
        except ValueError as error:
            raise BadRequest("A header contains a character that cannot be sent.") from error
        self._take_head(response)

    def _take_head(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._body = response.content
        fields = [(name.lower(), value) for name, value in response.raw_headers]
        if response.status in REDIRECTS or not 200 <= response.status < 600:
            raise self._bad(f"answered {response.status}, which is not an answer.")
        if any(_is_encoded(name, value) for name, value in fields):
            raise self._bad("sent a Content-Encoding that was not requested.")
        names = dict(fields)
        self._is_chunked = b"transfer-encoding" in names
        self._is_framed = self._is_chunked or b"content-length" in names
        self._is_streamed = names.get(b"content-type", b"").lower().startswith(STREAMED)
        self.status = response.status
        self.headers = to_return(fields)
        if self._connection is not None:
            self._connection.carry(self._body)

    async def _send(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """As aiohttp's middleware: sees what the request is sent on, and keeps aiohttp from sending
        it twice.
        """
        self._request = cast("UpstreamRequest", request)
        self._request.wants_new = self._wants_new
        while True:
            try:
                return await handler(request)
            except UsedConnection:  # where one of those that were kept was dead, none is trusted
                continue
            except (aiohttp.ClientError, OSError) as error:
                raise self._meant_by(error) from error

    async def take(self) -> tuple[bytes, ...]:
        """The body in the backend's own HTTP chunks (large ones in pieces of at least 64 KiB); as
        it comes where it is not chunked.

        A body with neither chunks nor a length is whole wherever its connection ends (RFC 9112,
        section 6.3): only the terminator of its dialect tells.

        Raises:
            BackendGone: the body ended short of its framing. BackendProtocolError: the framing is
            garbage, or the body or one line of a stream is larger than any answer.
        """
        chunks: list[bytes] = []
        while not self._ended and not (chunks and self._read_bytes >= self._body.total_bytes):
            part, is_chunk_over = await self._next_part()
            self._part = self._part + part if self._part else part
            if (
                not self._is_chunked
                or is_chunk_over
                or self._ended
                or len(self._part) >= HOLD_BYTES
            ):
                chunk = self._part
                self._part = b""
                if chunk and self._fits(chunk):
                    chunks.append(chunk)
        if self._error is not None and not chunks:
            raise self._error.again()
        return tuple(chunks)

    async def _next_part(self) -> tuple[bytes, bool]:
        """What has come, no more than one chunk's; whether it is the end of a chunk."""
        if self._body.at_eof():
            self._end(None)
            return b"", True
        try:
            part, is_chunk_over = await self._body.readchunk()
        except aiohttp.ClientError as error:
            error.with_traceback(None)  # it would keep this frame, and so the whole answer
            self._end(self._meant_by(error))
            # aiohttp raises it before it hands out what had come, and has no public way to that.
            part = self._body._read_nowait(-1)  # noqa: SLF001
            is_chunk_over = False
        self._read_bytes += len(part)
        return part, is_chunk_over

    def _fits(self, chunk: bytes) -> bool:
        """Whether the answer is still no larger than any answer; one that is ends here."""
        size = len(chunk)
        if self._is_streamed:
            last_break = chunk.rfind(b"\n")
            self._line_bytes = size - last_break - 1 if last_break >= 0 else self._line_bytes + size
        if self._read_bytes <= self._max_body_bytes and self._line_bytes <= self._max_line_bytes:
            return True
        self._ended = True
        self._error = self._bad("sent an answer that is too long.")
        return False

    def _end(self, error: BackendError | None) -> None:
        """The first ending counts."""
        if self._ended:
            return
        self._ended = True
        connection = self._connection
        if connection is not None and connection.misframed is self._body:
            error = self._bad("sent a body with invalid framing.")
        elif connection is not None and connection.was_reset and not self._is_framed:
            error = BackendGone()  # to aiohttp such a body is whole, however its connection ends
        self._error = error

    def close(self) -> None:
        """Abort the connection, unless the answer is over and the connection is kept."""
        if self._closed:
            return
        self._closed = True
        self._on_closed(self)
        transport = None if self._request is None else self._request.transport
        if transport is None:
            return
        is_whole = self._response is not None and self._body.is_eof() and self.status
        # An answer may be there before all of an upload was sent.
        is_whole = is_whole and not self._uploads
        if not is_whole or transport.is_closing():
            transport.abort()
        if self._response is not None and not is_whole:
            self._response.close()

    def _meant_by(self, error: Exception) -> BackendError:
        """Ours for an error of aiohttp, whose own text has the URL."""
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return BackendUnreachable(
                f"The model server at {self._address} has a certificate that nobody vouches for."
            )
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return BackendUnreachable(f"The model server at {self._address} cannot be reached.")
        if isinstance(error, aiohttp.ClientResponseError):
            return self._bad("sent an invalid HTTP response.")
        return BackendGone()

    def _bad(self, what: str) -> BackendError:
        return BackendProtocolError(f"The model server at {self._address} {what}")


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A large body bit by bit: written at once it would hold the loop, and aiohttp warns of it."""
    for start in range(0, len(body), HOLD_BYTES):
        yield body[start : start + HOLD_BYTES]


def _is_encoded(name: bytes, value: bytes) -> bool:
    if name == b"content-encoding":
        return value.strip().lower() not in {b"", b"identity"}
    return name == b"transfer-encoding" and value.strip().lower() not in {b"chunked", b"identity"}
