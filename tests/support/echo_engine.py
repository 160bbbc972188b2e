"""The smallest engine: it says again what it is asked. It shows what an engine has to do, and that
nothing else in Hearth has to know of a new one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import Endpoint
from hearth.engines.sleepless import Sleepless
from hearth.errors import BackendGone, BackendUnreachable, ModelNotFound
from hearth.types import (
    BackendCall,
    Headers,
    InstalledModel,
    JsonDict,
    LoadOptions,
    ResidentModel,
)
from tests.support.taking import Taking

SIZE_MIB = 64.0


class Echo(Taking):
    """The `Exchange` of one call: its prompt word by word, then a line that says so."""

    def __init__(self, status: int, lines: list[JsonDict]) -> None:
        self.status = status
        self.headers: Headers = ((b"content-type", b"application/x-ndjson"),)
        self._lines = lines
        self._closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            await asyncio.sleep(0)
            if self._closed:
                raise BackendGone
            yield json.dumps(line).encode() + b"\n"

    def close(self) -> None:
        self._closed = True


class EchoEngine(Sleepless):
    """An engine with models that are there at once and take no time."""

    title = "Echo"
    addresses = frozenset({Endpoint.GENERATE.value})
    loads_on_request = True
    counts_unasked = False
    loads_can_be_cut = False
    on_card = True
    ignores_case = True
    loses_slots = False
    processes = re.compile("^echo$")

    def __init__(self, *models: str) -> None:
        self._installed = tuple(InstalledModel(name=name, digest=name) for name in models)
        self._resident: dict[str, LoadOptions] = {}
        self._is_closed = False

    def saves(self, model: str) -> bool:
        return False

    def canonical(self, name: str) -> str:
        return name.lower()

    def pins_context(self, path: str) -> bool:
        return path in self.addresses

    def check_request(self, path: str, fields: JsonObject) -> None:
        pass

    def how_to_install(self, model: str) -> str:
        return f"name {model} when it is made"

    def how_to_manage(self, url: str) -> str:
        return f"ask {url}"

    async def open(self, call: BackendCall) -> Echo:
        self._reach()
        asked = json.loads(call.body)
        there = self.canonical(asked["model"]) in self._resident
        if call.path not in self.addresses or not there:
            return Echo(404, [{"error": "not found"}])
        if not asked.get("stream", True):
            return Echo(200, [{"response": asked["prompt"], "done": True}])
        words: list[JsonDict] = [
            {"response": f"{word} ", "done": False} for word in asked["prompt"].split()
        ]
        return Echo(200, [*words, {"response": "", "done": True, "done_reason": "stop"}])

    async def version(self) -> str:
        self._reach()
        return "1"

    async def installed(self) -> tuple[InstalledModel, ...]:
        self._reach()
        return self._installed

    async def capabilities(self, model: str) -> frozenset[str] | None:
        self._find(model)
        return frozenset({"completion"})

    async def resident(self) -> tuple[ResidentModel, ...]:
        self._reach()
        return tuple(
            ResidentModel(
                name=name,
                size_mib=SIZE_MIB,
                vram_mib=SIZE_MIB,
                context_tokens=options.num_ctx,
            )
            for name, options in self._resident.items()
        )

    async def memory_mib(self) -> float | None:
        return None

    async def load(self, model: str, options: LoadOptions) -> None:
        self._find(model)
        self._resident[model] = options

    async def unload(self, model: str) -> None:
        self._find(model)
        self._resident.pop(model, None)

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        del options, timeout_s
        return model in self._resident

    def continuations(self) -> None:
        return None

    async def aclose(self) -> None:
        self._is_closed = True

    def _reach(self) -> None:
        if self._is_closed:
            raise BackendUnreachable

    def _find(self, model: str) -> None:
        self._reach()
        if model not in {known.name for known in self._installed}:
            raise ModelNotFound(f"model '{model}' not found")
