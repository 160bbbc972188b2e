"""The emulated models: their facts, their names, the files that list them, and the errors of the
server that has them installed.

Names are host/namespace/model:tag with defaults (ollama/ollama `types/model/name.go`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hearth.dialects.gojson import JsonObject
from hearth.errors import ConfigError, HearthError

GIB = 2**30
BUSY_TEXT = "server busy, please try again.  maximum pending requests exceeded"
DIED_TEXT = "an error was encountered while running the model: unexpected EOF"
"""The process that runs the model ended before the answer did."""
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}\Z")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}\Z")


class OllamaError(HearthError):
    """The emulated Ollama refuses, once it has looked for the model; what it refuses before is a
    BadRequest, which `/v1` routes frame differently.
    """

    reason = "emulated"

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class EmulatedModel(BaseModel):
    """One model on one card. The defaults are those of an 8B model at four bits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str  # stays that of the original when a model is copied
    size_gib: float = Field(default=4.6, gt=0)  # the weights on disk
    # held while loaded: weights, KV cache and buffers; at most what the card has
    vram_gib: float = Field(default=6.2, ge=0)
    prompt_tokens_per_s: float = Field(default=3865.0, gt=0)  # single-stream rates
    decode_tokens_per_s: float = Field(default=112.0, gt=0)
    load_s: float = Field(default=2.0, ge=0)  # process start until the first request can run
    unload_s: float = Field(default=0.8, ge=0)  # kill until the memory is free again
    context_tokens: int = Field(default=32768, gt=0)  # the longest context that it was trained for
    family: str = "llama"
    parameter_size: str = "8.0B"
    quantization: str = "Q4_K_M"
    # in Ollama's words: completion, tools, insert, vision, embedding, thinking
    capabilities: tuple[str, ...] = ("completion",)
    embedding_length: int = Field(default=4096, gt=0)
    vocabulary: tuple[str, ...] = ()  # the words that it writes; empty for the built-in ones
    # one token per byte (a blank is three), like a model with a byte-level tokenizer
    byte_tokens: bool = False
    ends: bool = True  # False never stops by itself, like a model without an end token
    # renders prompts with an Ollama template; False uses the template inside the weights
    templated: bool = True
    # defaults from a Modelfile, such as `num_ctx`
    parameters: dict[str, Any] = Field(default_factory=dict)
    system: str = ""
    template: str = "{{ .Prompt }}"
    created_wall: float = 0.0

    @property
    def weights(self) -> str:
        """Hash of the weights file: models that share it share a runner."""
        return sha256(f"weights {self.name}".encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return int(self.size_gib * GIB)

    @property
    def details(self) -> JsonObject:
        """The `details` object of `/api/tags`, `/api/ps` and `/api/show`, in Go's field order."""
        return {
            "parent_model": "",
            "format": "gguf",
            "family": self.family,
            "families": [self.family],
            "parameter_size": self.parameter_size,
            "quantization_level": self.quantization,
        }

    def can(self, capability: str) -> bool:
        return capability in self.capabilities


# Rates of the 8B model: XiongjieDai/GPU-Benchmarks-on-LLM-Inference. The 32B q6_K weights (26.9 GB)
# do not fit and are split with the CPU, which costs about a factor of seven (ollama/ollama#17099).
# The 14B figures lie between the two (community reports of 48 to 65 tokens/s). Load times assume a
# warm page cache at 4 to 9 GB/s and grow with the part that runs on the CPU.
_DEFAULTS = """
- {name: "qwen2.5:32b-instruct-q6_K", family: qwen2, parameter_size: 32.8B, quantization: Q6_K,
   size_gib: 25.0, vram_gib: 22.5, prompt_tokens_per_s: 200.0, decode_tokens_per_s: 6.0,
   load_s: 11.0, unload_s: 1.2, embedding_length: 5120, capabilities: [completion, tools]}
- {name: "qwen2.5-coder:14b", family: qwen2, parameter_size: 14.8B,
   size_gib: 8.4, vram_gib: 10.5, prompt_tokens_per_s: 2000.0, decode_tokens_per_s: 60.0,
   load_s: 3.2, unload_s: 1.0, embedding_length: 5120, capabilities: [completion, tools, insert]}
- {name: "llama3.1:8b", context_tokens: 131072, capabilities: [completion, tools]}
- {name: nomic-embed-text, family: nomic-bert, parameter_size: 137M, quantization: F16,
   size_gib: 0.26, vram_gib: 0.6, prompt_tokens_per_s: 8000.0, decode_tokens_per_s: 1.0,
   load_s: 1.2, unload_s: 0.5, embedding_length: 768, context_tokens: 2048,
   capabilities: [embedding]}
"""


def default_profiles() -> tuple[EmulatedModel, ...]:
    """The models of a typical home with one 24 GB card (RTX 3090 class), single stream, 8k
    context.
    """
    return load_profiles(_DEFAULTS)


def load_profiles(text: str, *, source: str = "models") -> tuple[EmulatedModel, ...]:
    """The models in a YAML or JSON list; raises `ConfigError` with every problem found.

    `source` is what the problems call the file.
    """
    try:
        models = TypeAdapter(list[EmulatedModel]).validate_python(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: is not YAML: {' '.join(str(error).split())}"]) from error
    except ValidationError as error:
        raise ConfigError(
            [
                ": ".join(filter(None, (source, _place(one["loc"]), one["msg"])))
                for one in error.errors()
            ]
        ) from error
    invalid = [
        f"{source}: invalid model name: {model.name}"
        for model in models
        if parse_name(model.name) is None
    ]
    if invalid:
        raise ConfigError(invalid)
    return tuple(models)


def _place(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


class QualifiedName(NamedTuple):
    """A complete name."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def full(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """Without the parts that are defaults, always with a tag: what listings show."""
        return self.full.removeprefix("registry.ollama.ai/library/").removeprefix(
            "registry.ollama.ai/"
        )


def parse_name(text: str) -> QualifiedName | None:
    """The name that `text` spells, None for an invalid one."""
    path, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        path = text
        tag = "latest"
    parts = path.split("/")
    host, namespace, model = [*("registry.ollama.ai", "library")[: max(0, 3 - len(parts))], *parts][
        :3
    ]
    valid = (
        len(parts) <= 3
        and _HOST.match(host)
        and all(_PART.match(part) for part in (namespace, model, tag))
    )
    return QualifiedName(host, namespace, model, tag) if valid else None


def valid_name(text: str) -> QualifiedName:
    """Parse `text`; raises `OllamaError` 400 `invalid model name`."""
    name = parse_name(text)
    if name is None:
        raise OllamaError(400, "invalid model name")
    return name


class Installed(NamedTuple):
    """A model under one of its names."""

    name: QualifiedName
    model: EmulatedModel

    @property
    def digest(self) -> str:
        facts = (
            f"{self.model.weights} {self.model.system} {self.model.template}"
            f" {sorted(self.model.parameters.items(), key=str)}"
        )
        return sha256(facts.encode()).hexdigest()


class Catalogue:
    """Installed models by name, letter case aside. Names are validated where they enter."""

    def __init__(self, models: Iterable[EmulatedModel], *, now_wall: float) -> None:
        self._installed: dict[str, Installed] = {}
        self.blobs: set[str] = set()
        for model in models:
            self.put(model.name, model, created_wall=model.created_wall or now_wall)

    def put(self, text: str, model: EmulatedModel, *, created_wall: float) -> None:
        name = valid_name(text)
        self._installed[name.full.lower()] = Installed(
            name, model.model_copy(update={"created_wall": created_wall})
        )
        self.blobs.add(f"sha256:{model.weights}")

    def find(self, text: str) -> Installed | None:
        """The model called `text`, None when there is none; raises `OllamaError` 400 for an
        impossible name.
        """
        return self._installed.get(valid_name(text).full.lower())

    def require(
        self, text: str, *, shown: str | None = None, template: str = "model '{}' not found"
    ) -> Installed:
        """As `find`, but a missing model is a 404 whose text says `shown` (default: as
        requested).
        """
        found = self.find(text) if text else None
        if found is None:
            raise OllamaError(404, template.format(text if shown is None else shown))
        return found

    def remove(self, text: str) -> None:
        del self._installed[self.require(text).name.full.lower()]

    def newest_first(self) -> list[Installed]:
        return sorted(
            self._installed.values(), key=lambda one: (-one.model.created_wall, one.name.short)
        )
