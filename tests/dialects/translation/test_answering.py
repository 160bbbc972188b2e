"""Answers of OpenAI's routes in Ollama's words, from recordings of a real llama-server."""

from __future__ import annotations

import json

import pytest

from hearth.dialects.gojson import encode
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.stream import StreamTail, read_whole
from hearth.dialects.translation.answering import (
    DialectStream,
    native_embedding,
    whole_answer,
    writer_for,
)
from hearth.types import Usage
from tests.support.fields import Fields
from tests.support.llama_server_wire import recorded

CHAT = INFERENCE_ROUTES[Endpoint.CHAT]
TOTAL_NS = 7_000_000
TWO: Fields = {"model": "m", "input": ["hi", "the house"]}
TIMED = Usage(prompt_tokens=64, output_tokens=2, cached_tokens=63, prompt_s=353e-6, decode_s=207e-6)


def stream_for(path: Endpoint) -> DialectStream:
    route = INFERENCE_ROUTES[path]
    return DialectStream(route, writer_for(route, {}, "m", "1", 0.0))


def whole(path: Endpoint, stream: bytes) -> Fields | None:
    """A whole answer that is made of a stream."""
    route = INFERENCE_ROUTES[path]
    return whole_answer(route, writer_for(route, {}, "m", "1", 0.0), stream, 0.0, TOTAL_NS)


def said(path: Endpoint, *chunks: bytes) -> list[Fields]:
    """The lines that are said for a stream."""
    stream = stream_for(path)
    lines = [line for chunk in chunks for line in stream.feed(chunk, 0.0, TOTAL_NS)]
    assert all(line.endswith(b"\n") for line in lines)
    return [json.loads(line) for line in lines]


def frames(*chunks: Fields, done: bool = True) -> bytes:
    return b"".join(
        [
            *[b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks],
            b"data: [DONE]\n\n" * done,
        ]
    )


def delta(reason: str | None = None, **fields: object) -> Fields:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def call(index: int, **fields: object) -> Fields:
    """Part of a tool call."""
    name = fields.pop("name", None)
    function = {"arguments": fields.pop("arguments", "")} | ({"name": name} if name else {})
    return delta(tool_calls=[{"index": index, **fields, "function": function}])


def test_each_token_is_a_line_and_the_last_one_counts():
    stream = recorded("oai_chat_stream_usage").body
    lines = said(Endpoint.CHAT, stream)
    assert [line["message"]["content"] for line in lines] == [" window", " holds", ""]
    last = lines[-1]
    assert (last["done"], last["done_reason"], last["total_duration"]) == (True, "length", TOTAL_NS)
    assert (last["prompt_eval_count"], last["eval_count"]) == (64, 2)
    tail = StreamTail(CHAT)
    tail.feed(json.dumps(last).encode() + b"\n")
    assert (tail.ending().complete, tail.ending().usage) == (True, TIMED)


def test_a_stream_says_the_same_however_it_is_cut():
    stream = recorded("oai_chat_stream_usage").body
    whole = said(Endpoint.CHAT, stream)
    assert said(Endpoint.CHAT, *[stream[at : at + 1] for at in range(len(stream))]) == whole


def test_a_completion_is_a_generation():
    lines = said(Endpoint.GENERATE, recorded("oai_completions_stream").body)
    assert [line["response"] for line in lines] == [" the", " opens", ""]
    assert lines[-1]["done"] is True


def test_a_whole_answer_says_what_the_stream_does():
    stream = recorded("oai_chat_stream_usage").body
    answer = whole(Endpoint.CHAT, stream)
    assert answer is not None
    assert answer["message"] == {"role": "assistant", "content": " window holds"}
    assert read_whole(CHAT, encode(answer)).usage == TIMED


def test_calls_that_come_in_parts_are_said_whole_and_in_order():
    stream = frames(
        call(0, id="a", name="f", arguments='{"x"'),
        call(0, arguments=":1}"),
        call(1, id="b", name="g"),
        delta("tool_calls"),
    )
    first, second, last = said(Endpoint.CHAT, stream)
    assert first["message"]["tool_calls"] == [
        {"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}
    ]
    assert second["message"]["tool_calls"] == [
        {"id": "b", "function": {"index": 1, "name": "g", "arguments": {}}}
    ]
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_thoughts_come_before_the_text_and_apart_from_it():
    stream = frames(delta(reasoning_content="hm"), delta(content="yes"), delta("stop"))
    first, second, _ = said(Endpoint.CHAT, stream)
    assert first["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert second["message"] == {"role": "assistant", "content": "yes"}


def test_log_probabilities_are_listed_as_ollama_lists_them():
    tops = [{"id": 1, "token": "a", "logprob": -1.0, "bytes": [97]}]
    entry = {"id": 1, "token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": tops}
    chunk = delta(content="a")
    chunk["choices"][0]["logprobs"] = {"content": [entry]}
    [line, _] = said(Endpoint.CHAT, frames(chunk, delta("stop")))
    kept = {"token": "a", "logprob": -1.0, "bytes": [97]}
    assert line["logprobs"] == [{**kept, "top_logprobs": [kept]}]


@pytest.mark.parametrize(
    "stream",
    [
        frames(delta(content="a"), done=False),
        frames(delta(content="a"), delta("stop"), done=False),
        frames(delta(content="a")),
    ],
)
def test_a_stream_that_was_cut_has_no_end(stream: bytes):
    assert [line["done"] for line in said(Endpoint.CHAT, stream)] == [False]
    answer = whole(Endpoint.CHAT, stream)
    assert (answer is not None) is ("stop" in stream.decode())


def test_an_error_within_a_response_has_the_next_number():
    stream = frames(delta(content="a"), {"error": "it broke"})
    events = stream_for(Endpoint.OPENAI_RESPONSES).feed(stream, 0.0, TOTAL_NS)
    told = [json.loads(event.partition(b"data: ")[2]) for event in events]
    assert told[-1]["type"] == "error"
    assert [each["sequence_number"] for each in told] == list(range(len(told)))


@pytest.mark.parametrize("error", ["it broke", {"message": "it broke", "code": 500}])
def test_an_error_within_a_stream_is_its_last_line(error: object):
    stream = frames(delta(content="a"), {"error": error}, delta(content="b"))
    assert said(Endpoint.CHAT, stream)[1:] == [{"error": "it broke"}]
    assert whole(Endpoint.CHAT, stream) == {"error": error}


def test_vectors_are_listed_in_the_order_of_the_inputs():
    answer = recorded("embeddings").body
    vectors = [one["embedding"] for one in json.loads(answer)["data"]]
    native = native_embedding(Endpoint.EMBED, TWO, answer, TOTAL_NS)
    assert native == {
        "model": "m",
        "embeddings": vectors,
        "total_duration": TOTAL_NS,
        "prompt_eval_count": 15,
    }
    first = json.dumps({"data": json.loads(answer)["data"][:1]}).encode()
    one = native_embedding(Endpoint.EMBEDDINGS, {"prompt": "hi"}, first, TOTAL_NS)
    assert one == {"embedding": vectors[0]}
    turned = json.dumps({"data": [*reversed(json.loads(answer)["data"])]}).encode()
    native = native_embedding(Endpoint.EMBED, TWO, turned, TOTAL_NS)
    assert native is not None
    assert native["embeddings"] == vectors


@pytest.mark.parametrize("path", [Endpoint.EMBED, Endpoint.EMBEDDINGS])
@pytest.mark.parametrize(
    "data", [[], [{"index": 5}], [{"index": n, "embedding": [1.0]} for n in range(3)]]
)
def test_another_number_of_vectors_than_of_inputs_is_no_answer(path: Endpoint, data: list[Fields]):
    answer = json.dumps({"data": data}).encode()
    assert native_embedding(path, {**TWO, "prompt": "hi"}, answer, TOTAL_NS) is None


def call_without_number(name: str, arguments: object, **fields: object) -> Fields:
    function = {"name": name, "arguments": arguments}
    return delta(tool_calls=[{"id": f"id_{name}", "function": function, **fields}])


@pytest.mark.parametrize("number", [{}, {"index": 0}, {"index": None}])
@pytest.mark.parametrize("arguments", ['{"x":1}', {"x": 1}])
def test_calls_that_no_number_tells_apart_are_told_apart_by_their_ids(
    number: Fields, arguments: object
):
    stream = frames(
        call_without_number("f", arguments, **number),
        call_without_number("g", arguments, **number),
        delta("tool_calls"),
    )
    functions = [
        line["message"]["tool_calls"][0]["function"] for line in said(Endpoint.CHAT, stream)[:2]
    ]
    assert [(one["name"], one["arguments"]) for one in functions] == [
        ("f", {"x": 1}),
        ("g", {"x": 1}),
    ]


def test_a_content_in_parts_is_thought_and_text():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    parts = [delta(content=[thought]), delta(content=[{"type": "text", "text": "y"}])]
    answer = whole(Endpoint.CHAT, frames(*parts, delta(content="es"), delta("stop")))
    assert answer is not None
    assert answer["message"] == {"role": "assistant", "content": "yes", "thinking": "hm"}
