"""What a server with OpenAI's API says of itself: its list of models, and which routes it has.

Source: OpenAI's reference of `GET /v1/models`, and recordings of vLLM 0.32.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from http import HTTPStatus

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.request import is_model_name
from hearth.dialects.routes import Endpoint
from hearth.dialects.stream import count_in
from hearth.dialects.translation.parts import ServerApi
from hearth.engines.openai_server.questions import Questions
from hearth.errors import (
    BackendError,
    BackendTimeout,
    BackendUnreachable,
    EngineRefused,
    ProxyFailed,
)
from hearth.types import JSON_BODY, BackendCall, InstalledModel, ResidentModel, frozen

MODELS = "/v1/models"
PERHAPS = (Endpoint.ANTHROPIC_MESSAGES, Endpoint.OPENAI_RESPONSES)
"""Routes that some servers have."""
_PASSING = (BackendTimeout, EngineRefused, ProxyFailed)
_A_LIST = "an object with the list `data`"
_REFUSES_EMPTY = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


@frozen
class ServedModel:
    """A model that a server lists; `upstream`: its name in the list, `name`: as callers write
    it.
    """

    name: str
    upstream: str
    digest: str
    owner: str
    context_tokens: int | None


@frozen
class Served:
    """The models of a server, and what it makes of OpenAI's API."""

    models: tuple[ServedModel, ...]
    api: ServerApi


class Routes:
    """Which of `PERHAPS` a server has, beside what its kind has.

    Attributes:
        api: what it is known to have.
    """

    def __init__(self, questions: Questions, api: ServerApi) -> None:
        self._questions = questions
        self._of_kind = api
        self._is_known = False
        self.api = api

    def forget(self) -> None:
        """It is away, and may come back as another version."""
        self._is_known = False

    async def find_out(self) -> None:
        """Ask it once."""
        if not self._is_known:
            found = frozenset([path for path in PERHAPS if await self._has(path)])
            self.api = replace(self._of_kind, serves=self._of_kind.serves | found)
            self._is_known = True

    async def _has(self, path: Endpoint) -> bool:
        """It has a route where it reads a body, and refuses an empty one: that runs nothing."""
        call = BackendCall(method="POST", path=path.value, headers=JSON_BODY, body=b"{}")
        try:
            status, said = await self._questions.ask(call)
        except BackendError:  # what it makes of the route says nothing about the server
            return False
        return status in _REFUSES_EMPTY and bool(said)


class Control:
    """Asks a server about itself. Raises as `Questions`.

    An elastic engine that takes no more, has lost a machine or starts one does not answer, or late:
    then it has what it had. It is not asked at all while it rests, since that could wake a machine.

    Args:
        reach: of an elastic engine, connects to it. Raises BackendUnreachable.

    Attributes:
        has_worked: it has answered a request since its list was read.
    """

    def __init__(
        self,
        questions: Questions,
        api: ServerApi,
        *,
        reach: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._questions = questions
        self._reach = reach
        self.has_worked = False
        self._routes = Routes(questions, api)
        self.last_served = Served(models=(), api=api)
        self._upstream: dict[str, str] = {}
        self._installed: tuple[InstalledModel, ...] = ()
        self.aclose = questions.aclose

    async def version(self) -> str:
        """Raises BackendUnreachable as the port says."""
        try:
            await self.served()
        except BackendTimeout as error:
            raise BackendUnreachable from error
        return "unknown"

    async def served(self) -> Served:
        """What it has now; the very same object for as long as it is the same."""
        is_known = self._reach is not None and bool(self.last_served.models)
        if self._reach is not None and is_known and not self.has_worked:
            await self._reach()
            return self.last_served
        try:
            served = await self._read()
        except BackendError as error:
            if is_known and isinstance(error, _PASSING):
                return self.last_served
            self._routes.forget()
            raise
        self.has_worked = False
        return served

    async def _read(self) -> Served:
        listed = await self._questions.read(MODELS, "data", _A_LIST)
        await self._routes.find_out()
        served = Served(models=tuple(_models(listed)), api=self._routes.api)
        if served != self.last_served:
            self._installed = tuple(
                InstalledModel(
                    name=model.name,
                    digest=model.digest,
                    max_context_tokens=model.context_tokens,
                )
                for model in served.models
            )
            self._upstream = {model.name.lower(): model.upstream for model in served.models}
            self.last_served = served
        return self.last_served

    async def installed(self) -> tuple[InstalledModel, ...]:
        await self.served()
        return self._installed

    async def resident(self) -> tuple[ResidentModel, ...]:
        """What it lists is in memory; of how much, it says nothing."""
        models = self.last_served.models or (await self.served()).models
        return tuple(
            ResidentModel(
                name=model.name, size_mib=0.0, vram_mib=0.0, context_tokens=model.context_tokens
            )
            for model in models
        )

    async def upstream(self, model: str) -> str | None:
        """The name that it lists for a model, in whatever case that is written."""
        if not self._upstream:
            await self.served()
        return self._upstream.get(model.lower())


def _models(listed: JsonObject) -> Iterator[ServedModel]:
    """Those that have a name; each with one that callers can write, and that no other has."""
    data = listed.get("data")
    taken: set[str] = set()
    for entry in data if isinstance(data, list) else ():
        upstream = at(entry, ("id",))
        if not isinstance(upstream, str) or not isinstance(entry, dict):
            continue
        name = next((name for name in names_of(upstream) if name.lower() not in taken), None)
        if name is not None:
            taken.add(name.lower())
            yield ServedModel(
                name=name,
                upstream=upstream,
                digest=_digest(entry),
                owner=_text(entry.get("owned_by")),
                context_tokens=count_in(entry, "max_model_len"),
            )


def names_of(upstream: str) -> Iterator[str]:
    """Ways to call a model, best first: as its server does, without folders, all in one word."""
    last = upstream.rstrip("/").rpartition("/")[2]
    words = (_NOT_IN_NAMES.sub("-", written).strip("-.") for written in (last, upstream))
    return (name for name in (upstream, *words) if is_model_name(name))


def _digest(entry: JsonObject) -> str:
    """Of what decides its text, as far as it is said; names of one model with the same weights
    (`root`, as vLLM says it) share it.
    """
    root = entry.get("root")
    decisive: list[JsonValue] = [
        root if isinstance(root, str) and root else entry.get("id"),
        entry.get("parent"),
        entry.get("max_model_len"),
        entry.get("owned_by"),
    ]
    return hashlib.sha256(encode(decisive)).hexdigest()


def _text(given: JsonValue) -> str:
    return given if isinstance(given, str) else ""
