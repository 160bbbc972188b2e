"""An interrupted stream goes on as if it had never stopped, or ends; it never says what the second run did not."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth.dialects.replay import Replay, Sent
from hearth.errors import StreamDiverged
from tests.dialects.replay_streams import ROUTES, Answer, Run, route, some_answer, stream, told

LIMIT_BYTES = 1_000_000
SHARDS = range(8)
STREAMS_PER_SHARD = 210
"""10,080 random streams over six routes and eight shards."""


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


@pytest.mark.parametrize("path", ROUTES)
def test_every_single_byte_is_a_place_to_go_on_from(path: str) -> None:
    rng = random.Random(3)
    answer = some_answer(rng, path, longest=6)
    first, second = (b"".join(stream(path, answer, Run(rng=rng))) for _ in range(2))
    for cut in range(1, len(first) + 1):
        seen = first[:cut] + go_on(path, sent_of(path, first[:cut]), second, rng)
        assert told(path, seen).answer == expected(path, answer), cut
