"""The file as a JSON Schema, and the file that ships with Hearth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import TypeAdapter

from hearth.config.fields import SECTION, Section, within
from hearth.config.settings import Settings

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema as plain values."""
    found: dict[str, Any] = TypeAdapter(Annotated[Settings, SECTION]).json_schema()
    _complete(found["$defs"], Settings)
    return {"$schema": _DIALECT, "title": "Hearth, llm_gateway.yaml", **_without_titles(found)}


def _complete(definitions: dict[str, Any], section: type[Section]) -> None:
    """Give defaults as they would stand in the file, and have each description end with what a reload does with a change."""
    shown = definitions[section.__name__]["properties"]
    for name, default in section.model_construct().model_dump(mode="json").items():
        shown[name]["default"] = default
    for name, field in section.model_fields.items():
        if field.description:
            shown[name]["description"] = section.description_of(name)
        inner = within(section, name)
        for below in (inner, within(inner, "")):
            if isinstance(below, type) and issubclass(below, Section):
                _complete(definitions, below)


def schema_text() -> str:
    """The schema as it stands in `config/llm_gateway.schema.json`: indented, with a line break at the end."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _without_titles(value: Any) -> Any:  # noqa: ANN401
    """Drop pydantic's titles: they repeat the key, and an editor would show them in place of the description."""
    if isinstance(value, dict):
        return {key: _without_titles(each) for key, each in value.items() if key != "title" or not isinstance(each, str)}
    return [_without_titles(each) for each in value] if isinstance(value, list) else value


CONFIG_NAME = "llm_gateway.yaml"
SCHEMA_NAME = "llm_gateway.schema.json"

_INSTALLED = Path(__file__).with_name("shipped")
_IN_SOURCES = Path(__file__).parents[3] / "config"
_AUTO = "#backend:\n"
_OLLAMA = "backend:\n  mode: ollama\n"


def shipped_config() -> str:
    """The file as it is shipped: every setting with its default. Raises OSError where the installation is not whole."""
    return _folder().joinpath(CONFIG_NAME).read_text(encoding="utf-8")


def config_for_a_service() -> str:
    """The same with `backend.mode: ollama`: at boot Hearth may well come up before Ollama, and must wait for it, not stand in for it."""
    return shipped_config().replace(_AUTO, _OLLAMA, 1)


def _folder() -> Path:
    return _INSTALLED if _INSTALLED.is_dir() else _IN_SOURCES
