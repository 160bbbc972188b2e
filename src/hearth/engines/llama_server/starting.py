"""What the engines before programs that start llama.cpp's servers do alike."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from hearth.clock import Clock
from hearth.engines import process_memory
from hearth.engines.continuations import Opens
from hearth.engines.data_path import DataPath
from hearth.engines.llama_server.engine import calls_of_llama_cpp
from hearth.engines.openai_server.adapter import Adapter, Asks
from hearth.engines.openai_server.calls import Place
from hearth.types import LoadOptions, ResidentModel

PROCESSES = re.compile(r"llama-server.*")


class Orders(Asks, Protocol):
    """Asks such a program about itself, and has it load and unload."""

    async def resident(self) -> tuple[ResidentModel, ...]: ...

    async def load(self, name: str) -> None: ...

    async def unload(self, name: str) -> None: ...


class Starting(Adapter):
    """One before a program that starts a server of llama.cpp for each model.

    Args:
        make_control: makes what asks the program. make_path: carries calls to its servers.
        The others as of the engines.
    """

    title: str
    _control: Orders

    def __init__(
        self,
        url: str,
        *,
        make_control: Callable[[Place], Orders],
        make_path: Callable[[DataPath], Opens],
        clock: Clock,
        connect_timeout_s: float,
        api_key: str,
        setting: str,
    ) -> None:
        data_path = DataPath(url, connect_timeout_s=connect_timeout_s, api_key=api_key)
        place = Place(title=self.title, setting=setting)
        control = make_control(place)
        calls = calls_of_llama_cpp(make_path(data_path), clock, place, control.upstream)
        super().__init__(clock=clock, data_path=data_path, control=control, calls=calls)
        self._is_here = process_memory.is_here(url)
        self.installed = control.installed
        self.resident = control.resident
        self.unload = control.unload

    async def memory_mib(self) -> float | None:
        if not self._is_here:
            return None
        return await asyncio.to_thread(process_memory.resident_mib, PROCESSES)

    async def load(self, model: str, options: LoadOptions) -> None:
        del options  # its server is started as it is configured
        await self._control.load(model)
