"""Any value in any place of what an engine answers: it is read, and nothing breaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.translation.answering import native_embedding
from hearth.dialects.translation.folding import folded_answer
from tests.dialects.test_any_value import with_odd_values
from tests.dialects.translation.test_answering import frames, stream_for, whole
from tests.support.llama_server_wire import recorded

TOPS = [{"id": 1, "token": "a", "logprob": -1.0, "bytes": [97]}]
CALL = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
DELTA = {"role": "assistant", "content": "x", "reasoning_content": "y", "tool_calls": [CALL]}
CHUNK = {
    "choices": [
        {
            "index": 0,
            "delta": DELTA,
            "text": "z",
            "logprobs": {"content": [{"token": "a", "top_logprobs": TOPS}]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 1}},
    "timings": {"prompt_ms": 1.5, "predicted_ms": 2},
    "error": None,
}
TRANSLATED = [
    Endpoint.CHAT,
    Endpoint.GENERATE,
    Endpoint.ANTHROPIC_MESSAGES,
    Endpoint.OPENAI_RESPONSES,
]
FOLDED = [Endpoint.OPENAI_CHAT, Endpoint.OPENAI_COMPLETIONS]


@pytest.mark.parametrize("path", TRANSLATED)
def test_no_value_in_any_place_of_a_chunk_breaks_its_translation(path: Endpoint):
    for chunk in with_odd_values(CHUNK):
        stream = frames(chunk)
        for frame in stream_for(path).feed(stream, 0.0, 1):
            payload = frame.rpartition(b"data: ")[2]
            assert isinstance(json.loads(payload), dict)
        whole(path, stream)


@pytest.mark.parametrize("path", FOLDED)
def test_no_value_in_any_place_of_a_chunk_breaks_a_whole_answer(path: Endpoint):
    for chunk in with_odd_values(CHUNK):
        folded_answer(INFERENCE_ROUTES[path], frames(CHUNK, chunk))


def test_no_value_in_any_place_of_vectors_breaks_their_translation():
    answer: Any = {"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 1}}
    for odd in with_odd_values(answer):
        native_embedding(Endpoint.EMBED, {"input": "a"}, json.dumps(odd).encode(), 1)


def test_no_value_in_any_place_of_an_event_breaks_a_message():
    lines = recorded("messages_stream").body.split(b"\n\n")
    events = [json.loads(line.partition(b"data: ")[2]) for line in lines if b"data: " in line]
    for number, event in enumerate(events):
        for odd in with_odd_values(event):
            stream = frames(*events[:number], odd, *events[number + 1 :], done=False)
            folded_answer(INFERENCE_ROUTES[Endpoint.ANTHROPIC_MESSAGES], stream)
