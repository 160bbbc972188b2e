"""The file as a JSON Schema, and the file that ships with Hearth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from hearth.config.active_hours import window_text
from hearth.config.choices import Window
from hearth.config.settings import Settings
from hearth.types import Priority

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
CONFIG_NAME = "llm_gateway.yaml"
SCHEMA_NAME = "llm_gateway.schema.json"
_INSTALLED = Path(__file__).with_name("shipped")
_IN_SOURCES = Path(__file__).parents[3] / "config"


class _AsInTheFile(GenerateJsonSchema):
    """Defaults as they would stand in the file."""

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - pydantic's own
        if isinstance(dft, Priority):
            return dft.name.lower()
        return window_text(dft) if isinstance(dft, Window) else super().encode_default(dft)


def schema() -> dict[str, Any]:
    """The schema as plain values."""
    found = Settings.model_json_schema(schema_generator=_AsInTheFile)
    return {"$schema": _DIALECT, "title": "Hearth, llm_gateway.yaml", **_without_titles(found)}


def _without_titles(value: Any) -> Any:  # noqa: ANN401
    """Drop pydantic's titles: they repeat the key, and an editor would show them in place of the description."""
    if isinstance(value, dict):
        return {key: _without_titles(each) for key, each in value.items() if key != "title" or not isinstance(each, str)}
    return [_without_titles(each) for each in value] if isinstance(value, list) else value


def schema_text() -> str:
    """The schema as it stands in `config/llm_gateway.schema.json`: indented, with a line break at the end."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def shipped_config() -> str:
    """The file as it is shipped: every setting with its default. Raises OSError where the installation is not whole."""
    folder = _INSTALLED if _INSTALLED.is_dir() else _IN_SOURCES
    return folder.joinpath(CONFIG_NAME).read_text(encoding="utf-8")


def config_for_a_service() -> str:
    """The same with `backend.mode: ollama`: at boot Hearth may well come up before Ollama, and must wait for it, not stand in for it."""
    return shipped_config().replace("#backend:\n", "backend:\n  mode: ollama\n", 1)
