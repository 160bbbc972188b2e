"""Plain HTTP against the gateway, where no official client asks for it; `tests/golden` has every route, refusal and header."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.clients.home import ADMIN_KEY, CODER, EMBEDDER, KEYS, LLAMA, Home, StartHome, house_settings


class Curl:
    """One connection pool to the gateway; each call gives the answer's JSON."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def __call__(self, path: str, body: Any) -> Any:
        async with self._session.post(self._url + path, json=body) as got:
            assert got.status == 200
            return await got.json()


@pytest.fixture
async def curl(home: Home) -> AsyncIterator[Curl]:
    async with aiohttp.ClientSession(trust_env=False) as session:
        yield Curl(session, home.url)


@pytest.mark.parametrize("asked", [{"input": ""}, {"input": []}])
async def test_embedding_nothing_loads_the_model(home, curl, asked):
    answer = await curl("/api/embed", {"model": EMBEDDER, **asked})

    assert answer["embeddings"] == []
    assert home.emulator.resident == (f"{EMBEDDER}:latest",)


@pytest.mark.parametrize(("path", "content"), [("/api/generate", {"response": ""}), ("/api/chat", {"messages": []})])
async def test_the_unload_form_is_answered_as_ollama_does_and_the_model_stays(home, curl, path, content):
    await curl(path, {"model": LLAMA})
    answer = await curl(path, {"model": LLAMA, "keep_alive": 0})

    assert answer["done_reason"] == "unload"
    assert home.emulator.resident == (LLAMA,)
    assert set(answer) >= {"model", "created_at", "done"}


async def test_an_admin_key_manages_models_through_the_gateway(start_home: StartHome):
    home = await start_home(house_settings(keys=KEYS))
    async with home.native(ADMIN_KEY) as owner:
        await owner.copy(LLAMA, "mine")
        assert "mine:latest" in {model.model for model in (await owner.list()).models}
        answer = await owner.generate(model="mine", prompt="hi", options={"num_predict": 1})
        await owner.delete("mine")

    assert answer.eval_count == 1


async def test_the_same_body_gets_the_same_text_from_the_gateway_as_from_the_model_server(home, curl):
    body = {"model": CODER, "prompt": "once", "stream": False, "options": {"seed": 3, "num_predict": 9}}
    through = await curl("/api/generate", body)
    async with aiohttp.ClientSession(trust_env=False) as session:
        direct = await Curl(session, f"http://127.0.0.1:{home.port}")("/api/generate", body)

    assert list(through) == list(direct)
    assert (through["response"], through["context"]) == (direct["response"], direct["context"])
