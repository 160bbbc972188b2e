"""Functions as Claude's tools, and JSON schemas as far as Claude enforces them. Source: Anthropic's guide to tool use."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hearth.dialects.claude.request import refused
from hearth.dialects.gojson import Body, GoJsonError, JsonObject, JsonValue, decode, encode, lookup

_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_NOT_ADVICE = ("$schema", "$id", "$comment", "additionalProperties", "description", "strict")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def strict_schema(schema: JsonValue, where: str) -> JsonObject:
    """The part of `schema` that Claude enforces, the rest of it as advice in descriptions.

    Raises Untranslatable: a schema without a type, or an object with properties of any name.
    """
    if not isinstance(schema, dict):
        raise refused(where, "give a JSON schema object")
    rest = dict(schema)
    strict: JsonObject = {name: _each(rest.pop(name), f"{where}.{name}") for name in ("$defs", "definitions") if name in rest}
    if "$ref" in rest:
        return {**strict, "$ref": rest["$ref"]}
    strict |= _shape(rest, where)
    if "title" in rest:
        strict["title"] = rest.pop("title")
    advice = ", ".join(f"{name}: {encode(value).decode()}" for name, value in rest.items() if name not in _NOT_ADVICE)
    described = rest.get("description")
    texts = [described if isinstance(described, str) else "", f"{{{advice}}}" if advice else ""]
    description = "\n\n".join(text for text in texts if text)
    return {**strict, "description": description} if description else strict


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
    if isinstance(kind, list) and kind:  # such as ["string", "null"], with the other keywords for each of them
        others = {name: rest.pop(name) for name in list(rest) if name not in ("title", "description")}
        return {"anyOf": [strict_schema({"type": one, **(others if one != "null" else {})}, where) for one in kind]}
    if not isinstance(kind, str) or kind not in _TYPES:
        raise refused(where, "every part of a schema for it needs a `type`")
    return {"type": kind, **_inside(kind, rest, where)}


def _is_literal(name: str, rest: JsonObject) -> bool:
    if name not in rest:
        return False
    value = rest[name]
    values = value if name == "enum" else [value]
    return isinstance(values, list) and bool(values) and not any(isinstance(one, dict | list) for one in values)


def _inside(kind: str, rest: JsonObject, where: str) -> JsonObject:
    if kind == "object":
        if isinstance(rest.get("additionalProperties"), dict) or rest.get("patternProperties"):
            raise refused(where, "an object in a schema for it must list its properties")
        properties = _each(rest.pop("properties", None) or {}, f"{where}.properties")
        required = rest.pop("required", None)
        needs: JsonObject = {"required": required} if isinstance(required, list) else {}
        return {"properties": properties, "additionalProperties": False, **needs}
    if kind == "array" and rest.get("items") is not None:
        few: JsonObject = {"minItems": rest.pop("minItems")} if rest.get("minItems") in (0, 1) else {}
        return {"items": strict_schema(rest.pop("items"), f"{where}.items"), **few}
    if kind == "string" and rest.get("format") in _FORMATS:
        return {"format": rest.pop("format")}
    return {}


def _each(schemas: JsonValue, where: str) -> JsonObject:
    if not isinstance(schemas, dict):
        raise refused(where, "give an object of schemas")
    return {name: strict_schema(schema, f"{where}.*") for name, schema in schemas.items()}


def function_tools(tools: Iterable[JsonValue], *, nested: bool = True) -> list[JsonValue]:
    """Function definitions as tools; `nested` where the function is an object inside (not so in the Responses API).

    Raises Untranslatable: another kind of tool, or a name that Claude does not allow.
    """
    return [_tool(tool, f"tools[{index}]", nested=nested) for index, tool in enumerate(tools)]


def _tool(tool: JsonValue, where: str, *, nested: bool) -> JsonObject:
    if not isinstance(tool, dict) or lookup(tool, "type") not in ("function", None):
        raise refused(where, "only functions are supported")
    given = lookup(tool, "function") if nested else tool
    if not isinstance(given, dict):
        raise refused(f"{where}.function", "give an object with name and parameters")
    function = Body(given)
    name, described = function.string("name"), function.string("description")
    if not _NAME.fullmatch(name):
        raise refused(f"{where}.name", "a name is 1 to 128 letters, digits, `_` or `-`")
    schema = function.get("parameters") or {"properties": {}}
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise refused(f"{where}.parameters", "the parameters of a function are a JSON schema of type object")
    return {"name": name, **({"description": described} if described else {}), "input_schema": {"type": "object", **schema}}


def tool_choice(choice: JsonValue, parallel: JsonValue, where: str) -> JsonObject | None:
    """OpenAI's `tool_choice` and `parallel_tool_calls`; None where nothing is asked for.

    Raises Untranslatable: a choice that is not in the reference, or a list of allowed tools.
    """
    single: JsonObject = {"disable_parallel_tool_use": True} if parallel is False else {}
    if choice is None:
        return {"type": "auto", **single} if single else None
    if isinstance(choice, str) and choice in _CHOICES:
        return {"type": _CHOICES[choice], **({} if choice == "none" else single)}
    if isinstance(choice, dict) and lookup(choice, "type") == "function":
        function = lookup(choice, "function")
        name = lookup(function if isinstance(function, dict) else choice, "name")
        if isinstance(name, str) and _NAME.fullmatch(name):
            return {"type": "tool", "name": name, **single}
    raise refused(where, 'give "auto", "none", "required" or one function')


def arguments_in(given: JsonValue, where: str) -> JsonObject:
    """The arguments of a call from their JSON text (or the object itself); nothing is no arguments.

    Raises Untranslatable: not a JSON object.
    """
    arguments: JsonValue = given or {}
    if isinstance(arguments, str):
        try:
            arguments = decode(arguments.encode(errors="replace")) if arguments.strip() else {}
        except GoJsonError:
            arguments = None
    if not isinstance(arguments, dict):
        raise refused(where, "the arguments of a call are a JSON object")
    return arguments
