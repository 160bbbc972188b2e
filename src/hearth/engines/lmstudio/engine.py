"""LM Studio as an engine: its models are loaded and unloaded by its own API.

It must not load by itself (JIT loading): to make room it ends models that work runs on.
"""

from __future__ import annotations

from hearth.clock import Clock
from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.engines.data_path import DataPath
from hearth.engines.lmstudio.control import Control
from hearth.engines.lmstudio.models import StudioModel
from hearth.engines.lmstudio.pulling import PULL
from hearth.engines.lmstudio.traits import API, LmStudioTraits
from hearth.engines.openai_server.adapter import Adapter
from hearth.engines.openai_server.calls import OpenAiCalls, Place, check_request
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import Shown, ShownModel, page
from hearth.engines.openai_server.questions import Questions
from hearth.engines.port import Exchange
from hearth.types import BackendCall, InstalledModel


class LmStudio(Adapter, LmStudioTraits):
    """The LM Studio at one address; see `OpenAiServer`."""

    _control: Control

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        connect_timeout_s: float,
        control_timeout_s: float,
        api_key: str = "",
        setting: str = "engines.main.url",
    ) -> None:
        place = Place(title=self.title, setting=setting)
        data_path = DataPath(url, connect_timeout_s=connect_timeout_s, api_key=api_key)
        questions = Questions(url, api_key=api_key, place=place, timeout_s=control_timeout_s)
        control = Control(questions, API)
        calls = OpenAiCalls(data_path, API, clock=clock, place=place, upstream=control.upstream)
        super().__init__(clock=clock, data_path=data_path, control=control, calls=calls)
        self.resident = control.resident
        self.load = control.load
        self.unload = control.unload

    @property
    def loads_by_itself(self) -> bool:
        """Its JIT loading was on at the last look."""
        return self._control.loads_by_itself

    def check_request(self, path: str, fields: JsonObject) -> None:
        check_request(INFERENCE_ROUTES[path], fields, self._calls.api)

    async def open(self, call: BackendCall) -> Exchange:
        if call.path.partition("?")[0] == PULL:
            return await self._control.pull(call.body)
        return await super().open(call)

    async def _page(self, path: str, body: bytes) -> Ready:
        models = [self._shown(model) for model in await self._control.models()]
        return page(path, body, Shown(title=self.title, version="unknown", models=models))

    def _shown(self, model: StudioModel) -> ShownModel:
        return ShownModel(
            name=model.name,
            owner="lmstudio",
            since_wall_s=self._since(model.digest),
            digest=model.digest,
            abilities=tuple(sorted(model.installed.capabilities or ())),
            size_bytes=model.size_bytes,
            vram_mib=model.resident.vram_mib if model.instances else None,
            context_tokens=model.context_tokens,
            format=model.format,
            quantization=model.quantization,
        )

    async def installed(self) -> tuple[InstalledModel, ...]:
        installed = await self._control.installed()
        self._calls.api = self._control.api
        return installed

    async def capabilities(self, model: str) -> frozenset[str] | None:
        return (await self._control.find(model)).installed.capabilities
