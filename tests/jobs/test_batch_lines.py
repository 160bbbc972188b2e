"""Input files cut into lines, and what is wrong with each."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.gojson import LARGE_BYTES, JsonObject
from hearth.engines.ollama.traits import OllamaTraits
from hearth.errors import BadRequest
from hearth.job_types import BatchEnd, BatchLine, EndedLine, JobEnd, JobState, LineProblem
from hearth.jobs.batch_lines import RawLine, Splitter, check_line, outcome_of, request_in
from hearth.types import JsonDict
from tests.jobs.batch_house import COMPLETIONS, jsonl, line, new_batch
from tests.support.cases import for_each

GOOD = line("x")


def check_request(path: str, fields: JsonObject, model: str) -> None:
    """As an engine does that has no `suffix`."""
    assert (path, model) in ((COMPLETIONS, "a:latest"), (COMPLETIONS, "a"))
    if "suffix" in fields:
        raise BadRequest("`suffix` cannot be carried")


def checked(text: bytes | None, **changed: Any) -> BatchLine | LineProblem:
    return check_line(
        RawLine(line=7, start=0, length=len(text or b""), text=text),
        new_batch(**changed),
        OllamaTraits.canonical,
        check_request,
    )


def split(content: bytes, sizes: list[int], limit_bytes: int = 1 << 20) -> list[RawLine]:
    splitter = Splitter(limit_bytes)
    found = list[RawLine]()
    for size in sizes:
        found += splitter.feed(content[:size])
        content = content[size:]
    return [*found, *splitter.feed(content), *splitter.end()]


@given(
    st.lists(st.binary(max_size=20).map(lambda each: each.replace(b"\n", b"")), max_size=10),
    st.lists(st.integers(0, 30), max_size=10),
)
def test_a_file_is_cut_into_the_same_lines_however_it_comes(texts, sizes):
    content = b"\n".join(texts)
    expected = [
        (number, text)
        for number, text in enumerate(texts, 1)
        if text.removeprefix(BOM_UTF8).strip()
    ]
    found = split(content, sizes)
    assert [(each.line, each.text) for each in found] == expected
    assert all(content[each.start : each.start + each.length] == each.text for each in found)


def test_a_line_that_is_too_long_is_not_kept_and_those_after_it_are_found():
    found = split(b"a\n" + b"b" * 100 + b"\nc", [30, 30, 30], limit_bytes=50)
    assert [(each.line, each.start, each.length, each.text) for each in found] == [
        (1, 0, 1, b"a"),
        (2, 2, 100, None),
        (3, 103, 1, b"c"),
    ]
    assert [each.text for each in split(b"b" * 50 + b"\n" + b"b" * 51, [30], limit_bytes=50)] == [
        b"b" * 50,
        None,
    ]


@pytest.mark.parametrize(
    "custom_id",
    [
        "x",
        "x" * 512,
        "a b",
        "id\u00a07",
        "\U0001f468\u200d\U0001f469",
        "\ue000",
        "\u2028",
        "\u0378",
    ],
)
def test_a_request_in_order_is_kept_with_its_place_and_runs_unstreamed(custom_id):
    text = jsonl({**GOOD, "custom_id": custom_id}).rstrip()
    assert checked(text) == BatchLine(
        line=7, custom_id=custom_id, model="a:latest", start=0, length=len(text)
    )
    assert json.loads(request_in(text, COMPLETIONS)) == {**GOOD["body"], "stream": False}


@for_each(
    ("changed", "code", "param"),
    [
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"method": None}, "missing_required_parameter", "method"),
        ({"url": None}, "missing_required_parameter", "url"),
        ({"body": None}, "missing_required_parameter", "body"),
        ({"custom_id": 7}, "invalid_custom_id", "custom_id"),
        ({"custom_id": ""}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "a\nb"}, "invalid_custom_id", "custom_id"),
        ({"custom_id": "\ud800"}, "invalid_custom_id", "custom_id"),
        *(
            ({"custom_id": f"a{control}b"}, "invalid_custom_id", "custom_id")
            for control in ("\0", "\t", "\x1b", "\x7f", "\x85")
        ),
        ({"method": "GET"}, "invalid_method", "method"),
        ({"url": "/v1/embeddings"}, "invalid_url", "url"),
        ({"url": 7}, "invalid_url", "url"),
        ({"body": "text"}, "invalid_request", "body"),
        ({"body": {"model": "a", "prompt": "x", "stream": True}}, "invalid_request", "body.stream"),
        ({"body": {"prompt": "x"}}, "model_not_found", "body.model"),
        ({"body": {"model": 7, "prompt": "x"}}, "invalid_request", "body"),
        ({"body": {"model": "a", "prompt": "x", "max_tokens": "many"}}, "invalid_request", "body"),
    ],
)
def test_what_is_wrong_with_a_request_is_said_with_its_line(changed, code, param):
    problem = checked(jsonl({**GOOD, **changed}))
    assert not isinstance(problem, BatchLine)
    assert (problem["code"], problem["line"], problem["param"]) == (code, 7, param)


def test_what_the_engine_cannot_be_asked_for_is_said_before_anything_runs():
    problem = checked(jsonl({**GOOD, "body": {**GOOD["body"], "Suffix": "x"}}))
    assert not isinstance(problem, BatchLine)
    assert (problem["code"], problem["message"]) == (
        "invalid_request",
        "`suffix` cannot be carried",
    )


SHORT = jsonl(GOOD).rstrip()
LONG = jsonl({**GOOD, "body": {**GOOD["body"], "user": "x" * LARGE_BYTES}}).rstrip()
SIZES = (SHORT, LONG)


@pytest.mark.parametrize("text", SIZES, ids=("short", "long"))
def test_a_mark_of_the_byte_order_is_dropped_whatever_the_size(text):
    marked = BOM_UTF8 + text
    assert checked(marked) == BatchLine(
        line=7, custom_id="x", model="a:latest", start=0, length=len(marked)
    )
    assert request_in(marked, COMPLETIONS) == request_in(text, COMPLETIONS)
    assert [each.line for each in split(BOM_UTF8 + b"\n" + text, [])] == [2]


def spoiled(old: bytes, new: bytes) -> list[bytes]:
    return [text.replace(old, new) for text in SIZES]


@for_each(
    ("text", "models", "code"),
    [
        *((text, (), "invalid_json_line") for text in (b"{", b"[]", b"7", b"[" * 100_000)),
        *((text, (), "invalid_json_line") for text in spoiled(b'"x"', b"NaN")),
        *((text, (), "invalid_json_line") for text in spoiled(b'"x"', b"1e999")),
        *((text + b" {}", (), "invalid_json_line") for text in SIZES),
        *((text + BOM_UTF8, (), "invalid_json_line") for text in SIZES),
        *(
            (text, (), "invalid_encoding")
            for text in (b"\xff", *spoiled(b'"x"', b'"\xfc"'), *spoiled(b'"x"', b'"\xed\xa0\x80"'))
        ),
        *(
            (text.decode().encode(coding), (), "invalid_encoding")
            for text in SIZES
            for coding in ("utf-16", "utf-16-le", "utf-32-be")
        ),
        (None, (), "line_too_long"),
        (jsonl(GOOD), ("b*",), "model_not_allowed"),
    ],
)
def test_what_is_no_object_too_long_or_for_a_forbidden_model_is_no_request(text, models, code):
    problem = checked(text, models=models)
    assert not isinstance(problem, BatchLine)
    assert problem["code"] == code


def written(
    end: JobEnd | None, ending: BatchEnd | None = None
) -> tuple[bool, JsonDict, tuple[int, int]]:
    outcome = outcome_of(
        EndedLine(line=1, custom_id='"x"', job=5, job_id="batch_req_1", end=end, ending=ending)
    )
    assert outcome.text.endswith(b"\n")
    assert outcome.text.count(b"\n") == 1
    return (
        outcome.completed,
        json.loads(outcome.text),
        (outcome.prompt_tokens, outcome.output_tokens),
    )


JSON = "application/json; charset=utf-8"


def test_an_answer_is_one_line_as_the_model_server_wrote_it():
    result = (
        b'{\n  "usage": {"prompt_tokens": 3,\r\n "completion_tokens": 4},\n "x": "\xc3\xa9\\n"\n}\n'
    )
    done, text, tokens = written(
        JobEnd(state=JobState.COMPLETED, status=200, content_type=JSON, result=result)
    )
    assert (done, tokens) == (True, (3, 4))
    response = {"status_code": 200, "request_id": "batch_req_1", "body": json.loads(result)}
    assert text == {"id": "batch_req_1", "custom_id": '"x"', "response": response, "error": None}


def test_a_refusal_of_the_model_server_stands_in_the_error_file_with_its_answer():
    end = JobEnd(
        state=JobState.FAILED,
        reason="backend_status",
        status=400,
        content_type=JSON,
        result=b'{"error": {"message": "no"}}',
    )
    done, text, _ = written(end)
    assert (done, text["error"]) == (False, None)
    assert text["response"] == {
        "status_code": 400,
        "request_id": "batch_req_1",
        "body": {"error": {"message": "no"}},
    }


@pytest.mark.parametrize(
    ("end", "ending", "code"),
    [
        (None, None, "result_lost"),
        (
            JobEnd(state=JobState.FAILED, reason="interrupted_by_restart", error="it died"),
            None,
            "interrupted_by_restart",
        ),
        (JobEnd(state=JobState.CANCELLED, reason="cancelled"), None, "request_cancelled"),
        (JobEnd(state=JobState.CANCELLED, reason="cancelled"), "cancelled", "batch_cancelled"),
        (JobEnd(state=JobState.CANCELLED, reason="cancelled"), "expired", "batch_expired"),
        (
            JobEnd(state=JobState.COMPLETED, status=200, content_type="text/html", result=b"<p>"),
            None,
            "invalid_response",
        ),
        (
            JobEnd(state=JobState.COMPLETED, status=200, content_type=JSON, result=b"{"),
            None,
            "invalid_response",
        ),
        (
            JobEnd(
                state=JobState.COMPLETED,
                status=200,
                content_type=JSON,
                result="{}".encode("utf-16"),
            ),
            None,
            "invalid_response",
        ),
    ],
)
def test_what_has_no_answer_stands_in_the_error_file_with_the_reason(end, ending, code):
    done, text, tokens = written(end, ending)
    assert (done, text["response"], tokens) == (False, None, (0, 0))
    assert isinstance(text["error"], dict)
    assert text["error"]["code"] == code
    assert text["error"]["message"]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("bad_request", "invalid_request_error"),
        ("forbidden", "permission_error"),
        ("model_not_found", "not_found_error"),
        ("backend_gone", "api_error"),
    ],
)
def test_a_request_without_an_answer_has_the_error_type_of_its_route(reason: str, kind: str):
    end = JobEnd(state=JobState.FAILED, reason=reason, error="because")
    ended = EndedLine(line=1, custom_id="r1", job=1, job_id="j1", end=end, ending=None)
    outcome = outcome_of(ended, of_messages=True)
    assert json.loads(outcome.text)["result"] == {
        "type": "errored",
        "error": {"type": "error", "error": {"type": kind, "message": "because"}},
    }
