"""What an engine does in a world that fails: the adapter over HTTP, and the fake that other tests
stand on.

Behind the adapter stands the same fake, put on a socket, so both are asked about the same world.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import pytest

from hearth.engines.ollama.engine import Ollama
from hearth.engines.port import Engine, Exchange
from hearth.errors import BackendGone, BackendUnreachable, HearthError, LoadError, ModelNotFound
from hearth.types import BackendCall, LoadOptions
from tests.engines.stub_server import (
    LAST_CHUNK,
    Peer,
    StubServer,
    chunked,
    head_of,
    read,
    read_until_broken,
)
from tests.support import ollama_wire as wire
from tests.support.fake_gpu import Place
from tests.support.fake_ollama import CallFault, Ending, FakeModel, FakeOllama, LoadFault
from tests.support.patience import for_ever, until
from tests.support.taking import chunks_of

LOAD_S = 0.02
LONG_S = 30.0
SILENT_S = 0.05
UNPINNED = LoadOptions()


@dataclass
class Bench:
    """An engine, and the world that it reaches; `server` stands between, except before the fake
    itself.
    """

    world: FakeOllama
    engine: Engine
    server: StubServer | None = None

    def kill(self) -> None:
        """Nothing listens any more."""
        if self.server is None:
            self.world.go_down()
        else:
            self.server.stop_listening()

    async def arrived(self) -> None:
        """Returns when the last call has reached the world."""
        await (asyncio.sleep(0) if self.server is None else self.server.peers.get())

    async def resident(self) -> list[str]:
        return [model.name for model in await self.engine.resident()]


@pytest.fixture(params=["fake", "ollama"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    a = FakeModel(
        name="a:latest",
        load_s=LOAD_S,
        unload_s=LOAD_S,
        vram_mib=2048.0,
        size_mib=3072.0,
        parallel=2,
    )
    world = FakeOllama(
        a,
        FakeModel(
            name="emb:latest",
            load_s=LOAD_S,
            unload_s=LOAD_S,
            embedding_only=True,
            capabilities=frozenset({"embedding"}),
        ),
    )
    if request.param == "fake":
        yield Bench(world, world)
    else:
        async with (
            StubServer(partial(serve, world)) as server,
            aclosing(Ollama(server.url, connect_timeout_s=30.0, control_timeout_s=30.0)) as engine,
        ):
            yield Bench(world, engine, server)
    world.check()


async def serve(world: FakeOllama, peer: Peer) -> None:
    """Ollama's routes, answered by a fake. As there, a load whose caller leaves is given up."""
    answering = asyncio.ensure_future(answer(world, peer))
    leaving = asyncio.ensure_future(peer.left())
    await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    answering.cancel()
    await asyncio.wait((answering, leaving))


async def answer(world: FakeOllama, peer: Peer) -> None:
    try:
        said = await changed(world, peer)
    except HearthError as error:
        said = wire.error(
            peer.path, 404 if isinstance(error, ModelNotFound) else 500, error.message
        )
    if said is not None:
        await peer.send(head_of(said), *said.chunks)
        return
    try:
        exchange = await world.open(BackendCall(method=peer.method, path=peer.path, body=peer.body))
    except BackendGone:
        return
    try:
        await peer.send(head_of(exchange))
        is_chunked = not any(name == b"content-length" for name, _ in exchange.headers)
        while chunks := await exchange.take():
            await peer.send(*(chunked(chunk) if is_chunked else chunk for chunk in chunks))
        await peer.send(LAST_CHUNK if is_chunked else b"")
    except BackendGone:
        return
    finally:
        exchange.close()


async def changed(world: FakeOllama, peer: Peer) -> wire.Answer | None:
    """The answer to a load, an unload or a probe; None for any other call."""
    asked = peer.json
    if "keep_alive" not in asked and "raw" not in asked:
        return None
    known = world.gpu.models.get(asked["model"])
    options = LoadOptions(num_ctx=asked.get("options", {}).get("num_ctx"))
    if peer.path == "/api/generate" and known is not None and known.embedding_only:
        return wire.error(peer.path, 400, f'"{asked["model"]}" does not support generate')
    if "raw" in asked:
        assert (asked["raw"], asked["stream"], asked["options"]["num_predict"]) == (True, False, 1)
        if not await world.probe(asked["model"], options, 0.0):
            await for_ever()
    elif asked["keep_alive"] == 0:
        await world.unload(asked["model"])
    else:
        assert asked["keep_alive"] == -1
        await world.load(asked["model"], options)
    return wire.Answer(status=200, headers=((b"content-length", b"2"),), chunks=(b"{}",))


# The control path.


async def test_what_a_model_can_do_is_in_the_list_or_can_be_asked_for(bench: Bench):
    listed = {model.name: model.capabilities for model in await bench.engine.installed()}
    assert listed == {"a:latest": None, "emb:latest": frozenset({"embedding"})}
    assert [await bench.engine.capabilities(name) for name in listed] == [
        None,
        frozenset({"embedding"}),
    ]


async def test_a_model_is_loaded_with_its_sizes_and_context_and_dropped(bench: Bench):
    assert await bench.engine.version() == wire.VERSION
    assert [(model.name, model.digest) for model in await bench.engine.installed()] == [
        ("a:latest", "digest-0-of-a:latest"),
        ("emb:latest", "digest-0-of-emb:latest"),
    ]
    for pinned, context in ((8192, 8192), (None, 4096)):
        assert await bench.engine.resident() == ()
        await bench.engine.load("a:latest", LoadOptions(num_ctx=pinned))
        [model] = await bench.engine.resident()
        assert (model.name, model.size_mib, model.vram_mib, model.context_tokens) == (
            "a:latest",
            3072.0,
            2048.0,
            context,
        )
        await bench.engine.unload("a:latest")
        await bench.world.settled()
    await bench.engine.load("emb:latest", UNPINNED)
    assert await bench.resident() == ["emb:latest"]
    await bench.engine.unload("emb:latest")
    await bench.world.settled()
    assert await bench.resident() == []


async def test_a_model_that_makes_a_token_is_told_from_one_that_hangs(bench: Bench):
    await bench.engine.load("a:latest", UNPINNED)
    assert await bench.engine.probe("a:latest", LoadOptions(num_ctx=2048), LONG_S)
    bench.world.wedge("a:latest")
    assert not await bench.engine.probe("a:latest", UNPINNED, SILENT_S)
    assert [probe.options.num_ctx for probe in bench.world.probes] == [2048, None]


async def test_dropping_what_is_gone_from_the_disk_is_model_not_found(bench: Bench):
    await bench.engine.load("a:latest", UNPINNED)
    bench.world.delete("a:latest")
    with pytest.raises(ModelNotFound, match="'a:latest' not found"):
        await bench.engine.unload("a:latest")
    assert await bench.resident() == ["a:latest"]
    assert [model.name for model in await bench.engine.installed()] == ["emb:latest"]


async def test_a_list_that_has_not_changed_is_the_same_one(bench: Bench):
    first = await bench.engine.installed()
    assert await bench.engine.installed() is first
    bench.world.install("new:latest")
    assert [model.name for model in await bench.engine.installed()] == [
        "a:latest",
        "emb:latest",
        "new:latest",
    ]
    bench.world.delete("new:latest")
    assert await bench.engine.installed() == first


async def test_every_load_that_fails_has_its_own_error(bench: Bench):
    bench.world.next_loads(LoadFault.FAIL)
    with pytest.raises(LoadError, match="signal: killed"):
        await bench.engine.load("a:latest", UNPINNED)
    assert await bench.resident() == []


async def test_a_load_ends_with_whoever_awaits_it(bench: Bench):
    bench.world.next_loads(LoadFault.NEVER)
    loading = asyncio.create_task(bench.engine.load("a:latest", UNPINNED))
    await bench.arrived()
    await until(lambda: bench.world.gpu.place("a:latest") is Place.LOADING)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    await until(lambda: bench.world.gpu.place("a:latest") is None)
    await bench.world.settled()
    assert await bench.resident() == []


async def test_a_server_that_is_down_is_unreachable_by_every_call(bench: Bench):
    bench.kill()
    load = partial(bench.engine.load, "a:latest", UNPINNED)
    unload = partial(bench.engine.unload, "a:latest")
    for attempt in (
        bench.engine.version,
        bench.engine.installed,
        bench.engine.resident,
        load,
        unload,
        partial(generate, bench),
    ):
        with pytest.raises(BackendUnreachable):
            await attempt()


# The data path.


async def generate(
    bench: Bench, fault: CallFault | None = None, model: str = "a:latest"
) -> Exchange:
    """The exchange of a call for three words."""
    bench.world.next_calls(fault)
    service = {"service_s": 0.0, "first_byte_s": 0.0, "chunks": 3}
    body = json.dumps({"model": model, "prompt": "?", "fake": service}).encode()
    headers = ((b"content-type", b"application/json"),)
    return await bench.engine.open(
        BackendCall(method="POST", path="/api/generate", headers=headers, body=body)
    )


@pytest.fixture
async def serving(bench: Bench) -> Bench:
    """A bench whose model is loaded."""
    bench.world.appear("a:latest")
    return bench


def words_in(chunks: list[bytes]) -> list[str]:
    return [json.loads(chunk).get("response") for chunk in chunks]


async def seen_leaving(world: FakeOllama) -> None:
    await until(lambda: Ending.CLOSED in {record.ending for record in world.calls})


async def test_status_and_headers_are_handed_on_and_chunks_come_in_order(serving: Bench):
    exchange = await generate(serving)
    chunks = await read(exchange)
    for _ in range(2):
        exchange.close()
    names = {name for name, _ in exchange.headers}
    assert (exchange.status, words_in(chunks)) == (200, [" w0", " w1", " w2", ""])
    assert (b"content-type", b"application/x-ndjson") in exchange.headers
    assert not names & {b"connection", b"keep-alive", b"transfer-encoding"}
    missing = await generate(serving, model="missing")
    body = b"".join(await read(missing))
    assert (missing.status, body) == (404, b"""{"error":"model 'missing' not found"}""")
    assert (b"content-length", b"%d" % len(body)) in missing.headers


async def test_closing_in_mid_stream_is_seen_by_the_server_and_ends_this_call_alone(serving: Bench):
    exchange = await generate(serving, CallFault.STALL)
    assert await anext(chunks_of(exchange))
    reading, beside = asyncio.create_task(read(exchange)), await generate(serving)
    await asyncio.sleep(0)
    exchange.close()
    await seen_leaving(serving.world)
    with pytest.raises(BackendGone):  # a reader that waits is woken
        await reading
    assert len(await read(beside)) == 4


async def test_cancelling_an_open_that_waits_for_the_head_closes_the_connection(serving: Bench):
    opening = asyncio.ensure_future(generate(serving, CallFault.SILENT))
    await serving.arrived()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await seen_leaving(serving.world)


async def test_a_server_that_breaks_off_is_gone_and_leaves_the_backend_usable(serving: Bench):
    with pytest.raises(BackendGone):
        await generate(serving, CallFault.GONE_BEFORE_HEAD)
    came, error = await read_until_broken(await generate(serving, CallFault.GONE_MID_STREAM))
    assert (words_in(came), type(error)) == ([" w0", " w1"], BackendGone)
    assert len(await read(await generate(serving))) == 4
