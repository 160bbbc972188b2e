"""The HTTP side in front of the real gateway, with a fake Ollama behind it: one request all the way through, and back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
    callers: list[Caller] = field(default_factory=list)

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

    async def json(self, method: str, path: str, body: dict[str, object] | None = None) -> Any:
        return json.loads((await self.ask(method, path, body))[2])

    async def begin(self, path: str = "/api/chat", name: str = "mine", **more: object) -> Caller:
        """A request that takes long, on a connection that stays."""
        caller = await Caller.to(self.url)
        await caller.post(path, json.dumps({**CHAT, "fake": LONG, **more}).encode(), b"X-Request-Id: %s" % name.encode())
        self.callers.append(caller)
        return caller

    async def until_waiting(self, count: int) -> None:
        async with asyncio.timeout(WITHIN_S):
            while (await self.json("GET", "/llm/queue/status"))["external_queue"]["pending"] != count:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.005)

    async def until_ended(self) -> None:
        """The first call to the model server has been closed."""
        await until(lambda: self.ollama.calls and self.ollama.calls[0].ending is Ending.CLOSED)


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
        house = House(await server.start("127.0.0.1", 0), ollama)
        yield house
        for caller in house.callers:
            caller.leave()
        await server.stop(0.5)
    ollama.check()


def reached(ollama: FakeOllama, calls: int, ending: Ending | None = None) -> bool:
    """Whether the model server has had so many calls, and the last of them has ended so."""
    return len(ollama.calls) == calls and ollama.calls[-1].ending is ending


async def test_an_answer_comes_through_from_end_to_end_in_every_dialect(house):
    anthropic: dict[str, Any] = {**CHAT, "max_tokens": 5}
    asked: list[tuple[str, dict[str, Any]]] = [
        *(("/api/chat", {**CHAT, "stream": stream}) for stream in (True, False)),
        ("/api/generate", {"model": "a:1", "prompt": "hi"}),
        *(("/v1/chat/completions", {**CHAT, "stream": stream}) for stream in (True, False)),
        *(("/v1/messages", {**anthropic, "stream": stream}) for stream in (True, False)),
    ]
    for path, body in asked:
        status, headers, answer = await house.ask("POST", path, {**body, "fake": {"service_s": 0.02, "chunks": 3}})
        assert (status, headers["x-queue-position"]) == (200, "0")
        assert re.findall(rb"w\d", answer) == [b"w0", b"w1", b"w2"], (path, body)
        assert house.ollama.calls[-1].ending is Ending.COMPLETED
    completion = await house.json("POST", "/llm/completions", {"prompt": "hi", "model": "b:1"})
    assert (completion["model"], completion["output"] != "", completion["tokens_out"] > 0) == ("b:1", True, True)


async def test_leaving_while_the_model_works_closes_its_call_and_leaving_the_queue_keeps_a_request_from_it(house):
    for number, stream in enumerate((True, False), 1):
        running = await house.begin(stream=stream)
        await until(partial(reached, house.ollama, number))
        waiting = await house.begin("/v1/chat/completions")
        await house.until_waiting(1)
        waiting.leave()
        await house.until_waiting(0)
        running.leave()
        await until(partial(reached, house.ollama, number, Ending.CLOSED))
    assert len(house.ollama.calls) == 2


async def test_a_running_request_is_cancelled_by_its_id_and_its_stream_says_so(house):
    caller = await house.begin()
    status, headers = await caller.head()
    assert (status, headers["x-request-id"]) == (200, "mine")
    for _ in range(2):
        assert await house.json("POST", "/llm/requests/mine/cancel") == {"request_id": "mine", "cancelled": True}
    assert b'{"error":"The request was cancelled."}\n' in await caller.reader.readuntil(b"0\r\n\r\n")
    await house.until_ended()


async def test_a_number_cancels_one_request_and_an_id_all_that_carry_it(house):
    for ahead in range(3):
        await house.begin()
        await until(lambda: house.ollama.calls)
        await house.until_waiting(ahead)
    assert "models" in await house.json("GET", "/api/tags")  # routes without a queue answer meanwhile
    for _ in range(2):
        said = await house.json("POST", "/llm/queue/item/2/cancel")
        assert said == {"sequence": 2, "request_id": "mine", "cancelled": True}
        states = [(await house.json("GET", f"/llm/queue/item/{number}"))["state"] for number in (1, 2, 3)]
        assert states == ["running", "cancelled", "waiting"]
    assert await house.json("POST", "/llm/requests/mine/cancel") == {"request_id": "mine", "cancelled": True}
    await house.until_ended()
    await house.until_waiting(0)


async def test_a_model_that_is_not_installed_is_404_and_loads_nothing(house):
    status, _, answer = await house.ask("POST", "/api/chat", {**CHAT, "model": "nope"})
    assert (status, json.loads(answer)) == (404, {"error": "model 'nope' not found"})
    assert house.ollama.calls == []
    assert all(record.model != "nope:latest" for record in house.ollama.control)


async def test_the_status_stream_follows_a_request(house):
    listener = await Caller.to(house.url)
    house.callers.append(listener)
    await listener.send(b"GET /llm/queue/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await listener.head()
    await listener.reader.readuntil(b'"current_request":null')
    caller = await house.begin()
    await asyncio.wait_for(listener.reader.readuntil(b'"current_request":{'), WITHIN_S)
    caller.leave()
    await asyncio.wait_for(listener.reader.readuntil(b'"current_request":null'), WITHIN_S)
