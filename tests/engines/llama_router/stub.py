"""A router of llama.cpp's server as it was recorded, with its traps."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from tests.engines.stub_server import LAST_CHUNK, Peer, chunked
from tests.engines.upstream_model import (
    UpstreamModel,
    answered,
    json_answered,
    refused,
    stream_head,
)
from tests.support.fields import Fields
from tests.support.patience import for_ever, until

TEXT = "text/plain; charset=utf-8"
BINARY = "/usr/local/bin/llama-server"
MIB = 1024**2


@dataclass
class Preset:
    """A model of the router.

    Attributes:
        fails: the exit code with which its process ends before it is loaded, None for none.
        arguments: beside those that every process has. loads: its load ends when this is set.
        process: what answers while one is there. stopping: it was told to end.
    """

    name: str
    aliases: tuple[str, ...] = ()
    size_mib: float = 64.0
    fails: int | None = None
    arguments: tuple[str, ...] = ("--parallel", "1")
    slots: int = 1
    status: str = "unloaded"
    exit_code: int = 0
    port: int = 0
    stopping: bool = False
    loads: asyncio.Event = field(default_factory=asyncio.Event)
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    process: UpstreamModel | None = None
    last_used: int = 0

    def __post_init__(self) -> None:
        self.loads.set()
        self.ends.set()

    async def start(self) -> UpstreamModel:
        """A process of its own."""
        return UpstreamModel(self.name, self.slots)

    @property
    def is_running(self) -> bool:
        return self.status in {"loading", "loaded", "sleeping"}

    def shown(self) -> Fields:
        command = ["--host", "127.0.0.1", "--port", str(self.port), "--alias", self.name]
        model = ["--ctx-size", "2048", "--model", f"/models/{self.name}.gguf"]
        status: Fields = {
            "value": self.status,
            "args": [BINARY, *command, *model, *self.arguments],
            "preset": f"[{self.name}]\nctx-size = 2048\n\n",
        }
        if self.status == "unloaded" and self.exit_code:
            status |= {"exit_code": self.exit_code, "failed": True}
        shown: Fields = {
            "id": self.name,
            "aliases": [*self.aliases],
            "tags": [],
            "object": "model",
            "owned_by": "llamacpp",
            "created": 1795737057,
            "status": status,
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
            "source": "preset",
            "can_remove": False,
        }
        if self.status in {"loaded", "sleeping"}:
            size = int(self.size_mib * MIB)
            shown["meta"] = {"n_ctx": 2048, "n_params": 737408, "size": size, "ftype": "all F32"}
        return shown


class StubRouter:
    """Its routes.

    Attributes:
        autoload, most: `--models-autoload` and `--models-max`. strands: a request that waits for a
        model to be loaded is never answered. key: that it requires. says: what a path answers in
        place of what it should. has_events: it has the route of events. asked: every request, as
        method and path. killed: answers that were cut off by an unload.
    """

    def __init__(
        self, *presets: Preset, autoload: bool = False, most: int = 0, strands: bool = False
    ) -> None:
        self.presets = {preset.name: preset for preset in presets}
        self.autoload = autoload
        self.most = most
        self.strands = strands
        self.key = ""
        self.says: dict[str, bytes] = {}
        self.has_events = True
        self.asked: list[tuple[str, str]] = []
        self.killed = 0
        self._ports = 50_000
        self._listeners: set[asyncio.Queue[Fields]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, peer: Peer) -> None:
        path = urlsplit(peer.path).path
        self.asked.append((peer.method, path))
        if self.key and dict(peer.fields).get(b"authorization") != f"Bearer {self.key}".encode():
            await peer.send(refused(401, "Invalid API Key", "authentication_error"))
        elif path in self.says:
            await peer.send(self.says[path])
        elif path == "/models/sse" and self.has_events:
            await self._events(peer)
        elif peer.method == "GET":
            await peer.send(self._page(peer, path))
        elif path in {"/models/load", "/models/unload"}:
            await peer.send(self._order(path, peer.json.get("model", "")))
        else:
            await self._forward(peer)

    def find(self, name: str) -> Preset | None:
        return next((p for p in self.presets.values() if name in (p.name, *p.aliases)), None)

    def unload(self, name: str) -> None:
        """By somebody else's hand."""
        self._order("/models/unload", name)

    def load(self, name: str) -> None:
        """By somebody else's hand."""
        self._order("/models/load", name)

    def _page(self, peer: Peer, path: str) -> bytes:
        if path in {"/models", "/v1/models"}:
            listed = [preset.shown() for preset in self.presets.values()]
            return json_answered({"data": listed, "object": "list"})
        if path != "/props":
            return refused(404, "File Not Found", "not_found_error")
        wanted = parse_qs(urlsplit(peer.path).query).get("model")
        if wanted is None:
            return json_answered(
                {
                    "role": "router",
                    "max_instances": self.most,
                    "models_autoload": self.autoload,
                    "model_alias": "llama-server",
                    "build_info": "b0-unknown",
                }
            )
        preset = self.find(wanted[0])
        if preset is None:
            return refused(400, f"model '{wanted[0]}' not found")
        if preset.status != "loaded":
            return refused(400, "model is not loaded")
        return json_answered({"total_slots": preset.slots})

    def _order(self, path: str, name: str) -> bytes:
        preset = self.find(name)
        if preset is None:
            status = 404 if path == "/models/load" else 400
            return refused(status, "model is not found", "not_found_error")
        if path == "/models/unload":
            if not preset.is_running:
                return refused(400, "model is not running")
            self._spawn(self._stop(preset))
            return json_answered({"success": True})
        if preset.is_running:
            return refused(400, "model is already running")
        if self.most and self._make_room():
            return refused(500, "model limit reached, try again later", "server_error")
        self._start(preset)
        return json_answered({"success": True})

    def _make_room(self) -> bool:
        """Evict the model that was used longest ago; True where it is busy."""
        running = [preset for preset in self.presets.values() if preset.is_running]
        if len(running) < self.most:
            return False
        oldest = min(running, key=lambda preset: preset.last_used)
        if oldest.process is not None and oldest.process.running:
            return True
        oldest.process = None
        self._became(oldest, "unloaded")
        return False

    def _start(self, preset: Preset) -> None:
        self._ports += 1
        preset.port = self._ports
        preset.status = "loading"
        preset.exit_code = 0
        preset.stopping = False
        preset.process = None
        self._report(preset, "model_status", {"status": "loading"})
        self._spawn(self._load(preset, preset.port))

    async def _load(self, preset: Preset, port: int) -> None:
        stages = {"stages": ["text_model"], "current": "text_model"}
        progress = {"status": "loading", "progress": {**stages, "value": 0.5}}
        self._report(preset, "status_change", progress)
        await preset.loads.wait()
        if preset.port != port or preset.status != "loading":
            return  # it was killed meanwhile
        if preset.fails is not None:
            self._became(preset, "unloaded", preset.fails)
            return
        preset.process = await preset.start()
        self._became(preset, "loaded")

    async def _stop(self, preset: Preset) -> None:
        """One that loads is killed, one that generates when its grace is over."""
        if preset.status == "loading":
            self._became(preset, "unloaded", 1)
            return
        preset.stopping = True
        await preset.ends.wait()
        process = preset.process
        was_busy = process is not None and process.running > 0
        if process is not None:
            self.killed += process.running
            process.end()
        preset.process = None
        self._became(preset, "unloaded", 1 if was_busy else 0)

    def _became(self, preset: Preset, status: str, exit_code: int = 0) -> None:
        preset.status = status
        preset.exit_code = exit_code
        said: Fields = {"status": status}
        if status == "unloaded":
            said["exit_code"] = exit_code
        self._report(preset, "status_change", said)

    def _report(self, preset: Preset, event: str, data: Fields) -> None:
        for listener in self._listeners:
            listener.put_nowait({"model": preset.name, "event": event, "data": data})

    async def _events(self, peer: Peer) -> None:
        listener: asyncio.Queue[Fields] = asyncio.Queue()
        self._listeners.add(listener)
        leaving = asyncio.ensure_future(peer.left())
        try:
            await peer.send(stream_head())
            while not leaving.done():
                getting = asyncio.ensure_future(listener.get())
                await asyncio.wait((getting, leaving), return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    await peer.send(chunked(b"data: " + _json(getting.result()) + b"\n\n"))
                else:
                    getting.cancel()
        finally:
            leaving.cancel()
            self._listeners.discard(listener)

    async def _forward(self, peer: Peer) -> None:
        """To the process of the model."""
        name = peer.json.get("model", "")
        preset = self.find(name)
        if preset is None:
            await peer.send(refused(400, f"model '{name}' not found"))
            return
        preset.last_used = len(self.asked)
        if self.autoload and not preset.is_running:
            if self.strands:
                await for_ever()
            if not self._make_room():
                self._start(preset)
            await until(lambda: preset.status == "loaded")
        if preset.status == "sleeping":
            preset.process = preset.process or await preset.start()
            self._became(preset, "loaded")
        if not preset.is_running:
            await peer.send(refused(400, "model is not loaded"))
        elif urlsplit(peer.path).path == "/tokenize":
            await peer.send(json_answered({"tokens": []}))
        elif preset.process is None or preset.stopping:
            text = b"proxy error: Could not establish connection"
            await peer.send(answered(500, text, TEXT))
        elif not await preset.process.answer(peer):
            broken = b"proxy error: Failed to read connection"
            await peer.send(chunked(broken), LAST_CHUNK)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _json(said: Fields) -> bytes:
    return json_answered(said).partition(b"\r\n\r\n")[2]
