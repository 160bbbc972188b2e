"""The JSON Schema (draft 2020-12) of the owner's file, for editors: what `hearth config schema` prints and `config/` ships.

Generated from the same models that check the file, so that it cannot say anything else; descriptions are the docstrings of `settings`,
with unit and hot/restart as written there. Rules that are not about one value alone are told only when the file is read.
"""

from __future__ import annotations

import json
from typing import Any

from hearth.config.models import SETTINGS_EDGE

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema as plain values."""
    return {"$schema": _DIALECT, "title": "Hearth, llm_gateway.yaml", **_without_titles(SETTINGS_EDGE.json_schema())}


def schema_text() -> str:
    """The schema as it stands in `config/llm_gateway.schema.json`: indented, with a line break at the end."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _without_titles(value: Any) -> Any:  # noqa: ANN401
    """Drop pydantic's titles: they repeat the key, and an editor would show them in place of the description."""
    if isinstance(value, dict):
        return {key: _without_titles(each) for key, each in value.items() if key != "title" or not isinstance(each, str)}
    return [_without_titles(each) for each in value] if isinstance(value, list) else value
