"""What a router lists of its models. Source: llama.cpp's `tools/server`, October 2026, and
recordings of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.dialects.request import is_model_name
from hearth.dialects.stream import count_in
from hearth.engines.server_arguments import slots_in
from hearth.types import MIB, InstalledModel, ResidentModel, frozen

UNLOADED = "unloaded"
LOADING = "loading"
LOADED = "loaded"
SLEEPING = "sleeping"
"""Its process has dropped the model, and loads it again with the next request: Hearth sends none
before it has made room.
"""
SERVED = frozenset({UNLOADED, LOADING, LOADED, SLEEPING})
"""All but those whose files are being downloaded."""
CAPABILITIES = frozenset({"completion", "tools", "thinking", "embedding"})
"""What no request is refused for before the server is asked, which may say no itself."""
MOST_BYTES = 10**15


@frozen
class RouterModel:
    """One model of a router.

    Attributes:
        name: the router's own, in whose place any of the aliases may be written. exit_code: of the
        process that has failed, None for none. weights: what a loaded model tells of its file.
    """

    name: str
    aliases: tuple[str, ...]
    status: str
    exit_code: int | None
    arguments: tuple[str, ...]
    sees: bool
    weights: JsonObject
    context_tokens: int | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def capabilities(self) -> frozenset[str]:
        return CAPABILITIES | ({"vision"} if self.sees else set())

    @property
    def abilities(self) -> tuple[str, ...]:
        """What it says that the model can do; of tools and thoughts it says nothing."""
        return ("completion", "vision") if self.sees else ("completion",)

    @property
    def size_bytes(self) -> int:
        """Of its weights, 0 where it is not loaded."""
        return count_in(self.weights, "size", MOST_BYTES) or 0

    @property
    def resident(self) -> ResidentModel:
        """It does not say where its weights are; that they are on the card is what people start it
        for.
        """
        size_mib = self.size_bytes / MIB
        return ResidentModel(
            name=self.name,
            size_mib=size_mib,
            vram_mib=size_mib,
            context_tokens=self.context_tokens,
        )

    def installed(self, digest: str, slots: int | None) -> list[InstalledModel]:
        """One for each name; `slots`: where its arguments do not say how many."""
        return [
            InstalledModel(
                name=name,
                digest=digest,
                capabilities=self.capabilities,
                slots=slots_in(self.arguments) or slots,
                file_mib=self.size_bytes / MIB or None,
                max_context_tokens=count_in(self.weights, "n_ctx_train"),
                abilities=frozenset(self.abilities),
            )
            for name in self.names
        ]


def models_in(listed: JsonObject) -> Iterator[RouterModel]:
    """The models that can be asked for: what has a name that callers can write."""
    entries = listed.get("data")
    for entry in entries if isinstance(entries, list) else ():
        name = at(entry, ("id",))
        status = at(entry, ("status", "value"))
        if not (isinstance(name, str) and is_model_name(name)):
            continue
        if not (isinstance(status, str) and status in SERVED):
            continue
        meta = at(entry, ("meta",))
        about: Mapping[str, JsonValue] = meta if isinstance(meta, dict) else {}
        code = at(entry, ("status", "exit_code"))
        yield RouterModel(
            name=name,
            aliases=tuple(one for one in _texts(at(entry, ("aliases",))) if is_model_name(one)),
            status=status,
            exit_code=code if type(code) is int else None,
            arguments=tuple(_texts(at(entry, ("status", "args")))),
            sees="image" in _texts(at(entry, ("architecture", "input_modalities"))),
            weights={key: one for key, one in about.items() if key != "n_ctx"},
            context_tokens=count_in(dict(about), "n_ctx"),
        )


def _texts(listed: JsonValue) -> list[str]:
    return [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
