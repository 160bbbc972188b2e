"""A stream is whole when its dialect's own terminator came last, however the bytes were cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.errors import stream_error
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.dialects.stream import MOST_NANOSECONDS, MOST_TOKENS, Ending, StreamTail, read_whole
from hearth.errors import BackendGone
from hearth.types import RequestId, Usage
from tests.dialects.captured import Captured, captured, captured_streams
from tests.support.cases import for_each

STREAMS = [name for name in captured_streams() if captured(name).path in INFERENCE_ROUTES]
WHOLE = ["chat_stream", "generate_stream", "oai_chat_stream", "oai_chat_stream_usage", "oai_compl_stream", "oai_resp_stream", "anth_stream"]
BROKEN = [
    "midstream_kill_chat",
    "midstream_kill_generate",
    "midstream_kill_oai_chat",
    "midstream_kill_responses",
    "midstream_kill_anthropic",
    "token_repeat_abort_stream_no_done",
    "token_repeat_abort_oai_stream",
]


def ending_of(path: str, *chunks: bytes) -> Ending:
    tail = StreamTail(INFERENCE_ROUTES[path])
    for chunk in chunks:
        tail.feed(chunk)
    return tail.ending()


def replay(stream: Captured) -> Ending:
    return ending_of(stream.path, *stream.chunks)


@for_each("name", WHOLE)
def test_a_stream_that_ollama_ended_itself_is_complete_at_its_last_line_whatever_its_length(name: str) -> None:
    stream = captured(name)
    ending = replay(stream)
    assert (ending.complete, ending.reported_error) == (True, False)
    assert not ending_of(stream.path, stream.body.rstrip(b"\n")[:-1]).complete
    body = stream.chunks[0] * 5000 + stream.body
    assert ending_of(stream.path, *(body[at : at + 1000] for at in range(0, len(body), 1000))) == ending


@for_each("name", BROKEN)
def test_a_stream_that_only_stops_is_not_complete_and_only_native_routes_report_that_their_runner_died(name: str) -> None:
    ending = replay(captured(name))
    assert (ending.complete, ending.reported_error) == (False, name in ("midstream_kill_chat", "midstream_kill_generate"))


@for_each(
    ("name", "usage"),
    [
        ("chat_stream", Usage(prompt_tokens=24, output_tokens=6, load_s=0.000914769, prompt_s=0.005029, decode_s=0.003629)),
        ("oai_chat_stream", Usage()),
        ("oai_chat_stream_usage", Usage(prompt_tokens=24, output_tokens=2)),
        ("oai_compl_stream", Usage(prompt_tokens=24, output_tokens=2)),
        ("oai_resp_stream", Usage(prompt_tokens=24, output_tokens=2)),
        ("anth_stream", Usage(prompt_tokens=24, output_tokens=2)),
        ("midstream_kill_chat", Usage()),
        ("midstream_kill_anthropic", Usage()),
    ],
)
def test_a_stream_reports_its_usage_where_its_dialect_has_one(name: str, usage: Usage) -> None:
    assert replay(captured(name)).usage == usage


@given(st.sampled_from(STREAMS), st.data())
def test_how_a_stream_is_cut_into_chunks_never_matters(name: str, data: st.DataObject) -> None:
    stream = captured(name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream.body)), max_size=30)))
    pieces = [stream.body[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream.body)], strict=True)]
    assert ending_of(stream.path, *pieces) == ending_of(stream.path, stream.body)


def test_only_the_end_of_a_long_stream_is_held() -> None:
    tail = StreamTail(INFERENCE_ROUTES["/api/chat"])
    line = captured("chat_stream").chunks[0]
    for _ in range(20_000):
        tail.feed(line)
    assert len(tail._tail) < 200_000


def test_a_last_line_that_lists_a_large_context_is_understood() -> None:
    said = {"response": "", "done": True, "context": [123456] * 130_000, "prompt_eval_count": 129_000, "eval_count": 5}
    body = b'{"response":"x","done":false}\n' * 3000 + json.dumps(said).encode() + b"\n"
    ending = ending_of("/api/generate", *(body[at : at + 4096] for at in range(0, len(body), 4096)))
    assert ending.complete
    assert ending.usage == Usage(prompt_tokens=129_000, output_tokens=5)


@pytest.mark.parametrize("separator", ["\u2028", "\u0085"])
def test_only_line_feeds_end_a_line(separator: str) -> None:
    text = json.dumps({"response": f"a{separator}b", "done": True, "eval_count": 3}, ensure_ascii=False).encode()
    assert ending_of("/api/generate", text + b"\n").usage == Usage(output_tokens=3)


@for_each("path", ["/api/chat", "/api/generate", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_our_own_last_frame_counts_as_a_reported_error(path: str) -> None:
    frame = stream_error(INFERENCE_ROUTES[path], BackendGone(), RequestId("req_1"))
    ending = ending_of(path, frame)
    assert ending.reported_error
    assert not ending.complete


@for_each(("kind", "failed"), [("failed", True), ("incomplete", False)])
def test_a_response_that_failed_or_is_incomplete_ends_its_stream_with_usage(kind: str, failed: bool) -> None:
    said = {"type": f"response.{kind}", "response": {"usage": {"input_tokens": 3, "output_tokens": 4}}}
    ending = ending_of("/v1/responses", f"event: response.{kind}\ndata: {json.dumps(said)}\n\n".encode())
    assert ending == Ending(complete=True, reported_error=failed, usage=Usage(prompt_tokens=3, output_tokens=4))


@for_each("path", ["/api/chat", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
@for_each("body", [b"", b"\n\n", b"<html>\n", b"data: <html>\n\n", b"[1]\n", b"data: [1]\n\n", b'data: {"type":[]}\n\n', b"\xff\xfe\n"])
def test_what_is_no_stream_at_all_is_neither_complete_nor_an_error(path: str, body: bytes) -> None:
    assert ending_of(path, body) == Ending(complete=False, reported_error=False, usage=Usage())


def test_done_in_the_text_of_an_answer_is_not_the_terminator() -> None:
    assert not ending_of("/api/generate", b'{"response":"\\"done\\":true","done":false}\n').complete
    assert not ending_of("/v1/chat/completions", b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n').complete


@for_each(
    ("name", "usage"),
    [
        ("chat_nostream", Usage(prompt_tokens=24, output_tokens=6, load_s=0.000770124, prompt_s=0.000335, decode_s=0.001536)),
        ("embed_one", Usage(prompt_tokens=6)),
        ("embeddings_legacy", Usage()),
        ("oai_chat_nostream", Usage(prompt_tokens=24, output_tokens=4)),
        ("oai_embeddings", Usage(prompt_tokens=8)),
        ("oai_resp_nostream", Usage(prompt_tokens=24, output_tokens=3)),
        ("anth_nostream", Usage(prompt_tokens=24, output_tokens=3)),
        ("load_generate", Usage()),
        ("chat_missing", Usage()),
    ],
)
def test_an_answer_in_one_piece_reports_its_usage(name: str, usage: Usage) -> None:
    answer = captured(name)
    assert read_whole(INFERENCE_ROUTES[answer.path], answer.body).usage == usage


def test_a_counter_or_a_time_that_nothing_can_have_is_none() -> None:
    for more in (0, 1):
        said = json.dumps({"done": True, "eval_count": MOST_TOKENS + more, "eval_duration": MOST_NANOSECONDS + more}).encode()
        most = Usage(output_tokens=MOST_TOKENS, decode_s=MOST_NANOSECONDS / 1e9)
        assert read_whole(INFERENCE_ROUTES["/api/chat"], said).usage == (Usage() if more else most)


@for_each("body", [b"", b"nonsense", b"[]", b'{"usage":5}', b'{"usage":{"prompt_tokens":"x","completion_tokens":-1}}'])
@for_each("path", sorted(INFERENCE_ROUTES))
def test_an_answer_that_makes_no_sense_reports_nothing(path: str, body: bytes) -> None:
    assert read_whole(INFERENCE_ROUTES[path], body).usage == Usage()
