"""What a request in Ollama's or OpenAI's dialect asks Claude for. Each reader raises Untranslatable, and BadRequest in Ollama's words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearth.dialects.claude.request import Draft, Turns, content_blocks, image_block, refused, text_block
from hearth.dialects.claude.tools import arguments_in, function_tools, tool_choice
from hearth.dialects.gojson import (
    MAX_INT,
    JsonObject,
    JsonValue,
    array_field,
    bool_field,
    integer_field,
    lookup,
    object_field,
    string_field,
)
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.validation import messages_of
from hearth.dialects.writers import RESPONSE_REPEATS
from hearth.errors import BadRequest

_CHAT = "ChatCompletionRequest"
_RESPONSES = "ResponsesRequest"
_ITEM = "ResponsesInputItem"
_ROLES: Mapping[Endpoint, tuple[str, ...]] = MappingProxyType(
    {
        Endpoint.CHAT: ("system", "user", "assistant", "tool"),
        Endpoint.OPENAI_CHAT: ("system", "developer", "user", "assistant", "tool"),
        Endpoint.OPENAI_RESPONSES: ("system", "developer", "user", "assistant"),
    }
)


def chat_draft(fields: JsonObject) -> Draft:
    """`/api/chat`."""
    turns = _turns_of(fields, Endpoint.CHAT)
    return _native_draft(fields, "ChatRequest", turns, function_tools(array_field(fields, "tools", "ChatRequest", "api.Tools")))


def generate_draft(fields: JsonObject) -> Draft:
    """`/api/generate`: one prompt."""
    struct = "GenerateRequest"
    for name in ("context", "suffix", "template"):
        if lookup(fields, name):
            raise refused(name)
    if bool_field(fields, "raw", struct):
        raise refused("raw")
    turns = Turns()
    prompt = _prompt(fields, struct)
    turns.instruct(string_field(fields, "system", struct))
    turns.say("user", [*_images(fields, struct, ""), text_block(prompt)], "prompt")
    return _native_draft(fields, struct, turns, [])


def _native_draft(fields: JsonObject, struct: str, turns: Turns, tools: list[JsonValue]) -> Draft:
    for name in ("logprobs", "_debug_render_only"):
        if bool_field(fields, name, struct):
            raise refused(name)
    options = object_field(fields, "options", struct, "map[string]interface {}")
    stop, limit, wanted = lookup(options, "stop"), lookup(options, "num_predict"), lookup(fields, "format")
    if stop is not None and not isinstance(stop, list):
        raise BadRequest('option "stop" must be of type array')
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise BadRequest('option "num_predict" must be of type integer')
    if not (wanted is None or wanted in ("", "json") or isinstance(wanted, dict)):
        raise refused("format", 'give "json" or a JSON schema object')
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        limit_tokens=None if limit is None else int(min(limit, MAX_INT)),
        stop=stop_texts(stop, "options.stop"),
        wanted="json" if wanted == {} else wanted or None,
    )


def openai_chat_draft(fields: JsonObject) -> Draft:
    """`/v1/chat/completions`."""
    for name in ("functions", "function_call"):
        if lookup(fields, name) is not None:
            raise refused(name, "OpenAI has replaced it; use `tools` and `tool_choice`")
    if bool_field(fields, "logprobs", _CHAT):
        raise refused("logprobs")
    turns = _turns_of(fields, Endpoint.OPENAI_CHAT)
    tools = function_tools(array_field(fields, "tools", _CHAT, "[]api.Tool"))
    choice = tool_choice(lookup(fields, "tool_choice"), lookup(fields, "parallel_tool_calls"), "tool_choice")
    wanted = _response_format(object_field(fields, "response_format", _CHAT, "openai.ResponseFormat"), "response_format")
    return _openai_draft(fields, _CHAT, turns, tools=tools, choice=choice, wanted=wanted)


def completion_draft(fields: JsonObject) -> Draft:
    """`/v1/completions`: the prompt is one user message."""
    struct = "CompletionRequest"
    for name in ("suffix", "logprobs", "echo"):
        value = lookup(fields, name)
        if value is not None and value is not False and value != "":
            raise refused(name)
    if (integer_field(fields, "best_of", struct) or 1) > 1:
        raise refused("best_of", "one answer per request")
    turns = Turns()
    turns.say("user", [text_block(_prompt(fields, struct))], "prompt")
    return _openai_draft(fields, struct, turns, tools=[], choice=None, wanted=None)


def _openai_draft(
    fields: JsonObject, struct: str, turns: Turns, *, tools: list[JsonValue], choice: JsonObject | None, wanted: JsonValue
) -> Draft:
    if (integer_field(fields, "n", struct) or 1) > 1:
        raise refused("n", "one answer per request")
    limit = integer_field(fields, "max_completion_tokens", struct)
    stream_options = object_field(fields, "stream_options", struct, "openai.StreamOptions")
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        tool_choice=choice,
        limit_tokens=integer_field(fields, "max_tokens", struct) if limit is None else limit,
        stop=stop_texts(lookup(fields, "stop"), "stop"),
        wanted=wanted,
        include_usage=bool(bool_field(stream_options, "include_usage", "StreamOptions")),
    )


def response_draft(fields: JsonObject) -> Draft:
    """`/v1/responses`."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if lookup(fields, name) is not None:
            raise refused(name, "nothing is remembered between requests; send the whole conversation as `input`")
    if bool_field(fields, "background", _RESPONSES):
        raise refused("background", "ask in the foreground")
    turns = Turns()
    turns.instruct(string_field(fields, "instructions", _RESPONSES))
    _add_input(turns, lookup(fields, "input"))
    tools = function_tools(array_field(fields, "tools", _RESPONSES, "[]openai.ResponsesTool"), nested=False)
    text = object_field(fields, "text", _RESPONSES, "openai.ResponsesText")
    wanted = object_field(text, "format", "ResponsesText", "openai.ResponsesTextFormat")
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        tool_choice=tool_choice(lookup(fields, "tool_choice"), lookup(fields, "parallel_tool_calls"), "tool_choice"),
        limit_tokens=integer_field(fields, "max_output_tokens", _RESPONSES),
        wanted=_response_format(wanted, "text.format"),
        asked={name: lookup(fields, name) for name in RESPONSE_REPEATS},
    )


def _add_input(turns: Turns, given: JsonValue) -> None:
    if isinstance(given, str):
        turns.say("user", [text_block(given)], "input")
        return
    if not isinstance(given, list):
        raise refused("input", "give a text or a list of items")
    for index, item in enumerate(given):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise refused(where, "give an object with a type")
        match lookup(item, "type"):
            case None | "message":
                _add_message(turns, item, where, Endpoint.OPENAI_RESPONSES)
            case "function_call":
                arguments = arguments_in(lookup(item, "arguments"), f"{where}.arguments")
                turns.call(string_field(item, "call_id", _ITEM), string_field(item, "name", _ITEM), arguments, where)
            case "function_call_output":
                output = content_blocks(lookup(item, "output"), f"{where}.output")
                turns.result(string_field(item, "call_id", _ITEM), "", output, where)
            case "reasoning":
                pass
            case _:
                raise refused(f"{where}.type", "only messages, function calls and their outputs can be carried")


def _turns_of(fields: JsonObject, endpoint: Endpoint) -> Turns:
    turns = Turns()
    for index, message in enumerate(messages_of(INFERENCE_ROUTES[endpoint], fields)):
        if isinstance(message, dict):
            _add_message(turns, message, f"messages[{index}]", endpoint)
    return turns


def _add_message(turns: Turns, message: JsonObject, where: str, endpoint: Endpoint) -> None:
    native, roles = endpoint is Endpoint.CHAT, _ROLES[endpoint]
    role = string_field(message, "role", "Message") or ("user" if endpoint is Endpoint.OPENAI_RESPONSES else "")
    if role not in roles:
        raise refused(f"{where}.role", f"it is {', '.join(roles[:-1])} or {roles[-1]}")
    if native:
        text = string_field(message, "content", "ChatRequest.messages")
        blocks = [*_images(message, "Message", f"{where}."), *([text_block(text)] if text else [])]
    else:
        blocks = content_blocks(lookup(message, "content"), f"{where}.content")
    instructs = role in ("system", "developer")
    if instructs or (role == "assistant" and endpoint is Endpoint.OPENAI_CHAT):
        if any(block["type"] != "text" for block in blocks):
            place, advice = ("images", "only text can stand in a system message") if native else ("content", "only text can stand here")
            raise refused(f"{where}.{place}", advice)
        blocks = [text_block("".join(str(block["text"]) for block in blocks))]
    if instructs:
        turns.instruct(str(blocks[0]["text"]))
    elif role == "tool":
        name = string_field(message, "tool_name", "Message") if native else ""
        turns.result(string_field(message, "tool_call_id", "Message"), name, blocks, where)
    else:
        turns.say(role, blocks, where)
        if role == "assistant" and endpoint is not Endpoint.OPENAI_RESPONSES:
            _add_calls(turns, message, where, "[]api.ToolCall" if native else "[]openai.ToolCall")


def _add_calls(turns: Turns, message: JsonObject, where: str, go_type: str) -> None:
    for index, call in enumerate(array_field(message, "tool_calls", "Message", go_type)):
        place = f"{where}.tool_calls[{index}]"
        function = lookup(call, "function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise refused(place, "give an object with a function")
        arguments = arguments_in(lookup(function, "arguments"), f"{place}.function.arguments")
        turns.call(string_field(call, "id", "ToolCall"), string_field(function, "name", "ToolCallFunction"), arguments, place)


def _images(fields: JsonObject, struct: str, where: str) -> list[JsonObject]:
    images = array_field(fields, "images", struct, "[]api.ImageData")
    return [image_block(image, f"{where}images[{index}]") for index, image in enumerate(images)]


def _prompt(fields: JsonObject, struct: str) -> str:
    prompt = string_field(fields, "prompt", struct)
    if not prompt.strip():
        raise refused("prompt", "there is nothing in it to answer")
    return prompt


def _response_format(given: JsonObject, where: str) -> JsonValue:
    """`"json"`, a schema, or None for text, from a `response_format` or a Responses `text.format`."""
    kind = lookup(given, "type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return "json"
    described = lookup(given, "json_schema")
    schema = lookup(described if isinstance(described, dict) else given, "schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise refused(where, "its type is text, json_object, or json_schema with a schema")
    return schema


def stop_texts(value: JsonValue, where: str) -> list[str]:
    """The texts that end an answer, from one or a list of them; empty ones do nothing and are left out.

    Raises:
        Untranslatable: something else, or nothing but white space, which Claude refuses.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in listed if isinstance(text, str)]
    if len(texts) != len(listed):
        raise refused(where, "give a text or a list of texts")
    if any(text and not text.strip() for text in texts):
        raise refused(where, "a stop text of nothing but white space; use one with a letter in it, or ask a local model")
    return [text for text in texts if text]
