"""What a llama-server says of itself and of its one model.

It has no routes that load and unload: the model is there for as long as it listens. Source:
llama.cpp's `tools/server`, October 2026, and recordings of it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from http import HTTPStatus

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.request import is_model_name
from hearth.dialects.stream import count_in
from hearth.engines.openai_server.calls import Place
from hearth.engines.openai_server.questions import Questions, said_in
from hearth.errors import (
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    LoadError,
)
from hearth.types import JSON_BODY, MIB, BackendCall, InstalledModel, ResidentModel, frozen

PROPS = "/props"
MODELS = "/v1/models"
WAKING = BackendCall(method="POST", path="/tokenize", headers=JSON_BODY, body=b'{"content":""}')
"""Takes no slot and no time. Its pages of `/props`, `/health` and `/v1/models` wake it not."""
MOST_SLOTS = 1024
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_CAPABILITIES = frozenset({"completion", "tools", "thinking", "embedding"})
"""What no request is refused for before the server is asked, which may say no itself."""


@frozen
class Served:
    """The model that a server has.

    Attributes:
        names: its own first, then its aliases. build: of the server. capabilities: what no request
        is refused for before the server is asked. abilities: what it says that it can. size_bytes:
        of its weights. context_tokens: of each slot.
    """

    names: tuple[str, ...]
    build: str
    digest: str
    capabilities: frozenset[str]
    abilities: tuple[str, ...]
    size_bytes: int
    context_tokens: int | None
    max_context_tokens: int | None
    slots: int
    parameters: int
    quantization: str
    template: str

    @property
    def known(self) -> frozenset[str]:
        """Its names in lower case."""
        return frozenset(map(str.lower, self.names))

    @property
    def installed(self) -> tuple[InstalledModel, ...]:
        return tuple(
            InstalledModel(
                name=name,
                digest=self.digest,
                capabilities=self.capabilities,
                slots=self.slots,
                max_context_tokens=self.max_context_tokens,
                abilities=frozenset(self.abilities),
            )
            for name in self.names
        )

    @property
    def resident(self) -> ResidentModel:
        """It does not say where its weights are; that they are on the card is what people start it
        for.
        """
        size_mib = self.size_bytes / MIB
        return ResidentModel(
            name=self.names[0],
            size_mib=size_mib,
            vram_mib=size_mib,
            context_tokens=self.context_tokens,
        )


class Control:
    """Asks a llama-server about itself. Raises as `Questions`.

    Args:
        name: what its model is called here, whatever the server calls it; empty for that.
        keeps_room: while it sleeps, too, since nobody would have it woken.

    Attributes:
        is_asleep: by its last answer, it has dropped its model after some idle time, and loads it
        again for the next request.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        place: Place,
        timeout_s: float,
        name: str = "",
        keeps_room: bool = False,
    ) -> None:
        self._name = name
        self._keeps_room = keeps_room
        self._questions = Questions(url, api_key=api_key, place=place, timeout_s=timeout_s)
        self.last_served: Served | None = None
        self.is_asleep = False
        self._installed: tuple[InstalledModel, ...] = ()
        self.aclose = self._questions.aclose

    async def version(self) -> str:
        """The build. Raises BackendUnreachable as the port says."""
        try:
            props = await self._props()
        except BackendTimeout as error:
            raise BackendUnreachable from error
        return _text(props.get("build_info")) or "unknown"

    async def served(self) -> Served:
        """Its model; the very same object for as long as it is the same."""
        props = await self._props()
        listed = await self._questions.read(MODELS, "data", "an object with the list `data`")
        served = served_in(props, listed)
        if self._name:
            served = replace(served, names=(self._name,))
        if served != self.last_served:
            self._installed = served.installed
            self.last_served = served
        return self.last_served

    async def installed(self) -> tuple[InstalledModel, ...]:
        await self.served()
        return self._installed

    async def resident(self) -> tuple[ResidentModel, ...]:
        """What it lists is in memory unless it sleeps, so its answers of a moment ago will do."""
        served = self.last_served or await self.served()
        return () if self.is_asleep else (served.resident,)

    async def wake(self) -> None:
        """Have it load its model again, whenever that is done. Raises LoadError."""
        said = await said_in(await self._questions.open(WAKING))
        if said.status != HTTPStatus.OK:
            raise LoadError(f"The llama-server did not wake: {said.error or said.status}")
        await self._props()

    async def upstream(self, model: str) -> str | None:
        """It is the model that the server was last seen with; the server answers to any name."""
        served = self.last_served or await self.served()
        return model if model.lower() in served.known else None

    async def _props(self) -> JsonObject:
        status, said = await self._questions.ask(BackendCall(method="GET", path=PROPS))
        if status == HTTPStatus.OK and "total_slots" in said:
            self.is_asleep = said.get("is_sleeping") is True and not self._keeps_room
            return said
        if at(said, ("role",)) == "router":
            raise BackendProtocolError(
                f"GET {PROPS}: this server is a router of several models: set its kind to"
                " llama_router"
            )
        expected = "an object with `total_slots`"
        raise BackendProtocolError(self._questions.odd(PROPS, status, said, expected))


def name_in(written: str) -> str:
    """The name of a model as callers can write it: a file is called by its name without folders."""
    if is_model_name(written):
        return written
    name = _NOT_IN_NAMES.sub("-", re.split(r"[/\\]", written)[-1]).strip("-.")
    return name if is_model_name(name) else "model"


def served_in(props: JsonObject, listed: JsonObject) -> Served:
    """The model by what the server says of itself, and by its list."""
    model = at(listed, ("data", 0))
    meta = at(model, ("meta",))
    about = meta if isinstance(meta, dict) else {}
    own = _text(at(model, ("id",))) or _text(props.get("model_alias")) or "model"
    aliases = at(model, ("aliases",))
    others = [_text(one) for one in aliases] if isinstance(aliases, list) else []
    vision = at(props, ("modalities", "vision")) is True
    template = _text(props.get("chat_template"))
    abilities = {
        "completion": True,
        "tools": at(props, ("chat_template_caps", "supports_tools")) is True,
        "thinking": "think" in template,
        "vision": vision,
    }
    # what decides the text that it writes
    decisive: list[JsonValue] = [
        props.get("build_info"),
        props.get("model_path"),
        props.get("model_ftype"),
        props.get("chat_template"),
        {name: one for name, one in about.items() if name != "n_ctx"},
    ]
    return Served(
        names=tuple(dict.fromkeys(name_in(name) for name in (own, *others) if name)),
        build=_text(props.get("build_info")) or "unknown",
        digest=hashlib.sha256(encode(decisive)).hexdigest(),
        capabilities=_CAPABILITIES | ({"vision"} if vision else set()),
        abilities=tuple(name for name, is_there in abilities.items() if is_there),
        size_bytes=count_in(about, "size", 10**15) or 0,
        context_tokens=_context(props),
        max_context_tokens=count_in(about, "n_ctx_train"),
        slots=max(1, count_in(props, "total_slots", MOST_SLOTS) or 1),
        parameters=count_in(about, "n_params", 10**15) or 0,
        quantization=_text(about.get("ftype")) or _text(props.get("model_ftype")),
        template=template,
    )


def _context(props: JsonObject) -> int | None:
    settings = props.get("default_generation_settings")
    return count_in(settings, "n_ctx") if isinstance(settings, dict) else None


def _text(given: JsonValue) -> str:
    return given if isinstance(given, str) else ""
