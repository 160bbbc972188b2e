"""What every `ModelControl` does: the adapter over HTTP, and the fake that other tests stand on.

Behind the adapter stands the same fake, put on a socket, so both are asked about the same world.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

import pytest

from hearth.backends.ollama_control import OllamaControl
from hearth.errors import BackendUnreachable, HearthError, ModelNotFound, SwapFailed, SwapTimedOut
from hearth.ports import ModelControl
from hearth.types import LoadOptions
from tests.backends.stub_server import Peer, StubServer, whole
from tests.support import ollama_wire as wire
from tests.support.fake_ollama import FakeModel, FakeOllama, LoadFault

LOAD_S = 0.02
LONG_S = 30.0
SILENT_S = 0.05


class Bench(Protocol):
    """A control, and the world that it controls."""

    world: FakeOllama
    control: ModelControl

    def kill(self) -> None:
        """Nothing listens any more."""

    async def arrived(self) -> None:
        """Returns when the last call has reached the world."""


class FakeBench:
    def __init__(self) -> None:
        self.world = world()
        self.control: ModelControl = self.world

    def kill(self) -> None:
        self.world.go_down()

    async def arrived(self) -> None:
        await asyncio.sleep(0)


class OllamaBench:
    def __init__(self, fake: FakeOllama, server: StubServer) -> None:
        self.world = fake
        self.adapter = OllamaControl(server.url, timeout_s=30.0)
        self.control: ModelControl = self.adapter
        self._server = server

    def kill(self) -> None:
        self._server.stop_listening()

    async def arrived(self) -> None:
        await self._server.peers.get()


def world() -> FakeOllama:
    return FakeOllama(
        FakeModel(name="a", load_s=LOAD_S, unload_s=LOAD_S, vram_mib=2048.0, size_mib=3072.0),
        FakeModel(name="emb", load_s=LOAD_S, unload_s=LOAD_S, embedding_only=True),
    )


class Front:
    """The control routes of Ollama, answered by a fake. As there, a load whose caller leaves is given up."""

    def __init__(self, fake: FakeOllama) -> None:
        self._fake = fake

    async def serve(self, peer: Peer) -> None:
        try:
            answer = await self._answer(peer)
        except ModelNotFound as error:
            answer = wire.error(peer.path, 404, error.message)
        except HearthError as error:
            answer = wire.error(peer.path, 500, error.message)
        await peer.send(whole(answer))

    async def _answer(self, peer: Peer) -> wire.Answer:
        if peer.method == "GET":
            return wire.listing(peer.path, await self._fake.installed(), await self._fake.resident())
        model = peer.json["model"]
        known = self._fake.gpu.models.get(model)
        if peer.path == "/api/generate" and known is not None and known.embedding_only:
            return wire.error(peer.path, 400, f'"{model}" does not support generate')
        if peer.json.get("prompt"):
            await self._make_a_token(peer)
        elif peer.json["keep_alive"] == 0:
            await self._fake.unload(model)
        else:
            assert peer.json["keep_alive"] == -1
            await self._load(peer, LoadOptions(num_ctx=peer.json.get("options", {}).get("num_ctx")))
        return wire.Answer(status=200, headers=((b"content-length", b"2"),), chunks=(b"{}",))

    async def _make_a_token(self, peer: Peer) -> None:
        assert (peer.json["raw"], peer.json["stream"], peer.json["options"]["num_predict"]) == (True, False, 1)
        if not await self._fake.probe(peer.json["model"], LoadOptions(num_ctx=peer.json["options"].get("num_ctx")), 0.0):
            await peer.left()

    async def _load(self, peer: Peer, options: LoadOptions) -> None:
        loading = asyncio.ensure_future(self._fake.load(peer.json["model"], options, LONG_S))
        leaving = asyncio.ensure_future(peer.left())
        await asyncio.wait((loading, leaving), return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            self._fake.go_down()
            self._fake.come_up()
        leaving.cancel()
        await loading


@pytest.fixture(params=["fake", "ollama"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    if request.param == "fake":
        fake = FakeBench()
        yield fake
        fake.world.check()
        return
    behind = world()
    async with StubServer(Front(behind).serve) as server:
        real = OllamaBench(behind, server)
        yield real
        await real.adapter.aclose()
    behind.check()


async def test_it_says_its_version_what_is_installed_and_that_nothing_is_resident_at_first(bench: Bench) -> None:
    assert await bench.control.version() == wire.VERSION
    assert [(model.name, model.digest) for model in await bench.control.installed()] == [("a", "digest-0-of-a"), ("emb", "digest-0-of-emb")]
    assert await bench.control.resident() == ()


@pytest.mark.parametrize(("pinned", "context"), [(8192, 8192), (None, 4096)])
async def test_a_loaded_model_is_resident_with_its_sizes_and_the_pinned_or_its_own_context(
    bench: Bench, pinned: int | None, context: int
) -> None:
    await bench.control.load("a", LoadOptions(num_ctx=pinned), LONG_S)
    [resident] = await bench.control.resident()
    assert (resident.name, resident.size_mib, resident.vram_mib, resident.context_tokens) == ("a", 3072.0, 2048.0, context)


async def test_a_model_that_only_embeds_can_be_loaded_and_dropped_and_what_is_not_loaded_too(bench: Bench) -> None:
    await bench.control.unload("a")
    await bench.control.load("emb", LoadOptions(), LONG_S)
    assert [resident.name for resident in await bench.control.resident()] == ["emb"]
    await bench.control.unload("emb")
    await bench.world.settled()
    assert await bench.control.resident() == ()


async def test_a_model_that_makes_a_token_is_told_from_one_that_hangs_and_leaves_its_pin_alone(bench: Bench) -> None:
    await bench.control.load("a", LoadOptions(), LONG_S)
    assert await bench.control.probe("a", LoadOptions(num_ctx=2048), LONG_S)
    bench.world.wedge("a")
    assert not await bench.control.probe("a", LoadOptions(), SILENT_S)
    assert [probe.options.num_ctx for probe in bench.world.probes] == [2048, None]


async def test_dropping_what_is_gone_from_the_disk_is_model_not_found_and_drops_nothing(bench: Bench) -> None:
    await bench.control.load("a", LoadOptions(), LONG_S)
    bench.world.delete("a")
    with pytest.raises(ModelNotFound, match="'a' not found"):
        await bench.control.unload("a")
    assert [resident.name for resident in await bench.control.resident()] == ["a"]
    assert [model.name for model in await bench.control.installed()] == ["emb"]


async def test_a_failed_load_carries_the_servers_words_and_a_missing_model_is_told_apart(bench: Bench) -> None:
    bench.world.next_loads(LoadFault.FAIL)
    with pytest.raises(SwapFailed, match="signal: killed"):
        await bench.control.load("a", LoadOptions(), LONG_S)
    with pytest.raises(ModelNotFound, match="missing"):
        await bench.control.load("missing", LoadOptions(), LONG_S)
    assert await bench.control.resident() == ()


async def test_a_load_that_never_ends_times_out(bench: Bench) -> None:
    bench.world.next_loads(LoadFault.NEVER)
    with pytest.raises(SwapTimedOut):
        await bench.control.load("a", LoadOptions(), 0.05)


async def test_a_caller_that_stops_waiting_does_not_stop_the_load(bench: Bench) -> None:
    loading = asyncio.create_task(bench.control.load("a", LoadOptions(), LONG_S))
    await bench.arrived()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await bench.world.settled()
    assert [resident.name for resident in await bench.control.resident()] == ["a"]


async def test_a_server_that_is_down_is_unreachable_by_every_call(bench: Bench) -> None:
    bench.kill()
    load, unload = partial(bench.control.load, "a", LoadOptions(), LONG_S), partial(bench.control.unload, "a")
    for attempt in (bench.control.version, bench.control.installed, bench.control.resident, load, unload):
        with pytest.raises(BackendUnreachable):
            await attempt()
