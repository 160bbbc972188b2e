"""What streams and answers of a real llama-server report of themselves."""

from __future__ import annotations

import json

import pytest

from hearth.dialects.frames import frame_of, read
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.stream import StreamTail, read_whole
from hearth.types import Usage
from tests.support.llama_server_wire import recorded


@pytest.mark.parametrize(
    ("path", "name", "counts"),
    [
        (Endpoint.OPENAI_CHAT, "oai_chat_stream", (64, 3, 63)),
        (Endpoint.OPENAI_CHAT, "oai_chat_stream_usage", (64, 2, 63)),
        (Endpoint.OPENAI_COMPLETIONS, "oai_completions_stream", (6, 2, 5)),
        (Endpoint.OPENAI_RESPONSES, "responses_stream", (56, 2, 55)),
        (Endpoint.ANTHROPIC_MESSAGES, "messages_stream", (64, 2, 63)),
    ],
)
@pytest.mark.parametrize("size", [7, 10_000])
def test_a_stream_says_its_tokens_whether_or_not_it_was_asked_to(
    path: Endpoint, name: str, counts: tuple[int, int, int], size: int
):
    tail = StreamTail(INFERENCE_ROUTES[path])
    stream = recorded(name).body
    for start in range(0, len(stream), size):
        tail.feed(stream[start : start + size])
    ending = tail.ending()
    usage = ending.usage
    assert ending.complete
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == counts


def test_timings_that_nobody_asked_for_are_seconds():
    tail = StreamTail(INFERENCE_ROUTES[Endpoint.OPENAI_CHAT])
    tail.feed(recorded("oai_chat_stream").body)
    assert tail.ending().usage == Usage(
        prompt_tokens=64, output_tokens=3, cached_tokens=63, prompt_s=864e-6, decode_s=744e-6
    )


@pytest.mark.parametrize("timings", [{"prompt_n": -1, "predicted_n": "x"}, {"prompt_ms": True}])
def test_timings_that_make_no_sense_count_nothing(timings: dict[str, object]):
    tail = StreamTail(INFERENCE_ROUTES[Endpoint.OPENAI_CHAT])
    tail.feed(b"data: " + json.dumps({"choices": [], "timings": timings}).encode() + b"\n\n")
    usage = tail.ending().usage
    assert (usage.prompt_tokens, usage.output_tokens) == (None, None)


def test_the_tokens_of_vectors_stand_before_them():
    route = INFERENCE_ROUTES[Endpoint.OPENAI_EMBEDDINGS]
    assert read_whole(route, recorded("embeddings").body).usage == Usage(prompt_tokens=15)


def test_thoughts_are_thoughts_under_either_name():
    route = INFERENCE_ROUTES[Endpoint.OPENAI_CHAT]
    for name in ("reasoning", "reasoning_content"):
        chunk = json.dumps({"choices": [{"delta": {name: "hm"}}]}).encode()
        [slot] = read(route, frame_of(route, b"data: " + chunk + b"\n\n")).slots
        assert (slot.channel, slot.text) == ("reasoning", "hm")
