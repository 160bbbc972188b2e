"""The data path to Ollama: bytes in, bytes out, one TCP connection per call.

It must never retry, follow a redirect, decode a body, read the environment's proxies, or set a timeout of its own beyond the
connection: the caller owns all of that. It knows HTTP but nothing of what the bytes say. Built by `bootstrap`, used by the executor.

Why one connection per call: leaving is how a generation is cancelled, a late answer on a reused connection would reach the next
caller, and llama-server closes after each stream while announcing keep-alive.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import hdrs
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tracing import Trace
from yarl import URL

from hearth.backends import headers as fields
from hearth.errors import BackendError, BackendGone, BackendProtocolError, BackendUnreachable, BadRequest, ConfigError
from hearth.types import BackendCall, Headers

MAX_HEADER_LINE_BYTES = 16 * 1024
MAX_LINE_BYTES = 16 * 1024**2
"""Of a streamed body; a native done line with the `context` of a long conversation takes a few MiB."""
MAX_BODY_BYTES = 1024**3
HOLD_BYTES = 64 * 1024
"""Parts of one HTTP chunk are joined up to this size."""
LARGE_BODY_BYTES = 1024**2
"""From here on the client wants a file, so that it can write in pieces."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})
STREAMED = (b"application/x-ndjson", b"text/event-stream")
NOT_OURS_TO_ADD = (hdrs.ACCEPT, hdrs.CONTENT_TYPE, hdrs.USER_AGENT)
PATH = re.compile(r"/[!-~]*")


class _OneCallConnector(aiohttp.TCPConnector):
    """Opens a connection per call and ends it by abort.

    An orderly close first flushes what is unsent, which never ends while the model server has stopped reading.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # the signature is aiohttp's
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        connection.add_callback(lambda: _abort(connection))
        return connection


def _abort(connection: Connection) -> None:
    if connection.transport is not None:
        connection.transport.abort()


def _as_backend_error(error: aiohttp.ClientError | OSError, address: str) -> BackendError:
    """Texts are ours: those of the library contain URLs, and a URL may contain a password."""
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)):
        return BackendUnreachable(f"The model server at {address} cannot be reached.")
    if isinstance(error, aiohttp.ClientResponseError):
        return BackendProtocolError(f"The model server at {address} sent something that is not an HTTP answer.")
    return BackendGone()


class OllamaExchange:
    """The `Exchange` of one call. Not to be shared between tasks, except that any task may `close` it."""

    def __init__(self, response: aiohttp.ClientResponse, *, address: str, max_body_bytes: int, max_line_bytes: int) -> None:
        self._response = response
        self._address = address
        self._max_body_bytes = max_body_bytes
        self._max_line_bytes = max_line_bytes
        self._headers = fields.to_return(response.raw_headers)
        self._framing = response.headers.get(hdrs.TRANSFER_ENCODING, "identity").strip().lower()
        self._is_streamed = self._field(b"content-type").startswith(STREAMED)
        self._body_bytes = 0
        self._line_bytes = 0
        self._watch()

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        return self._headers

    def check(self) -> None:
        """Refuse answers that are not for us.

        Raises:
            BackendProtocolError: it redirects, switches protocols, or is encoded although identity was asked for.
        """
        if self.status in REDIRECTS or self.status < 200:
            raise BackendProtocolError(f"The model server at {self._address} answered {self.status}, which is not an answer.")
        if self._field(b"content-encoding") not in {b"", b"identity"} or self._framing not in {"chunked", "identity"}:
            raise BackendProtocolError(f"The model server at {self._address} encoded its answer although it was told not to.")

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in the backend's own HTTP chunks (large ones in pieces of at least 64 KiB); as it comes where it is not chunked.

        A body with neither chunks nor a length is whole wherever its connection ends (RFC 9112, section 6.3): only the terminator of
        its dialect tells.

        Raises:
            BackendGone: the body ended short of its framing. What arrived together with the end of the connection may be missing.
            BackendProtocolError: the framing is garbage, or the body or one line of a stream is larger than any answer.
        """
        held = b""
        content = self._response.content
        try:
            while not content.at_eof():  # the client's own iteration spins for ever on an answer that has no body (HEAD, 204)
                part, is_whole = await content.readchunk()
                self._measure(part)
                held += part
                if held and (is_whole or self._framing != "chunked" or len(held) >= HOLD_BYTES):
                    ready, held = held, b""
                    yield ready
        except (aiohttp.ClientError, OSError) as error:
            if held:
                yield held
            raise _as_backend_error(error, self._address) from error

    def close(self) -> None:
        self._response.close()

    def _watch(self) -> None:
        """End the body with its connection: the client leaves a reader waiting for ever when it closes that itself.

        It does so where the framing turns into garbage, and when the session is closed.
        """
        connection = self._response.connection
        if connection is None or connection.protocol is None:
            return
        protocol = connection.protocol
        closed = protocol.closed
        if closed is None:
            self._end_unfinished(protocol.exception())
        else:
            closed.add_done_callback(lambda _: self._end_unfinished(protocol.exception()))

    def _end_unfinished(self, cause: BaseException | None) -> None:
        content = self._response.content
        if content.is_eof() or content.exception() is not None:
            return
        if isinstance(cause, HttpProcessingError):
            content.set_exception(BackendProtocolError(f"The model server at {self._address} sent a body with broken framing."))
        else:
            content.set_exception(BackendGone())

    def _field(self, wanted: bytes) -> bytes:
        return next((value.strip().lower() for name, value in self._headers if name == wanted), b"")

    def _measure(self, part: bytes) -> None:
        self._body_bytes += len(part)
        last_break = part.rfind(b"\n")
        self._line_bytes = len(part) - last_break - 1 if last_break >= 0 else self._line_bytes + len(part)
        if self._body_bytes > self._max_body_bytes or (self._is_streamed and self._line_bytes > self._max_line_bytes):
            raise BackendProtocolError(f"The model server at {self._address} sent more than an answer can be.")


class OllamaBackend:
    """`GenerationBackend` over HTTP/1.1.

    Args:
        base_url: `http://host:port`, with a path prefix where a proxy wants one.
        connect_timeout_s: name resolution and connection together.
        max_body_bytes: a larger body ends with BackendProtocolError.
        max_line_bytes: the same for one line of a streamed body.

    Raises:
        ConfigError: the URL is not an HTTP URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._address = _address_of(self._base_url)
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout_s)
        self._max_body_bytes = max_body_bytes
        self._max_line_bytes = max_line_bytes
        self._session: aiohttp.ClientSession | None = None

    async def open(self, call: BackendCall) -> OllamaExchange:
        """As the port says. Of the headers, hop-by-hop fields, Origin and everything that could be a caller's key stay here.

        Raises:
            BackendUnreachable: no connection within `connect_timeout_s`.
            BackendGone: the connection ended before a head was read.
            BackendProtocolError: a redirect, an encoded body, a head that is too large or no HTTP at all.
            BadRequest: the path or a header is not fit to be sent.
        """
        response = await self._send(call)
        exchange = OllamaExchange(response, address=self._address, max_body_bytes=self._max_body_bytes, max_line_bytes=self._max_line_bytes)
        try:
            exchange.check()
        except BackendProtocolError:
            exchange.close()
            raise
        return exchange

    async def aclose(self) -> None:
        """End all connections. The backend can be used again afterwards."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _send(self, call: BackendCall) -> aiohttp.ClientResponse:
        if not PATH.fullmatch(call.path):
            raise BadRequest("The path is not a plain URL path.")
        return await self._client().request(
            call.method,
            URL(self._base_url + call.path, encoded=True),
            headers=[*fields.to_send(call.headers), (hdrs.ACCEPT_ENCODING, "identity"), (hdrs.CONNECTION, "close")],
            data=_body(call),
            allow_redirects=False,
        )

    def _client(self) -> aiohttp.ClientSession:
        """Made on first use, since it belongs to the running event loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=_OneCallConnector(force_close=True, limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                skip_auto_headers=NOT_OURS_TO_ADD,
                auto_decompress=False,
                trust_env=False,
                raise_for_status=False,
                max_line_size=MAX_HEADER_LINE_BYTES,
                max_field_size=MAX_HEADER_LINE_BYTES,
                middlewares=(self._once,),
            )
        return self._session

    async def _once(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Wrapping errors here also keeps the client from repeating a GET whose connection broke."""
        try:
            return await handler(request)
        except (aiohttp.ClientError, OSError) as error:
            raise _as_backend_error(error, self._address) from error


def _body(call: BackendCall) -> bytes | io.BytesIO | None:
    if len(call.body) >= LARGE_BODY_BYTES:
        return io.BytesIO(call.body)
    return call.body or None


def _address_of(base_url: str) -> str:
    """Host and port, without user, password or path."""
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError(["ollama.url: must look like http://127.0.0.1:11434"])
    return f"{url.host}:{url.port}"
