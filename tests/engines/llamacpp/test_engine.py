"""The gateway in front of a real llama.cpp server: streams come through, leaving frees the slot, an
interrupted stream goes on.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import openai
import pytest

from hearth.events import ItemBrokenOff, ItemDiverged, ItemEnded, ItemInterrupted, ItemResumed
from tests.engines.llamacpp.conftest import Bench
from tests.engines.llamacpp.front import MODEL
from tests.engines.llamacpp.gguf import WORDS

AS_HOUSE = {"X-Task-Type": "chat_router"}
STREAMS = 100
MOST_TRIES = 150
"""Now and then a stream ends before the interruption reaches it; such a one proves nothing."""
ENDLESS_TOKENS = 30_000
"""Many seconds of the engine: it must notice that nobody reads before it has written half of
them.
"""
SOME_TOKENS = 100
TOKENS = 200
EXAMPLES = int(os.environ.get("HEARTH_EXAMPLES", "1"))


def asking(text: str, **options: Any) -> Any:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": SOME_TOKENS,
        "temperature": 0.8,
        **options,
    }


async def words_of(chunks: AsyncIterable[Any]) -> str:
    """The text of the rest of a stream."""
    return "".join(
        [choice.delta.content or "" async for chunk in chunks for choice in chunk.choices]
    )


async def undisturbed(bench: Bench, asked: Any) -> str:
    return await words_of(await bench.client.chat.completions.create(**asked, stream=True))


async def broken_into(bench: Bench, asked: Any, chunks: int) -> AsyncIterator[Any]:
    """A stream that breaks after its caller has seen so many chunks of it: its connection where the
    front is to break one, else the house's own request breaks into it.
    """
    breaks = bench.front.breaks_after is not None
    stream = await bench.client.chat.completions.create(**asked, stream=True)
    for _ in range(chunks):
        yield await anext(stream)
    if breaks:
        bench.front.break_off.set()
    else:
        internal = asking("b", max_tokens=2)
        await bench.client.chat.completions.create(**internal, extra_headers=AS_HOUSE)
    async for chunk in stream:
        yield chunk


async def interrupted(bench: Bench, asked: Any, chunks: int = 5) -> str:
    """Its text."""
    return await words_of(broken_into(bench, asked, chunks))


async def test_a_stream_comes_through_in_pieces_and_says_how_it_ended(bench):
    stream = await bench.client.chat.completions.create(
        **asking("hello house", max_tokens=20), stream=True
    )
    chunks = [chunk async for chunk in stream]
    texts = [
        chunk.choices[0].delta.content
        for chunk in chunks
        if chunk.choices and chunk.choices[0].delta.content
    ]
    assert (len(texts), {text.strip() for text in texts} <= set(WORDS)) == (20, True)
    assert (chunks[-1].choices[0].finish_reason, {chunk.model for chunk in chunks}) == (
        "length",
        {MODEL},
    )
    with pytest.raises(openai.BadRequestError, match="grammar"):
        await bench.client.chat.completions.create(
            **asking("hello"), extra_body={"grammar": "root ::= ("}
        )


async def test_leaving_frees_the_slot_in_mid_stream_and_without_streaming(bench):
    """The engine looks once a second whether a caller who does not stream is still there, unless it
    is asked for `/slots` meanwhile.
    """
    endless = asking("tell", max_tokens=ENDLESS_TOKENS)
    stream = await bench.client.chat.completions.create(**endless, stream=True)
    await anext(stream)
    assert await bench.front.busy()
    await stream.close()
    assert await bench.front.written_until_idle() < ENDLESS_TOKENS / 2
    waiting = asyncio.create_task(bench.client.chat.completions.create(**endless))
    while not await bench.front.busy():
        pass
    waiting.cancel()
    assert await bench.front.written_until_idle() < ENDLESS_TOKENS / 2
    answer = await bench.client.chat.completions.create(**asking("hello", max_tokens=2))
    assert (answer.usage and answer.usage.completion_tokens) == 2


async def test_nearly_every_interrupted_stream_reproduces_itself(bench, capsys):
    reproduced = 0
    for number in range(MOST_TRIES):
        if len(bench.events.of(ItemInterrupted)) >= STREAMS:
            break
        before = len(bench.events.of(ItemInterrupted))
        same = await reproduces(
            bench, asking(f"{WORDS[number % len(WORDS)]} and {WORDS[number // 3]}", seed=number)
        )
        reproduced += same and len(bench.events.of(ItemInterrupted)) > before

    counted = {
        kind.__name__: len(bench.events.of(kind))
        for kind in (ItemInterrupted, ItemResumed, ItemDiverged)
    }
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{reproduced} of {STREAMS} interrupted streams reproduced themselves at "
            f"temperature 0.8; {counted}"
        )
    assert counted["ItemInterrupted"] == STREAMS
    assert reproduced >= 0.95 * STREAMS


async def reproduces(bench: Bench, asked: Any) -> bool:
    """Whether an interrupted stream says what an undisturbed one says; one that ended with an error
    says something else.
    """
    whole = await undisturbed(bench, asked)
    try:
        return await interrupted(bench, asked) == whole
    except openai.APIError:
        return False


async def test_a_text_goes_on_as_it_would_have_at_temperature_0(letters, capsys):
    """100 of 100 in `make reliability`."""
    letters.front.warm = lambda: False
    rounds = 5 * EXAMPLES
    equal = 0
    rng = random.Random(1)
    for number in range(rounds):
        # who asks for 0 is replayed first
        asked = asking(f"{number} {rng.choice('abc')}", max_tokens=TOKENS, temperature=1e-6)
        whole = await undisturbed(letters, asked)
        assert len(whole) == TOKENS
        equal += await interrupted(letters, asked, rng.randrange(3, 60)) == whole
    resumed = letters.events.of(ItemResumed)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{equal} of {rounds} equal, "
            f"{[event.how for event in resumed].count('continued')} continued of "
            f"{len(resumed)}"
        )
    assert equal == rounds
    assert {event.how for event in resumed} == {"continued"}


async def test_a_stream_whose_connection_breaks_goes_on_as_it_would_have(letters):
    letters.front.warm = lambda: False
    asked = asking("tell", max_tokens=TOKENS, temperature=1e-6)
    whole = await undisturbed(letters, asked)
    letters.front.breaks_after = 30
    assert await interrupted(letters, asked, 20) == whole
    assert len(letters.events.of(ItemBrokenOff)) == 1
    assert [event.how for event in letters.events.of(ItemResumed)] == ["continued"]


STOPS = [letter + "zzz" for letter in "abcdefghi"]
"""While what was said may be the beginning of one the engine holds it back, so that a chunk carries
several tokens.
"""


@pytest.mark.parametrize("usage", [True, False])
async def test_a_continued_stream_has_no_more_tokens_than_it_may_and_says_how_many(letters, usage):
    """One token a letter. 20 of 20 in `make reliability`."""
    letters.front.warm = lambda: False
    rng = random.Random(3)
    more = {"stream_options": {"include_usage": True}} if usage else {}
    for number in range(2 * EXAMPLES):
        asked = asking(
            f"{number} {rng.choice('abc')}", max_tokens=TOKENS, temperature=1e-6, stop=STOPS, **more
        )
        whole = await undisturbed(letters, asked)
        parts = []
        text = ""
        letters.front.break_off.clear()
        letters.front.breaks_after = rng.randrange(20, 60)
        async for part in broken_into(letters, asked, letters.front.breaks_after - 10):
            parts.append(part)
            text += "".join(choice.delta.content or "" for choice in part.choices)
        assert (text, len(text)) == (whole, TOKENS)
        assert (
            len([part for part in parts if part.choices and part.choices[0].delta.content]) < TOKENS
        )
        assert [part.usage.completion_tokens for part in parts if part.usage] == [TOKENS] * usage
        # the caller has read the end a moment before it is reported
        await letters.events.until(lambda: len(ends(letters)) > number)  # noqa: B023
        assert ends(letters)[-1].output_tokens == TOKENS
    assert {event.how for event in letters.events.of(ItemResumed)} == {"continued"}


def ends(bench: Bench) -> list[ItemEnded]:
    """Of streams that went on."""
    return [event for event in bench.events.of(ItemEnded) if event.resumed]


async def test_no_stream_ends_in_an_error_with_warm_and_cold_caches_mixed(bench, capsys):
    """500 in `make reliability`."""
    rounds = 25 * EXAMPLES
    errors = 0
    rng = random.Random(2)
    bench.front.warm = lambda: rng.random() < 0.5
    for number in range(rounds):
        asked = asking(f"{number}", max_tokens=TOKENS, **({"seed": number} if number % 2 else {}))
        try:
            await interrupted(bench, asked, rng.randrange(3, 60))
        except openai.APIError:
            errors += 1
    resumed = bench.events.of(ItemResumed)
    ways = [event.how for event in resumed]
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{errors} errors in {rounds}; {len(bench.events.of(ItemInterrupted))} "
            f"interrupted, {ways.count('continued')} continued, "
            f"{ways.count('replayed')} replayed, "
            f"{sum(event.diverged for event in resumed)} of them continued after a replay "
            "that differed"
        )
    assert (errors, bench.events.of(ItemDiverged)) == (0, [])
    assert len(ways) > 0.8 * rounds
