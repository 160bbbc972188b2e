"""What lies between frames, and frames that say something out of the ordinary."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.frames import WholeFrames
from hearth.dialects.replay import Replay
from hearth.errors import StreamDiverged
from tests.dialects.replay_play import expected, go_on, sent_of
from tests.dialects.replay_readers import told
from tests.dialects.replay_streams import ROUTES, Answer, Run, route, stream
from tests.support.cases import for_each


def test_a_payload_that_is_not_understood_is_compared_as_it_is() -> None:
    chat = "/v1/chat/completions"
    sent = sent_of(chat, b"data: what\n\n")
    assert Replay(route(chat), sent).feed(b"data: what\n\ndata: more\n\n") == b"data: more\n\n"
    with pytest.raises(StreamDiverged):
        Replay(route(chat), sent).feed(b"data: else\n\n")


def test_comments_and_pings_are_no_part_of_the_answer() -> None:
    for path, noise in (("/v1/chat/completions", b": waiting\n\n"), ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n')):
        answer = Answer(parts=(("content", "abcdef"),))
        first, second = (stream(path, answer, Run(rng=random.Random(seed))) for seed in (1, 2))
        sent = sent_of(path, noise + b"".join(first[:3]) + noise)
        out = go_on(path, sent, noise.join(second), random.Random(1))
        assert told(path, sent.data.replace(noise, b"")).answer == expected(path, answer)
        assert out.startswith(b"data: " if path != "/v1/messages" else b"event: ")


def test_the_rest_of_a_token_comes_without_the_log_probability_of_the_whole() -> None:
    probability = {"content": [{"token": " abc", "logprob": -0.5}]}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def frame(text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, "logprobs": probability}
        return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"

    replay = Replay(route("/v1/chat/completions"), sent_of("/v1/chat/completions", frame(" a")))
    trimmed, whole = (json.loads(part.removeprefix(b"data: ")) for part in replay.feed(frame(" abc") + frame("d")).split(b"\n\n")[:-1])
    assert trimmed["choices"][0] == {"index": 0, "delta": {"content": "bc"}, "finish_reason": None}
    assert whole["choices"][0]["logprobs"] == probability


def test_two_calls_in_one_frame_go_on_after_the_one_that_was_sent() -> None:
    def frame(*names: str, done: bool = False) -> bytes:
        calls = [{"id": f"call_{name}", "function": {"index": 0, "name": name, "arguments": {}}} for name in names]
        return json.dumps({"message": {"role": "assistant", "content": "", "tool_calls": calls}, "done": done}).encode() + b"\n"

    replay = Replay(route("/api/chat"), sent_of("/api/chat", frame("a")))
    message = json.loads(replay.feed(frame("a", "b")))["message"]
    assert [call["id"] for call in message["tool_calls"]] == ["call_b"]


@for_each("levels", [300, 900, 5_000])
def test_a_payload_nested_deeper_than_any_answer_does_not_stop_the_gateway(levels: int) -> None:
    deep = b'{"message":{"content":"ab","tool_calls":' + b"[" * levels + b"]" * levels + b"}}\n"
    assert Replay(route("/api/chat"), sent_of("/api/chat", deep)).feed(deep + b'{"done":true}\n') == b'{"done":true}\n'
    with pytest.raises(StreamDiverged):
        Replay(route("/api/chat"), sent_of("/api/chat", b'{"message":{"content":"a"}}\n')).feed(deep)


def test_whole_frames_come_out_as_the_very_chunks_that_went_in() -> None:
    frames = WholeFrames(route("/api/chat"))
    chunk = b'{"a":1}\n'
    assert frames.feed(chunk) is chunk
    assert frames.feed(b'{"b":') == b""
    assert frames.rest == b'{"b":'
    assert frames.feed(b'2}\n{"c"') == b'{"b":2}\n'
    assert frames.rest == b'{"c"'


@given(data=st.lists(st.sampled_from([b"a", b"bc", b"\r", b"d\n", b"e\n\n"])), path=st.sampled_from(ROUTES))
def test_frames_are_the_same_however_the_bytes_arrive(data: list[bytes], path: str) -> None:
    whole, pieces = WholeFrames(route(path)), WholeFrames(route(path))
    assert whole.split(b"".join(data)) == [frame for piece in data for frame in pieces.split(piece)]
    assert whole.rest == pieces.rest


@given(data=st.lists(st.sampled_from([b"a", b"\n", b"\n\n", b"bc", b"\r"])), path=st.sampled_from(ROUTES))
def test_no_byte_is_lost_between_frames(data: list[bytes], path: str) -> None:
    frames = WholeFrames(route(path))
    assert b"".join(frame for piece in data for frame in frames.split(piece)) + frames.rest == b"".join(data)
