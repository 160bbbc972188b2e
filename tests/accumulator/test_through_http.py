"""On real sockets, in front of the emulator: many callers make few calls, and each gets the bits that it would have got alone."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import pytest

from hearth.events import EmbeddingsParted
from tests.clients.home import ADMIN_KEY, EMBEDDER, KEYS, Home, house_settings, open_home
from tests.support.patience import WITHIN_S

CALLERS = 64
TEXTS = [f"paragraph {number} " + "word " * (number % 7) for number in range(CALLERS)]
PATHS = {"/api/embed": {}, "/v1/embeddings": {}, "/v1/embeddings?format=base64": {"encoding_format": "base64"}}
_TOLD = re.compile(rb'"(?:total_duration|load_duration|prompt_eval_count|prompt_tokens|total_tokens)":\d+')


@pytest.fixture
async def home() -> AsyncIterator[Home]:
    async with open_home(house_settings(keys=KEYS)) as home:
        yield home


async def ask(session: aiohttp.ClientSession, url: str, text: str, key: str = ADMIN_KEY, **fields: Any) -> tuple[Mapping[str, str], bytes]:
    """One embedding call. Returns headers and body."""
    headers = {"authorization": f"Bearer {key}"}
    async with session.post(url, json={"model": EMBEDDER, "input": text, **fields}, headers=headers) as answer:
        assert answer.status == 200
        return answer.headers, await answer.read()


async def ask_all(url: str, **fields: Any) -> list[bytes]:
    """All texts at once, each on a connection of its own."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.timeout(WITHIN_S):
        return [body for _, body in await asyncio.gather(*(ask(session, url, text, **fields) for text in TEXTS))]


def calls(home: Home) -> int:
    """Embedding calls that the model server has got; one without an input only loads the model."""
    return sum("embed" in request.path and bool(json.loads(request.body)["input"]) for request in home.emulator.requests)


@pytest.mark.parametrize("path", PATHS)
async def test_many_callers_make_few_calls_and_get_what_they_would_have_got_alone(path, home):
    fields = PATHS[path]
    direct = await ask_all(f"{home.direct_url}{path}", **fields)
    before = calls(home)
    together = await ask_all(home.url + path, **fields)
    assert calls(home) - before <= CALLERS / 5
    assert [_TOLD.sub(b"", body) for body in together] == [_TOLD.sub(b"", body) for body in direct]
    count = "prompt_eval_count" if path == "/api/embed" else "usage"
    assert sum(tokens(json.loads(body)[count]) for body in together) == sum(tokens(json.loads(body)[count]) for body in direct)
    assert not home.events.of(EmbeddingsParted)


def tokens(said: Any) -> int:
    """The prompt's tokens, of a native answer or of an OpenAI one."""
    count: int = said["prompt_tokens"] if isinstance(said, dict) else said
    return count


async def test_an_input_that_is_too_long_is_refused_alone(home):
    texts = [*TEXTS[:15], "word " * 5000]
    async with aiohttp.ClientSession() as session, asyncio.timeout(WITHIN_S):
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}

        async def status_of(text: str) -> int:
            body = {"model": EMBEDDER, "input": text, "truncate": False}
            async with session.post(f"{home.url}/api/embed", json=body, headers=headers) as answer:
                return answer.status

        assert await asyncio.gather(*map(status_of, texts)) == [200] * 15 + [400]
