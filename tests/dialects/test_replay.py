"""An interrupted stream goes on as if it had never stopped, or ends; it never says what the second run did not."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth.dialects.errors import stream_error
from hearth.dialects.replay import Replay, Sent
from hearth.dialects.replay_frames import WholeFrames, frame_end
from hearth.errors import BackendGone, StreamDiverged
from hearth.types import RequestId
from tests.dialects.captured import captured
from tests.dialects.replay_streams import ROUTES, Answer, Run, route, some_answer, stream, told

LIMIT_BYTES = 1_000_000
SHARDS = range(24)
STREAMS_PER_SHARD = 70
"""10,080 random streams over six routes and 24 shards."""


def chunked(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes, cut anywhere: whole, by the byte, or at random places."""
    size = rng.choice((len(data) + 1, 1, 7, 60, 300))
    return [data[start : start + size] for start in range(0, len(data), size)]


def sent_of(path: str, data: bytes) -> Sent:
    sent = Sent(route(path), limit_bytes=LIMIT_BYTES)
    sent.feed(data)
    return sent


def go_on(path: str, sent: Sent, data: bytes, rng: random.Random, *, to_its_end: bool = True) -> bytes:
    """What the caller gets of another run; it is added to `sent` as it goes."""
    replay = Replay(route(path), sent)
    out = b""
    for chunk in chunked(data, rng):
        told_again = replay.feed(chunk)
        assert not told_again or replay.caught_up
        sent.feed(told_again)
        out += told_again
    rest = replay.finish() if to_its_end else b""
    sent.feed(rest)
    return out + rest


def interrupted(path: str, answer: Answer, rng: random.Random) -> bytes:
    """All that the caller sees of an answer that is interrupted up to three times, at any byte."""
    first = b"".join(stream(path, answer, Run(rng=rng)))
    seen = first[: rng.randrange(1, len(first) + 1)]
    sent = sent_of(path, seen)
    for _ in range(rng.randrange(3)):
        again = b"".join(stream(path, answer, Run(rng=rng)))
        seen += go_on(path, sent, again[: rng.randrange(len(again))], rng, to_its_end=False)
    seen += go_on(path, sent, b"".join(stream(path, answer, Run(rng=rng))), rng)
    assert sent.data == seen
    return seen


def expected(path: str, answer: Answer) -> Answer:
    return Answer(parts=answer.parts, reason="stop") if path == "/v1/responses" else answer


@pytest.mark.parametrize("path", ROUTES)
def test_the_readers_of_this_test_understand_an_uninterrupted_stream(path: str) -> None:
    rng = random.Random(path)
    answer = some_answer(rng, path)
    assert told(path, b"".join(stream(path, answer, Run(rng=rng)))).answer == expected(path, answer)


@pytest.mark.parametrize("shard", SHARDS)
@pytest.mark.parametrize("path", ROUTES)
def test_any_answer_interrupted_anywhere_and_often_is_read_as_one_valid_stream(path: str, shard: int) -> None:
    for number in range(STREAMS_PER_SHARD):
        seed = f"{path} {shard} {number}"
        rng = random.Random(seed)
        answer = some_answer(rng, path)
        assert told(path, interrupted(path, answer, rng)).answer == expected(path, answer), seed


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), seed=st.integers(0, 10**9))
def test_any_unicode_text_survives_any_interruption(path: str, content: str, seed: int) -> None:
    answer = Answer(parts=(("content", content),))
    assert told(path, interrupted(path, answer, random.Random(seed))).answer == expected(path, answer)


@pytest.mark.parametrize("offset", range(1, 6))
@pytest.mark.parametrize("path", ROUTES)
def test_every_single_byte_is_a_place_to_go_on_from(path: str, offset: int) -> None:
    answer = Answer(parts=(("content", "é\n😀"),))
    first, second = (b"".join(stream(path, answer, Run(rng=random.Random(seed)))) for seed in (1, 2))
    for cut in range(offset, len(first) + 1, 5):
        replay = Replay(route(path), sent_of(path, first[:cut]))
        seen = first[:cut] + replay.feed(second) + replay.finish()
        assert told(path, seen).answer == expected(path, answer), cut


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


@pytest.mark.parametrize("shard", range(4))
@pytest.mark.parametrize("path", ROUTES)
def test_a_run_that_differs_anywhere_gives_its_whole_answer_or_not_one_byte(path: str, shard: int) -> None:
    outcomes = set()
    for number in range(80):
        rng = random.Random(f"{path} {shard} {number}")
        answer = some_answer(rng, path)
        other = changed(answer, rng)
        first = b"".join(stream(path, answer, Run(rng=rng)))
        second = b"".join(stream(path, other, Run(rng=rng)))
        seen = first[: rng.randrange(1, len(first) + 1)]
        replay, out = Replay(route(path), sent_of(path, seen)), b""
        try:
            for chunk in chunked(second, rng):
                out += replay.feed(chunk)
            out += replay.finish()
        except StreamDiverged:
            assert out == b""
            outcomes.add("diverged")
        else:
            assert told(path, seen + out).answer == expected(path, other), (shard, number)
            outcomes.add("went on")
    assert outcomes == {"diverged", "went on"}


@pytest.mark.parametrize("path", ROUTES)
def test_what_the_caller_has_of_a_letter_must_be_the_beginning_of_the_second_runs_letter(path: str) -> None:
    first = b"".join(stream(path, Answer(parts=(("content", "ab😀"),)), Run(rng=random.Random(1))))
    cut = first.index("😀".encode()) + 3
    for letter, goes_on in (("😀", True), ("🤖", False), ("c", False)):
        again = b"".join(stream(path, Answer(parts=(("content", f"ab{letter}cd"),)), Run(rng=random.Random(2))))
        replay = Replay(route(path), sent_of(path, first[:cut]))
        if goes_on:
            assert told(path, first[:cut] + replay.feed(again)).text == "ab😀cd"
        else:
            with pytest.raises(StreamDiverged):
                replay.feed(again)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("kind", ["thinking", "content"])
@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/v1/completions"])
def test_the_first_different_letter_ends_the_comparison_wherever_it_is(path: str, kind: str, place: str) -> None:
    at = {"first": 0, "middle": 5, "last": 9}[place]
    answers = [Answer(parts=((kind, "0123456789"), ("content", "end"))) for _ in range(2)]
    other = Answer(parts=((kind, "0123456789"[:at] + "x" + "0123456789"[at + 1 :]), ("content", "end")))
    first = stream(path, answers[0], Run(rng=random.Random(1)))
    replay = Replay(route(path), sent_of(path, b"".join(first[:-2])))
    with pytest.raises(StreamDiverged):
        replay.feed(b"".join(stream(path, other, Run(rng=random.Random(2)))))
    assert replay.verified_chars <= at + len("assistant")


@pytest.mark.parametrize("path", ROUTES)
def test_a_run_that_ends_before_it_has_said_everything_again_is_refused(path: str) -> None:
    long, short = Answer(parts=(("content", "abcdef"),)), Answer(parts=(("content", "abc"),))
    sent = sent_of(path, b"".join(stream(path, long, Run(rng=random.Random(1)))[:-1]))
    with pytest.raises(StreamDiverged):
        go_on(path, sent, b"".join(stream(path, short, Run(rng=random.Random(2)))), random.Random(1))


@pytest.mark.parametrize("path", ROUTES)
def test_a_run_that_stops_while_catching_up_has_shown_nothing_and_is_refused(path: str) -> None:
    answer = Answer(parts=(("content", "abcdef"),))
    first, second = (stream(path, answer, Run(rng=random.Random(seed))) for seed in (1, 2))
    replay = Replay(route(path), sent_of(path, b"".join(first)))
    assert replay.feed(b"".join(second[:-1])) == b""
    assert not replay.caught_up
    with pytest.raises(StreamDiverged):
        replay.finish()


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_that_lacks_only_its_end_gets_only_its_end(path: str) -> None:
    answer = Answer(parts=(("content", "abcdefg"),))
    first, second = (stream(path, answer, Run(rng=random.Random(seed))) for seed in (1, 2))
    replay = Replay(route(path), sent_of(path, b"".join(first[:-1])))
    assert replay.feed(b"".join(second)).count(frame_end(route(path))) == 1
    assert replay.finish() == b""


@pytest.mark.parametrize("path", ROUTES)
def test_a_whole_stream_said_again_adds_nothing(path: str) -> None:
    answer = Answer(parts=(("content", "abcdef"),))
    first, second = (b"".join(stream(path, answer, Run(rng=random.Random(seed)))) for seed in (1, 2))
    assert go_on(path, sent_of(path, first), second, random.Random(1)) == b""


@pytest.mark.parametrize("path", ROUTES)
def test_with_nothing_sent_yet_a_run_passes_as_it_is(path: str) -> None:
    data = b"".join(stream(path, Answer(parts=(("content", "abcdef"),)), Run(rng=random.Random(1))))
    assert go_on(path, sent_of(path, b""), data, random.Random(5)) == data


@pytest.mark.parametrize("path", ROUTES)
def test_an_error_that_the_backend_reports_reaches_the_caller_while_the_answer_does_not(path: str) -> None:
    answer = Answer(parts=(("content", "abcdef"),))
    first, second = (stream(path, answer, Run(rng=random.Random(seed))) for seed in (1, 2))
    replay = Replay(route(path), sent_of(path, b"".join(first[:-1])))
    failed = stream_error(route(path), BackendGone("boom"), RequestId("req_1"))
    assert b"boom" in replay.feed(second[0] + failed)
    assert replay.finish() == b""


@pytest.mark.parametrize("path", ROUTES)
def test_an_error_after_half_a_frame_stands_in_a_frame_of_its_own(path: str) -> None:
    first = b"".join(stream(path, Answer(parts=(("content", "abcdef"),)), Run(rng=random.Random(1))))
    sent = sent_of(path, first[: len(first) // 2])
    failed = stream_error(route(path), BackendGone("boom"), RequestId("req_1"))
    assert sent.error_lead == frame_end(route(path))
    assert Replay(route(path), sent).feed(failed) == sent.error_lead + failed
    assert sent_of(path, b"").error_lead == sent_of(path, first).error_lead == b""


def test_more_than_the_limit_is_forgotten_and_cannot_be_replayed() -> None:
    sent = Sent(route("/api/chat"), limit_bytes=10)
    sent.feed(b"0123456789")
    assert (sent.replayable, sent.data) == (True, b"0123456789")
    sent.feed(b"x")
    assert (sent.replayable, sent.data) == (False, b"")
    with pytest.raises(StreamDiverged):
        Replay(route("/api/chat"), sent)


@pytest.mark.parametrize("name", ["chat_stream", "generate_stream", "oai_chat_stream", "oai_chat_stream_usage", "oai_compl_stream"])
def test_a_recorded_stream_goes_on_from_every_byte_to_its_own_end(name: str) -> None:
    stream_of = captured(name)
    for cut in range(0, len(stream_of.body), 3):
        replay = Replay(route(stream_of.path), sent_of(stream_of.path, stream_of.body[:cut]))
        assert stream_of.body[:cut] + replay.feed(stream_of.body) + replay.finish() == stream_of.body


@pytest.mark.parametrize("name", ["anth_stream", "oai_resp_stream"])
def test_recorded_events_go_on_from_every_byte_to_their_own_end(name: str) -> None:
    stream_of = captured(name)
    for cut in range(0, len(stream_of.body), 11):
        replay = Replay(route(stream_of.path), sent_of(stream_of.path, stream_of.body[:cut]))
        assert stream_of.body[:cut] + replay.feed(stream_of.body) + replay.finish() == stream_of.body


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


def test_a_payload_nested_deeper_than_any_answer_does_not_stop_the_gateway() -> None:
    deep = b'{"message":{"content":"","tool_calls":' + b"[" * 900 + b"]" * 900 + b"}}\n"
    assert Replay(route("/api/chat"), sent_of("/api/chat", deep)).feed(deep + b'{"done":true}\n') == b'{"done":true}\n'


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


def native(done: bool = False, **said: str) -> bytes:
    return json.dumps({"model": "m", "message": {"role": "assistant", "content": "", **said}, "done": done}).encode() + b"\n"


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
