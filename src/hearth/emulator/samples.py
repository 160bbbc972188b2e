"""Values that fit a JSON schema: what an emulated model answers under `format`, `response_format` or a tool's parameters.

Pure; enough of JSON Schema for what callers send in practice (type, enum, const, properties, items, anyOf, $ref to $defs, bounds).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from hearth.dialects.gojson import JsonObject, JsonValue

_MAX_DEPTH = 12


def sample(schema: JsonValue, source: Iterator[int], *, hints: str = "") -> JsonValue:
    """A value that fits `schema` (`"json"` or a schema object). Texts are taken from `hints` where it offers names or numbers."""
    if not isinstance(schema, dict) or not schema:
        return {"answer": _word(source), "count": next(source) % 100}
    return _Sampler(root=schema, source=source, hints=hints).value(schema, 0)


class _Sampler:
    """One walk over one schema."""

    def __init__(self, *, root: JsonObject, source: Iterator[int], hints: str) -> None:
        self._root = root
        self._source = source
        self._names: list[str] = re.findall(r"(?<=[\w,] )[A-Z]\w+", hints)
        self._numbers: list[str] = re.findall(r"\b\d+\b", hints)

    def value(self, schema: JsonValue, depth: int) -> JsonValue:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return None
        resolved = self._resolve(schema)
        if "const" in resolved:
            return resolved["const"]
        choices = resolved.get("enum")
        if isinstance(choices, list) and choices:
            return choices[next(self._source) % len(choices)]
        return self._typed(resolved, depth)

    def _resolve(self, schema: JsonObject) -> JsonObject:
        for key in ("anyOf", "oneOf", "allOf"):
            options = schema.get(key)
            if isinstance(options, list) and options and isinstance(options[0], dict):
                return self._resolve(options[0])
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: JsonValue = self._root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, dict) and "$ref" not in found else {}

    def _typed(self, schema: JsonObject, depth: int) -> JsonValue:
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = kind[0] if kind else "string"
        makers: dict[str, Callable[[JsonObject, int], JsonValue]] = {
            "object": self._object,
            "array": self._array,
            "integer": self._integer,
            "number": self._number,
            "boolean": lambda _schema, _depth: next(self._source) % 2 == 0,
            "null": lambda _schema, _depth: None,
        }
        return makers.get(str(kind), self._text)(schema, depth)

    def _object(self, schema: JsonObject, depth: int) -> JsonValue:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return {}
        return {name: self.value(inner, depth + 1) for name, inner in properties.items()}

    def _array(self, schema: JsonObject, depth: int) -> JsonValue:
        least, most = _bound(schema, "minItems", 0), _bound(schema, "maxItems", 3)
        size = max(least, min(most, 1 + next(self._source) % 3))
        return [self.value(schema.get("items", {"type": "string"}), depth + 1) for _ in range(size)]

    def _integer(self, schema: JsonObject, _depth: int) -> int:
        least = _bound(schema, "minimum", _bound(schema, "exclusiveMinimum", -1) + 1)
        most = _bound(schema, "maximum", _bound(schema, "exclusiveMaximum", least + 100) - 1)
        if self._numbers and least <= int(self._numbers[0]) <= most:
            return int(self._numbers.pop(0))
        return least + next(self._source) % max(1, most - least + 1)

    def _number(self, schema: JsonObject, depth: int) -> JsonValue:
        bounded = "maximum" in schema or "exclusiveMaximum" in schema
        return self._integer(schema, depth) if bounded else self._integer(schema, depth) + 0.5

    def _text(self, schema: JsonObject, _depth: int) -> JsonValue:
        formats = {"date": "2026-01-15", "date-time": "2026-01-15T08:30:00Z", "time": "08:30:00Z", "email": "ann@example.org"}
        known = formats.get(str(schema.get("format")))
        if known is not None:
            return known
        if self._names:
            return self._names[0]
        text = _word(self._source).ljust(_bound(schema, "minLength", 0), "a")
        return text[: _bound(schema, "maxLength", len(text))]


def _word(source: Iterator[int]) -> str:
    words = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "ivory", "juniper", "lumen", "meadow")
    return words[next(source) % len(words)]


def _bound(schema: JsonObject, key: str, default: int) -> int:
    value = schema.get(key)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
