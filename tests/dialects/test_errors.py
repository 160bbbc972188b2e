"""An error looks like the errors of the server its caller believes to speak to; the native calls
that Hearth makes itself.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hearth.dialects.embedding import single_input, split_answer
from hearth.dialects.errors import render_error, stream_error
from hearth.dialects.request import read_request
from hearth.dialects.routes import (
    COUNT_TOKENS_PATH,
    INFERENCE_ROUTES,
    INFO_ROUTES,
    MANAGEMENT_ROUTES,
    MEDIA_ROUTES,
    Endpoint,
    dialect_of,
)
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
from hearth.types import Dialect, LoadOptions, RequestId
from tests.dialects.captured import captured

REQUEST_ID = RequestId("req_0123456789abcdef")


def rendered(dialect: Dialect, error: HearthError) -> Any:
    return json.loads(render_error(dialect, error, REQUEST_ID).body)


@pytest.mark.parametrize(
    ("error", "openai", "anthropic"),
    [
        (Unauthenticated(), "authentication_error", "authentication_error"),
        (Forbidden(), "permission_error", "permission_error"),
        (BodyTooLarge(), "invalid_request_error", "request_too_large"),
        (UnsupportedMedia(), "invalid_request_error", "invalid_request_error"),
        (RateLimited(), "rate_limit_error", "rate_limit_error"),
        (ShuttingDown(), "api_error", "overloaded_error"),
        (BackendTimeout(), "api_error", "timeout_error"),
        (HearthError('{"a": "<b>"}'), "api_error", "api_error"),
    ],
)
def test_what_ollama_never_answers_has_the_types_of_the_original_apis(error, openai, anthropic):
    assert rendered("openai", error)["error"]["type"] == openai
    shown = rendered("anthropic", error)
    assert (shown["error"]["type"], shown["request_id"]) == (anthropic, REQUEST_ID)
    by_the_cli = {"status": error.message} if error.status == 401 else {}
    assert rendered("ollama", error) == {"error": error.message, **by_the_cli}


@pytest.mark.parametrize(
    ("seconds", "header"),
    [(0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (59.5, b"60"), (None, None)],
)
@pytest.mark.parametrize("dialect", ["ollama", "openai", "anthropic"])
def test_a_known_delay_is_rounded_up_and_a_missing_key_names_the_scheme(dialect, seconds, header):
    assert (
        dict(render_error(dialect, QueueFull(retry_after_s=seconds), REQUEST_ID).headers).get(
            b"retry-after"
        )
        == header
    )
    assert (
        dict(render_error(dialect, Unauthenticated(), REQUEST_ID).headers)[b"www-authenticate"]
        == b"Bearer"
    )


@pytest.mark.parametrize("path", sorted(INFERENCE_ROUTES))
def test_an_error_inside_a_stream_is_one_frame_whatever_its_text(path):
    frame = stream_error(
        INFERENCE_ROUTES[path], BadRequest("a\n\ndata: [DONE]\r\n\u2028b"), REQUEST_ID
    )
    lines = frame.rstrip(b"\n").split(b"\n")
    error = json.loads(lines[-1].removeprefix(b"data: "))["error"]
    assert len(lines) <= 2
    assert (
        error["message"] if isinstance(error, dict) else error
    ) == "a\n\ndata: [DONE]\r\n\u2028b"


def test_every_endpoint_has_one_route_and_no_address_is_in_two_tables():
    assert (
        list(INFERENCE_ROUTES)
        == [route.path for route in INFERENCE_ROUTES.values()]
        == [each for each in Endpoint if each not in MEDIA_ROUTES]
    )
    paths = [*INFERENCE_ROUTES, *MEDIA_ROUTES, *INFO_ROUTES, *MANAGEMENT_ROUTES]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        *((path, route.dialect) for path, route in INFERENCE_ROUTES.items()),
        *((path, "ollama") for path in ("/", "/api/nope", "/llm/queue/status", "/v10")),
        *(
            (path, "openai")
            for path in ("/v1", "/v1/models", "/v1/models/messages", "/v1/messagesx")
        ),
        (COUNT_TOKENS_PATH, "anthropic"),
    ],
)
def test_any_path_has_a_dialect_for_its_errors(path, dialect):
    assert dialect_of(path) is dialect


def test_a_completion_call_asks_generate_for_one_whole_answer():
    call = completion_call(b'"say <hi>"', "llama3.1:8b", None)
    assert (call.method, call.path, call.headers) == (
        "POST",
        "/api/generate",
        ((b"content-type", b"application/json"),),
    )
    assert json.loads(call.body) == {"model": "llama3.1:8b", "prompt": "say <hi>", "stream": False}
    call = completion_call(b'"x"', "a", 40, json_mode=True)
    assert json.loads(call.body) == {
        "model": "a",
        "prompt": "x",
        "stream": False,
        "format": "json",
        "options": {"num_predict": 40},
    }
    envelope, _ = read_request(INFERENCE_ROUTES[call.path], call.body, lambda _model: LoadOptions())
    assert (envelope.kind, envelope.streaming, envelope.max_tokens) == ("generate", False, 40)
    assert envelope.body is call.body


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (captured("generate_nostream").body, (" about only my two good three", 32, 6)),
        (b'{"response":"","done":true}', ("", 0, 0)),
        *(
            (body, None)
            for body in (
                b"",
                b"<html>bad gateway</html>",
                b"[]",
                b"{}",
                b'{"response":5,"done":true}',
            )
        ),
        *(
            (body, None)
            for body in (
                b'{"response":"cut","done":false}',
                b'{"response":"cut"}',
                b'{"error":"unexpected EOF"}',
            )
        ),
        (b'{"response":"","done":true,"error":"x"}', None),
        (captured("token_repeat_abort_nostream").body, None),
    ],
)
def test_a_whole_answer_becomes_a_completion_and_anything_else_an_error(body, said):
    if said is None:
        with pytest.raises(BackendProtocolError):
            read_completion(body, 1, "a")
        return
    completion = read_completion(body, 70, "tiny-a")
    assert (completion.output, completion.tokens_in, completion.tokens_out) == said
    assert (completion.latency_ms, completion.model) == (70, "tiny-a")


@pytest.mark.parametrize(("total", "shares"), [(10, [5, 5]), (1, [1, 0])])
def test_each_of_the_callers_of_one_embedding_call_gets_a_share_of_its_tokens(total, shares):
    route = INFERENCE_ROUTES["/api/embed"]
    inputs = [
        one
        for one in (
            single_input(route, b'{"model":"m","input":"%b"}' % text) for text in (b"ab", b"cd")
        )
        if one is not None
    ]
    body = (
        b'{"model":"m","embeddings":[[0.1],[-2e-5]],"total_duration":5,"prompt_eval_count":%d}'
        % total
    )
    parts = split_answer(route, body, inputs) or []
    assert [json.loads(part)["embeddings"] for part, _ in parts] == [[[0.1]], [[-2e-5]]]
    assert (
        [json.loads(part)["prompt_eval_count"] for part, _ in parts]
        == [count for _, count in parts]
        == shares
    )
    assert split_answer(route, body.replace(b"],[", b"], ["), inputs) is None
