"""One HTTP request as the handlers see it, its body, which is read only when everything else is
settled, and what a refused one is told.

`scope["path"]` is the only path there is; no URL is ever rebuilt from headers.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from functools import partial
from io import BytesIO
from typing import Any, Self, TypeVar

from hearth.admission.auth import (
    BodyRoom,
    Identity,
    check_rate,
    check_reading,
    count,
    is_limited,
    lane_of,
)
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.limits import ReadingTime
from hearth.admission.peers import WrongKeys, peer_of
from hearth.clock import Clock
from hearth.dialects.errors import ErrorReply, render_error
from hearth.dialects.gojson import LARGE_BYTES, check_structure
from hearth.dialects.routes import dialect_of
from hearth.errors import (
    BadRequest,
    BodyTooLarge,
    CallerGone,
    HearthError,
    NotCapable,
    RateLimited,
    TooManyWrongKeys,
    UpgradeRefused,
    WrongKey,
)
from hearth.events import KeysTried, RequestRejected
from hearth.gateway import Gateway
from hearth.ports import EventSink
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, MIB, Counted, Headers, Lane, RequestId, value

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
DISCONNECTED = "hearth.disconnected"
"""In the scope: a future that is done when the connection has ended.

To wait for that by `receive` would take a task of each request.
"""

T = TypeVar("T")

_REQUEST_ID = re.compile(
    rf"(?!(?:{JOB_PREFIX}|{BATCH_JOB_PREFIX})[0-9a-f]{{32}}\Z)[A-Za-z0-9_-]{{1,64}}".encode()
)
"""Not the id of a job: by that, the log tells what was counted when the job was taken from what is
to be counted itself.
"""
_SMALL_BYTES = 16 * 1024
"""However it is made up, such a body is parsed in a few milliseconds."""
_LONG_BYTES = 64 * 1024
"""Such a body is parsed in a thread, however it is made up."""
_FEW_VALUES = 5_000
"""What the event loop can parse at once: some 5 ms."""
_MAX_DECODED_MIB = 20
"""Ollama's own limit of a body that came with `Content-Encoding: zstd`."""
_WINDOW_LOG_MAX = 25
"""A window of 32 MiB: no encoder needs more for so much, and the header of a body says how much
memory is to be taken for it.
"""


class Responder:
    """One HTTP answer being written, with `added` header fields; after the caller has left every
    write returns without effect.
    """

    __slots__ = ("_send", "added", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.added: Headers = ()
        self.started = False

    async def head(self, status: int, headers: Headers) -> None:
        """Status line and headers, once."""
        self.started = True
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *self.added]}
        )

    async def chunk(self, data: bytes) -> None:
        """One piece of the body, as one HTTP chunk where the answer is chunked.

        Waits while the socket is full.
        """
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, last: bytes = b"") -> None:
        """The body is complete, with `last` as its last piece."""
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        """A complete answer; Content-Length is added."""
        await self.head(status, (*headers, (b"content-length", b"%d" % len(body))))
        await self.end(body)

    async def raw(self, message: Message) -> None:
        """An ASGI message as another framework made it."""
        self.started = True
        await self._send(message)


async def until_disconnected(
    disconnected: asyncio.Future[None], work: Coroutine[Any, Any, None]
) -> None:
    """Run `work`, and cancel it when the caller leaves first; returns when its cleanup has run.

    Raises what it raises.
    """
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        working.cancel()
        await asyncio.wait({working})


@value
class Request:
    """A request and the way to answer it; `target` is path and query as they were sent, for
    forwarding.
    """

    method: str
    path: str
    target: str
    headers: RequestHeaders
    request_id: RequestId
    peer: str | None
    receive: Receive
    answer: Responder
    disconnected: asyncio.Future[None]

    async def answer_json(self, body: bytes) -> None:
        """A whole answer of 200."""
        await self.answer.whole(
            200,
            (
                (b"content-type", b"application/json"),
                (b"x-request-id", self.request_id.encode("ascii")),
            ),
            body,
        )


def request_of(
    scope: Scope,
    receive: Receive,
    send: Send,
    new_id: Callable[[], str],
    base_path: str = "",
) -> Request:
    """The request in an ASGI scope of type `http`, without the `base_path` of a proxy.

    `new_id` names it where its caller does not, or not in a form that fits a log line.
    """
    headers = RequestHeaders.of(scope.pop("headers"))  # the scope lives as long as the request
    path, query, client = (
        scope["raw_path"].decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        scope.get("client"),
    )
    decoded: str = scope["path"]
    if base_path and (length := _length_of(base_path, path)):  # it has no escapes
        slash = "" if length == len(base_path) else "/"  # one too many leads to a redirect
        path = slash + (path[length:] or "/")
        decoded = slash + (decoded[length:] or "/")
    own = headers.values.get(b"x-request-id", b"")
    return Request(
        method=scope["method"],
        path=decoded,
        target=f"{path}?{query}" if query else path,
        headers=headers,
        request_id=RequestId(own.decode("ascii") if _REQUEST_ID.fullmatch(own) else new_id()),
        peer=None if client is None else client[0],
        receive=receive,
        answer=Responder(send),
        disconnected=scope[DISCONNECTED],
    )


def _length_of(base_path: str, path: str) -> int:
    """How much of the beginning of `path` is the base path, which may have slashes too many; 0 if
    none.
    """
    if f"{path}/".startswith(f"{base_path}/"):
        return len(base_path)
    if "//" not in path:
        return 0
    found = re.match(re.escape(base_path).replace("/", "/+") + "(?![^/])", path)
    return 0 if found is None else found.end()


class Bodies:
    """The bodies of all requests: how much is held of them, and whose turn it is to be parsed where
    they are large, in each lane.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.room = BodyRoom()
        self.reading = ReadingTime()
        self.turns = {lane: asyncio.Lock() for lane in Lane}


class Body:
    """The body of one request, as a context that ends when nobody holds the body any more."""

    __slots__ = (
        "_bodies",
        "_cpu_s",
        "_held_bytes",
        "_identity",
        "_lane",
        "_recheck",
        "_request",
        "is_large",
        "is_long",
    )

    def __init__(self, bodies: Bodies, request: Request, identity: Identity) -> None:
        self._bodies = bodies
        self._request = request
        self._identity = identity
        self._lane = lane_of(identity, request.headers.text(b"x-task-type"))
        self._held_bytes = 0
        self._cpu_s = 0.0
        """What its reading took and is not counted yet."""
        self._recheck: Callable[[], None] = lambda: None
        self.is_long = False
        """What is made of it takes so long that it is made in a thread; known once it is parsed."""
        self.is_large = False
        """It is written and hashed in pieces; known then, too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0)

    def check_ahead(self, *, queued: bool = True, counted: Counted = "requests") -> None:
        """What refuses a request whatever its body says; for a long body once more before it is
        parsed.

        Raises RateLimited, and for what is `queued` ShuttingDown, Draining, QueueFull.
        """
        gateway = self._bodies.gateway
        now = gateway.clock.monotonic()
        check_rate(self._identity, self._lane, gateway.rate_limiter, now, counted)
        check_reading(self._identity, self._lane, gateway.rate_limiter, self._bodies.reading, now)
        if queued:
            gateway.worker.admission.check()
            if gateway.cloud is None or not gateway.cloud.open_to(self._identity):
                gateway.worker.check_depth(self._lane, self._identity.caller)
        self._recheck = partial(self.check_ahead, queued=queued, counted=counted)

    async def read(self, *, limit_bytes: int = 0) -> bytes:
        """The whole body, decoded; at most `limit_bytes`, 0 for `server.max_body_mib`.

        Raises HearthError.
        """
        max_bytes = int(self._bodies.gateway.config.settings.server.max_body_mib * MIB)
        try:
            body = await self._received(limit_bytes or max_bytes)
        except BodyTooLarge:
            text = (
                f"The request body is larger than {limit_bytes // 1024} KiB, which is the limit"
                " here."
                if limit_bytes
                else None
            )
            raise BodyTooLarge(text) from None
        self.hold(len(body))
        if self._request.headers.text(b"content-encoding").lower() == "zstd":
            body = await self._decoded(body, min(max_bytes, _MAX_DECODED_MIB * MIB))
            self.hold(len(body))
        return body

    async def _received(self, limit_bytes: int) -> bytes:
        """The declared length may refuse a body before it is read, but is never believed to be
        true.
        """
        declared = self._request.headers.values.get(b"content-length", b"")
        body = BytesIO()  # whose value is no copy, as joined parts would be
        size, more = int(declared[:20]) if declared.isdigit() else 0, True
        while more and size <= limit_bytes:
            if size > self._held_bytes:
                self.hold(size)
            message = await self._request.receive()
            if message["type"] == "http.disconnect":
                raise CallerGone
            body.write(message.get("body", b""))
            size, more = body.tell(), message.get("more_body", False)
        if size > limit_bytes:
            raise BodyTooLarge
        return body.getvalue()

    async def parsed(self, read: Callable[[bytes], T], body: bytes) -> T:
        """What `read` makes of the body: in a thread where it is long.

        Raises what `read` does, BadRequest for JSON of too many values.
        """
        self.is_large = len(body) > LARGE_BYTES
        self.is_long = len(body) > _SMALL_BYTES and (
            len(body) > _LONG_BYTES or check_structure(body) > _FEW_VALUES
        )
        return await self.run(
            partial(_checked, read, body) if self.is_long else partial(read, body)
        )

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` makes of a parsed body; in a thread, one at a time, where that takes long."""
        if self.is_long:
            async with self._bodies.turns[self._lane]:
                self._recheck()  # many may have come while it was read and had to wait
                return await self._in_thread(work)
        try:
            return self._timed(work)
        finally:
            self._count_reading()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """What is refused there counts against the rate limit: nothing else keeps its sender from
        sending the next one.
        """
        gateway = self._bodies.gateway
        try:
            return await asyncio.to_thread(self._timed, work)
        except HearthError:
            with suppress(RateLimited):
                count(self._identity, self._lane, gateway.rate_limiter, gateway.clock.monotonic())
            raise
        finally:
            self._count_reading()

    def _timed(self, work: Callable[[], T]) -> T:
        """What `work` makes of a body; what it takes counts, whatever comes of it."""
        cpu = self._bodies.gateway.clock.thread_cpu
        began_at = cpu()
        try:
            return work()
        finally:
            self._cpu_s += cpu() - began_at

    def _count_reading(self) -> None:
        gateway = self._bodies.gateway
        cpu_s, self._cpu_s = self._cpu_s, 0.0
        if is_limited(self._identity, self._lane, gateway.rate_limiter):
            self._bodies.reading.add(self._identity.caller, cpu_s, gateway.clock.monotonic())

    def hold(self, size_bytes: int) -> None:
        """So many bytes are held from now on. Raises NoRoomForBodies."""
        if size_bytes != self._held_bytes:
            server = self._bodies.gateway.config.settings.server
            # a caller's share is three eighths
            limit_bytes = int(max(server.max_bodies_mib, 3 * server.max_body_mib) * MIB)
            self._bodies.room.take(
                self._lane, self._identity.caller, size_bytes - self._held_bytes, limit_bytes
            )
            self._held_bytes = size_bytes

    async def _decoded(self, body: bytes, limit_bytes: int) -> bytes:
        """A piece at a time: a few bytes may stand for gigabytes."""
        decompressor = zstd.ZstdDecompressor(
            options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG_MAX}
        )
        decoded = BytesIO()
        try:
            while not decompressor.eof:
                piece = await asyncio.to_thread(
                    self._timed, partial(decompressor.decompress, body, MIB)
                )
                body = b""
                self.hold(self._held_bytes + len(piece))
                decoded.write(piece)
                if decoded.tell() > limit_bytes:
                    raise BodyTooLarge(
                        f"the body is longer than {limit_bytes // MIB} MiB after decompression"
                    )
                if not piece and decompressor.needs_input:
                    raise BadRequest("the zstd body is truncated")
        except zstd.ZstdError as error:
            raise BadRequest("the body is not valid zstd") from error
        finally:
            self._count_reading()
        return decoded.getvalue()


def _checked(read: Callable[[bytes], T], body: bytes) -> T:
    check_structure(body)
    return read(body)


# Requests that get no further: an error in the dialect of the path, and the event that says so.

DEFAULT_RETRY_AFTER_S = 5.0
"""Where nobody computed any: a model server that is down is looked at that often."""
PATH_SHOWN = 200
"""Characters of a path that are logged."""


def rendered(request: Request, error: HearthError, extra: Headers = ()) -> ErrorReply:
    """A refusal as a whole answer, with the request id, a Retry-After on every retryable 429 and
    503, and the `extra` header fields.

    A 400 ends the connection: where the request was not understood, neither is what follows it (RFC
    9112, 11.2). So does a 426, after which another protocol may follow, and a wrong key too many:
    the next one costs its sender a connection.
    """
    reply = render_error(dialect_of(request.path), error, request.request_id)
    headers = (*reply.headers, (b"x-request-id", request.request_id.encode("ascii")), *extra)
    if error.retryable and error.retry_after_s is None and error.status in (429, 503):
        headers = (*headers, (b"retry-after", b"%d" % DEFAULT_RETRY_AFTER_S))
    if isinstance(error, UpgradeRefused):
        # a 426 names the protocol that there is (RFC 9110, 15.5.22)
        headers = (*headers, (b"upgrade", b"HTTP/1.1"))
    is_unclear = error.status == 400 and not isinstance(error, NotCapable)
    if is_unclear or error.status == 426 or isinstance(error, TooManyWrongKeys):
        headers = (*headers, (b"connection", b"close"))
    return ErrorReply(status=reply.status, headers=headers, body=reply.body)


class ErrorResponder:
    """Refuses requests, and emits an event for each."""

    def __init__(self, events: EventSink, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._wrong_keys = WrongKeys()

    async def refuse(
        self, request: Request, identity: Identity, error: HearthError, extra: Headers = ()
    ) -> None:
        """Refuse a request.

        An answer that has begun stays unfinished, and the server closes the connection.
        """
        now, peer = self._clock.monotonic(), peer_of(request.peer)
        if isinstance(error, WrongKey) and (slowed := self._wrong_keys.note(peer, now)) is not None:
            wait_s, wrong = slowed
            if wrong:
                self._events.emit(KeysTried(at=now, peer=peer, wrong=wrong))
            error = TooManyWrongKeys(retry_after_s=wait_s)
        self._events.emit(
            RequestRejected(
                at=now,
                request_id=request.request_id,
                caller=identity.caller,
                path=request.path[:PATH_SHOWN],
                status=error.status,
                reason=error.reason,
            )
        )
        if not request.answer.started:
            reply = rendered(request, error, extra)
            await request.answer.whole(reply.status, reply.headers, reply.body)
