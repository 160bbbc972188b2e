"""Interrupted streams of a real llama.cpp server are continued: no error, and the same text where the model leaves no choice."""

from __future__ import annotations

import os
import random
from typing import Any

import openai

from hearth.events import ItemDiverged, ItemInterrupted, ItemResumed
from hearth.types import Way
from tests.engine.conftest import Bench
from tests.engine.front import MODEL
from tests.engine.test_engine import AS_HOUSE, undisturbed, words_of

EXAMPLES = int(os.environ.get("HEARTH_EXAMPLES", "1"))
TOKENS = 200


def asking(text: str, **options: Any) -> Any:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, **options}


async def interrupted_at(bench: Bench, asked: Any, chunks: int) -> str:
    """The text of a stream that the house's own request breaks into after so many chunks."""
    stream = await bench.client.chat.completions.create(**asked, stream=True)
    begun = ""
    for _ in range(chunks):
        chunk = await anext(stream)
        begun += "".join(choice.delta.content or "" for choice in chunk.choices)
    await bench.client.chat.completions.create(**asking("b", max_tokens=2), extra_headers=AS_HOUSE)
    return begun + await words_of(stream)


async def test_a_text_goes_on_as_it_would_have_at_temperature_0(letters, capsys):
    """100 of 100 in `make reliability`."""
    letters.front.warm = lambda: False
    rounds, equal = 5 * EXAMPLES, 0
    rng = random.Random(1)
    for number in range(rounds):
        asked = asking(f"{number} {rng.choice('abc')}", temperature=1e-6)  # who asks for 0 is replayed first
        whole = await undisturbed(letters, asked)
        assert len(whole) == TOKENS
        equal += await interrupted_at(letters, asked, rng.randrange(3, 60)) == whole
    resumed = letters.events.of(ItemResumed)
    with capsys.disabled():
        print(f"\n{equal} of {rounds} equal, {[event.how.value for event in resumed].count('continued')} continued of {len(resumed)}")  # noqa: T201
    assert equal == rounds
    assert {event.how for event in resumed} == {Way.CONTINUE}


async def test_no_stream_ends_in_an_error_with_warm_and_cold_caches_mixed(bench, capsys):
    """500 in `make reliability`."""
    rounds, errors = 25 * EXAMPLES, 0
    rng = random.Random(2)
    bench.front.warm = lambda: rng.random() < 0.5
    for number in range(rounds):
        asked = asking(f"{number}", temperature=0.8, **({"seed": number} if number % 2 else {}))
        try:
            await interrupted_at(bench, asked, rng.randrange(3, 60))
        except openai.APIError:
            errors += 1
    resumed = bench.events.of(ItemResumed)
    ways = [event.how for event in resumed]
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{errors} errors in {rounds}; {len(bench.events.of(ItemInterrupted))} interrupted, {ways.count(Way.CONTINUE)} continued, "
            f"{ways.count(Way.REPLAY)} replayed, {sum(event.diverged for event in resumed)} of them continued after a replay that differed"
        )
    assert (errors, bench.events.of(ItemDiverged)) == (0, [])
    assert len(ways) > 0.8 * rounds
