"""llama-swap as its documents and route handlers of 2025 and 2026 say, with its traps. It was never
compared with a real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.engines.stub_server import LAST_CHUNK, Peer, chunked
from tests.engines.upstream_model import UpstreamModel, answered, json_answered, stream_head
from tests.support.fields import Fields
from tests.support.patience import until

TEXT = "text/plain; charset=utf-8"
UPSTREAM = "/upstream/"
UNLOAD = "/api/models/unload/"


@dataclass
class Entry:
    """A model of its configuration.

    Attributes:
        fails: its server ends before it is ready. has_health: its server has the page `/health`.
        starts: its start ends when this is set; ends: it stops when this is set.
    """

    name: str
    aliases: tuple[str, ...] = ()
    command: str = "llama-server --port 5800 -m /models/a.gguf -np 1"
    ttl_s: int = 0
    limit: int = 10
    fails: bool = False
    has_health: bool = True
    unlisted: bool = False
    peer: str = ""
    state: str = "stopped"
    starts: asyncio.Event = field(default_factory=asyncio.Event)
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    was_stopped: bool = False
    process: UpstreamModel | None = None

    def __post_init__(self) -> None:
        self.starts.set()
        self.ends.set()


class StubSwap:
    """Its routes.

    Attributes:
        coexist: one group with `swap: false` and `exclusive: false`; else a model that starts has
        the others stopped first, after what runs on them. lists_aliases: `includeAliasesInList`.
        is_old: it has no version, no events, and stops all models or none. says: what a path
        answers in place of what it should. asked: every request, as method and path.
    """

    def __init__(
        self,
        *entries: Entry,
        coexist: bool = True,
        lists_aliases: bool = False,
        is_old: bool = False,
    ) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self.coexist = coexist
        self.lists_aliases = lists_aliases
        self.is_old = is_old
        self.key = ""
        self.says: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self._starting = asyncio.Lock()
        self._tasks: set[asyncio.Task[object]] = set()

    async def __call__(self, peer: Peer) -> None:
        path = unquote(peer.path.partition("?")[0])
        self.asked.append((peer.method, path))
        if self.key and dict(peer.fields).get(b"authorization") != f"Bearer {self.key}".encode():
            await peer.send(json_answered({"error": "unauthorized: invalid API key"}, 401))
        elif path in self.says:
            await peer.send(self.says[path])
        elif path.startswith(UPSTREAM):
            await self._upstream(peer, path.removeprefix(UPSTREAM))
        elif path.startswith(UNLOAD) and not self.is_old:
            await peer.send(await self._unload(path.removeprefix(UNLOAD)))
        elif path == "/api/events" and not self.is_old:
            await self._events(peer)
        elif peer.method == "GET" or not path.startswith("/v1/"):
            await peer.send(await self._page(path))
        else:
            await self._work(peer)

    def find(self, name: str) -> Entry | None:
        return next((e for e in self.entries.values() if name in (e.name, *e.aliases)), None)

    async def stop(self, entry: Entry) -> None:
        """Its server ends, with what runs on it."""
        if entry.state == "starting":
            if not self.is_old:
                entry.was_stopped = True
                entry.starts.set()
            return
        if entry.state == "stopped":
            return
        entry.state = "stopping"
        await entry.ends.wait()
        if entry.process is not None:
            entry.process.died.set()
        entry.process = None
        entry.state = "stopped"

    async def _page(self, path: str) -> bytes:
        if path == "/running":
            running = [self._shown(e) for e in self.entries.values() if e.state != "stopped"]
            return json_answered({"running": running})
        if path == "/v1/models":
            return json_answered({"object": "list", "data": [*self._listed()]})
        if path == "/api/version" and not self.is_old:
            return json_answered({"version": "251", "commit": "f4de0f86", "build_date": "unknown"})
        if path == "/unload":
            await asyncio.gather(*map(self.stop, self.entries.values()))
            return answered(200, b"OK", TEXT)
        return answered(404, b"404 page not found", TEXT)

    def _listed(self) -> Iterator[Fields]:
        for entry in self.entries.values():
            about: Fields = {"object": "model", "created": 1, "owned_by": "llama-swap"}
            if entry.peer:
                about["meta"] = {"llamaswap": {"peerID": entry.peer}}
            names = (entry.name, *(entry.aliases if self.lists_aliases else ()))
            yield from ({"id": name, **about} for name in names if not entry.unlisted)

    def _shown(self, entry: Entry) -> Fields:
        return {
            "model": entry.name,
            "state": entry.state,
            "cmd": entry.command,
            "proxy": "http://localhost:5800",
            "ttl": entry.ttl_s,
            "name": "",
            "description": "",
        }

    async def _events(self, peer: Peer) -> None:
        log = json.dumps({"source": "proxy", "data": "a prompt\n" * 100})
        models = [
            {"id": entry.name, "state": entry.state, "aliases": [*entry.aliases]}
            for entry in self.entries.values()
        ]
        await peer.send(stream_head())
        for kind, data in (("logData", log), ("modelStatus", json.dumps(models))):
            message = json.dumps({"type": kind, "data": data})
            await peer.send(chunked(f"event:message\ndata:{message}\n\n".encode()))
        await peer.left()

    async def _unload(self, name: str) -> bytes:
        entry = self.find(name)
        if entry is None:
            return answered(404, b"Model not found", TEXT)
        await self.stop(entry)
        return answered(200, b"OK", TEXT)

    async def _upstream(self, peer: Peer, rest: str) -> None:
        """To the server of the model whose name the path begins with."""
        found = (
            e
            for e in self.entries.values()
            for n in (e.name, *e.aliases)
            if f"{rest}/".startswith(f"{n}/")
        )
        entry = next(found, None)
        if entry is None:
            await peer.send(answered(400, b"model id required in path", TEXT))
            return
        problem = await self._until_ready(entry)
        if problem or entry.process is None:
            await peer.send(problem or answered(503, b"process is not ready", TEXT))
        elif rest.endswith("/health"):
            said = answered(200, b'{"status":"ok"}') if entry.has_health else answered(404, b"no")
            await peer.send(said)
        else:
            peer.path = rest[rest.index("/", len(entry.name)) :]
            await self._answered(peer, entry, entry.process)

    async def _work(self, peer: Peer) -> None:
        name = peer.json.get("model", "")
        entry = self.find(name)
        if entry is None:
            text = f"could not find suitable inference handler for {name}"
            await peer.send(answered(400, text.encode(), TEXT))
            return
        problem = await self._until_ready(entry)
        if problem or entry.process is None:
            await peer.send(problem or answered(503, b"process is not ready", TEXT))
        elif entry.process.running >= entry.limit:
            await peer.send(answered(429, b"Too many requests", TEXT))
        else:
            await self._answered(peer, entry, entry.process)

    async def _answered(self, peer: Peer, entry: Entry, process: UpstreamModel) -> None:
        if not await process.answer(peer):
            await peer.send(LAST_CHUNK)  # in an orderly way, whatever is missing

    async def _until_ready(self, entry: Entry) -> bytes:
        """What it answers where the server cannot be started."""
        async with self._starting:
            if entry.state == "ready":
                return b""
            if not self.coexist:
                others = [e for e in self.entries.values() if e is not entry]
                await asyncio.gather(*map(self._drained, others))
            entry.state = "starting"
            entry.was_stopped = False
            starting = asyncio.ensure_future(entry.starts.wait())
            self._tasks.add(starting)
            await asyncio.shield(starting)  # a start goes on without whoever has asked for it
            if entry.fails or entry.was_stopped:
                entry.state = "stopped"
                why = "aborted" if entry.was_stopped else "upstream command exited prematurely"
                return answered(502, f"unable to start process: {why}".encode(), TEXT)
            entry.state = "ready"
            entry.process = UpstreamModel(entry.name)
            return b""

    async def _drained(self, entry: Entry) -> None:
        """Stopped once nothing runs on it."""
        await until(lambda: entry.process is None or not entry.process.running)
        await self.stop(entry)
