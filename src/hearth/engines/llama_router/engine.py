"""A router of llama.cpp's server as an engine.

What its models serve themselves goes through as bytes; Ollama's own routes are translated. It must
neither load nor unload by itself, since it would do so by counting models, whatever their size, and
its queue can leave requests waiting for ever.
"""

from __future__ import annotations

import asyncio
import re

from hearth.clock import Clock
from hearth.engines import process_memory
from hearth.engines.data_path import DataPath
from hearth.engines.llama_router.control import Control
from hearth.engines.llama_router.pages import shown
from hearth.engines.llama_router.path import RouterPath
from hearth.engines.llama_router.traits import LlamaRouterTraits
from hearth.engines.llama_server.engine import MISTAKES
from hearth.engines.llama_server.traits import API
from hearth.engines.openai_server.adapter import Adapter
from hearth.engines.openai_server.calls import OpenAiCalls, Place
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import page
from hearth.types import LoadOptions

PROCESSES = re.compile(r"llama-server.*")


class LlamaRouter(Adapter, LlamaRouterTraits):
    """The router at one address. ConfigError for no such address.

    Args:
        url: `http://host:port`, with a path prefix where a proxy wants one. api_key: that it
        requires, empty for none. setting: where its URL is written, for messages.
        connect_timeout_s: of the work's connections. control_timeout_s: of every question and
        order.
    """

    _control: Control

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        connect_timeout_s: float,
        api_key: str = "",
        setting: str = "engines.main.url",
        control_timeout_s: float,
    ) -> None:
        self._clock = clock
        self._is_here = process_memory.is_here(url)
        self._data_path = DataPath(url, connect_timeout_s=connect_timeout_s, api_key=api_key)
        place = Place(title=self.title, setting=setting)
        self._control = control = Control(
            url, api_key=api_key, place=place, timeout_s=control_timeout_s
        )
        self._calls = OpenAiCalls(
            RouterPath(self._data_path),
            API,
            clock=clock,
            place=place,
            upstream=control.upstream,
            mistakes=MISTAKES,
        )
        self._first_seen: dict[str, float] = {}
        self.version = control.version
        self.installed = control.installed
        self.resident = control.resident
        self.unload = control.unload

    async def _page(self, path: str, body: bytes) -> Ready:
        control = self._control
        installed = await control.installed()
        about = shown(await control.models(), installed, await control.version(), self._since)
        return page(path, body, about)

    def _since(self, digest: str) -> float:
        return self._first_seen.setdefault(digest, self._clock.wall())

    async def capabilities(self, model: str) -> frozenset[str] | None:
        return (await self._control.find(model)).capabilities

    async def memory_mib(self) -> float | None:
        if not self._is_here:
            return None
        return await asyncio.to_thread(process_memory.resident_mib, PROCESSES)

    async def load(self, model: str, options: LoadOptions) -> None:
        del options  # it was started with its context
        await self._control.load(model)
