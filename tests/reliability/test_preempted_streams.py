"""Streams of every dialect that are interrupted by a swap to another server and go on in a new
process: none ends in an error, and at temperature 0 the text is the uninterrupted one wherever
two uninterrupted runs agree.

`HEARTH_PREEMPTED_STREAMS` of them: 500 in `make reliability`, with the trained model where it is
installed; none in CI, where `tests/engines/processes` interrupts one.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hearth.engines.small_model.files import installed_weights
from hearth.events import ItemInterrupted
from tests.engines.llamacpp.command import run_settings
from tests.engines.llamacpp.gguf import LETTERS, write_model
from tests.engines.processes.test_in_gateway import AS_HOUSE, ONE, TWO, Door, open_door
from tests.support.patience import until

STREAMS = int(os.environ.get("HEARTH_PREEMPTED_STREAMS", "0"))
TOKENS = 250
SEEN_CHARS = 40
"""So much of a stream is there when it is interrupted."""
PROMPT = "Tell me a story about a house with a red door."
CHAT = {"messages": [{"role": "user", "content": PROMPT}]}


def native(temperature: float) -> dict[str, Any]:
    return {"options": {"num_predict": TOKENS, "temperature": temperature, "seed": 7}}


def plain(temperature: float) -> dict[str, Any]:
    return {"max_tokens": TOKENS, "temperature": temperature, "stream": True}


DIALECTS = [
    (native, "/api/chat", CHAT),
    (native, "/api/generate", {"prompt": PROMPT}),
    (plain, "/v1/chat/completions", CHAT | {"seed": 7}),
    (plain, "/v1/completions", {"prompt": PROMPT, "seed": 7}),
    (plain, "/v1/messages", CHAT),
]
TEMPERATURES = (1e-6, 0.8)
"""Who asks for 0 is replayed first."""


def texts(line: str) -> Iterator[str]:
    """What a line of a stream adds. Raises AssertionError for an error."""
    said = line.removeprefix("data: ").strip()
    if not said.startswith("{"):
        return
    fields = json.loads(said)
    assert "error" not in fields, fields
    yield fields.get("response") or fields.get("message", {}).get("content") or ""
    for choice in fields.get("choices", ()):
        yield choice.get("text") or choice.get("delta", {}).get("content") or ""
    if fields.get("type") == "content_block_delta":
        yield fields["delta"].get("text", "")


async def streamed(
    session: aiohttp.ClientSession, url: str, path: str, asked: dict[str, Any], seen: list[str]
) -> str:
    """The whole text; its pieces come into `seen`. Raises AssertionError, aiohttp.ClientError."""
    async with session.post(f"{url}{path}", json={"model": ONE, **asked}) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            seen += texts(line.decode())
    return "".join(seen)


async def interrupted(door: Door, session: aiohttp.ClientSession, path: str, asked: Any) -> str:
    seen: list[str] = []
    stream = asyncio.ensure_future(streamed(session, door.url, path, asked, seen))
    await until(lambda: stream.done() or len("".join(seen)) > SEEN_CHARS)
    await door.ask(TWO, AS_HOUSE)
    return await stream


@pytest.mark.skipif(STREAMS == 0, reason="takes long: make reliability")
@pytest.mark.timeout(600 + 60 * STREAMS)
async def test_no_stream_that_was_interrupted_by_a_swap_ends_in_an_error(tmp_path: Path):
    weights = installed_weights()
    if weights is None:
        weights = tmp_path / "letters.gguf"
        write_model(weights, tuple(LETTERS))
    run = run_settings(weights, context_tokens=2048)
    ends: Counter[str] = Counter()
    whole: dict[str, set[str]] = {}
    async with open_door({ONE: run, TWO: run}) as door, aiohttp.ClientSession() as session:
        kinds = list(product(DIALECTS, TEMPERATURES))
        for (limits, path, asked), temperature in islice(cycle(kinds), STREAMS):
            body = {**asked, **limits(temperature)}
            is_cold = temperature < 0.1
            if is_cold and path not in whole:
                runs = [await streamed(session, door.url, path, body, []) for _ in range(2)]
                whole[path] = set(runs)
            try:
                text = await interrupted(door, session, path, body)
            except (AssertionError, aiohttp.ClientError) as error:
                ends[f"error on {path}: {error}"] += 1
                continue
            is_known = is_cold and len(whole[path]) == 1
            ends["another text" if is_known and text not in whole[path] else "well"] += 1
        interruptions = len(door.events.of(ItemInterrupted))
    sys.stdout.write(f"{dict(ends)}, {interruptions} interruptions\n")
    assert interruptions > STREAMS / 2
    assert dict(ends) == {"well": STREAMS}
