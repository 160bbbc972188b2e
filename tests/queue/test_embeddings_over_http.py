"""On real sockets, in front of the emulator: many callers make few calls, and each gets the bits
that it would have got alone.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from typing import Any

import aiohttp
import pytest

from hearth.config.settings import QueueSettings, RateLimitSettings
from hearth.events import EmbeddingsParted
from tests.support.fields import Fields
from tests.support.home import (
    ADMIN_KEY,
    EMBEDDER,
    FRIEND_KEY,
    KEYS,
    LLAMA,
    house_settings,
    open_home,
)
from tests.support.patience import in_time

TEXTS = [f"paragraph {number} " + "word " * (number % 7) for number in range(64)]
_TOLD = re.compile(
    rb'"(?:total_duration|load_duration|prompt_eval_count|prompt_tokens|total_tokens)":\d+'
)


async def ask_all(
    url: str, texts: list[str] = TEXTS, key: str = ADMIN_KEY, **fields: Any
) -> list[tuple[int, bytes]]:
    """All at once, each on a connection of its own. Returns status and body of each."""

    async def ask(text: str) -> tuple[int, bytes]:
        async with session.post(url, json={"model": EMBEDDER, "input": text, **fields}) as answer:
            return answer.status, await answer.read()

    headers = {"authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session,
        in_time(),
    ):
        return await asyncio.gather(*map(ask, texts))


def tokens(said: Any) -> int:
    """The prompt's, of a native answer or of an OpenAI one."""
    count: int = (
        said["prompt_eval_count"] if "prompt_eval_count" in said else said["usage"]["prompt_tokens"]
    )
    return count


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/embed", {}),
        ("/v1/embeddings", {}),
        ("/v1/embeddings?format=base64", {"encoding_format": "base64"}),
    ],
)
async def test_many_callers_make_few_calls_and_get_what_they_would_have_got_alone(
    path: str, fields: Fields
):
    async with open_home(house_settings(keys=KEYS)) as home:

        def calls() -> int:  # one without an input only loads the model
            return sum(
                "embed" in request.path and bool(json.loads(request.body)["input"])
                for request in home.emulator.requests
            )

        direct = await ask_all(f"{home.direct_url}{path}", **fields)
        before = calls()
        together = await ask_all(home.url + path, **fields)
        assert calls() - before <= len(TEXTS) / 5
        assert [(status, _TOLD.sub(b"", body)) for status, body in together] == [
            (200, _TOLD.sub(b"", body)) for _, body in direct
        ]
        assert sum(tokens(json.loads(body)) for _, body in together) == sum(
            tokens(json.loads(body)) for _, body in direct
        )
        assert not home.events.of(EmbeddingsParted)


async def test_an_input_that_is_too_long_is_refused_alone():
    async with open_home(house_settings(keys=KEYS)) as home:
        answers = await ask_all(
            f"{home.url}/api/embed", [*TEXTS[:15], "word " * 5000], truncate=False
        )
        assert [status for status, _ in answers] == [200] * 15 + [400]


async def test_an_upload_of_hundreds_of_chunks_is_taken_and_leaves_chats_alone():
    settings = house_settings(keys=KEYS, queue=QueueSettings()).replace(
        rate_limits=RateLimitSettings()
    )
    async with open_home(settings) as home:
        answers = await ask_all(
            f"{home.url}/api/embed", [f"chunk {number}" for number in range(300)], FRIEND_KEY
        )
        assert {status for status, _ in answers} == {200}
        used = home.gateway.rate_limiter.get_usage(
            "friend", home.gateway.clock.monotonic(), "embeddings"
        )
        assert used.minute <= 1 + -(-299 // 8) + 2
        chat = {"model": LLAMA, "prompt": "hi", "stream": False, "options": {"num_predict": 1}}
        asked = partial(aiohttp.request, "POST", f"{home.url}/api/generate", json=chat)
        async with asked(headers={"authorization": f"Bearer {FRIEND_KEY}"}) as answer:
            assert answer.status == 200, await answer.text()
        assert (
            home.gateway.rate_limiter.get_usage("friend", home.gateway.clock.monotonic()).minute
            == 1
        )
