"""What llama-swap says of its models, and how it is told to start and stop their servers.

A request for a model starts its server, and is answered when that is ready. Other rules of its own
(`ttl`, groups) start and stop servers, too: what its list says is what counts. Source: its
`README.md`, `docs` and route handlers of 2025 and 2026; nothing here was tried on a real one.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import quote

from hearth.dialects.frames import object_in
from hearth.engines.digests import Digests
from hearth.engines.llama_swap.models import (
    IN_MEMORY,
    READY,
    Running,
    SwapModel,
    aliases_in,
    models_in,
    running_in,
    server_path,
)
from hearth.engines.openai_server.calls import Place
from hearth.engines.openai_server.orders import Orders
from hearth.engines.openai_server.questions import Questions, Said, said_in
from hearth.engines.server_arguments import lasting, slots_in
from hearth.errors import (
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    LoadError,
    ModelNotFound,
)
from hearth.types import BackendCall, InstalledModel, ResidentModel

VERSION = "/api/version"
MODELS = "/v1/models"
RUNNING = "/running"
EVENTS = "/api/events"
UNLOAD = "/api/models/unload/"
UNLOAD_ALL = "/unload"
_UNKNOWN = re.compile(r"(?i)model not found")
_NO_ROUTE = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


class Control:
    """Asks llama-swap about its models, and has it start and stop their servers.

    Raises as `Questions`.
    """

    def __init__(self, url: str, *, api_key: str, place: Place, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._questions = Questions(url, api_key=api_key, place=place, timeout_s=timeout_s)
        self._orders = Orders(self._questions)
        self._digests = Digests()
        self._listed: tuple[SwapModel, ...] = ()
        self._aliases: dict[str, str] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}
        """Of servers when they last ran."""
        self.idle_limits_s: dict[str, int] = {}
        """By model, of those that ran at the last look and have one."""
        self._given_up: dict[str, asyncio.Task[None]] = {}
        self._installed: tuple[InstalledModel, ...] = ()

    # What is there.

    async def version(self) -> str:
        """Raises BackendUnreachable as the port says."""
        try:
            said = await self._questions.whole(BackendCall(method="GET", path=VERSION))
            version = said.fields.get("version")
            if said.status == HTTPStatus.OK and isinstance(version, str) and version:
                return version
            await self.running()  # an older one does not say which it is
        except BackendTimeout as error:
            raise BackendUnreachable from error
        return "unknown"

    async def running(self) -> tuple[Running, ...]:
        expected = "an object with the list `running`"
        found = tuple(running_in(await self._questions.read(RUNNING, "running", expected)))
        for each in found:
            self._arguments[each.name] = each.arguments
        self.idle_limits_s = {each.name: each.ttl_s for each in found if each.ttl_s > 0}
        return found

    async def installed(self) -> tuple[InstalledModel, ...]:
        """The very same tuple for as long as it lists the same."""
        expected = "an object with the list `data`"
        listed = tuple(models_in(await self._questions.read(MODELS, "data", expected)))
        if listed != self._listed:
            self._aliases = await self._read_aliases()
            self._listed = listed
        names = {model.name for model in listed}
        known = [
            *(
                self._known(each.name, each.name, each.peer)
                for each in listed
                if each.name not in self._aliases
            ),
            *(self._known(alias, name) for alias, name in self._aliases.items() if name in names),
        ]
        if tuple(known) != self._installed:
            self._installed = tuple(known)
        return self._installed

    def _known(self, name: str, model: str, peer: str = "") -> InstalledModel:
        """A model under one of its names."""
        arguments = self._arguments.get(model, ())
        return InstalledModel(
            name=name,
            digest=self._digests.of(model, [], [*lasting(arguments)]),
            remote_host=peer,
            slots=slots_in(arguments),
        )

    async def _read_aliases(self) -> dict[str, str]:
        """The model of each alias; none where it does not say. Its list has some aliases among the
        models, and does not say which.
        """
        with suppress(BackendError, TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                exchange = await self._questions.open(BackendCall(method="GET", path=EVENTS))
                rest = b""
                try:
                    while exchange.status == HTTPStatus.OK and (chunks := await exchange.take()):
                        *lines, rest = b"".join((rest, *chunks)).split(b"\n")
                        for line in lines:
                            aliases = aliases_in(object_in(line.removeprefix(b"data:")))
                            if aliases is not None:
                                return aliases
                finally:
                    exchange.close()
        return {}

    async def resident(self) -> tuple[ResidentModel, ...]:
        """It does not say what they take."""
        return tuple(
            ResidentModel(name=each.name, size_mib=0.0, vram_mib=0.0)
            for each in await self.running()
            if each.state in IN_MEMORY
        )

    async def find(self, name: str) -> str:
        """Its own name of a model. Raises ModelNotFound."""
        await self.installed()
        found = await self.upstream(name)
        if found is None:
            raise ModelNotFound(f"model '{name}' not found")
        return found

    async def upstream(self, name: str) -> str | None:
        """Its own name of a model, by its last list; None where it has no such model."""
        wanted = name.lower()
        for known in self._installed or await self.installed():
            if known.name.lower() == wanted and not known.remote_host:
                return self._aliases.get(known.name, known.name)
        return None

    # Into memory, and out.

    async def load(self, name: str) -> None:
        """As the port says; given up by an unload where it is left or fails, which older ones heed
        only when it is ready.
        """
        model = await self.find(name)
        if (given_up := self._given_up.get(model)) is not None:
            await asyncio.wait((given_up,))
        starting = self._orders.begin(self._start(model))
        try:
            await self._started(model, starting)
        except BaseException:
            starting.cancel()
            giving_up = self._orders.begin(self._give_up(model))
            self._given_up[model] = giving_up
            giving_up.add_done_callback(lambda _: self._given_up.pop(model, None))
            raise

    async def _started(self, model: str, starting: asyncio.Task[Said]) -> None:
        """Returns once its server is ready. Raises LoadError."""
        said = await self._orders.settled(starting)
        states = {each.name: each.state for each in await self.running()}
        if states.get(model) != READY:
            raise LoadError(f"llama-swap could not start {model}: {said.status}, {said.error}")

    async def _start(self, model: str) -> Said:
        """A request to the model's server, answered when that is ready, whenever that is. What it
        answers may be that it has no such page. Raises LoadError, BackendUnreachable.
        """
        try:
            call = BackendCall(method="GET", path=server_path(model, "/health"))
            return await said_in(await self._questions.open(call))
        except BackendUnreachable:
            raise
        except BackendError as error:
            raise LoadError(error.message) from error

    async def _give_up(self, model: str) -> None:
        with suppress(BackendError, ModelNotFound):
            await self.unload(model)

    async def unload(self, name: str) -> None:
        """As the port says. It is answered when the server has stopped; where that takes longer
        than a call may, what runs is listed until then.
        """
        model = self._aliases.get(name, name)
        try:
            said = await self._orders.send("POST", f"{UNLOAD}{quote(model, safe='/:@')}")
            if said.status in _NO_ROUTE:
                if _UNKNOWN.search(said.error):
                    raise ModelNotFound(f"model '{name}' not found")
                said = await self._unload_alone(await self.find(name))
        except BackendTimeout:
            return
        if said.status != HTTPStatus.OK:
            raise LoadError(f"llama-swap could not stop {model}: {said.status}, {said.error}")

    async def _unload_alone(self, model: str) -> Said:
        """By an older one, which can only stop all of them. Raises LoadError."""
        others = [each.name for each in await self.running() if each.name != model]
        if others:
            raise LoadError(
                f"this llama-swap can stop {model} only together with {', '.join(others)}; a newer"
                " one can stop it alone"
            )
        return await self._orders.send("GET", UNLOAD_ALL)

    async def aclose(self) -> None:
        await self._orders.aclose()
        await self._questions.aclose()
