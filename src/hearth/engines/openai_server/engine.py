"""Any running server with OpenAI's API as an engine.

What it lists is there; nothing is loaded or unloaded, and none of it takes memory of the card.
"""

from __future__ import annotations

from hearth.clock import Clock
from hearth.dialects.gojson import JsonObject
from hearth.dialects.routes import INFERENCE_ROUTES, WORK_ROUTES
from hearth.engines.data_path import DataPath
from hearth.engines.elastic import ElasticPath
from hearth.engines.openai_server.adapter import Staying
from hearth.engines.openai_server.calls import OpenAiCalls, Place, check_request
from hearth.engines.openai_server.control import Control, ServedModel
from hearth.engines.openai_server.exchanges import Ready
from hearth.engines.openai_server.pages import Shown, ShownModel, page
from hearth.engines.openai_server.questions import Questions
from hearth.engines.openai_server.traits import OpenAiTraits
from hearth.engines.port import Exchange
from hearth.types import BackendCall, InstalledModel, ResidentModel


class OpenAiServer(Staying, OpenAiTraits):
    """The server at one address. ConfigError for no such address.

    Args:
        url: `http://host:port`, without `/v1`. api_key: that it requires, empty for none.
        setting: where its URL is written, for messages. connect_timeout_s: of the work's
        connections. control_timeout_s: of every question about itself. elastic: it stands for
        machines that come and go.
    """

    control_of: type[Control] = Control
    _control: Control
    calls_of: type[OpenAiCalls] = OpenAiCalls

    def __init__(
        self,
        url: str,
        *,
        clock: Clock,
        connect_timeout_s: float,
        control_timeout_s: float,
        api_key: str = "",
        setting: str = "engines.main.url",
        elastic: bool = False,
    ) -> None:
        place = Place(title=self.title, setting=setting)
        path_of = ElasticPath if elastic else DataPath
        data_path = path_of(url, connect_timeout_s=connect_timeout_s, api_key=api_key)
        reach = data_path.reach if isinstance(data_path, ElasticPath) else None
        questions = Questions(
            url, api_key=api_key, place=place, timeout_s=control_timeout_s, path_of=path_of
        )
        control = self.control_of(questions, self.api, reach=reach)
        calls = self.calls_of(
            data_path, self.api, clock=clock, place=place, upstream=control.upstream
        )
        super().__init__(clock=clock, data_path=data_path, control=control, calls=calls)
        self.on_card = self.on_card and not elastic

    async def open(self, call: BackendCall) -> Exchange:
        exchange = await super().open(call)
        is_page = call.path.partition("?")[0] not in WORK_ROUTES
        self._control.has_worked = self._control.has_worked or not is_page
        return exchange

    def check_request(self, path: str, fields: JsonObject) -> None:
        check_request(INFERENCE_ROUTES[path], fields, self._calls.api)

    async def _page(self, path: str, body: bytes) -> Ready:
        served = await self._control.served()
        models = [self._shown(model) for model in served.models]
        version = "unknown" if path != "/api/version" else await self._control.version()
        return page(path, body, Shown(title=self.title, version=version, models=models))

    def _shown(self, model: ServedModel) -> ShownModel:
        return ShownModel(
            name=model.name,
            owner=model.owner,
            since_wall_s=self._since(model.name),
            digest=model.digest,
            vram_mib=0.0,
            context_tokens=model.context_tokens,
        )

    # What is there, and stays.

    async def installed(self) -> tuple[InstalledModel, ...]:
        installed = await self._control.installed()
        self._calls.api = self._control.last_served.api
        return installed

    async def resident(self) -> tuple[ResidentModel, ...]:
        return await self._control.resident()

    async def capabilities(self, model: str) -> frozenset[str] | None:
        """It does not say, and says no itself."""
        await self._find(model)
        return None
