"""The HTTP side in front of the real gateway, with a fake Ollama behind it: one request all the way through, and back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import GpuSettings, Settings
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.sinks import EventFanout
from hearth.types import BackendCall
from tests.api.house import Caller
from tests.emulator.waiting import until
from tests.support.fake_ollama import Ending, FakeModel, FakeOllama, Service, service_asked_for
from tests.support.patience import WITHIN_S

LONG = {"service_s": 30.0, "first_byte_s": 0.01, "chunks": 300}
CHAT = {"model": "a:1", "messages": [{"role": "user", "content": "hi"}]}


def quickly(call: BackendCall) -> Service:
    """As long as the body asks for, else a moment."""
    return service_asked_for(call) if b'"fake"' in call.body else Service(service_s=0.02, first_byte_s=0.01)


@dataclass
class House:
    url: str
    ollama: FakeOllama

    async def ask(self, method: str, path: str, body: dict[str, object] | None = None) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own."""
        caller = await Caller.to(self.url)
        raw = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
        await caller.send(head.encode() + raw)
        status, headers = await caller.head()
        answer = await caller.until_closed()
        caller.leave()
        return status, headers, answer


@pytest.fixture
async def house() -> AsyncIterator[House]:
    ollama = FakeOllama(FakeModel(name="a:1", load_s=0.01), FakeModel(name="b:1", load_s=0.01), service=quickly)
    gateway = Gateway(
        config=GatewayConfig(settings=Settings(gpu=GpuSettings(home_model=""))),
        backend=ollama,
        control=ollama,
        identity=BackendIdentity(mode="ollama", url="http://127.0.0.1:11434", emulator=False),
        clock=SystemClock(),
        events=EventFanout(()),
    )
    server = HearthServer(HearthApp(gateway), lambda: gateway.config.settings.server)
    async with gateway:
        yield House(await server.start("127.0.0.1", 0), ollama)
        await server.stop(0.5)
    ollama.check()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", CHAT),
        ("/api/chat", {**CHAT, "stream": False}),
        ("/api/generate", {"model": "a:1", "prompt": "hi"}),
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/messages", {**CHAT, "max_tokens": 5}),
        ("/v1/messages", {**CHAT, "max_tokens": 5, "stream": True}),
    ],
)
async def test_an_answer_comes_through_from_end_to_end(path, body, house):
    status, headers, answer = await house.ask("POST", path, {**body, "fake": {"service_s": 0.02, "chunks": 3}})
    assert status == 200
    assert re.findall(rb"w\d", answer) == [b"w0", b"w1", b"w2"]
    assert headers["x-queue-position"] == "0"
    assert house.ollama.calls[-1].ending is Ending.COMPLETED


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_the_model_works_closes_the_call_to_the_model_server(stream, house):
    caller = await Caller.to(house.url)
    await caller.post("/api/chat", json.dumps({**CHAT, "stream": stream, "fake": LONG}).encode())
    await until(lambda: house.ollama.calls)
    caller.leave()
    await until(lambda: house.ollama.calls[0].ending is Ending.CLOSED)


async def test_leaving_the_queue_keeps_the_request_from_ever_reaching_the_model_server(house):
    first = await Caller.to(house.url)
    await first.post("/api/chat", json.dumps({**CHAT, "fake": LONG}).encode())
    await until(lambda: house.ollama.calls)
    second = await Caller.to(house.url)
    await second.post("/v1/chat/completions", json.dumps(CHAT).encode())
    await until_waiting(house, 1)
    second.leave()
    await until_waiting(house, 0)
    first.leave()
    await until(lambda: house.ollama.calls[0].ending is Ending.CLOSED)
    assert len(house.ollama.calls) == 1


async def until_waiting(house: House, count: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while (await status_of(house))["external_queue"]["pending"] != count:  # noqa: ASYNC110 - the status is asked for over HTTP
            await asyncio.sleep(0.005)


async def status_of(house: House):
    return json.loads((await house.ask("GET", "/llm/queue/status"))[2])


async def state_of(house: House, number: int):
    return json.loads((await house.ask("GET", f"/llm/queue/item/{number}"))[2])["state"]


async def test_a_running_request_is_cancelled_by_its_id_and_its_stream_says_so(house):
    caller = await Caller.to(house.url)
    await caller.post("/api/chat", json.dumps({**CHAT, "fake": LONG}).encode(), b"X-Request-Id: mine")
    status, headers = await caller.head()
    assert (status, headers["x-request-id"]) == (200, "mine")
    for _ in range(2):
        status, _, answer = await house.ask("POST", "/llm/requests/mine/cancel")
        assert (status, json.loads(answer)) == (200, {"request_id": "mine", "cancelled": True})
    assert b'{"error":"The request was cancelled."}\n' in await caller.reader.readuntil(b"0\r\n\r\n")
    await until(lambda: house.ollama.calls[0].ending is Ending.CLOSED)
    caller.leave()


async def test_a_number_cancels_one_request_and_an_id_all_that_carry_it(house):
    callers = [await Caller.to(house.url) for _ in range(3)]
    for ahead, caller in enumerate(callers):
        await caller.post("/api/chat", json.dumps({**CHAT, "fake": LONG}).encode(), b"X-Request-Id: mine")
        await until(lambda: house.ollama.calls)
        await until_waiting(house, ahead)
    for _ in range(2):
        status, _, answer = await house.ask("POST", "/llm/queue/item/2/cancel")
        assert (status, json.loads(answer)) == (200, {"sequence": 2, "request_id": "mine", "cancelled": True})
        assert [await state_of(house, number) for number in (1, 2, 3)] == ["running", "cancelled", "waiting"]
    status, _, answer = await house.ask("POST", "/llm/requests/mine/cancel")
    assert (status, json.loads(answer)) == (200, {"request_id": "mine", "cancelled": True})
    await until(lambda: house.ollama.calls[0].ending is Ending.CLOSED)
    await until_waiting(house, 0)
    status, _, answer = await house.ask("POST", "/llm/queue/item/9/cancel")
    assert (status, json.loads(answer)) == (404, {"error": "there is no such item"})
    for caller in callers:
        caller.leave()


async def test_a_model_that_is_not_installed_is_404_and_loads_nothing(house):
    status, _, answer = await house.ask("POST", "/api/chat", {**CHAT, "model": "nope"})
    assert (status, json.loads(answer)) == (404, {"error": "model 'nope' not found"})
    assert house.ollama.calls == []
    assert all(record.model != "nope:latest" for record in house.ollama.control)


async def test_a_completion_comes_through_from_end_to_end(house):
    status, _, answer = await house.ask("POST", "/llm/completions", {"prompt": "hi", "model": "b:1"})
    said = json.loads(answer)
    assert status == 200
    assert said["model"] == "b:1"
    assert said["output"]
    assert said["tokens_out"] > 0


async def test_the_own_pages_answer(house):
    for path in ("/llm/queue/status", "/llm/models", "/llm/health", "/healthz", "/readyz", "/openapi.json"):
        status, _, answer = await house.ask("GET", path)
        assert status == 200, path
        assert isinstance(json.loads(answer), dict)


async def test_the_status_stream_follows_a_request(house):
    listener = await Caller.to(house.url)
    await listener.send(b"GET /llm/queue/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await listener.head()
    await listener.reader.readuntil(b'"current_request":null')
    caller = await Caller.to(house.url)
    await caller.post("/api/chat", json.dumps({**CHAT, "fake": LONG}).encode())
    await asyncio.wait_for(listener.reader.readuntil(b'"current_request":{'), WITHIN_S)
    caller.leave()
    await asyncio.wait_for(listener.reader.readuntil(b'"current_request":null'), WITHIN_S)
    listener.leave()


async def test_unqueued_routes_answer_while_the_model_works(house):
    caller = await Caller.to(house.url)
    await caller.post("/api/chat", json.dumps({**CHAT, "fake": LONG}).encode())
    await until(lambda: house.ollama.calls)
    status, _, answer = await house.ask("GET", "/api/tags")
    assert status == 200
    assert "models" in json.loads(answer)
    caller.leave()
