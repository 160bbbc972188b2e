"""The emulated models: their facts, their names, the files that list them, and the errors of the server that has them installed.

Names are host/namespace/model:tag with defaults (ollama/ollama `types/model/name.go`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hearth.dialects.gojson import JsonObject, encode
from hearth.errors import ConfigError, HearthError
from hearth.types import Dialect

GIB = 2**30
BUSY_TEXT = "server busy, please try again.  maximum pending requests exceeded"
_KINDS = {400: "invalid_request_error", 404: "not_found_error"}
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}\Z")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}\Z")


class OllamaError(HearthError):
    """The emulated Ollama refuses.

    Attributes:
        at_bind: raised while the request is read, before any model is looked up; `/v1` routes frame those differently.
    """

    reason = "emulated"

    def __init__(self, status: int, message: str, *, at_bind: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.at_bind = at_bind


class RunnerDied(OllamaError):
    """The process that runs the model ended before the answer did."""

    def __init__(self) -> None:
        super().__init__(500, "an error was encountered while running the model: unexpected EOF")


def error_body(error: OllamaError, dialect: Dialect, request_id: str = "") -> bytes:
    """The JSON body of `error`, without a trailing newline; `request_id` appears in Anthropic's shape only."""
    if dialect is Dialect.OPENAI:
        kind = _KINDS.get(error.status, "api_error")
        return encode({"error": {"message": error.message, "type": kind, "param": None, "code": None}})
    if dialect is Dialect.ANTHROPIC:
        kind = "overloaded_error" if error.status == 503 else _KINDS.get(error.status, "api_error")
        return encode({"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id})
    return encode({"error": error.message})


class EmulatedModel(BaseModel):
    """One model on one card. The defaults are those of an 8B model at four bits.

    Attributes:
        name: stays that of the original when a model is copied.
        size_gib: the weights on disk; vram_gib: GPU memory held while loaded (weights, KV cache and buffers; at most what the card has).
        prompt_tokens_per_s, decode_tokens_per_s: single-stream rates.
        load_s: process start until the first request can run; unload_s: kill until the memory is free again.
        context_tokens: the longest context that the model was trained for.
        capabilities: in Ollama's words: completion, tools, insert, vision, embedding, thinking.
        vocabulary: the words that it writes; empty for the built-in ones.
        byte_tokens: True counts one token per byte (a blank is three), like a model with a byte-level tokenizer.
        ends: False never stops by itself, like a model without an end token.
        templated: True renders prompts with an Ollama template; False uses the template inside the weights.
        parameters: defaults from a Modelfile, such as `num_ctx`.
        created_wall: seconds since 1970-01-01 UTC.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    size_gib: float = Field(default=4.6, gt=0)
    vram_gib: float = Field(default=6.2, ge=0)
    prompt_tokens_per_s: float = Field(default=3865.0, gt=0)
    decode_tokens_per_s: float = Field(default=112.0, gt=0)
    load_s: float = Field(default=2.0, ge=0)
    unload_s: float = Field(default=0.8, ge=0)
    context_tokens: int = Field(default=32768, gt=0)
    family: str = "llama"
    parameter_size: str = "8.0B"
    quantization: str = "Q4_K_M"
    capabilities: tuple[str, ...] = ("completion",)
    embedding_length: int = Field(default=4096, gt=0)
    vocabulary: tuple[str, ...] = ()
    byte_tokens: bool = False
    ends: bool = True
    templated: bool = True
    parameters: dict[str, Any] = Field(default_factory=dict)
    system: str = ""
    template: str = "{{ .Prompt }}"
    created_wall: float = 0.0

    @property
    def weights(self) -> str:
        """Identity of the weights file: models that share it share a runner."""
        return "sha256-" + sha256(f"weights {self.name}".encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        return int(self.size_gib * GIB)

    @property
    def loaded_bytes(self) -> int:
        """The footprint while loaded, graphics and main memory together: weights and about 8 % of buffers at least."""
        return int(max(self.vram_gib, self.size_gib * 1.08) * GIB)

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


def default_profiles() -> tuple[EmulatedModel, ...]:
    """The models of a typical home with one 24 GB card (RTX 3090 class), single stream, 8k context.

    Rates of the 8B model: XiongjieDai/GPU-Benchmarks-on-LLM-Inference. The 32B q6_K weights (26.9 GB) do not fit and are split with
    the CPU, which costs about a factor of seven (ollama/ollama#17099). The 14B figures lie between the two (community reports of 48
    to 65 tokens/s). Load times assume a warm page cache at 4 to 9 GB/s and grow with the part that runs on the CPU.
    """
    return (
        EmulatedModel(
            name="qwen2.5:32b-instruct-q6_K",
            size_gib=25.0,
            vram_gib=22.5,
            prompt_tokens_per_s=200.0,
            decode_tokens_per_s=6.0,
            load_s=11.0,
            unload_s=1.2,
            family="qwen2",
            parameter_size="32.8B",
            quantization="Q6_K",
            capabilities=("completion", "tools"),
            embedding_length=5120,
        ),
        EmulatedModel(
            name="qwen2.5-coder:14b",
            size_gib=8.4,
            vram_gib=10.5,
            prompt_tokens_per_s=2000.0,
            decode_tokens_per_s=60.0,
            load_s=3.2,
            unload_s=1.0,
            family="qwen2",
            parameter_size="14.8B",
            capabilities=("completion", "tools", "insert"),
            embedding_length=5120,
        ),
        EmulatedModel(name="llama3.1:8b", context_tokens=131072, capabilities=("completion", "tools")),
        EmulatedModel(
            name="nomic-embed-text",
            size_gib=0.26,
            vram_gib=0.6,
            prompt_tokens_per_s=8000.0,
            decode_tokens_per_s=1.0,
            load_s=1.2,
            unload_s=0.5,
            context_tokens=2048,
            family="nomic-bert",
            parameter_size="137M",
            quantization="F16",
            capabilities=("embedding",),
            embedding_length=768,
        ),
    )


def load_profiles(text: str, *, source: str = "models") -> tuple[EmulatedModel, ...]:
    """The models in a YAML or JSON list; raises `ConfigError` with every problem found. `source` is what the problems call the file."""
    try:
        models = TypeAdapter(list[EmulatedModel]).validate_python(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: is not YAML: {' '.join(str(error).split())}"]) from error
    except ValidationError as error:
        raise ConfigError([": ".join(filter(None, (source, _place(one["loc"]), one["msg"]))) for one in error.errors()]) from error
    invalid = [f"{source}: invalid model name: {model.name}" for model in models if parse_name(model.name) is None]
    if invalid:
        raise ConfigError(invalid)
    return tuple(models)


def _place(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A complete name."""

    host: str
    namespace: str
    model: str
    tag: str

    @property
    def key(self) -> str:
        """What two spellings of one name have in common: letter case does not count."""
        return self.full.lower()

    @property
    def full(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """Without the parts that are defaults, always with a tag: what listings show."""
        if self.host != "registry.ollama.ai":
            return self.full
        return f"{self.model}:{self.tag}" if self.namespace == "library" else f"{self.namespace}/{self.model}:{self.tag}"


def parse_name(text: str) -> ModelName | None:
    """The name that `text` spells, None for an invalid one."""
    path, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        path, tag = text, "latest"
    parts = path.split("/")
    if len(parts) > 3 or not _PART.match(tag):
        return None
    host = parts[-3] if len(parts) == 3 else "registry.ollama.ai"
    namespace = parts[-2] if len(parts) >= 2 else "library"
    if not (_HOST.match(host) and _PART.match(namespace) and _PART.match(parts[-1])):
        return None
    return ModelName(host=host, namespace=namespace, model=parts[-1], tag=tag)


def valid_name(text: str) -> ModelName:
    """Parse `text`; raises `OllamaError` 400 `invalid model name`."""
    name = parse_name(text)
    if name is None:
        raise OllamaError(400, "invalid model name")
    return name


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
            self.put(model.name, model, created_wall=model.created_wall or now_wall)

    def put(self, text: str, model: EmulatedModel, *, created_wall: float) -> None:
        name = valid_name(text)
        self._installed[name.key] = Installed(name=name, model=model.model_copy(update={"created_wall": created_wall}))
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
        del self._installed[self.require(text).name.key]

    def newest_first(self) -> list[Installed]:
        return sorted(self._installed.values(), key=lambda one: (-one.model.created_wall, one.name.short))
