"""The usage of an OpenAI stream is asked for where its caller does not, and taken out again without
a trace.
"""

from __future__ import annotations

import json
import random

import pytest

from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.request import counted
from hearth.dialects.usage import HiddenUsage
from tests.dialects.captured import captured
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.replay_streams import Run, chunked, route, some_answer, stream

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
ASKING = {"include_usage": True}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"stream_options": None},
        {"stream_options": {}},
        {"stream_options": {"include_usage": False}},
    ],
)
def test_a_stream_is_asked_for_its_usage_and_everything_else_stays(path: str, given: Fields):
    body = b' {"model": "m",  "x":1' + (b"," + encode(given)[1:-1] if given else b"") + b"}"
    asking, fields = counted(route(path), body, json.loads(body))
    assert json.loads(asking) == fields == json.loads(body) | {"stream_options": ASKING}
    assert given or asking == b' {"stream_options":{"include_usage":true},"model": "m",  "x":1}'


def test_what_else_a_caller_says_of_its_stream_is_kept():
    asked: JsonObject = {"stream_options": {"Include_Usage": False, "include_obfuscation": False}}
    assert counted(route(CHAT), encode(asked), asked)[1]["stream_options"] == {
        "include_obfuscation": False,
        **ASKING,
    }


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"stream_options": ASKING}),
        (CHAT, {"stream_options": {"INCLUDE_USAGE": True}}),
        (CHAT, {"stream_options": 5}),  # Ollama refuses these
        (CHAT, {"stream_options": {"include_usage": "yes"}}),
        *((path, {}) for path in ("/api/chat", "/v1/responses", "/v1/messages")),
    ],
)
def test_a_body_stays_the_same_where_usage_is_asked_for_or_always_comes(path, fields):
    body = encode({"model": "m", **fields})
    assert counted(route(path), body, fields)[0] is body


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_is_left_is_the_stream_without_its_usage_in_the_same_chunks(path: str):
    for number in range(20 * EXAMPLES):
        answer = some_answer(random.Random(number), path)
        told, silent = (
            stream(path, answer, Run(rng=random.Random(number), usage=usage))
            for usage in (True, False)
        )
        hidden = HiddenUsage(route(path))
        passed = list(filter(None, map(hidden.without, told)))
        assert passed == silent


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_how_it_is_cut_never_matters(path: str):
    for number in range(20 * EXAMPLES):
        rng = random.Random(number)
        answer = some_answer(rng, path)
        told, silent = (
            b"".join(stream(path, answer, Run(rng=random.Random(number), usage=usage)))
            for usage in (True, False)
        )
        hidden = HiddenUsage(route(path))
        assert (
            b"".join([hidden.without(chunk) for chunk in chunked(told, rng)]) + hidden.rest()
            == silent
        )


@pytest.mark.parametrize("name", ["oai_chat_stream_usage", "oai_compl_stream"])
def test_of_a_recorded_stream_nothing_is_left_that_names_a_usage(name: str):
    told = captured(name)
    hidden = HiddenUsage(route(told.path))
    passed = [hidden.without(chunk) for chunk in told.chunks]
    assert b"usage" not in b"".join(passed)
    assert [chunk.count(b"data: ") for chunk in passed] == [
        chunk.count(b"data: ") - (b'"choices":[],' in chunk) for chunk in told.chunks
    ]
    assert passed[-1].endswith(b"data: [DONE]\n\n")


def test_foreign_usage_goes_too_and_a_text_that_speaks_of_it_stays():
    hidden = HiddenUsage(route(CHAT))
    null = b'data: {"choices":[{"delta":{"content":"\\"usage\\": x"}}],"usage":null}\n\n'
    assert hidden.without(null) == b'data: {"choices":[{"delta":{"content":"\\"usage\\": x"}}]}\n\n'
    assert (
        hidden.without(b'data: {"choices":[],"usage":{"total_tokens":3},"timings":{}}\n\n') == b""
    )
    text = b'data: {"choices":[{"delta":{"content":"\\"usage\\":{}"}}]}\n\n'
    assert hidden.without(text) is text
    assert hidden.without(b"data: half") == b""
    assert hidden.rest() == b"data: half"


def test_a_line_without_end_is_not_held_for_ever():
    hidden = HiddenUsage(route(CHAT))
    piece = b"x" * 100_000
    passed = [hidden.without(piece) for _ in range(20)]
    assert b"".join(passed) == piece * 20
    assert hidden.rest() == b""
