"""An error looks like the errors of the server its caller believes to speak to."""

from __future__ import annotations

import json
from typing import Any

from hearth.dialects.errors import render_error, stream_error
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import (
    BackendTimeout,
    BadRequest,
    BodyTooLarge,
    Forbidden,
    HearthError,
    QueueFull,
    RateLimited,
    ShuttingDown,
    Unauthenticated,
    UnsupportedMedia,
)
from hearth.types import Dialect, RequestId
from tests.support.cases import for_each

REQUEST_ID = RequestId("req_0123456789abcdef")


def rendered(dialect: Dialect, error: HearthError) -> dict[str, Any]:
    body = json.loads(render_error(dialect, error, REQUEST_ID).body)
    assert isinstance(body, dict)
    return body


@for_each(
    ("error", "openai", "anthropic"),
    [
        (Unauthenticated(), "authentication_error", "authentication_error"),
        (Forbidden(), "permission_error", "permission_error"),
        (BodyTooLarge(), "invalid_request_error", "request_too_large"),
        (UnsupportedMedia(), "invalid_request_error", "invalid_request_error"),
        (RateLimited(), "rate_limit_error", "rate_limit_error"),
        (ShuttingDown(), "api_error", "overloaded_error"),
        (BackendTimeout(), "api_error", "timeout_error"),
        (HearthError(), "api_error", "api_error"),
    ],
)
def test_what_ollama_never_answers_has_the_types_of_the_original_apis(error: HearthError, openai: str, anthropic: str) -> None:
    assert rendered(Dialect.OPENAI, error)["error"]["type"] == openai
    assert rendered(Dialect.ANTHROPIC, error)["error"]["type"] == anthropic
    shown_by_the_cli = {"status": error.message} if error.status == 401 else {}
    assert rendered(Dialect.OLLAMA, error) == {"error": error.message, **shown_by_the_cli}


def test_an_anthropic_error_carries_the_request_id() -> None:
    assert rendered(Dialect.ANTHROPIC, RateLimited())["request_id"] == REQUEST_ID


def test_a_native_error_is_always_a_plain_string() -> None:
    assert rendered(Dialect.OLLAMA, BadRequest('{"a": "<b>"}')) == {"error": '{"a": "<b>"}'}


@for_each(("seconds", "header"), [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (59.5, b"60")])
@for_each("dialect", list(Dialect))
def test_a_known_delay_is_rounded_up_to_whole_seconds(dialect: Dialect, seconds: float, header: bytes) -> None:
    reply = render_error(dialect, QueueFull(retry_after_s=seconds), REQUEST_ID)
    assert dict(reply.headers)[b"retry-after"] == header


def test_without_a_known_delay_there_is_no_retry_after() -> None:
    assert b"retry-after" not in dict(render_error(Dialect.OLLAMA, QueueFull(), REQUEST_ID).headers)


def test_a_missing_key_names_the_scheme_to_use() -> None:
    assert dict(render_error(Dialect.OPENAI, Unauthenticated(), REQUEST_ID).headers)[b"www-authenticate"] == b"Bearer"


@for_each("path", sorted(INFERENCE_ROUTES))
def test_an_error_inside_a_stream_is_one_frame_whatever_its_text(path: str) -> None:
    frame = stream_error(INFERENCE_ROUTES[path], BadRequest("a\n\ndata: [DONE]\r\n\u2028b"), REQUEST_ID)
    lines = frame.rstrip(b"\n").split(b"\n")
    payload = json.loads(lines[-1].removeprefix(b"data: "))
    assert len(lines) <= 2
    assert "a\n\ndata: [DONE]\r\n\u2028b" in (payload["error"], payload["error"]["message"] if isinstance(payload["error"], dict) else "")
