"""What engines before servers with OpenAI's API do alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from hearth.clock import Clock
from hearth.dialects.routes import WORK_ROUTES
from hearth.engines.data_path import DataPath
from hearth.engines.openai_server.calls import OpenAiCalls
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.port import Exchange
from hearth.errors import LoadError, ModelNotFound
from hearth.types import BackendCall, InstalledModel, LoadOptions


class Asks(Protocol):
    """Asks a server about itself."""

    async def version(self) -> str: ...

    async def installed(self) -> tuple[InstalledModel, ...]: ...

    async def upstream(self, model: str) -> str | None:
        """How the server is asked for a model; None where it has no such model."""

    async def aclose(self) -> None: ...


class Adapter(ABC):
    """An engine that answers its pages itself and has the rest carried by `calls`."""

    _control: Asks

    def __init__(
        self, *, clock: Clock, data_path: DataPath, control: Asks, calls: OpenAiCalls
    ) -> None:
        self._clock = clock
        self._data_path = data_path
        self._control = control
        self._calls = calls
        self._first_seen: dict[str, float] = {}
        self.version = control.version

    async def open(self, call: BackendCall) -> Exchange:
        path = call.path.partition("?")[0]
        route = WORK_ROUTES.get(path)
        if route is not None:
            return await self._calls.open(route, call)
        answer = await self._page(path, call.body)
        return answer if call.method != "HEAD" else Ready(answer.status, b"", answer.headers)

    def _since(self, model: str) -> float:
        """When a model, by its digest or name, was first seen, in seconds since 1970."""
        return self._first_seen.setdefault(model, self._clock.wall())

    @abstractmethod
    async def _page(self, path: str, body: bytes) -> Ready:
        """What it answers where no model runs."""

    async def memory_mib(self) -> float | None:
        return None

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        del options
        return await self._calls.probe(model, timeout_s)

    async def aclose(self) -> None:
        await self._control.aclose()
        await self._data_path.aclose()


class Staying(Adapter):
    """One whose models are there for as long as it lists them."""

    title: str

    async def load(self, model: str, options: LoadOptions) -> None:
        del options
        await self._find(model)

    async def unload(self, model: str) -> None:
        await self._find(model)
        raise LoadError(f"{self.title} keeps {model} for as long as it lists it.")

    async def _find(self, model: str) -> None:
        await self._control.installed()
        if await self._control.upstream(model) is None:
            raise ModelNotFound(f"model '{model}' not found")
