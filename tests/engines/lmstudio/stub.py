"""LM Studio as its documentation of November 2026 and its tracker say, with its traps. It was never
compared with a real one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tests.engines.stub_server import Peer
from tests.engines.upstream_model import UpstreamModel, json_answered
from tests.support.fields import Fields

MODELS = "/api/v1/models"
LOAD = "/api/v1/models/load"
UNLOAD = "/api/v1/models/unload"
DOWNLOAD = "/api/v1/models/download"


@dataclass
class Entry:
    """A model on its disk.

    Attributes:
        loads: a load ends when this is set. fails: what a load says in place of loading. listed: a
        loaded instance shows up in the list once this is set.
    """

    key: str
    kind: str = "llm"
    vision: bool = False
    size_bytes: int = 2 * 1024**3
    parallel: int | None = None
    fails: str = ""
    loads: asyncio.Event = field(default_factory=asyncio.Event)
    instances: dict[str, Fields] = field(default_factory=dict)
    process: UpstreamModel | None = None

    def __post_init__(self) -> None:
        self.loads.set()

    @property
    def shown(self) -> Fields:
        shown: Fields = {
            "type": self.kind,
            "publisher": "org",
            "key": self.key,
            "display_name": self.key,
            "quantization": {"name": "Q4_K_M", "bits_per_weight": 4},
            "size_bytes": self.size_bytes,
            "params_string": "4B",
            "loaded_instances": [
                {"id": one, "config": config} for one, config in self.instances.items()
            ],
            "max_context_length": 32768,
            "format": "gguf",
        }
        if self.kind == "llm":
            shown["capabilities"] = {"vision": self.vision, "trained_for_tool_use": True}
        return shown


class StubStudio:
    """Its routes.

    Attributes:
        jit: JIT loading is on. asked: every request, as path and body. key: that it requires.
        says: what a path answers in place of what it should.
    """

    def __init__(self, *entries: Entry, jit: bool = False) -> None:
        self.entries = {entry.key: entry for entry in entries}
        self.jit = jit
        self.key = ""
        self.says: dict[str, bytes] = {}
        self.asked: list[tuple[str, Fields]] = []

    async def __call__(self, peer: Peer) -> None:
        path = peer.path.partition("?")[0]
        self.asked.append((path, peer.json))
        if self.key and dict(peer.fields).get(b"authorization") != f"Bearer {self.key}".encode():
            await peer.send(json_answered({"error": "Invalid API token"}, 401))
        elif path in self.says:
            await peer.send(self.says[path])
        elif path == MODELS:
            shown = [entry.shown for entry in self.entries.values()]
            await peer.send(json_answered({"models": shown}))
        elif path == "/v1/models":
            await peer.send(json_answered({"object": "list", "data": self._served()}))
        elif path == LOAD:
            await peer.send(await self._load(peer.json))
        elif path == UNLOAD:
            await peer.send(self._unload(peer.json["instance_id"]))
        elif path == DOWNLOAD:
            await peer.send(self._download(peer.json))
        elif path.startswith(f"{DOWNLOAD}/status/"):
            await peer.send(json_answered(self._job))
        else:
            await self._work(peer)

    def _download(self, asked: Fields) -> bytes:
        """Half of it comes with each look."""
        if asked["model"] in self.entries:
            return json_answered({"status": "already_downloaded"})
        if asked["model"].startswith("unknown"):
            return json_answered({"error": {"message": "Model not found", "type": "x"}}, 404)
        self._of_job = {"status": "downloading", "job_id": "job_1", "total_size_bytes": 1000}
        self._done_bytes = 0
        self._fails = asked["model"].startswith("failing")
        return json_answered(self._of_job | {"downloaded_bytes": 0})

    @property
    def _job(self) -> Fields:
        self._done_bytes += 500
        status = "downloading" if self._done_bytes < 1000 else "completed"
        if self._fails:
            status = "failed"
        return self._of_job | {"status": status, "downloaded_bytes": self._done_bytes}

    def sent_to(self, path: str) -> list[Fields]:
        return [body for asked, body in self.asked if asked == path]

    def _served(self) -> list[Fields]:
        loaded = [one for entry in self.entries.values() for one in entry.instances]
        named = [*self.entries] if self.jit else loaded
        return [{"id": one, "object": "model", "owned_by": "organization"} for one in named]

    async def _load(self, asked: Fields) -> bytes:
        entry = self.entries.get(asked["model"])
        if entry is None:
            return json_answered({"error": {"message": "Model not found", "type": "x"}}, 404)
        await entry.loads.wait()
        if entry.fails:
            return json_answered({"error": {"message": entry.fails, "type": "x"}}, 500)
        number = len(entry.instances) + 1
        name = entry.key if number == 1 else f"{entry.key}:{number}"
        config: Fields = {"context_length": asked.get("context_length", 4096)}
        if entry.parallel is not None:
            config["parallel"] = entry.parallel
        entry.instances[name] = config
        entry.process = entry.process or UpstreamModel(entry.key, 4)
        return json_answered({"type": entry.kind, "instance_id": name, "status": "loaded"})

    def _unload(self, instance: str) -> bytes:
        for entry in self.entries.values():
            if entry.instances.pop(instance, None) is not None:
                return json_answered({"instance_id": instance})
        return json_answered({"error": {"message": f"No model {instance}", "type": "x"}}, 404)

    async def _work(self, peer: Peer) -> None:
        known = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}
        if peer.path not in known:
            said = {"error": f"Unexpected endpoint or method. ({peer.method} {peer.path})"}
            await peer.send(json_answered(said))
            return
        wanted = peer.json["model"]
        entry = next((one for one in self.entries.values() if wanted in one.instances), None)
        if entry is None or entry.process is None:
            await peer.send(json_answered({"error": {"message": "No models loaded."}}, 400))
            return
        await entry.process.answer(peer)
