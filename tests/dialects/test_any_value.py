"""Any value in any place of a request: it is read, or refused in a way that blames the caller.

Nothing else.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.dialects.claude_request import claude_request
from hearth.dialects.embedding import single_input
from hearth.dialects.gojson import encode
from hearth.dialects.request import count_tokens, read_request, seeded, ways_on
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.translation.asking import asked_of
from hearth.dialects.translation.parts import ServerApi
from hearth.errors import CallerError
from hearth.types import LoadOptions
from tests.dialects.claude.stories import PNG
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields

ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    1e308,
    10**400,
    "",
    "text",
    "\ud800",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"type": []},
    {"a": []},
]

DATE = {"type": "string", "format": "date", "enum": ["x"]}
SCHEMA = {
    "type": "object",
    "properties": {"a": DATE, "b": {"type": "array", "items": {"type": "null"}, "minItems": 1}},
}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
NESTED = [{"type": "function", "function": FUNCTION}]
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
TEXT = {"type": "text", "text": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DOCUMENT = {"type": "document", "source": {"type": "content", "content": [TEXT]}}
REQUESTS: dict[str, Fields] = {
    "/api/chat": {
        "messages": [
            {"role": "user", "content": "x", "images": [PNG]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}],
            },
            {"role": "tool", "tool_call_id": "c", "tool_name": "f", "content": "r"},
        ],
        "tools": NESTED,
        "format": SCHEMA,
        "options": {"num_predict": 5, "seed": 1, "temperature": 0, "stop": ["x"], "num_ctx": 8},
        "keep_alive": "5m",
        "stream": True,
    },
    "/api/generate": {
        "prompt": "x",
        "system": "s",
        "suffix": "",
        "images": [PNG],
        "raw": False,
        "context": [],
        "format": "json",
    },
    "/api/embed": {"input": ["x"]},
    "/api/embeddings": {"prompt": "x"},
    "/v1/embeddings": {"input": ["x"]},
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": [TEXT, IMAGE]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "tools": NESTED,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        "max_tokens": 5,
        "seed": 1,
        "temperature": 0,
        "stop": "x",
        "n": 1,
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {"prompt": "x", "max_tokens": 5, "seed": 1, "best_of": 1},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ],
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "json_schema", "schema": SCHEMA}},
        "max_output_tokens": 5,
    },
    "/v1/messages": {
        "max_tokens": 5,
        "system": [TEXT],
        "messages": [
            {"role": "user", "content": [DOCUMENT]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}],
            },
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1},
    },
}


def with_odd_values(request: Any) -> Iterator[Any]:
    """The request with each of its values, however deep, replaced by each odd one."""
    inside = (
        request.items()
        if isinstance(request, dict)
        else enumerate(request)
        if isinstance(request, list)
        else ()
    )
    for place, value in inside:
        for other in (*ODD, *with_odd_values(value)):
            if isinstance(request, dict):
                yield {**request, place: other}
            else:
                yield [*request[:place], other, *request[place + 1 :]]


def read(path: str, body: bytes) -> None:
    """What the gateway reads of every request before it is queued, and of one that is interrupted
    or gathered.
    """
    route = INFERENCE_ROUTES[path]
    _, fields = read_request(route, body, lambda _model: LoadOptions(), strip_attribution=True)
    ways_on(route, body, fields, only_replay=False, continue_diverged=True)
    seeded(route, body, fields, 5)
    single_input(route, body)


def translate(path: str, body: bytes) -> None:
    request = claude_request(path, body, default_max_tokens=10)
    assert 0 < request.max_tokens < 2**63
    assert request.body["messages"]
    assert json.loads(json.dumps(request.body, ensure_ascii=False).encode()) == request.body


API = ServerApi(
    serves=frozenset(
        {Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS, Endpoint.OPENAI_EMBEDDINGS}
    ),
    options={name: name for name in ("num_predict", "seed", "stop", "temperature")},
)


def ask(path: str, body: bytes) -> None:
    """What OpenAI's routes are asked for a request that was read."""
    route = INFERENCE_ROUTES[path]
    _, fields = read_request(route, body, lambda _model: LoadOptions(), strip_attribution=True)
    if route.path not in API.serves:
        asked = asked_of(route.path, fields, API)
        assert json.loads(encode(asked.fields))["model"] == fields["model"]


def count(path: str, body: bytes) -> None:
    if path == "/v1/messages":
        count_tokens(body)


@pytest.mark.parametrize("done", [read, translate, ask, count])
@pytest.mark.parametrize("path", sorted(INFERENCE_ROUTES))
def test_no_value_in_any_place_breaks_the_reading_of_a_request(path, done):
    """What is put into odd places is sound itself."""
    if done is not translate or "embed" not in path:
        done(path, json.dumps({"model": "m", **REQUESTS[path]}).encode())
    for request in with_odd_values({"model": "m", **REQUESTS[path]}):
        with contextlib.suppress(CallerError):
            done(path, json.dumps(request).encode())


@settings(max_examples=50 * EXAMPLES, deadline=None)
@given(
    st.sampled_from(
        [(path, done) for path in INFERENCE_ROUTES for done in (read, translate, ask, count)]
    ),
    st.randoms(use_true_random=False),
)
def test_nor_do_several_at_once(of, rng):
    path, done = of
    request: Any = {"model": "m", **REQUESTS[path]}
    for _ in range(rng.randrange(2, 6)):
        request = rng.choice(list(with_odd_values(request)))
        with contextlib.suppress(CallerError):
            done(path, json.dumps(request).encode())


@given(st.sampled_from([*INFERENCE_ROUTES, "/nowhere"]), st.binary(max_size=60))
def test_bytes_that_are_no_request_are_refused(path, body):
    with pytest.raises(CallerError):
        claude_request(path, body, default_max_tokens=10)
