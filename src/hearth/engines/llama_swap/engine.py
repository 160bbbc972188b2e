"""llama-swap as an engine.

What the servers of its models serve goes through as bytes; Ollama's own routes are translated. It
loads and unloads by rules of its own, too, so that what it lists may change at any time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from hearth.clock import Clock
from hearth.engines import process_memory
from hearth.engines.data_path import DataPath
from hearth.engines.llama_server.engine import MISTAKES
from hearth.engines.llama_server.traits import API
from hearth.engines.llama_swap.control import Control
from hearth.engines.llama_swap.path import SwapPath
from hearth.engines.llama_swap.traits import LlamaSwapTraits
from hearth.engines.openai_server.adapter import Adapter
from hearth.engines.openai_server.calls import OpenAiCalls, Place
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import Shown, ShownModel, page
from hearth.types import LoadOptions

PROCESSES = re.compile(r"llama-server.*")


class LlamaSwap(Adapter, LlamaSwapTraits):
    """The llama-swap at one address. ConfigError for no such address.

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
            SwapPath(self._data_path),
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

    @property
    def idle_limits_s(self) -> Mapping[str, int]:
        """How long models may go without a request before their servers are stopped, of those that
        ran at the last look and have a limit.
        """
        return self._control.idle_limits_s

    async def _page(self, path: str, body: bytes) -> Ready:
        control = self._control
        running = {model.name for model in await control.resident()}
        models = [
            ShownModel(
                name=known.name,
                owner="llama-swap",
                since_wall_s=self._first_seen.setdefault(known.digest, self._clock.wall()),
                digest=known.digest,
                vram_mib=0.0 if known.name in running else None,
            )
            for known in await control.installed()
            if not known.remote_host
        ]
        about = Shown(title=self.title, version=await control.version(), models=models)
        return page(path, body, about)

    async def capabilities(self, model: str) -> frozenset[str] | None:
        await self._control.find(model)
        return None

    async def memory_mib(self) -> float | None:
        if not self._is_here:
            return None
        return await asyncio.to_thread(process_memory.resident_mib, PROCESSES)

    async def load(self, model: str, options: LoadOptions) -> None:
        del options  # its server is started as it is configured
        await self._control.load(model)
