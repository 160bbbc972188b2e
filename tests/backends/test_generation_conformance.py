"""What every `GenerationBackend` does: the Ollama adapter over real sockets, and the fake that other tests stand on."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from hearth.backends.ollama import OllamaBackend
from hearth.errors import BackendGone, BackendUnreachable
from hearth.ports import GenerationBackend
from hearth.types import BackendCall
from tests.backends.stub_server import LAST_CHUNK, Peer, StubServer, chunked, head_of, read, read_until_broken, whole
from tests.support import ollama_wire as wire
from tests.support.fake_ollama import CallFault, Ending, FakeModel, FakeOllama, Service
from tests.support.patience import WITHIN_S
from tests.support.taking import chunks_of

MODEL = "a"
AT_ONCE = 20


def service_of(body: bytes) -> Service:
    tag = json.loads(body)["tag"]
    return Service(service_s=0.0, first_byte_s=0.0, words=(f"{tag}-one", f"{tag}-two", f"{tag}-three"))


def call(tag: str = "x", model: str = MODEL) -> BackendCall:
    body = json.dumps({"model": model, "tag": tag}).encode()
    return BackendCall(method="POST", path="/api/generate", headers=((b"content-type", b"application/json"),), body=body)


def words_in(chunks: list[bytes]) -> list[str]:
    return [json.loads(chunk).get("response") for chunk in chunks]


class Bench(Protocol):
    """A backend and the server behind it."""

    backend: GenerationBackend

    def next_call(self, fault: CallFault | None) -> None:
        """Script the next call."""

    def kill(self) -> None:
        """Nothing listens any more."""

    async def arrived(self) -> None:
        """Returns when the server has read the last call."""

    async def saw_leaving(self) -> None:
        """Returns when the server has seen the client leave the last call."""


class FakeBench:
    def __init__(self) -> None:
        self.fake = FakeOllama(FakeModel(name=MODEL, parallel=AT_ONCE), service=lambda asked: service_of(asked.body))
        self.fake.appear(MODEL)
        self.backend: GenerationBackend = self.fake

    def next_call(self, fault: CallFault | None) -> None:
        self.fake.next_calls(fault)

    def kill(self) -> None:
        self.fake.go_down()

    async def arrived(self) -> None:
        await asyncio.sleep(0)

    async def saw_leaving(self) -> None:
        assert Ending.CLOSED in {record.ending for record in self.fake.calls}


class OllamaBench:
    """The same behaviour, said over a socket."""

    def __init__(self) -> None:
        self.server = StubServer(self._serve)
        self.faults: deque[CallFault | None] = deque()
        self.left = asyncio.Event()
        self.backend: GenerationBackend

    async def start(self) -> None:
        await self.server.__aenter__()
        self.backend = OllamaBackend(self.server.url, connect_timeout_s=30.0)

    async def stop(self) -> None:
        await self.backend.aclose()
        await self.server.__aexit__(None, None, None)

    def next_call(self, fault: CallFault | None) -> None:
        self.faults.append(fault)

    def kill(self) -> None:
        self.server.stop_listening()

    async def arrived(self) -> None:
        await self.server.peers.get()

    async def saw_leaving(self) -> None:
        await asyncio.wait_for(self.left.wait(), WITHIN_S)

    async def _serve(self, peer: Peer) -> None:
        fault = self.faults.popleft() if self.faults else None
        if fault is CallFault.GONE_BEFORE_HEAD:
            return
        if fault is CallFault.SILENT:
            await self._until_left(peer)
        elif peer.json["model"] != MODEL:
            await peer.send(whole(wire.error(peer.path, 404, f"model '{peer.json['model']}' not found")))
        else:
            await self._stream(peer, fault)

    async def _stream(self, peer: Peer, fault: CallFault | None) -> None:
        answer = wire.answer(peer.path, peer.json, service_of(peer.body), 0.0)
        await peer.send(head_of(answer), chunked(answer.chunks[0]))
        if fault is CallFault.STALL:
            await self._until_left(peer)
        elif fault is CallFault.GONE_MID_STREAM:
            await peer.send(chunked(answer.chunks[1]))
        else:
            await peer.send(*(chunked(chunk) for chunk in answer.chunks[1:]), LAST_CHUNK)

    async def _until_left(self, peer: Peer) -> None:
        await peer.left()
        self.left.set()


@pytest.fixture(params=["fake", "ollama"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "fake":
        fake = FakeBench()
        yield fake
        fake.fake.check()
        return
    real = OllamaBench()
    await real.start()
    yield real
    await real.stop()


async def test_status_and_end_to_end_headers_are_handed_on_and_chunks_one_by_one_in_order(bench: Bench) -> None:
    exchange = await bench.backend.open(call("t"))
    chunks = await read(exchange)
    for _ in range(2):
        exchange.close()
    assert words_in(chunks) == ["t-one", "t-two", "t-three", ""]
    names = {name for name, _ in exchange.headers}
    assert exchange.status == 200
    assert (b"content-type", b"application/x-ndjson") in exchange.headers
    assert not names & {b"connection", b"keep-alive", b"transfer-encoding"}
    assert names == {name.lower() for name in names}


async def test_an_error_answer_is_an_answer_and_keeps_its_length(bench: Bench) -> None:
    exchange = await bench.backend.open(call(model="missing"))
    body = b"".join(await read(exchange))
    exchange.close()
    assert (exchange.status, body) == (404, b"""{"error":"model 'missing' not found"}""")
    assert (b"content-length", b"%d" % len(body)) in exchange.headers


async def test_closing_in_mid_stream_is_seen_by_the_server_and_ends_this_call_alone(bench: Bench) -> None:
    bench.next_call(CallFault.STALL)
    exchange = await bench.backend.open(call())
    chunks = chunks_of(exchange)
    await anext(chunks)
    beside = await bench.backend.open(call("going"))
    exchange.close()
    await bench.saw_leaving()
    assert len(await read(beside)) == 4
    beside.close()
    with pytest.raises(BackendGone):
        await anext(chunks)


async def test_closing_wakes_a_reader_that_waits(bench: Bench) -> None:
    bench.next_call(CallFault.STALL)
    exchange = await bench.backend.open(call())
    reading = asyncio.create_task(read(exchange))
    await asyncio.sleep(0)
    exchange.close()
    with pytest.raises(BackendGone):
        await reading


async def test_cancelling_an_open_that_waits_for_the_head_closes_the_connection(bench: Bench) -> None:
    bench.next_call(CallFault.SILENT)
    opening = asyncio.ensure_future(bench.backend.open(call()))
    await bench.arrived()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await bench.saw_leaving()


async def test_a_body_that_ends_early_gives_what_came_and_then_is_gone(bench: Bench) -> None:
    bench.next_call(CallFault.GONE_MID_STREAM)
    exchange = await bench.backend.open(call("t"))
    came, error = await read_until_broken(exchange)
    exchange.close()
    assert words_in(came) == ["t-one", "t-two"]
    assert isinstance(error, BackendGone)


async def test_a_server_that_does_not_listen_is_unreachable(bench: Bench) -> None:
    bench.kill()
    with pytest.raises(BackendUnreachable):
        await bench.backend.open(call())


async def test_a_connection_that_ends_before_the_head_is_gone_and_leaves_the_backend_usable(bench: Bench) -> None:
    bench.next_call(CallFault.GONE_BEFORE_HEAD)
    with pytest.raises(BackendGone):
        await bench.backend.open(call())
    exchange = await bench.backend.open(call())
    assert len(await read(exchange)) == 4
    exchange.close()
