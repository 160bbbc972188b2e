"""One exchange on the emulated wire: the fields of the body, and the answer with exactly the
headers, in the order, of Go's net/http.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from math import inf

from aiohttp import hdrs, web
from multidict import CIMultiDict

from hearth.dialects.errors import error_object
from hearth.dialects.gojson import MAX_INT, Body, JsonObject, decode, encode
from hearth.dialects.request import keep_alive_ns
from hearth.dialects.routes import INFERENCE_ROUTES, dialect_of
from hearth.dialects.writers import rfc3339
from hearth.emulator.engine import EmulatedServer
from hearth.emulator.models import OllamaError
from hearth.errors import BadRequest

JSON_UTF8 = "application/json; charset=utf-8"
JSON = "application/json"
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"
_GO_WRITES_LAST = (hdrs.DATE, hdrs.CONTENT_LENGTH, hdrs.CONNECTION, hdrs.TRANSFER_ENCODING)
_LAST_WALL_S = 1.8e9 + MAX_INT / 1e9


def keep_alive_s(body: Body) -> float | None:
    """Seconds of the `keep_alive`: None if absent, infinity for any negative value."""
    asked_ns = keep_alive_ns(body.get("keep_alive"))
    return inf if asked_ns == MAX_INT else None if asked_ns is None else asked_ns / 1e9


class EmulatedCall:
    """One request and its answer: either `whole` once, or `prepare` and then `send` any number of
    times.

    Attributes:
        received_at: seconds on the monotonic clock, when the request head was complete.
        headers: what is added to whatever answer follows.
    """

    def __init__(
        self, request: web.Request, engine: EmulatedServer, received_at: float, body: bytes
    ) -> None:
        self._request = request
        self._prepared: web.StreamResponse | None = None
        self._response: web.StreamResponse | None = None
        self.engine = engine
        self.catalogue = engine.catalogue
        self.received_at = received_at
        self.body = body
        self.headers: CIMultiDict[str] = CIMultiDict()
        self.dialect = dialect_of(request.path)

    @property
    def native(self) -> bool:
        return self.dialect == "ollama"

    @property
    def tail(self) -> str:
        """The last part of the path where the route has a variable one."""
        return self._request.match_info["tail"]

    @property
    def started(self) -> bool:
        """Bytes are on the wire; the status can no longer change."""
        return self._response is not None

    def read(self) -> Body:
        """The fields of the body; raises BadRequest where there is none, or no JSON object."""
        if not self.body.strip():
            raise BadRequest("missing request body" if self.native else "EOF")
        route = INFERENCE_ROUTES.get(self._request.path)
        return Body(decode(self.body), within="" if route is None else f"{route.name}.")

    def prepare(self, content_type: str, *, status: int = 200) -> None:
        """Decide the head of a streamed answer; nothing is sent before the first chunk."""
        self._prepared = web.StreamResponse(status=status, headers=self._headers(content_type))

    async def send(self, chunks: Iterable[bytes]) -> None:
        """Send each as one HTTP chunk; waits while the reader is far behind.

        Raises CancelledError where the caller has left: aiohttp cancels the handler then, but may
        not have done so yet.
        """
        for chunk in chunks:
            response = await self._begun()
            try:
                await response.write(chunk)
            except ConnectionError as left:
                raise asyncio.CancelledError from left

    async def whole(
        self, body: bytes = b"", content_type: str | None = None, *, status: int = 200
    ) -> None:
        """Send a complete answer with Content-Length."""
        self._response = web.Response(status=status, body=body, headers=self._headers(content_type))
        await self._response.prepare(self._request)

    async def json(self, value: JsonObject) -> None:
        """A native answer has a charset and no newline; those of `/v1` routes have a newline and no
        charset.
        """
        await self.written(encode(value))

    async def written(self, body: bytes) -> None:
        """As `json`, for a value that is JSON already."""
        await self.whole(body + (b"" if self.native else b"\n"), JSON_UTF8 if self.native else JSON)

    async def refuse(self, error: BadRequest | OllamaError) -> None:
        """The error as the whole answer, in the caller's dialect."""
        body = encode(error_object(self.dialect, error, self.engine.hex_id("req_", 24)))
        native = self.native or isinstance(error, BadRequest)
        await self.whole(
            body if native else body + b"\n", JSON_UTF8 if native else JSON, status=error.status
        )

    async def break_off(self, error: OllamaError) -> None:
        """End a native stream with its error: its last line, or the whole answer where nothing of
        it has been sent.
        """
        body = encode(error_object("ollama", error))
        if self.started:
            body += b"\n"
        else:
            self.prepare(JSON, status=error.status)
        await self.send([body])

    async def finish(self) -> web.StreamResponse:
        """End the answer; a stream that never began is sent as an empty one."""
        response = await self._begun()
        await response.write_eof()
        return response

    async def _begun(self) -> web.StreamResponse:
        if self._response is None:
            self._response = self._prepared or web.Response()
            await self._response.prepare(self._request)
        return self._response

    def _headers(self, content_type: str | None) -> CIMultiDict[str]:
        return CIMultiDict(
            [*self.headers.items(), *([(hdrs.CONTENT_TYPE, content_type)] if content_type else [])]
        )


def with_rows(before: JsonObject, name: str, rows: Sequence[bytes], after: JsonObject) -> bytes:
    """An object with these fields, and between them an array of what is JSON already: of many rows,
    no call takes long.
    """
    parts = [
        encode(before)[1:-1],
        encode(name) + b":[" + b",".join(rows) + b"]",
        encode(after)[1:-1],
    ]
    return b"{" + b",".join(filter(None, parts)) + b"}"


CallHandler = Callable[[EmulatedCall], Awaitable[None]]


async def write_headers_like_go(_request: web.Request, response: web.StreamResponse) -> None:
    """Drop what net/http does not send and sort the rest as it does: set ones by name, then its
    own.
    """
    headers = response.headers
    headers.popall(hdrs.SERVER, None)
    if isinstance(response, web.Response) and not response.body:
        headers.popall(hdrs.CONTENT_TYPE, None)
    own = [(name, value) for name in _GO_WRITES_LAST for value in headers.popall(name, [])]
    rest = sorted(headers.items(), key=lambda pair: pair[0])
    headers.clear()
    headers.extend([*rest, *own])


def timestamp(wall_s: float) -> str:
    """RFC 3339; infinity is where Go's largest duration ends, about the year 2318."""
    return rfc3339(min(wall_s, _LAST_WALL_S))
