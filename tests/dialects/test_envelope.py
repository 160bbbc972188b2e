"""The queue learns what it must know of a body; the body goes on as it came, but for what only the owner may decide."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.request import Envelope, read_request
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.validation import is_model_name
from hearth.errors import BadRequest, CallerError, ModelNotFound
from hearth.types import LoadOptions, WorkKind
from tests.dialects.captured import captured
from tests.support.cases import for_each

BELOW_ONE = "integer below minimum value. Expected a value >= 1, but got 0 instead."
HELLO = [{"role": "user", "content": "hello"}]


def unpinned(_model: str) -> LoadOptions:
    return LoadOptions()


def pinned(_model: str) -> LoadOptions:
    return LoadOptions(num_ctx=4096)


def read(path: str, body: object, load_options: Any = unpinned) -> Envelope:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_request(INFERENCE_ROUTES[path], raw, load_options)[0]


def refusal(path: str, body: object) -> CallerError:
    with pytest.raises(CallerError) as raised:
        read(path, body)
    return raised.value


@for_each(
    "name", ["chat_stream", "generate_raw", "embed_many", "embeddings_legacy", "oai_chat_keepalive", "oai_compl_stream", "anth_stream"]
)
def test_a_body_that_asks_for_nothing_of_the_owners_goes_on_as_the_very_same_bytes_object(name: str) -> None:
    request = captured(name)
    envelope = read(request.path, request.request_body)
    assert envelope.body is request.request_body
    assert envelope.rewritten == ()
    assert envelope.model == json.loads(request.request_body)["model"]
    assert envelope.dialect is INFERENCE_ROUTES[request.path].dialect


@for_each(
    ("path", "body", "kind"),
    [
        ("/api/generate", {"model": "a", "prompt": "x"}, WorkKind.GENERATE),
        ("/api/generate", {"model": "a"}, WorkKind.LOAD),
        ("/api/generate", {"model": "a", "prompt": "", "keep_alive": -1}, WorkKind.LOAD),
        ("/api/generate", {"model": "a", "keep_alive": "5m"}, WorkKind.LOAD),
        ("/api/generate", {"model": "a", "keep_alive": 0}, WorkKind.UNLOAD),
        ("/api/generate", {"model": "a", "keep_alive": 0.0}, WorkKind.UNLOAD),
        ("/api/generate", {"model": "a", "keep_alive": "0"}, WorkKind.UNLOAD),
        ("/api/generate", {"model": "a", "Keep_Alive": "0s"}, WorkKind.UNLOAD),
        ("/api/generate", {"model": "a", "keep_alive": "0m"}, WorkKind.UNLOAD),
        ("/api/generate", {"model": "a", "prompt": "x", "keep_alive": 0}, WorkKind.GENERATE),
        ("/api/chat", {"model": "a", "messages": HELLO}, WorkKind.GENERATE),
        ("/api/chat", {"model": "a", "messages": []}, WorkKind.LOAD),
        ("/api/chat", {"model": "a", "messages": None}, WorkKind.LOAD),
        ("/api/chat", {"model": "a", "messages": [], "keep_alive": 0}, WorkKind.UNLOAD),
        ("/api/embed", {"model": "a", "input": ""}, WorkKind.EMBED),
        ("/api/embeddings", {"model": "a", "keep_alive": 0}, WorkKind.EMBED),
        ("/v1/embeddings", {"model": "a", "input": "x"}, WorkKind.EMBED),
        ("/v1/completions", {"model": "a", "prompt": ""}, WorkKind.GENERATE),
        ("/v1/chat/completions", {"model": "a", "messages": HELLO, "keep_alive": 0}, WorkKind.GENERATE),
        ("/v1/responses", {"model": "a", "input": "x"}, WorkKind.GENERATE),
        ("/v1/messages", {"model": "a", "max_tokens": 1, "messages": HELLO}, WorkKind.GENERATE),
    ],
)
def test_the_kind_of_work_follows_from_route_and_form(path: str, body: object, kind: WorkKind) -> None:
    assert read(path, body).kind is kind


@for_each(
    ("path", "extra", "streaming"),
    [
        ("/api/chat", {}, True),
        ("/api/chat", {"stream": None}, True),
        ("/api/chat", {"stream": False}, False),
        ("/api/chat", {"STREAM": False}, False),
        ("/v1/chat/completions", {}, False),
        ("/v1/chat/completions", {"stream": True}, True),
        ("/v1/messages", {"max_tokens": 5}, False),
        ("/v1/messages", {"max_tokens": 5, "stream": True}, True),
        ("/v1/responses", {"stream": True}, True),
        ("/api/embed", {"stream": True}, False),
        ("/api/embed", {"stream": "as it comes"}, False),
        ("/api/embeddings", {"stream": 1}, False),
        ("/v1/embeddings", {"input": "x", "stream": {}}, False),
        ("/api/generate", {"stream": True}, False),
    ],
)
def test_streaming_has_the_default_of_the_dialect_and_never_holds_for_loads_and_embeddings(
    path: str, extra: dict[str, object], streaming: bool
) -> None:
    assert read(path, {"model": "a", "messages": HELLO, **extra}).streaming is streaming


@for_each(
    ("path", "extra", "limit"),
    [
        ("/api/chat", {"options": {"num_predict": 7}}, 7),
        ("/api/chat", {"options": {"num_predict": 7.9}}, 7),
        ("/api/chat", {"options": {"num_predict": -1}}, None),
        ("/api/chat", {"options": {"num_predict": 0}}, 0),
        ("/api/chat", {"options": {"num_predict": True}}, None),
        ("/api/chat", {"options": {"num_predict": "7"}}, None),
        ("/api/chat", {"max_tokens": 7}, None),
        ("/v1/chat/completions", {"max_tokens": 7}, 7),
        ("/v1/chat/completions", {"max_completion_tokens": 7}, None),
        ("/v1/completions", {"prompt": "x", "max_tokens": 7}, 7),
        ("/v1/responses", {"max_output_tokens": 7}, 7),
        ("/v1/messages", {"max_tokens": 7}, 7),
        ("/v1/embeddings", {"input": "x", "max_tokens": 7}, None),
    ],
)
def test_the_output_limit_is_read_where_ollama_reads_it(path: str, extra: dict[str, object], limit: int | None) -> None:
    assert read(path, {"model": "a", "messages": HELLO, **extra}).max_tokens == limit


@for_each(
    ("path", "body", "tokens"),
    [
        ("/api/generate", {"prompt": "x" * 7}, 2),
        ("/api/generate", {"prompt": "x" * 8}, 3),
        ("/api/generate", {"prompt": "ü" * 7}, 2),
        ("/api/generate", {"prompt": "x" * 7, "system": "y" * 7, "suffix": "z" * 7}, 6),
        ("/api/generate", {"prompt": "x" * 7, "images": ["aGVsbG8=" * 100, "b"]}, 2 + 512),
        ("/api/chat", {"messages": [{"role": "user", "content": "x" * 7, "images": ["a" * 999]}]}, 2 + 256),
        ("/api/chat", {"messages": HELLO, "tools": [{"type": "function", "function": {"name": "n" * 9}}]}, 4),
        ("/api/chat", {"messages": HELLO, "tools": [{"parameters": {"a": {"type": ["string", "null"], "title": "t" * 9}}}]}, 4),
        ("/v1/chat/completions", {"messages": [{"content": [{"type": "text", "text": "x" * 7}]}]}, 2),
        ("/v1/chat/completions", {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 999}}]}]}, 256),
        ("/v1/responses", {"instructions": "x" * 7, "input": [{"role": "user", "content": "y" * 7}]}, 4),
        ("/v1/messages", {"max_tokens": 1, "system": [{"type": "text", "text": "s" * 7}], "messages": HELLO}, 4),
        ("/v1/embeddings", {"input": ["x" * 7, "y" * 7]}, 4),
        ("/api/embeddings", {"prompt": "x" * 7}, 2),
    ],
)
def test_the_prompt_is_estimated_from_its_text_and_images(path: str, body: dict[str, object], tokens: int) -> None:
    assert read(path, {"model": "a", **body}).prompt_tokens == tokens


@for_each("key", ["keep_alive", "Keep_Alive", "KEEP_ALIVE", "\u212aeep_alive"])
def test_keep_alive_is_taken_out_of_native_bodies_in_every_spelling(key: str) -> None:
    envelope = read("/api/chat", {"model": "a", key: -1, "messages": HELLO})
    assert envelope.body == b'{"model":"a","messages":[{"role":"user","content":"hello"}]}'
    assert envelope.rewritten == ("keep_alive",)


def test_load_time_options_are_taken_out_and_the_others_stay_in_place() -> None:
    options = {"seed": 1, "num_ctx": 8192, "num_gpu": 99, "temperature": 0.5, "NUM_THREAD": 4}
    envelope = read("/api/generate", {"model": "a", "options": options, "prompt": "x"})
    assert envelope.body == b'{"model":"a","options":{"seed":1,"temperature":0.5},"prompt":"x"}'
    assert envelope.rewritten == ("options.num_ctx", "options.num_gpu", "options.NUM_THREAD")


@for_each("name", ["num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "draft_num_predict"])
def test_every_option_that_would_reload_the_model_is_taken_out(name: str) -> None:
    envelope = read("/api/embed", {"model": "a", "input": "x", "options": {name: 3}})
    assert json.loads(envelope.body) == {"model": "a", "input": "x", "options": {}}


def test_a_pinned_context_length_replaces_the_callers_in_its_place() -> None:
    envelope = read("/api/generate", {"model": "a", "options": {"num_ctx": 1, "seed": 2}, "prompt": "x"}, pinned)
    assert envelope.body == b'{"model":"a","options":{"num_ctx":4096,"seed":2},"prompt":"x"}'
    assert envelope.rewritten == ("options.num_ctx",)


@for_each("options", [{}, {"options": None}, {"options": {}}])
def test_a_pinned_context_length_is_filled_in_where_the_caller_gave_none(options: dict[str, object]) -> None:
    envelope = read("/api/generate", {"model": "a", "prompt": "x", **options}, pinned)
    assert json.loads(envelope.body) == {"model": "a", "prompt": "x", "options": {"num_ctx": 4096}}
    assert envelope.rewritten == ("options.num_ctx",)


def test_a_body_that_already_has_the_pinned_context_length_is_not_touched() -> None:
    body = b'{"model": "a", "prompt": "x", "options": {"num_ctx": 4096}}'
    assert read("/api/generate", body, pinned).body is body


def test_the_pinned_options_are_looked_up_by_the_name_the_caller_wrote() -> None:
    asked: list[str] = []

    def options(model: str) -> LoadOptions:
        asked.append(model)
        return LoadOptions()

    read("/api/generate", {"model": "Llama3.1:8B", "prompt": "x"}, options)
    assert asked == ["Llama3.1:8B"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_bodies_of_other_dialects_are_never_rewritten(path: str) -> None:
    body = json.dumps({"model": "a", "max_tokens": 1, "messages": HELLO, "keep_alive": 0, "options": {"num_ctx": 1}}).encode()
    assert read(path, body, pinned).body is body


def test_options_cannot_slip_through_in_a_repeated_or_differently_spelled_key() -> None:
    twice = b'{"model":"a","prompt":"x","options":{"num_ctx":1},"options":{"seed":2}}'
    assert json.loads(read("/api/generate", twice).body) == {"model": "a", "prompt": "x", "options": {"seed": 2}}
    spelled = read("/api/generate", {"model": "a", "prompt": "x", "options": {"num_ctx": 1, "top_k": 3}, "Options": {"seed": 2}})
    assert json.loads(spelled.body) == {"model": "a", "prompt": "x", "options": {"top_k": 3, "seed": 2}}
    assert spelled.rewritten == ("options.num_ctx", "duplicate keys")


def test_a_model_spelled_twice_is_the_one_ollama_would_run() -> None:
    assert read("/v1/chat/completions", {"model": "allowed", "Model": "other", "messages": HELLO}).model == "other"


def test_a_null_does_not_hide_the_model_or_the_stream_that_ollama_would_run() -> None:
    rest = f'"stream":true,"stream":null,"messages":{json.dumps(HELLO)}'
    envelope = read("/v1/chat/completions", b'{"Model":"allowed","model":"other","model":null,%b}' % rest.encode())
    assert (envelope.model, envelope.streaming) == ("other", True)


@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda key: key.isascii() and key == key.lower() not in ("model", "stream")),
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        max_size=5,
    )
)
def test_a_rewrite_changes_nothing_else_in_meaning_or_order(extra: dict[str, object]) -> None:
    envelope = read("/api/generate", {"model": "a", "keep_alive": 5, "prompt": "x", **extra})
    expected = {"model": "a", "prompt": "x", **extra}
    assert json.loads(envelope.body) == expected
    assert list(json.loads(envelope.body)) == list(expected)


@for_each(
    ("path", "body", "text"),
    [
        ("/api/chat", [1], "the body must be of type object"),
        ("/api/chat", {"messages": "x"}, "messages must be of type array"),
        ("/api/chat", {"messages": ["x"]}, "every entry of messages must be of type object"),
        (
            "/api/chat",
            {"messages": [{"content": ["x"]}]},
            "content must be of type string",
        ),
        ("/api/chat", {"model": "a", "stream": "no"}, "stream must be of type boolean"),
        (
            "/api/generate",
            {"model": "a", "options": 5},
            "options must be of type object",
        ),
        ("/api/embed", {"model": "a", "input": {"a": 1}}, "invalid input type"),
        ("/v1/embeddings", {"model": "a", "input": []}, "invalid input"),
        ("/v1/embeddings", {"model": "a", "input": [1, 2]}, "invalid input type"),
        ("/v1/responses", {"input": "x"}, "model is required"),
        ("/v1/messages", {}, "model is required"),
        ("/v1/messages", {"model": "a", "messages": HELLO, "max_tokens": 0}, "max_tokens is required and must be positive"),
        ("/v1/messages", {"model": "a", "max_tokens": 5}, "messages is required"),
        ("/v1/chat/completions", {"model": "a", "messages": HELLO, "max_tokens": 0}, f"Invalid 'max_tokens': {BELOW_ONE}"),
        ("/v1/completions", {"model": "a", "prompt": "x", "max_tokens": 0}, f"Invalid 'max_tokens': {BELOW_ONE}"),
        ("/v1/responses", {"model": "a", "input": "x", "max_output_tokens": 0}, f"Invalid 'max_output_tokens': {BELOW_ONE}"),
        ("/v1/messages", b"", "EOF"),
        ("/v1/messages", {"model": "bad name", "messages": HELLO, "max_tokens": 5}, "invalid model name"),
    ],
)
def test_a_body_that_does_not_fit_the_route_is_refused_with_ollamas_text(path: str, body: object, text: str) -> None:
    error = refusal(path, body)
    assert isinstance(error, BadRequest)
    assert error.message == text


@for_each("path", ["/v1/completions", "/v1/embeddings", "/api/generate", "/api/embed"])
def test_a_missing_model_is_not_found_on_the_routes_that_look_it_up_first(path: str) -> None:
    error = refusal(path, {"prompt": "x", "input": "x"})
    assert isinstance(error, ModelNotFound)
    assert error.message == "model '' not found"


@for_each(
    ("path", "body"),
    [
        ("/api/chat", {"messages": HELLO * 10_001}),
        ("/v1/messages", {"max_tokens": 1, "messages": HELLO * 10_001}),
        ("/api/embed", {"input": ["x"] * 10_001}),
        ("/v1/responses", {"input": [{"role": "user"}] * 10_001}),
    ],
)
def test_more_than_ten_thousand_messages_or_inputs_are_refused(path: str, body: dict[str, object]) -> None:
    error = refusal(path, {"model": "a", **body})
    assert error.status == 400
    assert "10001" in error.message


def test_ten_thousand_inputs_are_accepted() -> None:
    assert read("/api/embed", {"model": "a", "input": ["x"] * 10_000}).prompt_tokens == 2858


@for_each("path", [endpoint.value for endpoint in Endpoint])
def test_no_body_nests_deep_enough_to_break_a_route(path: str) -> None:
    assert refusal(path, b'{"model":"a","x":' + b"[" * 100_000).message == "exceeded max depth"


@for_each(
    "name",
    [
        "llama3.1:8b",
        "qwen2.5:32b-instruct-q6_K",
        "library/llama3",
        "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        "localhost:5000/ns/model:tag",
        "https://registry.ollama.ai/library/mistral:latest",
        "_x",
        "a" * 80,
        "h" * 94 + "/" + "n" * 80 + "/" + "m" * 80,
    ],
)
def test_names_that_ollama_parses_are_model_names(name: str) -> None:
    assert is_model_name(name)


@for_each(
    "name",
    [
        "",
        "bad name!!",
        "a\n",
        "a\x00",
        "-a",
        ".a",
        "a:",
        ":a",
        "/a",
        "a//b",
        "../../etc/passwd",
        "a:b:c",
        "n.s/model",
        "ünïcode",
        "a" * 81,
        "h" * 95 + "/" + "n" * 80 + "/" + "m" * 80,
    ],
)
def test_other_names_are_not(name: str) -> None:
    assert not is_model_name(name)
    if name:
        assert refusal("/api/chat", {"model": name, "messages": HELLO}).message == "invalid model name"
