"""Plays an interrupted stream: what is sent, said again and continued."""

from __future__ import annotations

import random

from hearth.dialects.replay import Replay, Sent
from tests.dialects.replay_streams import Answer, Run, route, stream

LIMIT_BYTES = 1_000_000


def chunked(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes, cut anywhere: whole, by the byte, or at random places."""
    size = rng.choice((len(data) + 1, 1, 7, 60, 300))
    return [data[start : start + size] for start in range(0, len(data), size)]


def sent_of(path: str, data: bytes) -> Sent:
    """What a caller has been given of `data`: its whole frames."""
    sent = Sent(route(path), limit_bytes=LIMIT_BYTES)
    sent.feed(b"".join(sent.whole((data,))))
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
    sent = sent_of(path, first[: rng.randrange(1, len(first) + 1)])
    seen = sent.data
    for _ in range(rng.randrange(3)):
        again = b"".join(stream(path, answer, Run(rng=rng)))
        seen += go_on(path, sent, again[: rng.randrange(len(again))], rng, to_its_end=False)
    seen += go_on(path, sent, b"".join(stream(path, answer, Run(rng=rng))), rng)
    assert sent.data == seen
    return seen


def expected(path: str, answer: Answer) -> Answer:
    """The answer as its reader takes it: who calls a tool says so as the reason to end, where the dialect has a word for that."""
    called = any(kind == "call" for kind, _ in answer.parts)
    by_calls = called and (path == "/v1/messages" or (path == "/v1/chat/completions" and answer.reason == "stop"))
    return Answer(parts=answer.parts, reason="stop" if path == "/v1/responses" else "tool_calls" if by_calls else answer.reason)
