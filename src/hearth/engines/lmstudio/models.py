"""The models that LM Studio lists. Source: its documentation of `GET /api/v1/models`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.stream import count_in
from hearth.engines.openai_server.control import names_of
from hearth.types import MIB, InstalledModel, ResidentModel, frozen

SLOTS = 4
"""What a model is loaded with through the API, whatever is asked."""
MOST_SLOTS = 1024
MOST_BYTES = 10**15
_CHATS = frozenset({"completion", "tools", "thinking"})
"""What no request is refused for before the server is asked, which may say no itself."""


@frozen
class StudioModel:
    """A model on its disk; `name`: as callers write it, `key`: as LM Studio does.

    Attributes:
        instances: ids of those that are loaded. slots: of the loaded one, else of one that would
        be. context_tokens: of the loaded one.
    """

    name: str
    key: str
    digest: str
    embeds: bool
    sees: bool
    uses_tools: bool
    size_bytes: int
    quantization: str
    format: str
    instances: tuple[str, ...]
    slots: int
    context_tokens: int | None
    max_context_tokens: int | None

    @property
    def installed(self) -> InstalledModel:
        sees = frozenset({"vision"}) if self.sees else frozenset[str]()
        tools = frozenset({"tools"}) if self.uses_tools else frozenset[str]()
        embeds = frozenset({"embedding"})
        return InstalledModel(
            name=self.name,
            digest=self.digest,
            capabilities=embeds if self.embeds else _CHATS | sees,
            slots=self.slots,
            file_mib=self.size_bytes / MIB or None,
            max_context_tokens=self.max_context_tokens,
            abilities=embeds if self.embeds else frozenset({"completion"}) | sees | tools,
        )

    @property
    def resident(self) -> ResidentModel:
        """It does not say where its weights are; each instance has its own."""
        size_mib = self.size_bytes / MIB * len(self.instances)
        return ResidentModel(
            name=self.name,
            size_mib=size_mib,
            vram_mib=size_mib,
            context_tokens=self.context_tokens,
            embeds=self.embeds,
        )


def models_in(listed: JsonObject) -> Iterator[StudioModel]:
    """Those that have a key; each with a name that no other has."""
    data = listed.get("models")
    taken: set[str] = set()
    for entry in data if isinstance(data, list) else ():
        key = at(entry, ("key",))
        if not isinstance(entry, dict) or not isinstance(key, str):
            continue
        name = next((name for name in names_of(key) if name.lower() not in taken), None)
        if name is not None:
            taken.add(name.lower())
            yield _model(name, key, entry)


def _model(name: str, key: str, entry: JsonObject) -> StudioModel:
    loaded = entry.get("loaded_instances")
    instances = [one for one in (loaded if isinstance(loaded, list) else ()) if _id_of(one)]
    config = at(instances[0], ("config",)) if instances else None
    settings = config if isinstance(config, dict) else {}
    decisive: list[JsonValue] = [
        key,
        *(entry.get(field) for field in ("publisher", "quantization", "size_bytes", "format")),
    ]
    return StudioModel(
        name=name,
        key=key,
        digest=hashlib.sha256(encode(decisive)).hexdigest(),
        embeds=entry.get("type") == "embedding",
        sees=at(entry, ("capabilities", "vision")) is True,
        uses_tools=at(entry, ("capabilities", "trained_for_tool_use")) is True,
        size_bytes=count_in(entry, "size_bytes", MOST_BYTES) or 0,
        quantization=_text(at(entry, ("quantization", "name"))),
        format=_text(entry.get("format")),
        instances=tuple(_id_of(one) for one in instances),
        slots=count_in(settings, "parallel", MOST_SLOTS) or SLOTS,
        context_tokens=count_in(settings, "context_length"),
        max_context_tokens=count_in(entry, "max_context_length"),
    )


def _id_of(instance: JsonValue) -> str:
    return _text(at(instance, ("id",)))


def _text(given: JsonValue) -> str:
    return given if isinstance(given, str) else ""
