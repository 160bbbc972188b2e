"""An interrupted stream goes on as if it had never stopped."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth.dialects.frames import frame_end
from hearth.dialects.replay import Replay, Sent
from hearth.errors import StreamDiverged
from tests.dialects.captured import captured
from tests.dialects.replay_play import expected, go_on, interrupted, sent_of
from tests.dialects.replay_readers import told
from tests.dialects.replay_streams import ROUTES, Answer, Run, route, some_answer, stream
from tests.support.cases import for_each

STREAMS = 1680
"""Random ones for each of six routes."""


@for_each("path", ROUTES)
def test_the_readers_of_this_test_understand_an_uninterrupted_stream(path: str) -> None:
    rng = random.Random(path)
    answer = some_answer(rng, path)
    assert told(path, b"".join(stream(path, answer, Run(rng=rng)))).answer == expected(path, answer)


@for_each("path", ROUTES)
def test_any_answer_interrupted_anywhere_and_often_is_read_as_one_valid_stream(path: str) -> None:
    for number in range(STREAMS):
        seed = f"{path} {number}"
        rng = random.Random(seed)
        answer = some_answer(rng, path)
        assert told(path, interrupted(path, answer, rng)).answer == expected(path, answer), seed


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), seed=st.integers(0, 10**9))
def test_any_unicode_text_survives_any_interruption(path: str, content: str, seed: int) -> None:
    answer = Answer(parts=(("content", content),))
    assert told(path, interrupted(path, answer, random.Random(seed))).answer == expected(path, answer)


@for_each("path", ROUTES)
def test_every_single_byte_is_a_place_to_go_on_from(path: str) -> None:
    answer = Answer(parts=(("content", "é\n😀"),))
    first, second = (b"".join(stream(path, answer, Run(rng=random.Random(seed)))) for seed in (1, 2))
    for cut in range(1, len(first) + 1):
        sent = sent_of(path, first[:cut])
        replay = Replay(route(path), sent)
        seen = sent.data + replay.feed(second) + replay.finish()
        assert told(path, seen).answer == expected(path, answer), cut


@for_each("path", ROUTES)
def test_a_stream_that_lacks_only_its_end_gets_only_its_end(path: str) -> None:
    answer = Answer(parts=(("content", "abcdefg"),))
    first, second = (stream(path, answer, Run(rng=random.Random(seed))) for seed in (1, 2))
    replay = Replay(route(path), sent_of(path, b"".join(first[:-1])))
    assert replay.feed(b"".join(second)).count(frame_end(route(path))) == 1
    assert replay.finish() == b""


@for_each("path", ROUTES)
def test_a_whole_stream_said_again_adds_nothing(path: str) -> None:
    answer = Answer(parts=(("content", "abcdef"),))
    first, second = (b"".join(stream(path, answer, Run(rng=random.Random(seed)))) for seed in (1, 2))
    assert go_on(path, sent_of(path, first), second, random.Random(1)) == b""


@for_each("path", ROUTES)
def test_with_nothing_sent_yet_a_run_passes_as_it_is(path: str) -> None:
    data = b"".join(stream(path, Answer(parts=(("content", "abcdef"),)), Run(rng=random.Random(1))))
    assert go_on(path, sent_of(path, b""), data, random.Random(5)) == data


def test_more_than_the_limit_is_forgotten_and_cannot_be_replayed() -> None:
    sent = Sent(route("/api/chat"), limit_bytes=10)
    assert not sent.feed(b"0123456789")
    assert (sent.replayable, sent.data) == (True, b"0123456789")
    assert sent.feed(b"x")
    assert not sent.feed(b"y")
    assert (sent.replayable, sent.data) == (False, b"")
    with pytest.raises(StreamDiverged):
        Replay(route("/api/chat"), sent)


def test_only_whole_frames_are_passed_on_as_the_very_chunks_that_came() -> None:
    sent = Sent(route("/api/chat"), limit_bytes=10)
    chunks = (b'{"a":1}\n', b"{}\n")
    assert all(passed is chunk for passed, chunk in zip(sent.whole(chunks), chunks, strict=True))
    assert sent.whole((b'{"b"', b":2}", b"\n{")) == (b'{"b":2}\n',)
    assert sent.held() == b"{"
    assert sent.whole((b"}",)) == (b"}",)


def test_a_frame_longer_than_what_may_be_kept_is_not_held_back() -> None:
    sent = Sent(route("/api/chat"), limit_bytes=10)
    assert sent.whole((b"x" * 10,)) == ()
    assert sent.whole((b"y",)) == (b"x" * 10 + b"y",)
    assert sent.feed(b"x" * 10 + b"y")
    assert sent.whole((b"z",)) == (b"z",)


@for_each(
    ("name", "step"),
    [
        ("chat_stream", 3),
        ("generate_stream", 3),
        ("oai_chat_stream", 3),
        ("oai_chat_stream_usage", 3),
        ("oai_compl_stream", 3),
        ("anth_stream", 11),
        ("oai_resp_stream", 11),
    ],
)
def test_a_recorded_stream_goes_on_from_all_over_to_its_own_end(name: str, step: int) -> None:
    stream_of = captured(name)
    for cut in range(0, len(stream_of.body), step):
        sent = sent_of(stream_of.path, stream_of.body[:cut])
        replay = Replay(route(stream_of.path), sent)
        assert sent.data + replay.feed(stream_of.body) + replay.finish() == stream_of.body
