"""Functions that a caller offers, as Claude's tools. Called by the readers of the dialects. Source: Anthropic's guide to tool use."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hearth.dialects.claude.refusing import refused
from hearth.dialects.gojson import GoJsonError, JsonObject, JsonValue, decode, lookup, string_field

_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}
_CHOICES = {"auto": "auto", "none": "none", "required": "any"}


def function_tools(tools: Iterable[JsonValue], *, nested: bool) -> list[JsonValue]:
    """Function definitions as tools; `nested` where the function is an object inside (not so in the Responses API).

    Raises:
        Untranslatable: another kind of tool, or a name that Claude does not allow.
    """
    return [_tool(tool, f"tools[{index}]", nested=nested) for index, tool in enumerate(tools)]


def _tool(tool: JsonValue, where: str, *, nested: bool) -> JsonObject:
    if not isinstance(tool, dict) or lookup(tool, "type") not in ("function", None):
        raise refused(where, "only functions can be carried")
    function = lookup(tool, "function") if nested else tool
    if not isinstance(function, dict):
        raise refused(f"{where}.function", "give an object with name and parameters")
    name = string_field(function, "name", where)
    if not _NAME.fullmatch(name):
        raise refused(f"{where}.name", "a name is 1 to 128 letters, digits, `_` or `-`")
    described = string_field(function, "description", where)
    says: JsonObject = {"description": described} if described else {}
    return {"name": name, **says, "input_schema": _parameters(lookup(function, "parameters"), where)}


def _parameters(schema: JsonValue, where: str) -> JsonObject:
    if not schema:
        return _NO_PARAMETERS
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise refused(f"{where}.parameters", "the parameters of a function are a JSON schema of type object")
    return {"type": "object", **schema}


def tool_choice(choice: JsonValue, parallel: JsonValue, where: str) -> JsonObject | None:
    """OpenAI's `tool_choice` and `parallel_tool_calls`; None where nothing is asked for.

    Raises:
        Untranslatable: a choice that is not in the reference, or a list of allowed tools.
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


def arguments_in(text: JsonValue, where: str) -> JsonObject:
    """The arguments of a call from their JSON text (or the object itself); an empty text is no arguments.

    Raises:
        Untranslatable: not a JSON object.
    """
    if isinstance(text, str):
        try:
            text = decode(text.encode(errors="replace")) if text.strip() else {}
        except GoJsonError:
            text = None
    if not isinstance(text, dict):
        raise refused(where, "the arguments of a call are a JSON object")
    return text
