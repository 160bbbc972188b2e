"""Routes without a queue: there and back as they are."""

from __future__ import annotations

import json

import pytest

from hearth.errors import BackendGone
from tests.api.house import ADMIN_KEY, FakeExchange, ask

PLAIN = ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"17"), (b"date", b"Sat, 21 Nov 2026 02:09:14 GMT"))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/api/version"),
        ("HEAD", "/api/version"),
        ("GET", "/api/tags"),
        ("HEAD", "/api/tags"),
        ("GET", "/api/ps"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/llama3.1:8b"),
        ("GET", "/v1/models/hf.co/someone/model"),
    ],
)
async def test_what_the_backend_says_comes_back_unchanged(method, path, gateway, app):
    gateway.backend.answer = FakeExchange(200, PLAIN, (b"Ollama is", b" running"))
    got = await ask(app, method, path, accept="application/json", user_agent="x", cookie="a=b")
    assert got.status == 200
    assert got.chunks == (b"Ollama is", b" running")
    assert got.headers["content-length"] == "17"
    assert got.headers["date"] == "Sat, 21 Nov 2026 02:09:14 GMT"
    assert got.headers["x-request-id"].startswith("req_")
    (call,) = gateway.backend.calls
    assert (call.method, call.path, call.body) == (method, path, b"")
    assert dict(call.headers) == {b"accept": b"application/json", b"user-agent": b"x"}
    assert gateway.backend.answer.closed.is_set()
    assert gateway.worker.submitted == []


@pytest.mark.parametrize(
    ("path", "listed", "left"),
    [
        ("/api/tags", {"models": [{"name": "A:cloud"}, {"name": "a:latest", "size": 7}]}, {"models": [{"name": "a:latest", "size": 7}]}),
        ("/v1/models", {"object": "list", "data": [{"id": "a:cloud"}, {"id": "ä"}]}, {"object": "list", "data": [{"id": "ä"}]}),
    ],
)
async def test_models_of_ollamas_own_cloud_are_not_offered(path, listed, left, gateway, app):
    said = json.dumps(listed).encode()
    gateway.models_elsewhere = frozenset({"a:cloud"})
    gateway.backend.answer = FakeExchange(200, ((b"content-length", b"%d" % len(said)),), (said[:20], said[20:]))
    got = await ask(app, "GET", path)
    assert (got.status, got.json, got.headers["content-length"]) == (200, left, str(len(b"".join(got.chunks))))


async def test_a_list_that_is_none_comes_back_as_it_was(gateway, app):
    gateway.models_elsewhere = frozenset({"a:cloud"})
    for said in (b"not json", b'{"models":null}', b'{"models":[7]}', b"[]"):
        gateway.backend.answer = FakeExchange(200, (), (said,))
        assert b"".join((await ask(app, "GET", "/api/tags")).chunks) == said


async def test_a_body_and_a_query_go_along(gateway, app):
    gateway.backend.answer = FakeExchange(404, (), (b'{"error":"model \'x:latest\' not found"}',))
    got = await ask(app, "POST", "/api/show?verbose=1", {"model": "x"}, content_type="application/x-www-form-urlencoded")
    assert got.status == 404
    assert got.json == {"error": "model 'x:latest' not found"}
    (call,) = gateway.backend.calls
    assert call.path == "/api/show?verbose=1"
    assert json.loads(call.body) == {"model": "x"}


async def test_a_model_name_with_an_escape_goes_on_as_it_was_sent(gateway, app):
    gateway.backend.answer = FakeExchange(200, (), (b"{}",))
    assert (await ask(app, "GET", "/v1/models/llama3.1%3A8b")).status == 200
    assert gateway.backend.calls[0].path == "/v1/models/llama3.1%3A8b"


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/pull"), ("DELETE", "/api/delete"), ("HEAD", "/api/blobs/sha256:a"), ("POST", "/api/create")]
)
async def test_an_admin_key_manages_models(method, path, keyed, keyed_app):
    keyed.backend.answer = FakeExchange(200, (), (b'{"status":"success"}\n',))
    got = await ask(keyed_app, method, path, {"model": "x"}, key=ADMIN_KEY, content_type="application/json")
    assert got.status == 200
    (call,) = keyed.backend.calls
    assert (call.method, call.path, call.headers) == (method, path, ((b"content-type", b"application/json"),))


async def test_a_blob_may_be_octets(keyed, keyed_app):
    keyed.backend.answer = FakeExchange(201, (), ())
    got = await ask(keyed_app, "POST", "/api/blobs/sha256:a", b"\x00\xff", key=ADMIN_KEY, content_type="application/octet-stream")
    assert got.status == 201
    assert keyed.backend.calls[0].body == b"\x00\xff"


@pytest.mark.parametrize(
    ("path", "read"), [("/api/tags", lambda said: said["error"]), ("/v1/models", lambda said: said["error"]["message"])]
)
async def test_a_backend_that_is_down_is_503_with_a_time_to_come_back(path, read, app):
    got = await ask(app, "GET", path)
    assert got.status == 503
    assert got.headers["retry-after"] == "5"
    assert "cannot be reached" in read(got.json)


async def test_an_answer_that_breaks_off_stays_unfinished(gateway, app):
    gateway.backend.answer = FakeExchange(200, (), (b"half", BackendGone()))
    got = await ask(app, "GET", "/api/tags")
    assert got.chunks == (b"half",)
    assert not got.complete
    assert gateway.backend.answer.closed.is_set()


async def test_tokens_are_counted_by_hearth_itself(gateway, app):
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 35}]}
    got = await ask(app, "POST", "/v1/messages/count_tokens", body, x_request_id="mine")
    assert got.status == 200
    assert got.json["input_tokens"] > 0
    assert got.headers["x-request-id"] == "mine"
    assert gateway.backend.calls == []


async def test_a_count_of_nothing_is_an_anthropic_error(app):
    got = await ask(app, "POST", "/v1/messages/count_tokens", {"model": "m"})
    assert got.status == 400
    assert got.json["error"]["type"] == "invalid_request_error"
