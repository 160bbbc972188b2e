"""An interrupted stream goes on as if it had never stopped; a second run that says anything else
ends it, and none of it is passed on.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.dialects.errors import stream_error
from hearth.dialects.frames import WholeFrames, event
from hearth.dialects.replay import Replay, Sent
from hearth.errors import BackendGone, StreamDiverged
from hearth.types import LoadedModel, RequestId
from tests.dialects.captured import captured
from tests.support.examples import EXAMPLES
from tests.support.replay_readers import told
from tests.support.replay_streams import (
    ROUTES,
    Answer,
    Run,
    chunked,
    expected,
    go_on,
    interrupted,
    route,
    sent_of,
    some_answer,
    stream,
)

STREAMS = 400 if EXAMPLES == 1 else 840 * EXAMPLES
"""Random ones for each of six routes."""
CHAT = "/api/chat"
GPT = "/v1/chat/completions"
CLAUDE = "/v1/messages"


def runs(path: str, *answers: Answer) -> list[list[bytes]]:
    return [
        stream(path, answer, Run(rng=random.Random(seed))) for seed, answer in enumerate(answers)
    ]


def text(said: str) -> Answer:
    return Answer(parts=(("content", said),))


@pytest.mark.parametrize("path", ROUTES)
def test_any_answer_interrupted_anywhere_and_often_is_read_as_one_valid_stream(path: str):
    for number in range(STREAMS):
        seed = f"{path} {number}"
        rng = random.Random(seed)
        answer = some_answer(rng, path)
        assert told(path, interrupted(path, answer, rng)).answer == expected(path, answer), seed


@pytest.mark.parametrize("path", ROUTES)
def test_a_run_passes_unchanged_if_nothing_was_sent_and_adds_nothing_if_all_was(path: str):
    first, second = map(b"".join, runs(path, text("abcdef"), text("abcdef")))
    assert go_on(path, sent_of(path, b""), first, random.Random(5)) == first
    assert go_on(path, sent_of(path, first), second, random.Random(1)) == b""


def test_more_than_the_limit_is_forgotten_and_cannot_be_replayed():
    sent = Sent(route(CHAT), limit_bytes=10, written_by=LoadedModel())
    assert (sent.feed(b"0123456789"), sent.replayable, sent.data) == (False, True, b"0123456789")
    assert (sent.feed(b"x"), sent.feed(b"y"), sent.replayable, sent.data) == (
        True,
        False,
        False,
        b"",
    )
    with pytest.raises(StreamDiverged):
        Replay(route(CHAT), sent)


def test_whole_frames_are_passed_on_as_the_very_chunks_that_came():
    sent = Sent(route(CHAT), limit_bytes=10, written_by=LoadedModel())
    chunks = (b'{"a":1}\n', b"{}\n")
    assert all(passed is chunk for passed, chunk in zip(sent.whole(chunks), chunks, strict=True))
    assert [sent.whole((b'{"b"', b":2}", b"\n{")), sent.held(), sent.whole((b"}",))] == [
        (b'{"b":2}\n',),
        b"{",
        (b"}",),
    ]
    sent = Sent(route(CHAT), limit_bytes=10, written_by=LoadedModel())
    assert [sent.whole((piece,)) for piece in (b"x" * 10, b"y", b"z")] == [
        (),
        (b"x" * 10 + b"y",),
        (b"z",),
    ]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        *(
            (name, 3)
            for name in (
                "chat_stream",
                "generate_stream",
                "oai_chat_stream",
                "oai_chat_stream_usage",
                "oai_compl_stream",
            )
        ),
        *((name, 11) for name in ("anth_stream", "oai_resp_stream")),
    ],
)
def test_a_recorded_stream_goes_on_from_all_over_to_its_own_end(name: str, step: int):
    stream_of = captured(name)
    for cut in range(0, len(stream_of.body), step):
        sent = sent_of(stream_of.path, stream_of.body[:cut])
        replay = Replay(route(stream_of.path), sent)
        assert sent.data + replay.feed(stream_of.body) + replay.finish() == stream_of.body


def escaped(data: bytes) -> bytes:
    """The same frames with every character beyond ASCII as JSON escapes it: some in two parts."""
    return re.sub(r"[^\x00-\x7f]", lambda found: json.dumps(found[0])[1:-1], data.decode()).encode()


@settings(max_examples=100 * EXAMPLES, deadline=None)
@given(
    st.sampled_from(ROUTES),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.randoms(use_true_random=False),
)
def test_any_text_goes_on_from_any_byte_also_within_a_character(path, said, rng):
    first, second = (b"".join(stream(path, text(said), Run(rng=rng))) for _ in range(2))
    first, second = rng.choice([(first, escaped(second)), (escaped(first), second)])
    sent = sent_of(path, first[: rng.randrange(1, len(first) + 1)])
    assert told(path, sent.data + go_on(path, sent, second, rng)).answer == expected(
        path, text(said)
    )


# Runs that differ.


def changed(answer: Answer, rng: random.Random) -> Answer:
    """The answer with one letter of one part replaced, added or dropped, or with a call or the end
    changed.
    """
    parts = list(answer.parts)
    place = rng.randrange(len(parts) + 1)
    if place == len(parts):
        return Answer(parts=answer.parts, reason="length" if answer.reason == "stop" else "stop")
    kind, said = parts[place]
    if kind == "call":
        name, arguments = json.loads(said)
        parts[place] = (
            kind,
            json.dumps(rng.choice(([name + "x", arguments], [name, arguments | {"id": 77}]))),
        )
    else:
        at = rng.randrange(len(said))
        parts[place] = (kind, said[:at] + rng.choice(("", "è", said[at] + "!")) + said[at + 1 :])
    return Answer(parts=tuple((kind, said) for kind, said in parts if said), reason=answer.reason)


@pytest.mark.parametrize("path", ROUTES)
def test_a_run_that_differs_anywhere_gives_its_whole_answer_or_not_one_byte(path: str):
    outcomes = set()
    for number in range(320):
        rng = random.Random(f"{path} {number}")
        answer = some_answer(rng, path)
        other = changed(answer, rng)
        first, second = (b"".join(stream(path, one, Run(rng=rng))) for one in (answer, other))
        sent = sent_of(path, first[: rng.randrange(1, len(first) + 1)])
        replay = Replay(route(path), sent)
        out = b""
        try:
            for chunk in chunked(second, rng):
                out += replay.feed(chunk)
            out += replay.finish()
        except StreamDiverged:
            assert out == b""
            outcomes.add("diverged")
        else:
            assert told(path, sent.data + out).answer == expected(path, other), number
            outcomes.add("went on")
    assert outcomes == {"diverged", "went on"}


@pytest.mark.parametrize("path", ROUTES)
def test_a_run_that_ends_before_it_has_said_everything_again_is_refused(path: str):
    long, short = runs(path, text("abcdef"), text("abc"))
    with pytest.raises(StreamDiverged):
        go_on(path, sent_of(path, b"".join(long[:-1])), b"".join(short), random.Random(1))
    replay = Replay(route(path), sent_of(path, b"".join(long)))
    assert replay.feed(b"".join(runs(path, text(""), text("abcdef"))[1][:-1])) == b""
    with pytest.raises(StreamDiverged):
        replay.finish()


@pytest.mark.parametrize("path", ROUTES)
def test_a_reported_error_reaches_the_caller_while_the_answer_does_not(path: str):
    first, second = runs(path, text("abcdef"), text("abcdef"))
    replay = Replay(route(path), sent_of(path, b"".join(first[:-1])))
    assert b"boom" in replay.feed(
        second[0] + stream_error(route(path), BackendGone("boom"), RequestId("req_1"))
    )
    assert replay.finish() == b""


def native(done: bool = False, **said: Any) -> bytes:
    message = {"role": "assistant", "content": "", **said}
    return (
        json.dumps({"model": "m", "message": message, "done": done}, separators=(",", ":")).encode()
        + b"\n"
    )


def calling(*names: str, number: int = 1) -> bytes:
    calls = [
        {"id": f"call_{name}", "function": {"index": 0, "name": name, "arguments": {"id": number}}}
        for name in names
    ]
    return native(tool_calls=calls)


def opened(number: int) -> bytes:
    block: Any = {"type": "tool_use", "id": f"call_{number}", "name": "f", "input": {"id": number}}
    return event({"type": "content_block_start", "index": 0, "content_block": block})


def deep(levels: int) -> bytes:
    return b'{"message":{"content":"ab","tool_calls":' + b"[" * levels + b"]" * levels + b"}}\n"


@pytest.mark.parametrize(
    ("path", "sent", "again"),
    [
        (CHAT, native(thinking="abc"), native(content="abc")),
        (CHAT, native(thinking="a") + native(content="b"), native(thinking="ab")),
        (CHAT, calling("f", number=5), calling("f", number=7)),
        (CHAT, native(content="a"), deep(900)),
        (
            CHAT,
            native(content="a") + b'{"done":true,"done_reason":"stop"}\n',
            native(content="a") + b'{"done":true,"done_reason":"length"}\n',
        ),
        (CLAUDE, opened(1), opened(2)),
        (GPT, b"data: what\n\n", b"data: else\n\n"),
    ],
)
def test_the_same_letters_elsewhere_and_other_marks_are_another_answer(
    path: str, sent: bytes, again: bytes
):
    with pytest.raises(StreamDiverged):
        Replay(route(path), sent_of(path, sent)).feed(again)


@pytest.mark.parametrize(
    ("path", "sent", "again", "passed"),
    [
        (
            CHAT,
            native(thinking="a", content="b"),
            native(thinking="a") + native(content="b") + native(done=True),
            native(done=True),
        ),
        (
            CHAT,
            native(thinking="a") + native(content="b"),
            native(thinking="a", content="b") + native(done=True),
            native(done=True),
        ),
        (CHAT, native(thinking="a"), native(thinking="a", content="b"), native(content="b")),
        (CHAT, calling("f"), calling("f").replace(b"call_f", b"call_6"), b""),
        (CHAT, calling("a"), calling("a", "b"), calling("b")),
        *(
            (CHAT, deep(levels), deep(levels) + native(done=True), native(done=True))
            for levels in (300, 900, 5_000)
        ),
        (GPT, b"data: what\n\n", b"data: what\n\ndata: more\n\n", b"data: more\n\n"),
    ],
)
def test_of_frames_that_say_the_same_only_what_is_new_is_passed_on(
    path: str, sent: bytes, again: bytes, passed: bytes
):
    assert Replay(route(path), sent_of(path, sent)).feed(again) == passed


def test_comments_and_pings_are_no_part_of_the_answer():
    for path, noise in (
        (GPT, b": waiting\n\n"),
        (CLAUDE, b'event: ping\ndata: {"type":"ping"}\n\n'),
    ):
        first, second = runs(path, text("abcdef"), text("abcdef"))
        sent = sent_of(path, noise + b"".join(first[:3]) + noise)
        go_on(path, sent, noise.join(second), random.Random(1))
        assert told(path, sent.data.replace(noise, b"")).answer == expected(path, text("abcdef"))


def test_the_rest_of_a_token_comes_without_the_log_probability_of_the_whole():
    probability = {"content": [{"token": " abc", "logprob": -0.5}]}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def frame(said: str, **role: str) -> bytes:
        choice = {
            "index": 0,
            "delta": {**role, "content": said},
            "finish_reason": None,
            "logprobs": probability,
        }
        return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"

    replay = Replay(route(GPT), sent_of(GPT, frame(" a")))
    trimmed, whole = (
        json.loads(part.removeprefix(b"data: "))
        for part in replay.feed(frame(" abc") + frame("d")).split(b"\n\n")[:-1]
    )
    assert trimmed["choices"][0] == {"index": 0, "delta": {"content": "bc"}, "finish_reason": None}
    assert (whole["choices"][0]["logprobs"], replay.verified_chars) == (probability, len(" a"))
    replay = Replay(route(GPT), sent_of(GPT, frame("", role="assistant")))  # a role is no token
    (named,) = json.loads(replay.feed(frame(" abc", role="assistant")).removeprefix(b"data: "))[
        "choices"
    ]
    assert (named["delta"], named["logprobs"]) == ({"content": " abc"}, probability)


@given(
    data=st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"d\n", b"e\n\n"])),
    path=st.sampled_from(ROUTES),
)
def test_frames_are_the_same_however_the_bytes_arrive_and_no_byte_is_lost(
    data: list[bytes], path: str
):
    pieces = WholeFrames(route(path))
    fed = WholeFrames(route(path))
    frames = [frame for piece in data for frame in pieces.split(piece)]
    assert b"".join(frames) + pieces.rest == b"".join(data)
    assert b"".join(map(fed.feed, data)) == b"".join(frames)
    if b"\n" not in data:  # one that comes alone belongs to the frame before it
        assert WholeFrames(route(path)).split(b"".join(data)) == frames
