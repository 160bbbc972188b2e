"""One HTTP request as the handlers see it, and what a refused one is answered.

`scope["path"]` is the only path there is; no URL is ever rebuilt from headers.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

from hearth.admission.auth import (
    Identity,
)
from hearth.admission.http_checks import RequestHeaders
from hearth.admission.peers import WrongKeys, peer_of
from hearth.clock import Clock
from hearth.dialects.errors import ErrorReply, render_error
from hearth.dialects.routes import dialect_of
from hearth.errors import (
    HearthError,
    NotCapable,
    TooManyWrongKeys,
    UpgradeRefused,
    WrongKey,
)
from hearth.events import KeysTried, RequestRejected
from hearth.ports import EventSink
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, Headers, RequestId, value

if sys.version_info >= (3, 14):
    pass
else:
    pass

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
DISCONNECTED = "hearth.disconnected"
"""In the scope: a future that is done when the connection has ended.

To wait for that by `receive` would take a task of each request.
"""

CONNECTION = "hearth.connection"
"""In the scope of one that came over a socket: its transport."""
DATE = "hearth.date"
"""In the scope of one that came over a socket: gives the value of its answer's Date."""

_REQUEST_ID = re.compile(
    rf"(?!(?:{JOB_PREFIX}|{BATCH_JOB_PREFIX})[0-9a-f]{{32}}\Z)[A-Za-z0-9_-]{{1,64}}".encode()
)
"""Not the id of a job: by that, the log tells what was counted when the job was taken from what is
to be counted itself.
"""


class Responder:
    """One HTTP answer being written, with `added` header fields; after the caller has left every
    write returns without effect.

    `date` gives the Date of an answer that has none; the model server's own answers bring theirs.
    `of_refusal`: fields that only a refusal has.
    """

    __slots__ = ("_date", "_send", "added", "of_refusal", "started")

    def __init__(self, send: Send, date: Callable[[], bytes] | None = None) -> None:
        self._send = send
        self._date = date
        self.added: Headers = ()
        self.of_refusal: Headers = ()
        self.started = False

    async def head(self, status: int, headers: Headers) -> None:
        """Status line and headers, once."""
        await self.raw(
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
        is_head = message["type"] == "http.response.start"
        if is_head and self._date is not None:
            fields = list(message["headers"])
            if all(name != b"date" for name, _ in fields):
                fields.append((b"date", self._date()))
            message = {**message, "headers": fields}
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
    forwarding. `reads_chunks`: as every caller but those of HTTP/1.0.
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
    connection: asyncio.BaseTransport | None
    reads_chunks: bool

    @property
    def id_header(self) -> tuple[bytes, bytes]:
        """By which its answer says its id."""
        return b"x-request-id", self.request_id.encode("ascii")

    async def answer_json(self, body: bytes) -> None:
        """A whole answer of 200."""
        await self.answer.whole(
            200,
            (
                (b"content-type", b"application/json"),
                self.id_header,
            ),
            body,
        )


def request_of(
    scope: Scope,
    receive: Receive,
    send: Send,
    new_id: Callable[[], str],
    base_path: str = "",
    user_headers: frozenset[bytes] = frozenset(),
) -> Request:
    """The request in an ASGI scope of type `http`, without the `base_path` of a proxy.

    `new_id` names it where its caller does not, or not in a form that fits a log line.
    """
    headers = RequestHeaders.of(
        scope.pop("headers"),  # the scope lives as long as the request
        user_headers,
    )
    path = scope["raw_path"].decode("latin-1")
    query = scope["query_string"].decode("latin-1")
    client = scope.get("client")
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
        answer=Responder(send, scope.get(DATE)),
        disconnected=scope[DISCONNECTED],
        connection=scope.get(CONNECTION),
        reads_chunks=scope.get("http_version") != "1.0",
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


# Requests that get no further: an error in the dialect of the path, and the event that says so.

DEFAULT_RETRY_AFTER_S = 5.0
"""Where nobody computed any: a model server that is down is looked at that often."""
PATH_SHOWN = 200
"""Characters of a path that are logged."""
MODEL_SHOWN = 100
"""Characters of a model's name that are logged."""


def rendered(request: Request, error: HearthError, extra: Headers = ()) -> ErrorReply:
    """A refusal as a whole answer, with the request id, a Retry-After on every retryable 429 and
    503, and the `extra` header fields.

    A 400 ends the connection: where the request was not understood, neither is what follows it (RFC
    9112, 11.2). So does a 426, after which another protocol may follow, and a wrong key too many:
    the next one costs its sender a connection.
    """
    reply = render_error(dialect_of(request.path), error, request.request_id)
    headers = (*reply.headers, *request.answer.of_refusal, request.id_header, *extra)
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
        now = self._clock.monotonic()
        peer = peer_of(request.peer)
        if isinstance(error, WrongKey) and (slowed := self._wrong_keys.note(peer, now)) is not None:
            wait_s, wrong = slowed
            if wrong:
                self._events.emit(KeysTried(at=now, peer=peer, wrong=wrong))
            error = TooManyWrongKeys(retry_after_s=wait_s)
        if identity.admin:
            error = error.for_owner()
        self._events.emit(
            RequestRejected(
                at=now,
                request_id=request.request_id,
                caller=identity.caller,
                path=request.path[:PATH_SHOWN],
                status=error.status,
                reason=error.reason,
                model=error.model[:MODEL_SHOWN],
            )
        )
        if not request.answer.started:
            reply = rendered(request, error, extra)
            await request.answer.whole(reply.status, reply.headers, reply.body)
