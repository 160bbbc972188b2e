"""The queue learns what it must know of a body; the body goes on as it came, but for what only the
owner may decide.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.background import shape_of
from hearth.dialects.gojson import Body, GoJsonError, JsonValue, decode, folded
from hearth.dialects.request import (
    Envelope,
    count_tokens,
    is_model_name,
    keep_alive_ns,
    prompt_tokens,
    read_request,
    seeded,
    ways_on,
    without_attribution,
)
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import BadRequest, CallerError, ModelNotFound
from hearth.types import MIB, LoadOptions, ResumeMode
from tests.dialects.captured import captured
from tests.support.cases import for_each
from tests.support.fields import Fields

CHAT = "/api/chat"
GENERATE = "/api/generate"
GPT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
CLAUDE = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
ASKED: Fields = {"model": "a", "prompt": "x"}


def raw(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def read(path: str, body: object, num_ctx: int | None = None, **more: Any) -> Envelope:
    return read_request(
        INFERENCE_ROUTES[path], raw(body), lambda _: LoadOptions(num_ctx=num_ctx), **more
    )[0]


def refusal(path: str, body: object) -> CallerError:
    with pytest.raises(CallerError) as raised:
        read(path, body)
    return raised.value


@pytest.mark.parametrize(
    "name",
    [
        "chat_stream",
        "generate_raw",
        "embed_many",
        "embeddings_legacy",
        "oai_compl_stream",
        "anth_stream",
    ],
)
def test_a_body_without_the_owners_options_stays_the_same_object(name):
    request = captured(name)
    envelope = read(request.path, request.request_body)
    assert envelope.body is request.request_body
    assert (envelope.rewritten, envelope.model) == ((), json.loads(request.request_body)["model"])
    assert envelope.dialect is INFERENCE_ROUTES[request.path].dialect


GENERATES = "generate"
LOADS = "load"
UNLOADS = "unload"
EMBEDS = "embed"
IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:" + "A" * 999}}
READ: list[tuple[str, str, Fields, Any]] = [
    ("kind", GENERATE, {"prompt": "x", "keep_alive": 0}, GENERATES),
    ("kind", GENERATE, {}, LOADS),
    ("kind", GENERATE, {"prompt": "", "keep_alive": -1}, LOADS),
    *(("kind", GENERATE, {"Keep_Alive": zero}, UNLOADS) for zero in (0, 0.0, "0", "0s")),
    ("kind", CHAT, {"messages": HELLO}, GENERATES),
    ("kind", CHAT, {"messages": None}, LOADS),
    ("kind", CHAT, {"messages": [], "keep_alive": 0}, UNLOADS),
    ("kind", "/api/embed", {"input": ""}, EMBEDS),
    ("kind", "/api/embeddings", {"keep_alive": 0}, EMBEDS),
    ("kind", COMPLETIONS, {"prompt": ""}, GENERATES),
    ("kind", GPT, {"messages": HELLO, "keep_alive": 0}, GENERATES),
    *(("streaming", CHAT, {"messages": HELLO, **given}, True) for given in ({}, {"stream": None})),
    *(("streaming", CHAT, {"messages": HELLO, key: False}, False) for key in ("stream", "STREAM")),
    ("streaming", GENERATE, {"stream": True}, False),
    ("streaming", GPT, {"messages": HELLO}, False),
    ("streaming", CLAUDE, {"messages": HELLO, "max_tokens": 5, "stream": True}, True),
    ("streaming", "/v1/responses", {"input": "x", "stream": True}, True),
    *(("streaming", "/api/embed", {"stream": given}, False) for given in (True, "as it comes")),
    ("streaming", "/v1/embeddings", {"input": "x", "stream": {}}, False),
    *(
        ("max_tokens", CHAT, {"options": {"num_predict": given}}, limit)
        for given, limit in ((7.9, 7), (-1, None), (0, 0), (True, None), (10**400, 2**63 - 1))
    ),
    ("max_tokens", CHAT, {"options": {"Num_Predict": 7}, "max_tokens": 7}, None),
    ("max_tokens", GPT, {"messages": HELLO, "max_tokens": 7}, 7),
    ("max_tokens", GPT, {"messages": HELLO, "max_completion_tokens": 7}, None),
    ("max_tokens", "/v1/responses", {"input": "x", "max_output_tokens": 7}, 7),
    *(("max_tokens", GPT, {"messages": HELLO, "max_tokens": given}, None) for given in (0, -1)),
    ("max_tokens", COMPLETIONS, {"prompt": "x", "max_tokens": 0}, None),
    ("max_tokens", "/v1/responses", {"input": "x", "max_output_tokens": 0}, None),
    ("max_tokens", CLAUDE, {"messages": HELLO, "max_tokens": 7}, 7),
    ("max_tokens", "/v1/embeddings", {"input": "x", "max_tokens": 7}, None),
    *(
        ("prompt_tokens", GENERATE, {"prompt": text}, tokens)
        for text, tokens in (("x" * 7, 2), ("x" * 8, 3), ("ü" * 7, 2))
    ),
    (
        "prompt_tokens",
        GENERATE,
        {
            "prompt": "x" * 7,
            "system": "y" * 7,
            "suffix": "z" * 7,
            "images": ["aGVsbG8=" * 100, "b"],
        },
        6 + 512,
    ),
    (
        "prompt_tokens",
        CHAT,
        {"messages": [{"role": "user", "content": "x" * 7, "images": ["a" * 999]}]},
        2 + 256,
    ),
    (
        "prompt_tokens",
        CHAT,
        {
            "messages": HELLO,
            "tools": [{"parameters": {"a": {"type": ["string", "null"], "title": "t" * 9}}}],
        },
        4,
    ),
    (
        "prompt_tokens",
        GPT,
        {"messages": [{"content": [{"type": "text", "text": "x" * 7}, IMAGE_URL]}]},
        2 + 256,
    ),
    (
        "prompt_tokens",
        "/v1/responses",
        {"instructions": "x" * 7, "input": [{"role": "user", "content": "y" * 7}]},
        4,
    ),
    (
        "prompt_tokens",
        CLAUDE,
        {"max_tokens": 1, "system": [{"type": "text", "text": "s" * 7}], "messages": HELLO},
        4,
    ),
    ("prompt_tokens", "/api/embed", {"input": ["x"] * 10_000}, 2858),
    ("model", GPT, {"Model": "other", "messages": HELLO}, "other"),
]


@for_each(("attribute", "path", "body", "expected"), READ)
def test_the_queue_learns_of_a_body_what_ollama_would_read_from_it(attribute, path, body, expected):
    assert getattr(read(path, {"model": "a", **body}), attribute) == expected


def test_a_null_does_not_hide_the_model_or_the_stream_that_ollama_would_run():
    rest = f'"stream":true,"stream":null,"messages":{json.dumps(HELLO)}'
    envelope = read(GPT, b'{"Model":"allowed","model":"other","model":null,%b}' % rest.encode())
    assert (envelope.model, envelope.streaming) == ("other", True)


RELOADING = [
    "num_ctx",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "use_mmap",
    "num_thread",
    "draft_num_predict",
]
TWICE = b'{"model":"a","prompt":"x","options":{"num_ctx":1},"options":{"seed":2}}'
SPELLED = {**ASKED, "options": {"num_ctx": 1, "top_k": 3}, "Options": {"seed": 2}}
REWRITTEN: list[tuple[Any, int | None, Fields, tuple[str, ...]]] = [
    *(
        ({"model": "a", key: -1, "prompt": "x"}, None, {}, ("keep_alive",))
        for key in ("keep_alive", "Keep_Alive", "\u212aeep_alive")
    ),
    *(
        ({**ASKED, "options": {name: 3}}, None, {"options": {}}, (f"options.{name}",))
        for name in RELOADING
    ),
    (
        {**ASKED, "options": {"seed": 1, "num_gpu": 99, "temperature": 0.5, "NUM_THREAD": 4}},
        None,
        {"options": {"seed": 1, "temperature": 0.5}},
        ("options.num_gpu", "options.NUM_THREAD"),
    ),
    (
        {**ASKED, "options": {"num_ctx": 1, "seed": 2}},
        4096,
        {"options": {"num_ctx": 4096, "seed": 2}},
        ("options.num_ctx",),
    ),
    *(
        ({**ASKED, **given}, 4096, {"options": {"num_ctx": 4096}}, ("options.num_ctx",))
        for given in ({}, {"options": None})
    ),
    (TWICE, None, {"options": {"seed": 2}}, ("duplicate keys",)),
    (SPELLED, None, {"options": {"top_k": 3, "seed": 2}}, ("options.num_ctx", "duplicate keys")),
]


@pytest.mark.parametrize(("body", "num_ctx", "extra", "rewritten"), REWRITTEN)
def test_what_only_the_owner_decides_is_taken_out_or_replaced_in_its_place(
    body, num_ctx, extra, rewritten
):
    envelope = read(GENERATE, body, num_ctx)
    assert envelope.body == json.dumps({**ASKED, **extra}, separators=(",", ":")).encode()
    assert envelope.rewritten == rewritten


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (GENERATE, b'{"model": "a", "prompt": "x", "options": {"num_ctx": 4096}}'),
        *(
            (path, raw({"model": "a", "max_tokens": 1, "messages": HELLO, "keep_alive": 0}))
            for path in (GPT, CLAUDE)
        ),
    ],
)
def test_a_body_of_the_pinned_length_or_another_dialect_is_not_touched(path, body):
    assert read(path, body, 4096).body is body


def test_the_pinned_options_are_looked_up_by_the_name_the_caller_wrote():
    names: list[str] = []
    read_request(
        INFERENCE_ROUTES[GENERATE],
        raw({"model": "Llama3.1:8B"}),
        lambda name: names.append(name) or LoadOptions(),  # type: ignore[func-returns-value]
    )
    assert names == ["Llama3.1:8B"]


KEYS = st.text(max_size=5).filter(
    lambda key: key.isascii() and key == key.lower() not in ("model", "stream", "seed", "options")
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
)


@given(st.dictionaries(KEYS, SCALARS, max_size=5))
def test_a_rewrite_changes_nothing_else_in_meaning_or_order(extra):
    again = json.loads(read(GENERATE, {"model": "a", "keep_alive": 5, "prompt": "x", **extra}).body)
    assert list(again.items()) == list({**ASKED, **extra}.items())


REFUSED: list[tuple[str, Any, str]] = [
    (CHAT, [1], "the body must be of type object"),
    (CHAT, {"messages": "x"}, "messages must be of type array"),
    (CHAT, {"messages": ["x"]}, "every entry of messages must be of type object"),
    *(
        (path, fields, f"json: cannot unmarshal {text}")
        for path, fields, text in (
            (
                CHAT,
                {"messages": [{"content": ["x"]}]},
                "array into Go struct field ChatRequest.messages.content of type string",
            ),
            (
                CHAT,
                {"model": "a", "stream": "no"},
                "string into Go struct field ChatRequest.stream of type bool",
            ),
            (
                GPT,
                {"model": "a", "max_tokens": 1.5},
                "number 1.5 into Go struct field ChatCompletionRequest.max_tokens of type int",
            ),
        )
    ),
    (CHAT, {"messages": HELLO}, "model is required"),
    (GENERATE, {"model": "a", "options": 5}, "options must be of type object"),
    ("/api/embed", {"model": "a", "input": {"a": 1}}, "invalid input type"),
    ("/v1/embeddings", {"model": "a", "input": []}, "invalid input"),
    ("/v1/embeddings", {"model": "a", "input": [1, 2]}, "invalid input type"),
    ("/v1/responses", {"input": "x"}, "model is required"),
    (CLAUDE, {}, "model is required"),
    (
        CLAUDE,
        {"model": "a", "messages": HELLO, "max_tokens": 0},
        "max_tokens is required and must be positive",
    ),
    (CLAUDE, {"model": "a", "max_tokens": 5}, "messages is required"),
    (GPT, {"model": "a"}, "[] is too short - 'messages'"),
    (CLAUDE, b"", "EOF"),
    (CHAT, b" ", "missing request body"),
    (CLAUDE, {"model": "bad name", "messages": HELLO, "max_tokens": 5}, "invalid model name"),
    *(
        (
            path,
            {"model": "a", "messages": HELLO * 10_001},
            "too many messages: 10001, at most 10000 are accepted",
        )
        for path in (CHAT, GPT)
    ),
    *(
        (
            path,
            {"model": "a", "input": ["x"] * 10_001},
            "too many inputs: 10001, at most 10000 are accepted",
        )
        for path in ("/api/embed",)
    ),
    *(
        (path, b'{"model":"a","x":' + b"[" * 100_000, "exceeded max depth")
        for path in INFERENCE_ROUTES
    ),
]


@for_each(("path", "body", "text"), REFUSED)
def test_a_body_that_does_not_fit_the_route_is_refused_with_ollamas_text(path, body, text):
    error = refusal(path, body)
    assert (type(error) in (BadRequest, GoJsonError), error.message) == (True, text)


@pytest.mark.parametrize("path", [COMPLETIONS, "/v1/embeddings", GENERATE, "/api/embed"])
def test_a_missing_model_is_not_found_on_the_routes_that_look_it_up_first(path):
    error = refusal(path, {"prompt": "x", "input": "x"})
    assert (type(error), error.message) == (ModelNotFound, "model '' not found")


@for_each(
    ("name", "parsed"),
    [
        *(
            (name, True)
            for name in (
                "llama3.1:8b",
                "qwen2.5:32b-instruct-q6_K",
                "library/llama3",
                "_x",
                "a" * 80,
            )
        ),
        ("hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M", True),
        ("localhost:5000/ns/model:tag", True),
        ("https://registry.ollama.ai/library/mistral:latest", True),
        *(("h" * host + "/" + "n" * 80 + "/" + "m" * 80, host == 94) for host in (94, 95)),
        *(
            (name, False)
            for name in (
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
            )
        ),
        *((name, False) for name in ("n.s/model", "ünïcode", "a" * 81)),
    ],
)
def test_a_model_name_is_what_ollama_parses(name, parsed):
    assert is_model_name(name) is parsed


S = 10**9
NS: list[tuple[JsonValue, int | None]] = [
    (None, None),
    *((nothing, 0) for nothing in (0, -0.0, "0", "-0", "0m0.0s")),
    *((given, 300 * S) for given in (300, "5m", "+300s")),
    *((given, 5400 * S) for given in ("1h30m", "1.5h")),
    *((given, S // 2) for given in (0.5, ".5s", "500ms", "0.s500ms")),
    ("1\u00b5s", 1_000),
    *((given, 2**63 - 1) for given in (-1, -0.5, "-1m", 1e300)),
]


@pytest.mark.parametrize(("given", "expected_ns"), NS)
def test_numbers_are_seconds_and_strings_are_go_durations(given, expected_ns):
    assert keep_alive_ns(given) == expected_ns


@pytest.mark.parametrize(
    ("given", "says"),
    [
        *(
            (given, f'time: invalid duration "{given}"')
            for given in ("", "-", ".", "m", "five", "9" * 30 + "s", "9999999999h", "1h.")
        ),
        *((given, f'time: missing unit in duration "{given}"') for given in ("5", "1h5")),
        ("5x", 'time: unknown unit "x" in duration "5x"'),
        ("5 m", 'time: unknown unit " m" in duration "5 m"'),
        ('5"\u00e9', r'time: unknown unit "\"\xc3\xa9" in duration "5\"\xc3\xa9"'),
        ("x" * 200, f'time: invalid duration "{"x" * 100}"'),
        (True, "Unsupported type: 'bool'"),
        ([], "Unsupported type: '[]interface {}'"),
        ({}, "Unsupported type: 'map[string]interface {}'"),
    ],
)
def test_anything_else_is_refused_in_gos_words(given, says):
    with pytest.raises(GoJsonError) as raised:
        keep_alive_ns(given)
    assert raised.value.message == says


def seeding(
    path: str, body: bytes, *, only_replay: bool = False, continue_diverged: bool = True
) -> tuple[bytes, tuple[ResumeMode, ...]]:
    fields = folded(Body(decode(body)).fields)
    route = INFERENCE_ROUTES[path]
    ways = ways_on(
        route, body, fields, only_replay=only_replay, continue_diverged=continue_diverged
    )
    return seeded(route, body, fields, 4711), ways


UNSEEDED: list[tuple[str, bytes, bytes, bool]] = [
    (
        CHAT,
        b' {"model": "m", "n": 1.0}',
        b' {"options":{"seed":4711},"model": "m", "n": 1.0}',
        True,
    ),
    (
        CHAT,
        b'{"options": {"num_ctx": 1e3}, "x": "\xff"}',
        b'{"options":{"seed":4711,"num_ctx":1000.0},"x":"\xef\xbf\xbd"}',
        True,
    ),
    (GENERATE, b'{"OPTIONS":{}}', b'{"options":{"seed":4711}}', True),
    (GENERATE, b'{"a":1,"options": null}', b'{"a":1,"options":{"seed":4711}}', True),
    (CHAT, b'{"options":{"a":1,"seed": null }}', b'{"options":{"seed":4711,"a":1}}', True),
    (CHAT, b'{"options":{"Seed":5}}', b'{"options":{"seed":4711,"Seed":5}}', True),
    (CHAT, b'{"seed":5}', b'{"options":{"seed":4711},"seed":5}', True),
    (GPT, b'{"model":"m"} trailing', b'{"seed":4711,"model":"m"} trailing', True),
    (COMPLETIONS, b'{"model":"m","Seed":null}', b'{"model":"m","seed":4711}', True),
]
OWN_SEEDS = [
    ("0", True),
    ("7", True),
    ("-2", True),
    ("-1", False),
    ("4294967295", False),
    ("5.0", True),
    ("1" * 400, True),
]
SEEDED: list[tuple[str, bytes, bytes, bool]] = [
    *UNSEEDED,
    *(
        (CHAT, (body := b'{"options":{"seed":%b}}' % seed.encode()), body, repeats)
        for seed, repeats in OWN_SEEDS
    ),
    *(
        (GPT, (body := b'{"seed":%b}' % seed.encode()), body, repeats)
        for seed, repeats in OWN_SEEDS
    ),
    *(
        (path, b'{"temperature":0.0,"seed":-1}', b'{"temperature":0.0,"seed":-1}', True)
        for path in (COMPLETIONS, CLAUDE)
    ),
    *(
        ("/v1/responses", body, body, cold)
        for body, cold in ((b'{"Temperature":0}', True), (b'{"temperature":false}', False))
    ),
    *((CLAUDE, body, body, False) for body in (b'{"temperature":0.1}', b'{"seed":5}', b"{}")),
    *(
        (CHAT, body, body, False)
        for body in (b'{"options":{"seed":"7"}}', b'{"options":{"seed":true}}')
    ),
]


@for_each(("path", "body", "expected", "repeatable"), SEEDED)
def test_a_missing_seed_is_put_in_and_a_given_one_says_whether_it_repeats(
    path, body, expected, repeatable
):
    """-1, also as 32 bits, means another answer every time; two routes have no seed; what is no
    number is the model server's to refuse.
    """
    seeded_body, ways = seeding(path, body)
    assert (seeded_body, "replayed" in ways) == (expected, repeatable)
    assert (seeded_body is body) is (body == expected)


@given(fields=st.dictionaries(KEYS, VALUES, min_size=1), indent=st.none() | st.just(1))
def test_no_other_field_and_no_order_changes(fields, indent):
    body = json.dumps(fields, indent=indent).encode()
    again = json.loads(seeding(COMPLETIONS, body)[0])
    assert list(again.items()) == [("seed", 4711), *fields.items()]
    nested = json.dumps({"options": fields, **fields}, indent=indent).encode()
    assert list(json.loads(seeding(CHAT, nested)[0])["options"].items()) == [
        ("seed", 4711),
        *fields.items(),
    ]


REPLAY = "replayed"
CONTINUE = "continued"


@pytest.mark.parametrize(
    ("path", "options", "only_replay", "continue_diverged", "ways"),
    [
        (CHAT, {}, False, True, (CONTINUE, REPLAY)),
        (CHAT, {}, True, True, (REPLAY,)),
        (CHAT, {"seed": 3}, False, True, (REPLAY, CONTINUE)),
        (CHAT, {"seed": 3}, False, False, (REPLAY,)),
        (CHAT, {"temperature": 0}, False, True, (REPLAY, CONTINUE)),
        (CLAUDE, {}, False, False, (CONTINUE,)),
        (CLAUDE, {}, True, True, ()),
    ],
)
def test_who_chose_a_repeatable_answer_is_replayed_first(
    path, options, only_replay, continue_diverged, ways
):
    """`scheduling.started_streams` and `scheduling.on_divergence`."""
    body = raw({"model": "m", "messages": HELLO, "max_tokens": 9, "options": options})
    assert (
        seeding(path, body, only_replay=only_replay, continue_diverged=continue_diverged)[1] == ways
    )


LINE = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"


def text_block(text: str, **more: Any) -> Any:
    return {"type": "text", "text": text, **more}


CACHED = text_block("You are Claude Code.", cache_control={"type": "ephemeral"})
SYSTEMS: list[tuple[Any, Any]] = [
    ([text_block(LINE), CACHED], [CACHED]),
    ([CACHED | {"text": f"{LINE}\nYou are Claude Code."}], [CACHED]),
    (f"{LINE}\n\nYou are Claude Code.", "You are Claude Code."),
    *((nothing, None) for nothing in ([text_block(LINE)], LINE)),
]


@pytest.mark.parametrize(("system", "left"), SYSTEMS)
def test_the_attribution_line_goes_and_the_rest_of_the_system_prompt_stays(system, left):
    body = {"model": "m", "max_tokens": 5, "system": system, "messages": HELLO}
    expected = {
        key: left if key == "system" else one
        for key, one in body.items()
        if key != "system" or left is not None
    }
    envelope = read(CLAUDE, body, strip_attribution=True)
    assert list(json.loads(envelope.body).items()) == list(expected.items())
    assert (envelope.rewritten, envelope.prompt_tokens) == (("system",), prompt_tokens(expected))


KEPT: list[Any] = [
    None,
    "",
    [],
    5,
    f"Never repeat this:\n{LINE}",
    [text_block("You are helpful."), text_block("")],
    [LINE],
    [{"type": "x"}],
]


@pytest.mark.parametrize("system", KEPT)
def test_a_system_prompt_without_the_line_comes_back_as_the_same_object(system):
    said = [{"role": "user", "content": [text_block(LINE)]}, {"role": "assistant", "content": LINE}]
    fields = {"model": "m", "system": system, "messages": said}
    assert without_attribution(fields) is fields


def test_a_body_with_a_repeated_key_or_the_line_left_in_stays_as_it_came():
    for twice, strip in ((b"", False), (b'"system":"",', True)):
        body = b'{"model":"m","max_tokens":5,%b"system":"%b","messages":[{"role":"user"}]}' % (
            twice,
            LINE.encode(),
        )
        assert read(CLAUDE, body, strip_attribution=strip).body is body


HISTORY = "### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>"
TITLE = (
    '### Task:\nGenerate a title.\n### Output:\nJSON format: { "title": "your '
    'concise title here" }\n'
) + HISTORY
USER = {"role": "user", "content": TITLE}
PIRATE = {"role": "system", "content": "You speak like a pirate."}
TASKS: list[tuple[str, Any, bool]] = [
    *((path, [PIRATE, USER], True) for path in (CHAT, GPT)),
    *(
        (CHAT, [USER | {"content": TITLE.replace("title", key)}], True)
        for key in ("tags", "follow_ups")
    ),
    *((path, [USER], False) for path in (GENERATE, COMPLETIONS, CLAUDE)),
    (CHAT, [*HELLO, {"role": "assistant", "content": "hello"}, USER], False),
    *(
        (CHAT, messages, False)
        for messages in (None, [], "no list", [5], [USER | {"role": "assistant"}])
    ),
    (CHAT, [USER | {"content": f"please explain:\n{TITLE}"}], False),
    (CHAT, [USER | {"content": TITLE.replace("<chat_history>", "<history>")}], False),
    (CHAT, [USER | {"content": TITLE.replace("title", "queries")}], False),
    (CHAT, [USER | {"content": f'### Task:\nWhat is this?\n{HISTORY}\n{{ "title": "x" }}'}], False),
    (GPT, [USER | {"content": [{"type": "text", "text": TITLE}]}], True),
    (CHAT, [USER | {"content": None}], False),
]


@pytest.mark.parametrize(("path", "messages", "is_task"), TASKS)
def test_a_background_task_is_known_by_what_its_prompt_asks_for(path, messages, is_task):
    shape = shape_of(INFERENCE_ROUTES[path], {"model": "m", "messages": messages})
    assert (shape is not None and shape.any_model) is is_task


def test_a_request_on_another_model_differs_in_nothing_else():
    body = (
        b'{"stream": false, "model": "a", "messages": [{"role": "user", "content": '
        b'"\xc3\xa9 <b>"}], "MODEL": "b"}'
    )
    moved = read(GPT, body, model="c:1")
    assert json.loads(moved.body) == {
        "stream": False,
        "model": "c:1",
        "messages": [{"role": "user", "content": "é <b>"}],
    }
    assert (moved.model, moved.rewritten) == ("c:1", ("model",))


COUNTED = {
    "model": "a",
    "system": "s" * 7,
    "tools": [{"name": "n" * 7, "description": "d" * 7, "input_schema": {"type": "object"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "t" * 7},
                {"type": "image", "source": {"data": "A" * 999}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "n" * 7, "input": {"q": "x" * 7}}
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "r" * 7}],
        },
    ],
}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (COUNTED, b'{"input_tokens":270}'),
        (captured("anth_count").request_body, b'{"input_tokens":2}'),
        (b"{", "unexpected EOF"),
        (b'{"messages":[{}]}', "model is required"),
        (b'{"model":"a"}', "messages is required"),
        (b'{"model":"a b","messages":[{}]}', "invalid model name"),
        (b"[]", "the body must be of type object"),
    ],
)
def test_tokens_are_counted_over_system_tools_and_messages(body, said):
    if isinstance(said, bytes):
        assert count_tokens(raw(body)) == said
    else:
        with pytest.raises(BadRequest) as raised:
            count_tokens(raw(body))
        assert raised.value.message == said


@pytest.mark.parametrize(
    ("more", "ways"),
    [
        ("hi" * 1000, ("continued", "replayed")),
        ("hi" * MIB, ("replayed",)),
        ([{"role": "user", "content": "a"}] * 10_000, ("replayed",)),
    ],
)
def test_a_stream_whose_body_takes_long_to_read_again_is_replayed_only(more, ways):
    turns = more if isinstance(more, list) else [{"role": "user", "content": more}]
    fields: Any = {"model": "m", "messages": turns}
    body = json.dumps(fields).encode()
    assert (
        ways_on(
            INFERENCE_ROUTES["/api/chat"],
            body,
            fields,
            only_replay=False,
            continue_diverged=True,
        )
        == ways
    )
