"""A second run that says anything else ends the stream; not one of its bytes is passed on."""

from __future__ import annotations

import json
import random

import pytest

from hearth.dialects.errors import stream_error
from hearth.dialects.replay import Replay
from hearth.errors import BackendGone, StreamDiverged
from hearth.types import RequestId
from tests.dialects.replay_play import chunked, expected, go_on, sent_of
from tests.dialects.replay_readers import told
from tests.dialects.replay_streams import ROUTES, Answer, Run, route, some_answer, stream
from tests.support.cases import for_each


def changed(answer: Answer, rng: random.Random) -> Answer:
    """The answer with one letter of one part replaced, added or dropped, or with a call or the end changed."""
    parts = list(answer.parts)
    place = rng.randrange(len(parts) + 1)
    if place == len(parts):
        return Answer(parts=answer.parts, reason="length" if answer.reason == "stop" else "stop")
    kind, text = parts[place]
    if kind == "call":
        name, arguments = json.loads(text)
        parts[place] = (kind, json.dumps(rng.choice(([name + "x", arguments], [name, arguments | {"id": 77}]))))
    else:
        at = rng.randrange(len(text))
        parts[place] = (kind, text[:at] + rng.choice(("", "è", text[at] + "!")) + text[at + 1 :])
    return Answer(parts=tuple((kind, text) for kind, text in parts if text), reason=answer.reason)


@for_each("shard", range(4))
@for_each("path", ROUTES)
def test_a_run_that_differs_anywhere_gives_its_whole_answer_or_not_one_byte(path: str, shard: int) -> None:
    outcomes = set()
    for number in range(80):
        rng = random.Random(f"{path} {shard} {number}")
        answer = some_answer(rng, path)
        other = changed(answer, rng)
        first = b"".join(stream(path, answer, Run(rng=rng)))
        second = b"".join(stream(path, other, Run(rng=rng)))
        sent = sent_of(path, first[: rng.randrange(1, len(first) + 1)])
        replay, out = Replay(route(path), sent), b""
        try:
            for chunk in chunked(second, rng):
                out += replay.feed(chunk)
            out += replay.finish()
        except StreamDiverged:
            assert out == b""
            outcomes.add("diverged")
        else:
            assert told(path, sent.data + out).answer == expected(path, other), (shard, number)
            outcomes.add("went on")
    assert outcomes == {"diverged", "went on"}


@for_each("place", ["first", "middle", "last"])
@for_each("kind", ["thinking", "content"])
@for_each("path", [path for path in ROUTES if path != "/v1/completions"])
def test_the_first_different_letter_ends_the_comparison_wherever_it_is(path: str, kind: str, place: str) -> None:
    at = {"first": 0, "middle": 5, "last": 9}[place]
    answers = [Answer(parts=((kind, "0123456789"), ("content", "end"))) for _ in range(2)]
    other = Answer(parts=((kind, "0123456789"[:at] + "x" + "0123456789"[at + 1 :]), ("content", "end")))
    first = stream(path, answers[0], Run(rng=random.Random(1)))
    replay = Replay(route(path), sent_of(path, b"".join(first[:-2])))
    with pytest.raises(StreamDiverged):
        replay.feed(b"".join(stream(path, other, Run(rng=random.Random(2)))))
    assert replay.verified_chars <= at + len("assistant")


@for_each("path", ROUTES)
def test_a_run_that_ends_before_it_has_said_everything_again_is_refused(path: str) -> None:
    long, short = Answer(parts=(("content", "abcdef"),)), Answer(parts=(("content", "abc"),))
    sent = sent_of(path, b"".join(stream(path, long, Run(rng=random.Random(1)))[:-1]))
    with pytest.raises(StreamDiverged):
        go_on(path, sent, b"".join(stream(path, short, Run(rng=random.Random(2)))), random.Random(1))


@for_each("path", ROUTES)
def test_a_run_that_stops_while_catching_up_has_shown_nothing_and_is_refused(path: str) -> None:
    answer = Answer(parts=(("content", "abcdef"),))
    first, second = (stream(path, answer, Run(rng=random.Random(seed))) for seed in (1, 2))
    replay = Replay(route(path), sent_of(path, b"".join(first)))
    assert replay.feed(b"".join(second[:-1])) == b""
    assert not replay.caught_up
    with pytest.raises(StreamDiverged):
        replay.finish()


@for_each("path", ROUTES)
def test_an_error_that_the_backend_reports_reaches_the_caller_while_the_answer_does_not(path: str) -> None:
    answer = Answer(parts=(("content", "abcdef"),))
    first, second = (stream(path, answer, Run(rng=random.Random(seed))) for seed in (1, 2))
    replay = Replay(route(path), sent_of(path, b"".join(first[:-1])))
    failed = stream_error(route(path), BackendGone("boom"), RequestId("req_1"))
    assert b"boom" in replay.feed(second[0] + failed)
    assert replay.finish() == b""


@for_each("path", [path for path in ROUTES if path != "/v1/responses"])
def test_the_same_text_with_another_reason_to_end_is_another_answer(path: str) -> None:
    first, second = (Answer(parts=(("content", "abc"),), reason=reason) for reason in ("stop", "length"))
    sent = sent_of(path, b"".join(stream(path, first, Run(rng=random.Random(1)))))
    with pytest.raises(StreamDiverged):
        go_on(path, sent, b"".join(stream(path, second, Run(rng=random.Random(2)))), random.Random(1))


def native(done: bool = False, **said: str) -> bytes:
    message = {"role": "assistant", "content": "", **said}
    return json.dumps({"model": "m", "message": message, "done": done}, separators=(",", ":")).encode() + b"\n"


def test_thinking_and_content_in_one_frame_equal_the_same_in_two() -> None:
    together, apart = native(thinking="a", content="b"), native(thinking="a") + native(content="b")
    for sent, again in ((together, apart), (apart, together)):
        assert Replay(route("/api/chat"), sent_of("/api/chat", sent)).feed(again + native(done=True)) == native(done=True)


def test_of_a_frame_with_thinking_and_content_only_the_content_is_new() -> None:
    replay = Replay(route("/api/chat"), sent_of("/api/chat", native(thinking="a")))
    assert json.loads(replay.feed(native(thinking="a", content="b")))["message"] == {"role": "assistant", "content": "b"}


def test_the_same_letters_in_another_channel_are_another_answer() -> None:
    replay = Replay(route("/api/chat"), sent_of("/api/chat", native(thinking="abc")))
    with pytest.raises(StreamDiverged):
        replay.feed(native(content="abc"))


def test_thinking_that_goes_on_where_the_first_run_began_to_answer_is_another_answer() -> None:
    replay = Replay(route("/api/chat"), sent_of("/api/chat", native(thinking="a") + native(content="b")))
    with pytest.raises(StreamDiverged):
        replay.feed(native(thinking="ab"))


def call_frame(number: int) -> bytes:
    call = {"id": f"call_{number}", "function": {"name": "f", "arguments": {"id": number}}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    return json.dumps({"message": message, "done": False}, separators=(",", ":")).encode() + b"\n"


def test_a_call_with_other_arguments_is_another_answer_although_a_key_in_them_is_called_id() -> None:
    sent = sent_of("/api/chat", call_frame(5))
    with pytest.raises(StreamDiverged):
        Replay(route("/api/chat"), sent).feed(call_frame(7))
    assert Replay(route("/api/chat"), sent).feed(call_frame(5).replace(b"call_5", b"call_6")) == b""


def test_a_block_that_opens_with_other_input_is_another_answer() -> None:
    def opened(number: int) -> bytes:
        block = {"type": "tool_use", "id": f"call_{number}", "name": "f", "input": {"id": number}}
        event = {"type": "content_block_start", "index": 0, "content_block": block}
        return b"event: content_block_start\ndata: " + json.dumps(event).encode() + b"\n\n"

    with pytest.raises(StreamDiverged):
        Replay(route("/v1/messages"), sent_of("/v1/messages", opened(1))).feed(opened(2))
