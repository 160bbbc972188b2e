"""Models of a router that are real llama.cpp servers: the router itself is the stub, since the
packaged server is built without one, and passes on what they say byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hearth.events import ItemInterrupted, ItemResumed, SwapCompleted
from tests.engines.llama_router.stub import Preset, StubRouter
from tests.engines.llamacpp.gguf import LETTERS, write_model
from tests.engines.llamacpp.serving import serving
from tests.engines.stub_server import LAST_CHUNK, Peer, StubServer
from tests.engines.swapping_door import Door, broken_into, open_door
from tests.engines.upstream_model import UpstreamModel

TOKENS = 300


class RealModel(UpstreamModel):
    """A llama.cpp server in a process of its own."""

    def __init__(self, file: Path, name: str) -> None:
        super().__init__(name)
        self._process = ExitStack()
        self._url = urlsplit(self._process.enter_context(serving(file, name)))

    def end(self) -> None:
        self._process.close()

    async def answer(self, peer: Peer) -> bool:
        self.running += 1
        passing = asyncio.ensure_future(self._passed(peer))
        leaving = asyncio.ensure_future(peer.left())
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            return leaving.done() or passing.result()
        finally:
            self.running -= 1
            passing.cancel()
            leaving.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def _passed(self, peer: Peer) -> bool:
        """Whether all of an answer came."""
        reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        head = (
            f"{peer.method} {peer.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        )
        size = f"Content-Length: {len(peer.body)}\r\nConnection: close\r\n\r\n"
        last = b""
        events = 0
        try:
            writer.write(f"{head}{size}".encode() + peer.body)
            while came := await reader.readline():
                events += came.startswith(b"data: ")
                if events == self.held:
                    await self.go.wait()
                last = (last + came)[-1024:]
                await peer.send(came)
        finally:
            writer.transport.abort()
        return b"chunked" not in last.lower() and last.endswith((LAST_CHUNK, b"}"))


@dataclass
class RealPreset(Preset):
    """A model whose process is a real one."""

    file: Path = Path()

    async def start(self) -> UpstreamModel:
        return await asyncio.to_thread(RealModel, self.file, self.name)


@pytest.fixture
async def routed(tmp_path) -> AsyncIterator[tuple[Door, StubRouter]]:
    presets = [RealPreset(name, file=tmp_path / f"{name}.gguf") for name in ("a", "b")]
    for preset in presets:
        write_model(preset.file, tuple(LETTERS))
    router = StubRouter(*presets)
    async with (
        StubServer(router) as server,
        open_door("llama_router", server.url, "a", "b") as door,
    ):
        yield door, router
    for preset in presets:
        if preset.process is not None:
            preset.process.end()


async def test_an_interrupted_text_of_a_real_model_goes_on_as_it_would_have(routed):
    door, router = routed
    whole = await door.say("a", TOKENS)
    assert len(whole) == TOKENS
    process = router.presets["a"].process
    assert process is not None
    process.held = 40
    seen = asyncio.Event()
    reading = asyncio.create_task(broken_into(door, "a", TOKENS, seen))
    await seen.wait()
    await door.as_house("b")
    assert await reading == whole
    assert len(door.events.of(ItemInterrupted)) == 1
    assert [event.how for event in door.events.of(ItemResumed)] == ["continued"]
    assert [swap.to_model for swap in door.events.of(SwapCompleted)] == ["a", "b", "a"]
