"""One HTTP request as the handlers see it, once it has passed the door.

Must never hold a framework's object: `scope["path"]` is the only path there is, and no URL is ever rebuilt from headers. Built by
`api.app`; read by every handler.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from hearth.admission.auth import Identity
from hearth.admission.headers import RequestHeaders
from hearth.api.asgi import Answer, Departure, Receive, Scope, read_body
from hearth.config.settings import ServerSettings
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, MIB, RequestId, value

_REQUEST_ID = re.compile(rf"(?!(?:{JOB_PREFIX}|{BATCH_JOB_PREFIX})[0-9a-f]{{32}}\Z)[A-Za-z0-9_-]{{1,64}}".encode())
"""Not the id of a job: by that, the log tells what was counted when the job was taken from what is to be counted itself."""
_NOTHING: Scope = {}


@value
class Visit:
    """A request and the way to answer it.

    Attributes:
        path: decoded; target: path and query as they were sent, for forwarding.
        departure: tells when the caller leaves, where the server can; else only `receive` does.
    """

    method: str
    path: str
    target: str
    headers: RequestHeaders
    request_id: RequestId
    peer: str | None
    receive: Receive
    answer: Answer
    departure: Departure | None = None

    async def body(self, server: ServerSettings) -> bytes:
        """The whole body. Raises BodyTooLarge above `server.max_body_mib`, CallerGone."""
        limit_bytes = int(server.max_body_mib * MIB)
        return await read_body(self.receive, limit_bytes=limit_bytes, declared=self.headers.get(b"content-length"))


Handler = Callable[[Visit, Identity], Awaitable[None]]


def visit_of(scope: Scope, receive: Receive, answer: Answer, new_id: Callable[[], str]) -> Visit:
    """The request in an ASGI scope of type `http`; `new_id` names it where its caller does not.

    The fields are taken out of the scope, which lives as long as the request.
    """
    headers = RequestHeaders.of(scope.pop("headers"))
    client = scope.get("client")
    return Visit(
        method=scope["method"],
        path=scope["path"],
        target=_target(scope),
        headers=headers,
        request_id=_request_id(headers, new_id),
        peer=None if client is None else client[0],
        receive=receive,
        answer=answer,
        departure=scope.get("extensions", _NOTHING).get(Departure.EXTENSION),
    )


def _target(scope: Scope) -> str:
    path: str = scope["raw_path"].decode("latin-1")
    query: bytes = scope["query_string"]
    return f"{path}?{query.decode('latin-1')}" if query else path


def _request_id(headers: RequestHeaders, new_id: Callable[[], str]) -> RequestId:
    """The caller's own id where it is well formed, cannot disturb a log line and is none of a job's, else a new one."""
    own = headers.get(b"x-request-id")
    if own is not None and _REQUEST_ID.fullmatch(own):
        return RequestId(own.decode("ascii"))
    return RequestId(new_id())
