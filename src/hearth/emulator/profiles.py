"""Model files for the emulator: a YAML or JSON list of profiles becomes `EmulatedModel` values.

Text in, values out; it never opens a file. Called by `cli` and by tests. Keys are the fields of `ModelProfile` and the emulator's own
(`vocabulary`, `byte_tokens`, `ends`, `templated`, `parameters`, `system`).
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError

from hearth.emulator.models import EmulatedModel
from hearth.emulator.names import parse_name
from hearth.errors import ConfigError
from hearth.service_model import ModelProfile


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

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

    def model(self) -> EmulatedModel:
        facts = self.model_dump()
        profile = ModelProfile(**{each.name: facts.pop(each.name) for each in fields(ModelProfile)})
        return EmulatedModel(profile=profile, **facts)


class _Entries(RootModel[list[_Entry]]):
    """The whole file."""


def load_profiles(text: str, *, source: str = "models") -> tuple[EmulatedModel, ...]:
    """The models that `text` lists; raises `ConfigError` with every problem found. `source` is what the problems call it.

    Only `name` is required; what is left out is that of an 8B model at four bits.
    """
    try:
        entries = _Entries.model_validate(yaml.safe_load(text)).root
    except yaml.YAMLError as error:
        raise ConfigError([f"{source}: is not YAML: {' '.join(str(error).split())}"]) from error
    except ValidationError as error:
        raise ConfigError([": ".join(filter(None, (source, _place(one["loc"]), one["msg"]))) for one in error.errors()]) from error
    invalid = [f"{source}: invalid model name: {entry.name}" for entry in entries if parse_name(entry.name) is None]
    if invalid:
        raise ConfigError(invalid)
    return tuple(entry.model() for entry in entries)


def _place(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
