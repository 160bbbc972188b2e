"""Plain HTTP against the gateway: what a script with curl sees on every native route, down to status lines and error texts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.clients.home import ADMIN_KEY, CODER, EMBEDDER, HELLO, KEYS, LLAMA, Home, StartHome, house_settings

ONE = {"options": {"num_predict": 1}}
NATIVE_JSON, NDJSON = "application/json; charset=utf-8", "application/x-ndjson"


@dataclass(frozen=True)
class Answer:
    """One answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class Curl:
    """One connection pool to the gateway."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.request(method, self._url + path, json=body, headers=named) as got:
            return Answer(got.status, {name.lower(): value for name, value in got.headers.items()}, await got.read())


@pytest.fixture
async def curl(home: Home) -> AsyncIterator[Curl]:
    async with aiohttp.ClientSession(trust_env=False) as session:
        yield Curl(session, home.url)


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/api/generate", {"model": LLAMA, "prompt": "hi", "stream": False, **ONE}, "response"),
        ("/api/chat", {"model": LLAMA, "messages": HELLO, "stream": False, **ONE}, "message"),
        ("/api/embed", {"model": EMBEDDER, "input": "hi"}, "embeddings"),
        ("/api/embeddings", {"model": EMBEDDER, "prompt": "hi"}, "embedding"),
    ],
)
async def test_a_native_route_answers_one_json_document(curl, path, body, key):
    answer = await curl("POST", path, body)

    assert (answer.status, answer.headers["content-type"]) == (200, NATIVE_JSON)
    assert int(answer.headers["content-length"]) == len(answer.body)
    assert answer.lines[0][key]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/api/generate", {"model": LLAMA, "prompt": "hi", **ONE}), ("/api/chat", {"model": LLAMA, "messages": HELLO, **ONE})],
)
async def test_a_native_route_streams_lines_unless_told_otherwise(curl, path, body):
    answer = await curl("POST", path, body)

    assert (answer.status, answer.headers["content-type"]) == (200, NDJSON)
    assert answer.headers["transfer-encoding"] == "chunked"
    assert [line["done"] for line in answer.lines] == [False, True]


@pytest.mark.parametrize(
    ("path", "content"),
    [("/api/generate", {"response": ""}), ("/api/chat", {"message": {"role": "assistant", "content": ""}})],
)
async def test_the_load_form_loads_and_says_so_in_one_document(home, curl, path, content):
    answer = await curl("POST", path, {"model": LLAMA})

    assert (answer.status, answer.headers["content-type"]) == (200, NATIVE_JSON)
    assert {key: answer.lines[0][key] for key in ("done", "done_reason", *content)} == {"done": True, "done_reason": "load", **content}
    assert home.emulator.resident == (LLAMA,)


@pytest.mark.parametrize("asked", [{"input": ""}, {"input": []}])
async def test_embedding_nothing_loads_the_model(home, curl, asked):
    answer = await curl("POST", "/api/embed", {"model": EMBEDDER, **asked})

    assert (answer.status, answer.lines[0]["embeddings"]) == (200, [])
    assert home.emulator.resident == (f"{EMBEDDER}:latest",)


@pytest.mark.parametrize(("path", "content"), [("/api/generate", {"response": ""}), ("/api/chat", {"messages": []})])
async def test_the_unload_form_is_answered_as_ollama_does_and_the_model_stays(home, curl, path, content):
    await curl("POST", path, {"model": LLAMA})
    answer = await curl("POST", path, {"model": LLAMA, "keep_alive": 0})

    assert (answer.status, answer.lines[0]["done_reason"]) == (200, "unload")
    assert home.emulator.resident == (LLAMA,)
    assert set(answer.lines[0]) >= {"model", "created_at", "done"}


async def test_a_health_check_by_get_or_head_finds_ollama(curl):
    got, headed = await curl("GET", "/"), await curl("HEAD", "/")

    assert (got.status, got.body) == (200, b"Ollama is running")
    assert (headed.status, headed.body) == (200, b"")
    assert headed.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(("path", "key"), [("/api/version", "version"), ("/api/tags", "models")])
async def test_version_and_tags_answer_get_and_head(curl, path, key):
    got, headed = await curl("GET", path), await curl("HEAD", path)

    assert (got.status, headed.status) == (200, 200)
    assert list(got.lines[0]) == [key]
    assert headed.body == b""


async def test_an_address_that_does_not_exist_has_ollamas_plain_404(curl):
    for path in ("/api/nothing", "/v2/chat"):
        answer = await curl("GET", path)
        assert (answer.status, answer.body) == (404, b"404 page not found")
        assert answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(("method", "path", "allow"), [("GET", "/api/chat", "POST"), ("POST", "/api/tags", "GET, HEAD")])
async def test_a_wrong_method_has_ollamas_plain_405(curl, method, path, allow):
    answer = await curl(method, path)

    assert (answer.status, answer.body, answer.headers["allow"]) == (405, b"405 method not allowed", allow)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/pull", {"model": LLAMA}),
        ("POST", "/api/push", {"model": LLAMA}),
        ("POST", "/api/create", {"model": "mine", "from": LLAMA}),
        ("POST", "/api/copy", {"source": LLAMA, "destination": "mine"}),
        ("DELETE", "/api/delete", {"model": LLAMA}),
    ],
)
async def test_managing_models_is_refused_without_an_admin_key(home, curl, method, path, body):
    answer = await curl(method, path, body)

    assert answer.status == 403
    assert "admin key" in answer.lines[0]["error"]
    assert not [request for request in home.emulator.requests if request.path == path]


async def test_an_admin_key_manages_models_through_the_gateway(start_home: StartHome):
    home = await start_home(house_settings(keys=KEYS))
    async with home.native(ADMIN_KEY) as owner:
        await owner.copy(LLAMA, "mine")
        assert "mine:latest" in {model.model for model in (await owner.list()).models}
        answer = await owner.generate(model="mine", prompt="hi", options={"num_predict": 1})
        await owner.delete("mine")

    assert answer.eval_count == 1


async def test_curl_without_a_content_type_is_served_and_a_form_of_a_page_is_not(home, curl):
    body = json.dumps({"model": LLAMA, "prompt": "hi", "stream": False, **ONE})
    async with aiohttp.ClientSession(trust_env=False) as session:
        kinds = {"content-type": "application/x-www-form-urlencoded"}
        async with session.post(f"{home.url}/api/generate", data=body, headers=kinds) as served:
            assert served.status == 200
        async with session.post(f"{home.url}/api/generate", data=body, headers={**kinds, "origin": "http://evil.test"}) as refused:
            assert refused.status == 403


async def test_a_fixed_body_says_what_was_rewritten_and_an_ordinary_one_says_nothing(curl):
    plain = await curl("POST", "/api/generate", {"model": LLAMA, "prompt": "hi", **ONE, "stream": False})
    asked = {"model": LLAMA, "prompt": "hi", "stream": False, "keep_alive": -1, "options": {"num_ctx": 99}}
    fixed = await curl("POST", "/api/generate", asked)

    assert "x-hearth-rewrote" not in plain.headers
    assert fixed.headers["x-hearth-rewrote"] == "keep_alive,options.num_ctx"


async def test_the_same_body_gets_the_same_text_from_the_gateway_as_from_the_model_server(home, curl):
    body = {"model": CODER, "prompt": "once", "stream": False, "options": {"seed": 3, "num_predict": 9}}
    through = (await curl("POST", "/api/generate", body)).lines[0]
    async with aiohttp.ClientSession(trust_env=False) as session:
        direct = (await Curl(session, f"http://127.0.0.1:{home.port}")("POST", "/api/generate", body)).lines[0]

    assert list(through) == list(direct)
    assert (through["response"], through["context"]) == (direct["response"], direct["context"])
