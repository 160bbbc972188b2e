"""JSON schemas as Claude can hold itself to them.

Claude's structured outputs know a part of JSON Schema: every object lists its properties and has no others, and neither lengths nor ranges
nor patterns are enforced. What is only advice moves into the description, where Claude reads it; what would change the shape of the answer
is refused. The rules are those of Anthropic's SDK (`anthropic.lib._parse._transform`, 2.11). Called by `asking`.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.dialects.claude.refusing import refused
from hearth.dialects.gojson import JsonObject, JsonValue, encode

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_KEPT = ("title",)
_IGNORED = frozenset({"$schema", "$id", "$comment", "additionalProperties", "description", "strict"})


def strict_schema(schema: JsonValue, where: str) -> JsonObject:
    """The part of `schema` that Claude enforces, the rest of it as advice in descriptions.

    Raises:
        Untranslatable: a schema without a type, or an object with properties of any name.
    """
    if not isinstance(schema, dict):
        raise refused(where, "give a JSON schema object")
    rest = dict(schema)
    strict: JsonObject = {}
    for name in ("$defs", "definitions"):
        if name in rest:
            strict[name] = _each(rest.pop(name), f"{where}.{name}")
    if "$ref" in rest:
        return {**strict, "$ref": rest["$ref"]}
    strict |= _shape(rest, where)
    strict |= {name: rest.pop(name) for name in _KEPT if name in rest}
    described = _description(rest)
    return {**strict, "description": described} if described else strict


def _shape(rest: JsonObject, where: str) -> JsonObject:
    """What kind of value this is; takes out of `rest` what is said here."""
    for name, kept in (("anyOf", "anyOf"), ("oneOf", "anyOf"), ("allOf", "allOf")):
        variants = rest.pop(name, None)
        if isinstance(variants, list):
            rest.pop("type", None)
            return {kept: [strict_schema(variant, f"{where}.{name}[{index}]") for index, variant in enumerate(variants)]}
    literals = {name: rest.pop(name) for name in ("enum", "const") if _is_literal(name, rest)}
    if literals:
        rest.pop("type", None)
        return literals
    kind = rest.pop("type", None)
    if isinstance(kind, list) and kind:
        return _one_of_types(kind, rest, where)
    if not isinstance(kind, str) or kind not in _TYPES:
        raise refused(where, "every part of a schema for it needs a `type`")
    return {"type": kind, **_inside(kind, rest, where)}


def _one_of_types(kinds: list[JsonValue], rest: JsonObject, where: str) -> JsonObject:
    """`"type": ["string", "null"]`, with the other keywords for each of them."""
    others = {name: rest.pop(name) for name in list(rest) if name not in ("title", "description")}
    return {"anyOf": [strict_schema({"type": kind, **others} if kind != "null" else {"type": kind}, where) for kind in kinds]}


def _is_literal(name: str, rest: Mapping[str, JsonValue]) -> bool:
    if name not in rest:
        return False
    value = rest[name]
    values = value if name == "enum" else [value]
    return isinstance(values, list) and bool(values) and not any(isinstance(one, dict | list) for one in values)


def _inside(kind: str, rest: JsonObject, where: str) -> JsonObject:
    if kind == "object":
        return _object(rest, where)
    if kind == "array" and rest.get("items") is not None:
        few: JsonObject = {"minItems": rest.pop("minItems")} if rest.get("minItems") in (0, 1) else {}
        return {"items": strict_schema(rest.pop("items"), f"{where}.items"), **few}
    if kind == "string" and rest.get("format") in _FORMATS:
        return {"format": rest.pop("format")}
    return {}


def _object(rest: JsonObject, where: str) -> JsonObject:
    if isinstance(rest.get("additionalProperties"), dict) or rest.get("patternProperties"):
        raise refused(where, "an object in a schema for it must list its properties")
    properties = _each(rest.pop("properties", None) or {}, f"{where}.properties")
    required = rest.pop("required", None)
    needs: JsonObject = {"required": required} if isinstance(required, list) else {}
    return {"properties": properties, "additionalProperties": False, **needs}


def _each(schemas: JsonValue, where: str) -> JsonObject:
    if not isinstance(schemas, dict):
        raise refused(where, "give an object of schemas")
    return {name: strict_schema(schema, f"{where}.*") for name, schema in schemas.items()}


def _description(rest: JsonObject) -> str:
    advice = [f"{name}: {encode(value).decode()}" for name, value in rest.items() if name not in _IGNORED]
    described = rest.get("description")
    texts = [described] if isinstance(described, str) and described else []
    return "\n\n".join([*texts, *([f"{{{', '.join(advice)}}}"] if advice else [])])
