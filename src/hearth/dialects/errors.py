"""Errors in the words of each dialect: as a whole answer, and inside a stream that has already
begun.

Every caller must be able to treat Hearth's refusals like those of the server it believes to speak
to, so the shapes are Ollama's own (openai/openai.go and anthropic/anthropic.go, `NewError`), with
the types that the official clients know for what Ollama never answers itself (401, 403, 413, 429).
Must never invent a message: it renders `error.message` as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType

from hearth.dialects.frames import event
from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.request import INVALID_INPUT, INVALID_NAME, MODEL_REQUIRED
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import HearthError, MethodNotAllowed, NotCapable, Unauthenticated
from hearth.types import Dialect, Headers, RequestId, frozen

_UNCACHED_FIRST = frozenset({Endpoint.OPENAI_RESPONSES, Endpoint.ANTHROPIC_MESSAGES})
PAGE_NOT_FOUND = "404 page not found"
"""The message of a NotFound for an address that does not exist; rendered as plain text, as Ollama
does.
"""

_OPENAI_TYPES: Mapping[int, str] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
)
_SAID_BY_HANDLERS: Mapping[Dialect, frozenset[str]] = MappingProxyType(
    {
        "openai": frozenset({MODEL_REQUIRED, INVALID_NAME, INVALID_INPUT}),
        "anthropic": frozenset({INVALID_NAME}),
    }
)
"""400s that Ollama finds only after its `/v1` middleware has let the body pass: it frames them like
its other errors.
"""

_OPENAI_CODES: Mapping[int, str] = MappingProxyType(
    {401: "invalid_api_key", 429: "rate_limit_exceeded"}
)
_ANTHROPIC_TYPES: Mapping[int, str] = MappingProxyType(
    {
        **_OPENAI_TYPES,
        413: "request_too_large",
        503: "overloaded_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
)


@frozen
class ErrorReply:
    """A whole HTTP answer: status, headers with `content-type` first, body."""

    status: int
    headers: Headers
    body: bytes


def render_error(dialect: Dialect, error: HearthError, request_id: RequestId) -> ErrorReply:
    """The answer to a request that failed before any byte of its answer was sent; with
    `Retry-After` where the error has one.
    """
    by_handler = isinstance(error, NotCapable) or error.message in _SAID_BY_HANDLERS.get(
        dialect, ()
    )
    at_bind = error.status == 400 and not by_handler
    body = encode(error_object(dialect, error, request_id))
    if isinstance(error, MethodNotAllowed) or error.message == PAGE_NOT_FOUND:
        content_type = b"text/plain"
        body = error.message.encode(errors="replace")
    elif dialect == "ollama" or at_bind:
        content_type = b"application/json; charset=utf-8"
    else:
        content_type = b"application/json"
        body = body + b"\n"
    headers: list[tuple[bytes, bytes]] = [(b"content-type", content_type)]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    return ErrorReply(status=error.status, headers=tuple(headers), body=body)


def refused_stream_headers(route: Route) -> Headers:
    """What a refusal has beside it where a stream was asked for: two of Ollama's layers set the
    header of their streams before the model is looked for.
    """
    return ((b"cache-control", b"no-cache"),) if route.path in _UNCACHED_FIRST else ()


def stream_error(
    route: Route, error: HearthError, request_id: str = "", *, number: int = 0
) -> bytes:
    """The last bytes of a stream that cannot go on: one line or frame that makes the official
    client raise instead of stopping quietly.

    `number`: of this frame, in a dialect that numbers them.
    """
    shape = error_object(route.dialect, error, request_id)
    if route.is_native:
        return encode(shape) + b"\n"
    if route.dialect == "anthropic":
        return event(shape)
    if route.path is Endpoint.OPENAI_RESPONSES:
        flat: JsonObject = {
            "type": "error",
            "code": error.reason,
            "message": error.message,
            "param": None,
            "sequence_number": number,
        }
        return event({**flat, **shape})
    return b"data: " + encode(shape) + b"\n\n"


def error_object(dialect: Dialect, error: HearthError, request_id: str = "") -> JsonObject:
    """The error in the shape of the dialect; `request_id` appears in Anthropic's only, where there
    is one.
    """
    if dialect == "ollama":
        # Of a 401 the `ollama` command shows `status` alone (`AuthorizationError` in api/types.go),
        # else "something went wrong".
        shown: JsonObject = (
            {"status": error.message} if error.status == HTTPStatus.UNAUTHORIZED else {}
        )
        return {"error": error.message, **shown}
    if dialect == "openai":
        code = _OPENAI_CODES.get(error.status)
        return {
            "error": {
                "message": error.message,
                "type": _type(_OPENAI_TYPES, error.status),
                "param": None,
                "code": code,
            }
        }
    kind = _type(_ANTHROPIC_TYPES, error.status)
    named: JsonObject = {"request_id": request_id} if request_id else {}
    return {"type": "error", "error": {"type": kind, "message": error.message}, **named}


def _type(types: Mapping[int, str], status: int) -> str:
    return types.get(status, "invalid_request_error" if 400 <= status < 500 else "api_error")
