"""An error looks like the errors of the server its caller believes to speak to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hearth.dialects.embedding import single_input, split_answer
from hearth.dialects.errors import render_error, stream_error
from hearth.dialects.request import count_tokens, read_request
from hearth.dialects.routes import COUNT_TOKENS_PATH, INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES, Endpoint, dialect_of
from hearth.dialects.stream import completion_call, read_completion
from hearth.errors import (
    BackendProtocolError,
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
from hearth.types import Dialect, LoadOptions, RequestId, WorkKind
from tests.dialects.captured import captured
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


def test_every_endpoint_has_one_route_under_its_own_path_and_no_address_is_in_two_tables() -> None:
    assert list(INFERENCE_ROUTES) == [route.path for route in INFERENCE_ROUTES.values()] == list(Endpoint)
    paths = [*INFERENCE_ROUTES, *INFO_ROUTES, *MANAGEMENT_ROUTES]
    assert len(paths) == len(set(paths))


@for_each(
    ("path", "dialect"),
    [
        *((path, route.dialect) for path, route in INFERENCE_ROUTES.items()),
        *((path, Dialect.OLLAMA) for path in ("/", "/api/nope", "/llm/queue/status", "/v10")),
        *((path, Dialect.OPENAI) for path in ("/v1", "/v1/models", "/v1/models/messages", "/v1/messagesx")),
        *((path, Dialect.ANTHROPIC) for path in ("/v1/messages", COUNT_TOKENS_PATH)),
    ],
)
def test_any_path_has_a_dialect_for_its_errors(path: str, dialect: Dialect) -> None:
    assert dialect_of(path) is dialect


def test_a_completion_call_asks_generate_for_one_whole_answer() -> None:
    call = completion_call(b'"say <hi>"', "llama3.1:8b", None)
    assert (call.method, call.path) == ("POST", "/api/generate")
    assert call.headers == ((b"content-type", b"application/json"),)
    assert json.loads(call.body) == {"model": "llama3.1:8b", "prompt": "say <hi>", "stream": False}


def test_a_completion_call_carries_its_limit_and_its_format() -> None:
    call = completion_call(b'"x"', "a", 40, json_mode=True)
    assert json.loads(call.body) == {"model": "a", "prompt": "x", "stream": False, "format": "json", "options": {"num_predict": 40}}


def test_a_completion_call_is_a_body_that_the_gateway_itself_would_accept() -> None:
    call = completion_call(b'"hello"', "a", 40)
    envelope, _ = read_request(INFERENCE_ROUTES[call.path], call.body, lambda _model: LoadOptions())
    assert (envelope.kind, envelope.streaming, envelope.max_tokens) == (WorkKind.GENERATE, False, 40)
    assert envelope.body is call.body


def test_a_whole_answer_becomes_a_completion() -> None:
    completion = read_completion(captured("generate_nostream").body, 70, "tiny-a")
    assert completion.output == " about only my two good three"
    assert (completion.tokens_in, completion.tokens_out, completion.latency_ms, completion.model) == (32, 6, 70, "tiny-a")


def test_counters_that_ollama_left_out_are_zero() -> None:
    completion = read_completion(b'{"response":"","done":true}', 1, "a")
    assert (completion.output, completion.tokens_in, completion.tokens_out) == ("", 0, 0)


@for_each(
    "body",
    [
        b"",
        b"<html>bad gateway</html>",
        b"[]",
        b"{}",
        b'{"response":5,"done":true}',
        b'{"response":"cut","done":false}',
        b'{"response":"cut"}',
        b'{"error":"an error was encountered while running the model: unexpected EOF"}',
        b'{"response":"","done":true,"error":"x"}',
        captured("token_repeat_abort_nostream").body,
    ],
)
def test_whatever_is_not_a_whole_answer_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(BackendProtocolError):
        read_completion(body, 1, "a")


@for_each(("total", "shares"), [(10, [5, 5]), (1, [1, 0])])
def test_each_of_the_callers_of_one_embedding_call_gets_a_share_of_its_tokens(total: int, shares: list[int]) -> None:
    route = INFERENCE_ROUTES["/api/embed"]
    inputs = [one for one in (single_input(route, b'{"model":"m","input":"%b"}' % text) for text in (b"ab", b"cd")) if one is not None]
    body = b'{"model":"m","embeddings":[[0.1],[-2e-5]],"total_duration":5,"prompt_eval_count":%d}' % total
    parts = split_answer(route, body, inputs) or []
    assert [json.loads(part.body)["embeddings"] for part in parts] == [[[0.1]], [[-2e-5]]]
    assert [json.loads(part.body)["prompt_eval_count"] for part in parts] == [part.prompt_tokens for part in parts] == shares
    assert split_answer(route, body.replace(b"],[", b"], ["), inputs) is None


def test_tokens_are_counted_over_system_tools_and_messages() -> None:
    request = {
        "model": "a",
        "system": "s" * 7,
        "tools": [{"name": "n" * 7, "description": "d" * 7, "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "t" * 7}, {"type": "image", "source": {"data": "A" * 999}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "n" * 7, "input": {"q": "x" * 7}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "r" * 7}]},
        ],
    }
    assert count_tokens(json.dumps(request).encode()) == b'{"input_tokens":270}'


def test_counting_needs_no_max_tokens() -> None:
    assert count_tokens(captured("anth_count").request_body) == b'{"input_tokens":2}'


@for_each(
    ("body", "text"),
    [
        (b"", "EOF"),
        (b"{", "unexpected EOF"),
        (b'{"messages":[{}]}', "model is required"),
        (b'{"model":"a"}', "messages is required"),
        (b'{"model":"a b","messages":[{}]}', "invalid model name"),
        (b'{"model":5}', "model must be of type string"),
        (b"[]", "the body must be of type object"),
    ],
)
def test_counting_a_broken_body_is_refused_as_a_message_would_be(body: bytes, text: str) -> None:
    with pytest.raises(BadRequest) as raised:
        count_tokens(body)
    assert raised.value.message == text
