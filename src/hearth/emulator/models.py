"""The catalogue: which models the emulated server has installed, under which names and with which facts.

In memory only. It must never load a model or know of requests in flight (that is the engine's). Called by the handlers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.emulator.errors import OllamaError
from hearth.emulator.names import ModelName, parse_name
from hearth.service_model import ModelProfile

_GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedModel:
    """A model as the emulated server knows it.

    Attributes:
        profile: sizes, rates and capabilities; `profile.name` stays that of the original when a model is copied.
        vocabulary: the words that it writes; empty for the built-in ones.
        byte_tokens: True counts one token per byte (a blank is three), like a model with a byte-level tokenizer.
        ends: False never stops by itself, like a model without an end token.
        templated: True renders prompts with an Ollama template; False uses the template inside the weights.
        parameters: defaults from a Modelfile, such as `num_ctx`.
        created_wall: seconds since 1970-01-01 UTC.
    """

    profile: ModelProfile
    vocabulary: tuple[str, ...] = ()
    byte_tokens: bool = False
    ends: bool = True
    templated: bool = True
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)
    system: str = ""
    template: str = "{{ .Prompt }}"
    created_wall: float = 0.0

    @property
    def weights(self) -> str:
        """Identity of the weights file: models that share it share a runner."""
        return "sha256-" + sha256(f"weights {self.profile.name}".encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return int(self.profile.size_gib * _GIB)

    @property
    def loaded_bytes(self) -> int:
        """The footprint while loaded, graphics and main memory together: weights and about 8 % of buffers at least."""
        return int(max(self.profile.vram_gib, self.profile.size_gib * 1.08) * _GIB)

    def can(self, capability: str) -> bool:
        return capability in self.profile.capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A model under one of its names."""

    name: ModelName
    model: EmulatedModel

    @property
    def digest(self) -> str:
        facts = f"{self.model.weights} {self.model.system} {self.model.template} {sorted(self.model.parameters.items(), key=str)}"
        return sha256(facts.encode()).hexdigest()


class Catalogue:
    """Installed models by name. Names are validated where they enter."""

    def __init__(self, models: Iterable[EmulatedModel], *, now_wall: float) -> None:
        self._installed: dict[str, Installed] = {}
        self.blobs: set[str] = set()
        for model in models:
            self.put(model.profile.name, replace(model, created_wall=model.created_wall or now_wall))

    def put(self, text: str, model: EmulatedModel) -> None:
        name = valid_name(text)
        self._installed[name.key] = Installed(name=name, model=model)
        self.blobs.add(f"sha256:{model.weights.removeprefix('sha256-')}")

    def find(self, text: str) -> Installed | None:
        """The model called `text`, None when there is none; raises `OllamaError` 400 for an impossible name."""
        return self._installed.get(valid_name(text).key)

    def require(self, text: str, *, shown: str | None = None, template: str = "model '{}' not found") -> Installed:
        """As `find`, but a missing model is a 404 whose text says `shown` (default: as requested)."""
        found = self.find(text) if text else None
        if found is None:
            raise OllamaError(404, template.format(text if shown is None else shown))
        return found

    def remove(self, text: str) -> None:
        installed = self.require(text)
        del self._installed[installed.name.key]

    def newest_first(self) -> tuple[Installed, ...]:
        return tuple(sorted(self._installed.values(), key=lambda one: (-one.model.created_wall, one.name.short)))


def valid_name(text: str) -> ModelName:
    """Parse `text`; raises `OllamaError` 400 `invalid model name`."""
    name = parse_name(text)
    if name is None:
        raise OllamaError(400, "invalid model name")
    return name


def details_of(model: EmulatedModel) -> JsonObject:
    """The `details` object of `/api/tags`, `/api/ps` and `/api/show`, in Go's field order."""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.profile.family,
        "families": [model.profile.family],
        "parameter_size": model.profile.parameter_size,
        "quantization_level": model.profile.quantization,
    }
