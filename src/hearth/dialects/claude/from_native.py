"""Ollama's own `/api/chat` and `/api/generate` as drafts for Claude. Fields and options: ollama/ollama v0.33.0-rc2, `api/types.go`."""

from __future__ import annotations

from hearth.dialects.claude.request import LOCAL, Draft, Turns, image_block, refused, stop_texts, text_block
from hearth.dialects.claude.tools import arguments_in, function_tools
from hearth.dialects.demands import messages_of
from hearth.dialects.gojson import MAX_INT, JsonObject, JsonValue, array_field, bool_field, lookup, object_field, string_field
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BadRequest


def chat_draft(fields: JsonObject) -> Draft:
    """A chat. Raises Untranslatable and GoJsonError."""
    turns = Turns()
    for index, message in enumerate(messages_of(INFERENCE_ROUTES[Endpoint.CHAT], fields)):
        if isinstance(message, dict):
            _add(turns, message, f"messages[{index}]")
    tools = function_tools(array_field(fields, "tools", "ChatRequest", "api.Tools"), nested=True)
    return _draft(fields, "ChatRequest", turns, tools)


def generate_draft(fields: JsonObject) -> Draft:
    """One prompt. Raises Untranslatable and GoJsonError."""
    struct = "GenerateRequest"
    for name in ("context", "suffix", "template"):
        if lookup(fields, name):
            raise refused(name)
    if bool_field(fields, "raw", struct):
        raise refused("raw")
    prompt = string_field(fields, "prompt", struct)
    if not prompt.strip():
        raise refused("prompt", "there is nothing in it to answer")
    turns = Turns()
    turns.instruct(string_field(fields, "system", struct))
    turns.say("user", [*_images(fields, struct, ""), text_block(prompt)], "prompt")
    return _draft(fields, struct, turns, [])


def _draft(fields: JsonObject, struct: str, turns: Turns, tools: list[JsonValue]) -> Draft:
    for name in ("logprobs", "_debug_render_only"):
        if bool_field(fields, name, struct):
            raise refused(name)
    options = object_field(fields, "options", struct, "map[string]interface {}")
    stop = lookup(options, "stop")
    if stop is not None and not isinstance(stop, list):
        raise BadRequest('option "stop" must be of type array')
    limit = lookup(options, "num_predict")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise BadRequest('option "num_predict" must be of type integer')
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        limit_tokens=None if limit is None else int(min(limit, MAX_INT)),
        stop=stop_texts(stop, "options.stop"),
        wanted=_format(lookup(fields, "format")),
    )


def _format(wanted: JsonValue) -> JsonValue:
    if wanted in (None, "", "json"):
        return wanted or None
    if isinstance(wanted, dict):
        return wanted or "json"
    raise refused("format", 'give "json" or a JSON schema object')


def _add(turns: Turns, message: JsonObject, where: str) -> None:
    role = string_field(message, "role", "Message")
    text = string_field(message, "content", "ChatRequest.messages")
    blocks = [*_images(message, "Message", f"{where}."), *([text_block(text)] if text else [])]
    if role == "system":
        if len(blocks) > bool(text):
            raise refused(f"{where}.images", "only text can stand in a system message")
        turns.instruct(text)
    elif role == "tool":
        turns.result(string_field(message, "tool_call_id", "Message"), string_field(message, "tool_name", "Message"), blocks, where)
    elif role in ("user", "assistant"):
        turns.say(role, blocks, where)
        if role == "assistant":
            _add_calls(turns, message, where)
    else:
        raise refused(f"{where}.role", "it is system, user, assistant or tool")


def _add_calls(turns: Turns, message: JsonObject, where: str) -> None:
    for index, call in enumerate(array_field(message, "tool_calls", "Message", "[]api.ToolCall")):
        place = f"{where}.tool_calls[{index}]"
        function = lookup(call, "function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise refused(place, "give an object with a function")
        arguments = arguments_in(lookup(function, "arguments") or {}, f"{place}.function.arguments")
        turns.call(string_field(call, "id", "ToolCall"), string_field(function, "name", "ToolCallFunction"), arguments, place)


def _images(fields: JsonObject, struct: str, where: str) -> list[JsonValue]:
    images = array_field(fields, "images", struct, "[]api.ImageData")
    blocks: list[JsonValue] = []
    for index, image in enumerate(images):
        if not isinstance(image, str):
            raise refused(f"{where}images[{index}]", f"give base64 text, or {LOCAL}")
        blocks.append(image_block(image, f"{where}images[{index}]"))
    return blocks
