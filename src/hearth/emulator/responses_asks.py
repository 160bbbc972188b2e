"""Bodies of `/v1/responses` as asks. Pure; conversions as in ollama/ollama `openai/responses.go`. Called by `responses`."""

from __future__ import annotations

from hearth.dialects.gojson import JsonObject, JsonValue, array_field, encode, lookup, object_field, string_field, struct_of
from hearth.emulator.errors import OllamaError
from hearth.emulator.openai_asks import sampling, text_of
from hearth.emulator.prompts import Message
from hearth.emulator.session import Ask

_STRUCT = "ResponsesRequest"


def responses_ask(fields: JsonObject) -> Ask:
    """The ask of a response; raises `OllamaError` or `GoJsonError` for what Ollama refuses while reading."""
    instructions = string_field(fields, "instructions", _STRUCT)
    first = [Message(role="system", content=instructions)] if instructions else []
    tools = [struct_of(one, "openai.ResponsesTool") for one in array_field(fields, "tools", _STRUCT, "[]openai.ResponsesTool")]
    return Ask(
        messages=first + _input(lookup(fields, "input")),
        tools=[_tool(one) for one in tools if one.get("type") == "function"],
        options=sampling(fields, _STRUCT, limit_key="max_output_tokens"),
        schema=_schema(object_field(fields, "text", _STRUCT, "openai.ResponsesText")),
        think=object_field(fields, "reasoning", _STRUCT, "openai.ResponsesReasoning").get("effort"),
    )


def _input(given: JsonValue) -> list[Message]:
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    if not isinstance(given, list):
        raise OllamaError(400, "input must be a string or array", at_bind=True)
    return [_item(struct_of(one, "openai.ResponsesInputItem")) for one in given]


def _item(item: JsonObject) -> Message:
    kind = item.get("type")
    if kind == "function_call_output":
        return Message(role="tool", content=str(item.get("output")))
    if kind == "function_call":
        return Message(role="assistant", content="", tool_calls=encode(item).decode())
    content = text_of(item.get("content"), text_kinds=("input_text", "output_text", "text"))
    return Message(role=str(item.get("role") or "user"), content=content)


def _tool(tool: JsonObject) -> JsonObject:
    function: JsonObject = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("parameters")}
    return {"type": "function", "function": function}


def _schema(text: JsonObject) -> JsonValue:
    wanted = text.get("format")
    if not isinstance(wanted, dict):
        return None
    if wanted.get("type") == "json_object":
        return "json"
    return wanted.get("schema") if wanted.get("type") == "json_schema" else None
