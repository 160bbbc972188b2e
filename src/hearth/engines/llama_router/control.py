"""What a router says of its models, and how it is told to load and unload them.

It answers a load before the model is there, and lists a model as loaded until its process is gone.
What it says while a load lasts comes as events, without a snapshot: its list is what counts, and
the events say when to look and what a load was at when it failed. Source: llama.cpp's
`tools/server`, October 2026, and recordings of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import quote

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.stream import count_in
from hearth.engines.digests import Digests
from hearth.engines.llama_router.events import LoadEvents
from hearth.engines.llama_router.models import LOADED, LOADING, SLEEPING, RouterModel, models_in
from hearth.engines.llama_router.traits import ARGUMENTS
from hearth.engines.openai_server.calls import Place
from hearth.engines.openai_server.orders import Orders
from hearth.engines.openai_server.questions import Questions, said_in
from hearth.engines.server_arguments import MOST_SLOTS, lasting, slots_in
from hearth.errors import (
    BackendError,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    LoadError,
    ModelNotFound,
)
from hearth.types import JSON_BODY, BackendCall, InstalledModel, ResidentModel

PROPS = "/props"
MODELS = "/models"
LOAD = "/models/load"
UNLOAD = "/models/unload"
TOKENIZE = "/tokenize"
"""Takes no slot of a model, and wakes it."""
AWAKE_LOOK_S = 0.05
"""The router hears from a process that it is awake a moment after that answers; until then it is
asked again, which does no harm.
"""
LOOK_S = 1.0
"""How often a load is looked at between events, of which one may be missed."""
_A_ROUTER = "an object with `role`"
_A_LIST = "an object with the list `data`"


class Control:
    """Asks a router about its models, and has it load and unload them.

    Raises as `Questions`; BackendProtocolError also where the router would load or unload by
    itself.
    """

    def __init__(self, url: str, *, api_key: str, place: Place, timeout_s: float) -> None:
        self._questions = Questions(url, api_key=api_key, place=place, timeout_s=timeout_s)
        self._orders = Orders(self._questions)
        self._digests = Digests()
        self._listed: tuple[RouterModel, ...] = ()
        self._build = ""
        self._slots: dict[str, int | None] = {}
        """What models said that were loaded, and with which arguments they were asked."""
        self._asked: dict[str, tuple[str, ...]] = {}
        self._given_up: dict[str, asyncio.Task[None]] = {}
        self._installed: tuple[InstalledModel, ...] = ()

    # What is there.

    async def version(self) -> str:
        """The build. Raises BackendUnreachable as the port says."""
        try:
            props = await self._questions.read(PROPS, "build_info", _A_ROUTER)
        except BackendTimeout as error:
            raise BackendUnreachable from error
        problem = self._problem(props)
        if problem:
            raise BackendProtocolError(problem)
        build = props.get("build_info")
        self._build = build if isinstance(build, str) and build else "unknown"
        return self._build

    async def models(self) -> tuple[RouterModel, ...]:
        self._listed = tuple(models_in(await self._questions.read(MODELS, "data", _A_LIST)))
        return self._listed

    async def installed(self) -> tuple[InstalledModel, ...]:
        """The very same tuple for as long as it lists the same."""
        if not self._build:
            await self.version()
        listed = [
            each
            for model in await self.models()
            for each in model.installed(self._digest_of(model), await self._slots_of(model))
        ]
        if tuple(listed) != self._installed:
            self._installed = tuple(listed)
        return self._installed

    async def resident(self) -> tuple[ResidentModel, ...]:
        return tuple(model.resident for model in await self.models() if model.status == LOADED)

    async def find(self, name: str) -> RouterModel:
        """The model that goes by a name. Raises ModelNotFound."""
        found = _called(name, await self.models())
        if found is None:
            raise ModelNotFound(f"model '{name}' not found")
        return found

    async def upstream(self, name: str) -> str | None:
        """The router's own name of a model, by its last list; None where it has no such model."""
        found = _called(name, self._listed or await self.models())
        return None if found is None else found.name

    # Into memory, and out.

    async def load(self, name: str) -> None:
        """As the port says.

        A load that is left, or of which nothing is heard any more, is given up by an unload, at
        which the router kills the process at once.
        """
        model = (await self.find(name)).name
        if (given_up := self._given_up.get(model)) is not None:
            await asyncio.wait((given_up,))
        events = LoadEvents(model)
        following = self._orders.begin(events.follow(self._questions.open))
        started = self._orders.begin(self._start(model))
        try:
            await self._loaded(model, started, events)
        except (LoadError, ModelNotFound):
            raise  # there is no process
        except BaseException:
            giving_up = self._orders.begin(self._give_up(model, started))
            self._given_up[model] = giving_up
            giving_up.add_done_callback(lambda _: self._given_up.pop(model, None))
            raise
        finally:
            following.cancel()

    async def _loaded(self, model: str, started: asyncio.Task[bool], events: LoadEvents) -> None:
        """Returns once the model is there. Raises LoadError, ModelNotFound.

        A load that meets a process on its way out is asked for again when that is gone.
        """
        is_ours = await self._orders.settled(started)
        while True:
            found = await self.find(model)
            if found.status == LOADED:
                return
            if found.status == SLEEPING:
                await self._wake(model)
                continue
            if found.status != LOADING and is_ours:
                raise LoadError(_failed(found, events.stage))
            if found.status != LOADING:
                is_ours = await self._orders.settled(self._orders.begin(self._start(model)))
            await events.wait(LOOK_S)

    async def _wake(self, model: str) -> None:
        """Have the process of one that sleeps load it again, whenever that is done. Raises
        LoadError.
        """
        body = encode({"model": model, "content": ""})
        call = BackendCall(method="POST", path=TOKENIZE, headers=JSON_BODY, body=body)
        said = await said_in(await self._questions.open(call))
        if said.status != HTTPStatus.OK:
            raise LoadError(f"{model} did not wake: {said.error or said.status}")
        await asyncio.sleep(AWAKE_LOOK_S)

    async def _start(self, model: str) -> bool:
        """Ask for a process; False where one is there. Raises LoadError, ModelNotFound."""
        said = await self._told(LOAD, model)
        if said is None:
            return True
        if "already running" in said:
            return False
        if "limit reached" in said:
            said = f"{said}; start it with {ARGUMENTS}"
        raise LoadError(f"The router could not load {model}: {said}")

    async def _give_up(self, model: str, started: asyncio.Task[bool]) -> None:
        """End a load, which may be asked for only now."""
        await asyncio.wait((started,))
        with suppress(BackendError, ModelNotFound):
            await self._told(UNLOAD, model)

    async def unload(self, name: str) -> None:
        """As the port says.

        Raises LoadError, ModelNotFound.
        """
        model = (await self.find(name)).name
        said = await self._told(UNLOAD, model)
        if said is not None and "not running" not in said:
            raise LoadError(f"The router could not unload {model}: {said}")

    async def _told(self, path: str, model: str) -> str | None:
        """What it says against an order, None for nothing. Raises LoadError, ModelNotFound."""
        try:
            said = await self._orders.send("POST", path, {"model": model})
        except BackendTimeout as error:
            raise LoadError(f"The router did not answer POST {path} for {model}.") from error
        if said.status == HTTPStatus.OK:
            return None
        if "not found" in said.error:
            raise ModelNotFound(f"model '{model}' not found")
        return said.error or f"POST {path} answered {said.status}"

    async def aclose(self) -> None:
        await self._orders.aclose()
        await self._questions.aclose()

    # What its answers say.

    def _digest_of(self, model: RouterModel) -> str:
        decisive = [self._build, *lasting(model.arguments)]
        return self._digests.of(model.name, [*decisive], model.weights)

    async def _slots_of(self, model: RouterModel) -> int | None:
        """What a loaded model says of itself, asked once for each process; one that sleeps is left
        alone.
        """
        name, arguments = model.name, model.arguments
        says = slots_in(arguments) is not None
        if model.status == LOADED and not says and self._asked.get(name) != arguments:
            with suppress(BackendError):
                path = f"{PROPS}?model={quote(name, safe='')}"
                _, said = await self._questions.ask(BackendCall(method="GET", path=path))
                self._slots[name] = count_in(said, "total_slots", MOST_SLOTS) or None
                self._asked[name] = arguments
        return self._slots.get(name)

    def _problem(self, props: JsonObject) -> str:
        """Why this router cannot be served, empty for nothing."""
        if at(props, ("role",)) != "router":
            return (
                f"GET {PROPS}: this server has one model; kind: llama_server is the kind for it, or"
                " start it without a model (llama-server --models-preset FILE"
                f" {ARGUMENTS})"
            )
        autoload = props.get("models_autoload")
        most = props.get("max_instances")
        if autoload is False and type(most) is int and most <= 0:
            return ""
        if autoload is None or type(most) is not int:
            return (
                f"GET {PROPS} does not say whether this router loads and unloads models by itself;"
                " it is too old"
            )
        return (
            f"GET {PROPS}: this router loads and unloads models by itself (models_autoload:"
            f" {str(autoload).lower()}, max_instances: {most}): it counts them, whatever their"
            f" size, and can leave requests waiting for ever; start it with {ARGUMENTS}"
        )


def _called(name: str, models: Iterable[RouterModel]) -> RouterModel | None:
    """The model that goes by a name."""
    wanted = name.lower()
    called = (model for model in models if wanted in map(str.lower, model.names))
    return next(called, None)


def _failed(model: RouterModel, stage: str) -> str:
    """Why a load has ended without its model."""
    at_what = f" while it loaded {stage}" if stage else ""
    if not model.exit_code:
        return f"{model.name} was unloaded by another program{at_what}"
    return (
        f"the process of {model.name} ended with exit code {model.exit_code}{at_what}; the log of"
        " the router says why"
    )
