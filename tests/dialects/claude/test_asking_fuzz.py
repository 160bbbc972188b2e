"""Whatever JSON a caller sends: a request that Anthropic's types can carry, or a refusal that blames the caller. Nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hearth.dialects.claude.asking import claude_request
from hearth.errors import BadRequest, Untranslatable
from tests.dialects.claude.stories import PNG, QUESTIONS, ROUTES
from tests.support.examples import EXAMPLES

_WORDS = [
    "type", "text", "role", "content", "user", "assistant", "system", "tool", "function", "name", "arguments", "id", "call_id",
    "tool_calls", "tool_call_id", "tool_use", "tool_result", "tool_use_id", "input", "image", "source", "base64", "data", "images",
    "image_url", "url", "message", "function_call", "function_call_output", "output", "parameters", "object", "properties", "items",
    "anyOf", "enum", "string", "json_schema", "schema", "thinking", "signature", "format", "json", "document", PNG, "é\ud800", "",
]  # fmt: skip
_FIELDS = [
    "messages", "prompt", "input", "system", "instructions", "tools", "tool_choice", "options", "format", "response_format", "text", "stop",
    "stop_sequences", "stream", "max_tokens", "max_output_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "images", "n",
    "thinking", "output_config", "context", "raw", "suffix", "logprobs", "parallel_tool_calls", "stream_options", "Messages", "STREAM",
]  # fmt: skip
_SCALARS = st.sampled_from(_WORDS) | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4), max_leaves=12
)


@settings(max_examples=120 * EXAMPLES, deadline=None)
@given(st.sampled_from(ROUTES), st.booleans(), st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=5))
@example("/api/chat", True, {"format": {"anyOf": [{"enum": [1, None]}, {"type": ["string", "object"]}]}})
def test_a_body_becomes_a_request_or_a_refusal(path: str, sound: bool, fields: dict[str, Any]) -> None:
    body = json.dumps({**(QUESTIONS[path] if sound else {}), **fields}).encode()
    try:
        request = claude_request(path, body, default_max_tokens=10)
    except (BadRequest, Untranslatable):
        return
    assert 0 < request.max_tokens < 2**63
    assert request.body["messages"]
    assert json.loads(json.dumps(request.body)) == request.body
    json.dumps(request.body, ensure_ascii=False).encode()


@settings(max_examples=60 * EXAMPLES)
@given(
    st.sampled_from([*ROUTES, "/api/embed", "/v1/embeddings", "/nowhere"]),
    st.binary(max_size=60) | _VALUES.filter(lambda v: not isinstance(v, dict) or "input" not in v).map(lambda v: json.dumps(v).encode()),
)
def test_bytes_that_are_no_request_are_refused(path: str, body: bytes) -> None:
    with pytest.raises((BadRequest, Untranslatable)):
        claude_request(path, body, default_max_tokens=10)
