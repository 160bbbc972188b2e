"""The queue learns what it must know of a body; the body goes on as it came, but for what only the owner may decide."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.gojson import Body, GoJsonError, JsonValue, decode, folded
from hearth.dialects.request import (
    Envelope,
    Seeded,
    is_background_task,
    is_model_name,
    keep_alive_ns,
    prompt_tokens,
    read_request,
    seeded,
    without_attribution,
)
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BadRequest, CallerError, ModelNotFound
from hearth.types import LoadOptions, Way, WorkKind
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
        ("/api/chat", {"options": {"Num_Predict": 7}}, None),
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


FOR_EVER_NS = 2**63 - 1
S = 10**9
NS: list[tuple[JsonValue, int | None]] = [
    (None, None),
    *((nothing, 0) for nothing in (0, 0.0, -0.0, "0", "-0", "0s", "0m0.0s")),
    *((given, 300 * S) for given in (300, "5m", "+300s")),
    *((given, 5400 * S) for given in ("1h30m", "1.5h")),
    *((given, 10**9 // 2) for given in (0.5, ".5s", "500ms", "0.s500ms")),
    ("1\u00b5s", 1_000),
    *((given, FOR_EVER_NS) for given in (-1, -0.5, "-1m", 1e300)),
]


@for_each(("given", "expected_ns"), NS)
def test_numbers_are_seconds_and_strings_are_go_durations(given: JsonValue, expected_ns: int | None) -> None:
    assert keep_alive_ns(given) == expected_ns


@for_each("given", ["", "-", ".", "m", "five", "5", "1h5", "5x", "5 m", "9" * 30 + "s", "9999999999h", True, [], {}])
def test_anything_else_is_refused(given: JsonValue) -> None:
    with pytest.raises(GoJsonError, match="duration"):
        keep_alive_ns(given)


NATIVE = ["/api/chat", "/api/generate"]
OPENAI = ["/v1/chat/completions", "/v1/completions"]
SEEDLESS = ["/v1/messages", "/v1/responses"]


def seeding(path: str, body: bytes) -> Seeded:
    route, fields = INFERENCE_ROUTES[path], folded(Body(decode(body)).fields)
    return seeded(route, body, fields, 4711)


def known(of: Seeded) -> tuple[bytes, bool]:
    return of.body, of.repeatable


@for_each(
    ("path", "body", "expected"),
    [
        ("/api/chat", b' {"model": "m", "n": 1.0}', b' {"options":{"seed":4711},"model": "m", "n": 1.0}'),
        ("/api/chat", b'{"options": {"num_ctx": 1e3}, "x": "\xff"}', b'{"options":{"seed":4711,"num_ctx":1000.0},"x":"\xef\xbf\xbd"}'),
        ("/api/generate", b'{"OPTIONS":{}}', b'{"options":{"seed":4711}}'),
        ("/api/generate", b'{"options":{"temperature":0}}', b'{"options":{"seed":4711,"temperature":0}}'),
        ("/api/generate", b'{"a":1,"options": null}', b'{"a":1,"options":{"seed":4711}}'),
        ("/api/chat", b'{"options":{"a":1,"seed": null }}', b'{"options":{"seed":4711,"a":1}}'),
        ("/api/chat", b'{"options":{"Seed":5}}', b'{"options":{"seed":4711,"Seed":5}}'),
        ("/api/chat", b'{"seed":5}', b'{"options":{"seed":4711},"seed":5}'),
        ("/api/chat", b'{"tools":[{"options":{"seed":5}}]}', b'{"options":{"seed":4711},"tools":[{"options":{"seed":5}}]}'),
        ("/v1/chat/completions", b'{"model":"m"} trailing', b'{"seed":4711,"model":"m"} trailing'),
        ("/v1/completions", b'{"model":"m","Seed":null}', b'{"model":"m","seed":4711}'),
    ],
)
def test_a_seed_is_put_in_where_none_was_given(path: str, body: bytes, expected: bytes) -> None:
    assert known(seeding(path, body)) == (expected, True)


@for_each(
    ("seed", "repeatable"), [("0", True), ("7", True), ("-2", True), ("-1", False), ("4294967295", False), ("5.0", True), ("1" * 400, True)]
)
@for_each("path", [*NATIVE, *OPENAI])
def test_the_callers_own_seed_stays_and_minus_one_means_another_answer_every_time(path: str, seed: str, *, repeatable: bool) -> None:
    body = ('{"options":{"seed":%s}}' if path in NATIVE else '{"seed":%s}') % seed
    assert known(seeding(path, body.encode())) == (body.encode(), repeatable)


@for_each(
    ("path", "body"),
    [
        ("/api/chat", b'{"options":{"temperature":0,"seed":-1}}'),
        ("/v1/completions", b'{"temperature":0.0,"seed":-1}'),
        ("/v1/messages", b'{"temperature":0}'),
        ("/v1/responses", b'{"Temperature":0}'),
    ],
)
def test_at_temperature_zero_a_request_repeats_itself_without_a_seed(path: str, body: bytes) -> None:
    answer = seeding(path, body)
    assert answer.body is body
    assert answer.repeatable


@for_each("path", SEEDLESS)
@for_each("body", [b'{"temperature":0.1}', b'{"temperature":false}', b'{"seed":5}', b"{}"])
def test_routes_without_a_seed_do_not_repeat_themselves(path: str, body: bytes) -> None:
    assert known(seeding(path, body)) == (body, False)


@for_each(("path", "body"), [("/api/chat", b'{"options":{"seed":"7"}}'), ("/api/chat", b'{"options":{"seed":true}}')])
def test_a_seed_that_is_no_number_is_left_to_the_model_server(path: str, body: bytes) -> None:
    assert known(seeding(path, body)) == (body, False)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    fields=st.dictionaries(
        st.text(max_size=6).filter(lambda key: key.isascii() and key == key.lower() not in ("seed", "options")), VALUES, min_size=1
    ),
    indent=st.none() | st.just(1),
)
def test_no_other_field_and_no_order_changes(fields: dict[str, object], indent: int | None) -> None:
    body = json.dumps(fields, indent=indent).encode()
    again = json.loads(seeding("/v1/completions", body).body)
    assert list(again.items()) == [("seed", 4711), *fields.items()]
    nested = json.dumps({"options": fields, **fields}, indent=indent).encode()
    options = json.loads(seeding("/api/chat", nested).body)["options"]
    assert list(options.items()) == [("seed", 4711), *fields.items()]


REPLAY, CONTINUE = Way.REPLAY, Way.CONTINUE


@for_each(
    ("path", "options", "only_replay", "continue_diverged", "ways"),
    [
        ("/api/chat", {}, False, True, (CONTINUE, REPLAY)),
        ("/api/chat", {}, True, True, (REPLAY,)),
        ("/api/chat", {"seed": 3}, False, True, (REPLAY, CONTINUE)),
        ("/api/chat", {"seed": 3}, False, False, (REPLAY,)),
        ("/api/chat", {"temperature": 0}, False, True, (REPLAY, CONTINUE)),
        ("/v1/messages", {}, False, False, (CONTINUE,)),
        ("/v1/messages", {}, True, True, ()),
    ],
)
def test_who_chose_a_repeatable_answer_is_replayed_first_and_continued_only_where_that_is_set(
    path: str, options: dict[str, object], only_replay: bool, continue_diverged: bool, ways: tuple[Way, ...]
) -> None:
    """`scheduling.started_streams` and `scheduling.on_divergence`."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "options": options}
    assert seeding(path, json.dumps(body).encode()).ways(only_replay=only_replay, continue_diverged=continue_diverged) == ways


LINE = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"
HISTORY = "### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>"
TITLE = '### Task:\nGenerate a title.\n### Output:\nJSON format: { "title": "your concise title here" }\n' + HISTORY


def text_block(text: str, **more: Any) -> Any:
    return {"type": "text", "text": text, **more}


def chat(prompt: Any, *before: Any, path: str = "/api/chat") -> bool:
    return is_background_task(INFERENCE_ROUTES[path], {"model": "m", "messages": [*before, {"role": "user", "content": prompt}]})


def messages_envelope(body: bytes, *, strip: bool = True) -> Envelope:
    return read_request(INFERENCE_ROUTES["/v1/messages"], body, lambda _: LoadOptions(), strip_attribution=strip)[0]


@for_each(
    ("system", "left"),
    [
        ([text_block(LINE), text_block("You are Claude Code.", cache_control={"type": "ephemeral"})], "the second block"),
        ([text_block(f"{LINE}\nYou are Claude Code.", cache_control={"type": "ephemeral"})], "the second block"),
        (f"{LINE}\n\nYou are Claude Code.", "You are Claude Code."),
        ([text_block(LINE)], None),
        (LINE, None),
    ],
)
def test_the_attribution_line_goes_and_the_rest_of_the_system_prompt_stays(system, left):
    kept = without_attribution({"model": "m", "system": system, "messages": []})

    expected = [text_block("You are Claude Code.", cache_control={"type": "ephemeral"})] if left == "the second block" else left
    assert kept.get("system") == expected
    assert list(kept) == (["model", "messages"] if left is None else ["model", "system", "messages"])


@for_each(
    "system",
    [
        None,
        "",
        [],
        5,
        "You are helpful.",
        f"Never repeat this:\n{LINE}",
        [text_block("You are helpful."), text_block("")],
        ["x-anthropic-billing-header: in a block that is no object"],
        [{"type": "image", "source": {}}],
    ],
)
def test_a_system_prompt_without_the_line_comes_back_as_the_same_object(system):
    fields = {"model": "m", "system": system, "messages": []}
    assert without_attribution(fields) is fields


def test_the_line_stays_in_what_users_and_the_model_say():
    fields: Any = {"messages": [{"role": "user", "content": [text_block(LINE)]}, {"role": "assistant", "content": LINE}]}
    assert without_attribution(fields) is fields


def test_a_stripped_body_says_so_and_is_measured_without_the_line():
    body: Any = {
        "model": "m",
        "max_tokens": 5,
        "system": [text_block(LINE), text_block("Be kind.")],
        "messages": [{"role": "user", "content": "hi"}],
    }

    envelope = messages_envelope(json.dumps(body).encode())

    expected = {**body, "system": [text_block("Be kind.")]}
    assert json.loads(envelope.body) == expected
    assert envelope.rewritten == ("system",)
    assert envelope.prompt_tokens == prompt_tokens(expected)


@for_each(
    ("body", "strip"),
    [
        (b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}', True),
        (b'{"model":"m","max_tokens":5,"system":"%b","messages":[{"role":"user","content":"hi"}]}' % LINE.encode(), False),
        (b'{"model":"m","max_tokens":5,"system":"","system":"%b","messages":[{"role":"user","content":"hi"}]}' % LINE.encode(), True),
    ],
)
def test_a_body_without_the_line_or_with_a_repeated_key_or_where_the_owner_leaves_it_in_goes_on_as_it_came(body, strip):
    assert messages_envelope(body, strip=strip).body is body


@for_each("answer", ['{ "title": "your title here" }', '{ "tags": ["tag1", "tag2"] }', '{ "follow_ups": ["Question 1?"] }'])
@for_each("path", ["/api/chat", "/v1/chat/completions"])
def test_a_background_task_is_known_by_what_its_prompt_asks_for_also_beside_a_system_prompt(answer, path):
    assert chat(f"### Task:\nDo it.\n### Output:\nJSON format: {answer}\n{HISTORY}", path=path)
    assert chat(TITLE, {"role": "system", "content": "You speak like a pirate."}, path=path)


@for_each(
    "prompt",
    [
        "write a title",
        f"please explain:\n{TITLE}",
        TITLE.replace("<chat_history>", "<history>"),
        f'### Task:\nSearch.\n### Output:\n{{ "queries": [] }}\n{HISTORY}',
        f'### Task:\nWhat is this?\n{HISTORY}\n{{ "title": "x" }}',
        [{"type": "text", "text": TITLE}],
        None,
    ],
)
def test_what_merely_resembles_a_background_task_is_none(prompt):
    assert not chat(prompt)


def test_a_background_prompt_in_a_conversation_in_odd_messages_or_on_another_route_is_none():
    assert not chat(TITLE, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
    odd: list[Any] = [None, [], "no list", [5], [{"role": "assistant", "content": TITLE}]]
    assert not any(is_background_task(INFERENCE_ROUTES["/api/chat"], {"messages": messages}) for messages in odd)
    assert not any(chat(TITLE, path=path) for path in ("/api/generate", "/v1/completions", "/v1/messages"))


def test_a_request_on_another_model_differs_in_nothing_else():
    body = b'{"stream": false, "model": "a", "messages": [{"role": "user", "content": "\xc3\xa9 <b>"}], "MODEL": "b"}'
    moved, _ = read_request(INFERENCE_ROUTES["/v1/chat/completions"], body, lambda _: LoadOptions(), model="c:1")
    assert json.loads(moved.body) == {"stream": False, "model": "c:1", "messages": [{"role": "user", "content": "é <b>"}]}
    assert (moved.model, moved.rewritten) == ("c:1", ("model",))
