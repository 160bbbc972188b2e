"""What LM Studio says of its models, and how it is told to load and unload them.

A load of a model that is loaded makes a second instance of it, and so do two loads at once: loads
and unloads are one at a time here, and look at the list first. Source: its documentation of
November 2026 and its tracker.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.lmstudio.models import StudioModel, models_in
from hearth.engines.lmstudio.pulling import pulled
from hearth.engines.openai_server.control import Routes
from hearth.engines.openai_server.orders import Orders
from hearth.engines.openai_server.questions import Questions, Said, said_in
from hearth.engines.port import Exchange
from hearth.errors import (
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    LoadError,
    ModelNotFound,
)
from hearth.types import JSON_BODY, BackendCall, InstalledModel, LoadOptions, ResidentModel

MODELS = "/api/v1/models"
LOAD = "/api/v1/models/load"
UNLOAD = "/api/v1/models/unload"
SERVED = "/v1/models"
"""It lists what is loaded; with JIT loading, everything that is on the disk."""
LOOK_S = 0.25
LOOKS = 40
"""How long a model that was loaded may take to be listed."""
_A_LIST = "an object with the list `models`"


class Control:
    """Asks LM Studio about its models, and has it load and unload them. Raises as `Questions`."""

    def __init__(self, questions: Questions, api: ServerApi) -> None:
        self._questions = questions
        self._orders = Orders(questions)
        self._routes = Routes(questions, api)
        self._moving = asyncio.Lock()
        self._models: tuple[StudioModel, ...] = ()
        self._installed: tuple[InstalledModel, ...] = ()
        self.loads_by_itself = False
        """Its JIT loading is on, as far as its list has shown at the last look."""

    @property
    def api(self) -> ServerApi:
        """What it is known to have."""
        return self._routes.api

    # What is there.

    async def version(self) -> str:
        """Raises BackendUnreachable as the port says."""
        try:
            models = await self.models()
            listed = await self._questions.read(SERVED, "data", "an object with the list `data`")
        except BackendTimeout as error:
            raise BackendUnreachable from error
        served = listed.get("data")
        names = {at(one, ("id",)) for one in (served if isinstance(served, list) else ())}
        self.loads_by_itself = any(
            model.key in names for model in models if not (model.instances or model.embeds)
        )
        return "unknown"

    async def models(self) -> tuple[StudioModel, ...]:
        """The very same tuple for as long as it lists the same."""
        try:
            found = tuple(models_in(await self._questions.read(MODELS, "models", _A_LIST)))
        except BackendError:
            self._routes.forget()
            raise
        await self._routes.find_out()
        if found != self._models:
            self._models = found
        return self._models

    async def installed(self) -> tuple[InstalledModel, ...]:
        listed = tuple(model.installed for model in await self.models())
        if listed != self._installed:
            self._installed = listed
        return self._installed

    async def resident(self) -> tuple[ResidentModel, ...]:
        return tuple(model.resident for model in await self.models() if model.instances)

    async def find(self, name: str) -> StudioModel:
        """The model that goes by a name. Raises ModelNotFound."""
        models = await self.models()
        wanted = name.lower()
        found = next((one for one in models if one.name.lower() == wanted), None)
        if found is None:
            raise ModelNotFound(f"model '{name}' not found")
        return found

    async def upstream(self, name: str) -> str | None:
        """What a request calls it, by the last list: its instance, which may have a name of its
        own.
        """
        models = self._models or await self.models()
        wanted = name.lower()
        found = next((one for one in models if one.name.lower() == wanted), None)
        if found is None:
            return None
        return found.instances[0] if found.instances else found.key

    # Into memory, and out.

    async def load(self, name: str, options: LoadOptions) -> None:
        """As the port says. Nothing ends a load, so one that is given up is unloaded when it is
        over.
        """
        loading = self._orders.begin(self._load(name, options))
        try:
            await self._orders.settled(loading)
        except asyncio.CancelledError:
            self._orders.begin(self._give_up(name, loading))
            raise

    async def _load(self, name: str, options: LoadOptions) -> None:
        async with self._moving:
            model = await self.find(name)
            if model.instances:
                return
            asked: JsonObject = {"model": model.key}
            if options.num_ctx is not None:
                asked["context_length"] = options.num_ctx
            said = await self._told_to_load(asked)
            if said.status != HTTPStatus.OK:
                raise LoadError(f"LM Studio could not load {name}: {said.status}, {said.error}")
            for _ in range(LOOKS):
                if (await self.find(name)).instances:
                    return
                await asyncio.sleep(LOOK_S)
            raise LoadError(f"LM Studio says that it has loaded {name}, and does not list it")

    async def _told_to_load(self, asked: JsonObject) -> Said:
        """It answers when the model is there, whenever that is."""
        call = BackendCall(method="POST", path=LOAD, headers=JSON_BODY, body=encode(asked))
        try:
            return await said_in(await self._questions.open(call))
        except BackendUnreachable:
            raise
        except BackendError as error:
            raise LoadError(error.message) from error

    async def _give_up(self, name: str, loading: asyncio.Task[None]) -> None:
        await asyncio.wait((loading,))
        if not loading.cancelled() and loading.exception() is None:
            await self._unload(name)

    async def unload(self, name: str) -> None:
        """As the port says, for all instances of the model."""
        await self._orders.settled(self._orders.begin(self._unload(name)))

    async def _unload(self, name: str) -> None:
        async with self._moving:
            for instance in (await self.find(name)).instances:
                said = await self._orders.send("POST", UNLOAD, {"instance_id": instance})
                if said.status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
                    raise LoadError(
                        f"LM Studio could not unload {instance}: {said.status}, {said.error}"
                    )

    async def pull(self, body: bytes) -> Exchange:
        """Have a model downloaded; `body` is that of Ollama's `/api/pull`."""
        return await pulled(self._questions, body)

    async def aclose(self) -> None:
        await self._orders.aclose()
        await self._questions.aclose()
