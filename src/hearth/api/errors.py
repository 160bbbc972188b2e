"""Answers to requests that get no further: an error in the dialect of the path, and the event that says so."""

from __future__ import annotations

from hearth.admission.auth import Identity
from hearth.admission.peers import WrongKeys, peer_of
from hearth.api.request import Request
from hearth.clock import Clock
from hearth.dialects.errors import ErrorReply, render_error
from hearth.dialects.routes import dialect_of
from hearth.errors import HearthError, TooManyWrongKeys, UpgradeRefused, WrongKey
from hearth.events import KeysTried, RequestRejected
from hearth.ports import EventSink
from hearth.types import Headers

DEFAULT_RETRY_AFTER_S = 5.0
"""Where nobody computed any: a model server that is down is looked at that often."""
PATH_SHOWN = 200
"""Characters of a path that are logged."""


def rendered(request: Request, error: HearthError, extra: Headers = ()) -> ErrorReply:
    """A refusal as a whole answer, with the request id, a Retry-After on every retryable 429 and 503, and the `extra` header fields.

    A 400 ends the connection: where the request was not understood, neither is what follows it (RFC 9112, 11.2). So does a 426, after
    which another protocol may follow, and a wrong key too many: the next one costs its sender a connection.
    """
    reply = render_error(dialect_of(request.path), error, request.request_id)
    headers = (*reply.headers, (b"x-request-id", request.request_id.encode("ascii")), *extra)
    if error.retryable and error.retry_after_s is None and error.status in (429, 503):
        headers = (*headers, (b"retry-after", b"%d" % DEFAULT_RETRY_AFTER_S))
    if isinstance(error, UpgradeRefused):
        headers = (*headers, (b"upgrade", b"HTTP/1.1"))  # a 426 names the protocol that there is (RFC 9110, 15.5.22)
    if error.status in (400, 426) or isinstance(error, TooManyWrongKeys):
        headers = (*headers, (b"connection", b"close"))
    return ErrorReply(status=reply.status, headers=headers, body=reply.body)


class ErrorResponder:
    """Refuses requests, and emits an event for each."""

    def __init__(self, events: EventSink, clock: Clock) -> None:
        self._events = events
        self._clock = clock
        self._wrong_keys = WrongKeys()

    async def refuse(self, request: Request, identity: Identity, error: HearthError, extra: Headers = ()) -> None:
        """Refuse a request. An answer that has begun stays unfinished, and the server closes the connection."""
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
