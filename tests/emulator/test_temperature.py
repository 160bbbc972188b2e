"""Temperature 0: the likeliest token follows, so the same request says the same again, in every API and whatever its seed."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.emulator.callers import STREAMS, Caller, model
from tests.emulator.conftest import StartEmulator


@pytest.fixture
async def caller(start_emulator: StartEmulator, session: aiohttp.ClientSession) -> Caller:
    return Caller(session, (await start_emulator([model("a")]))[1])


def at(temperature: object, path: str, **more: object) -> dict[str, Any]:
    body = {"model": "a", **STREAMS[path]}
    place = body["options"] = dict(body["options"]) if "options" in body else body
    place |= {"temperature": temperature, **more}
    if place is body:
        del body["options"]
    return body


def said(answer: dict[str, Any]) -> str:
    """All the text in an answer of any API."""
    assert answer["status"] == 200, answer
    text = "".join(texts(answer))
    assert text
    return text


def texts(part: object) -> list[str]:
    if isinstance(part, list):
        return [text for each in part for text in texts(each)]
    if not isinstance(part, dict):
        return []
    own = [content for name, content in part.items() if name in {"response", "content", "text"} and isinstance(content, str)]
    return own + [text for content in part.values() for text in texts(content)]


@pytest.mark.parametrize("path", STREAMS)
async def test_the_same_request_says_the_same_again_and_another_thing_where_it_is_warm(caller, path):
    cold = {said(await caller.post(path, **at(0, path))) for _ in range(3)}
    warm = {said(await caller.post(path, **at(0.8, path))) for _ in range(3)}
    assert (len(cold), len(warm)) == (1, 3)


async def test_no_seed_makes_a_difference(caller):
    path = "/api/generate"
    assert len({said(await caller.post(path, **at(0.0, path, seed=seed))) for seed in (1, 2, -1)}) == 1


@pytest.mark.parametrize("path", [path for path in STREAMS if path.startswith("/v1/")])
async def test_a_temperature_that_is_no_number_is_refused(caller, path):
    answer = await caller.post(path, **at("cold", path))
    assert answer["status"] == 400
    assert "temperature of type float64" in str(answer["error"])
