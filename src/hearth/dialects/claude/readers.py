"""What a request of each dialect asks Claude for.

Anthropic's own `/v1/messages` as a draft: the caller's words, without what would cost more than the gateway can foresee.

A caller of this address believes to speak to Ollama, so its history may hold what only Ollama says (thinking without a signature), and its
request what Ollama overlooks. Source: Anthropic's reference of `POST /v1/messages`, version 2026-10-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearth.dialects.claude.request import LOCAL, Draft, Turns, content_blocks, image_block, plain_text, refused, stop_texts, text_block
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
from hearth.errors import BadRequest

_STRUCT = "MessagesRequest"
_PASSED = ("thinking", "output_config", "cache_control")
_REFUSED = ("container", "mcp_servers", "fallbacks")
_OWN_TOOLS = ("bash_", "text_editor_", "memory_")
"""Anthropic's tools that run at the caller's: they cost nothing but their tokens."""

_BLOCKS = frozenset({"text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result"})
_SIZED_SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType({"image": ("base64",), "document": ("content", "text")})
"""Sources whose tokens can be bounded: not an address, not a stored file, not the pages of a PDF."""


def messages_draft(fields: JsonObject) -> Draft:
    """A Messages request. Raises Untranslatable and GoJsonError."""
    for name in _REFUSED:
        if lookup(fields, name) is not None:
            raise refused(name)
    limit = integer_field(fields, "max_tokens", _STRUCT)
    if limit is None or limit <= 0:
        raise BadRequest("max_tokens is required and must be positive")
    messages, system = _messages(fields)
    return Draft(
        messages=messages,
        system=_system(lookup(fields, "system")) + system,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(array_field(fields, "tools", _STRUCT, "[]anthropic.Tool"))],
        tool_choice=_object(fields, "tool_choice"),
        limit_tokens=limit,
        stop=stop_texts(lookup(fields, "stop_sequences"), "stop_sequences"),
        others={name: value for name in _PASSED if (value := _object(fields, name)) is not None},
    )


def _object(fields: JsonObject, name: str) -> JsonObject | None:
    value = lookup(fields, name)
    if value is not None and not isinstance(value, dict):
        raise refused(name, "give an object")
    return value


def _system(system: JsonValue) -> list[JsonValue]:
    if isinstance(system, list):
        return _blocks(system, "system", role="system")
    return _blocks([{"type": "text", "text": system}] if isinstance(system, str) else [], "system", role="system")


def _messages(fields: JsonObject) -> tuple[list[JsonValue], list[JsonValue]]:
    """The turns, and what system messages among them say: not every model takes them there."""
    kept: list[JsonValue] = []
    system: list[JsonValue] = []
    for index, message in enumerate(messages_of(INFERENCE_ROUTES[Endpoint.ANTHROPIC_MESSAGES], fields)):
        if not isinstance(message, dict):
            continue
        where, role = f"messages[{index}]", string_field(message, "role", "MessageParam")
        content = lookup(message, "content")
        blocks: JsonValue = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role not in ("user", "assistant", "system") or not isinstance(blocks, list):
            raise refused(where, "a message has a role (user or assistant) and a content")
        cleaned = _blocks(blocks, f"{where}.content", role=role)
        if role == "system":
            system += cleaned
        elif cleaned:
            kept.append({"role": role, "content": cleaned})
    if not kept:
        raise refused("messages", "there is nothing in it to answer")
    return kept, system


def _blocks(blocks: list[JsonValue], where: str, *, role: str) -> list[JsonValue]:
    cleaned = [_block(block, f"{where}[{index}]", role=role) for index, block in enumerate(blocks)]
    return [block for block in cleaned if block is not None]


def _block(block: JsonValue, where: str, *, role: str) -> JsonValue:
    """The block as Claude takes it; None for one that says nothing to it."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str) or kind not in _BLOCKS or (role == "system" and kind != "text"):
        raise refused(where, "this kind of content cannot be carried")
    if kind == "text":
        return _text(block, where, role=role)
    if kind == "thinking":
        return block if block.get("signature") and isinstance(block.get("signature"), str) else None
    if kind in _SIZED_SOURCES:
        _check_source(block, kind, where)
    content = block.get("content")
    if kind == "tool_result" and isinstance(content, list):
        return {**block, "content": _blocks(content, f"{where}.content", role="user")}
    return block


def _text(block: JsonObject, where: str, *, role: str) -> JsonValue:
    if not string_field(block, "text", where).strip():
        return None
    return {key: value for key, value in block.items() if key != "citations"} if role == "user" else block


def _check_source(block: JsonObject, kind: str, where: str) -> None:
    source = block.get("source")
    form = source.get("type") if isinstance(source, dict) else None
    if form not in _SIZED_SOURCES[kind]:
        forms = " or ".join(_SIZED_SOURCES[kind])
        raise refused(f"{where}.source", f"what it costs could not be known beforehand; send it as {forms}")
    inner = source.get("content") if isinstance(source, dict) else None
    if isinstance(inner, list):
        _blocks(inner, f"{where}.source.content", role="user")


def _tool(tool: JsonValue, where: str) -> JsonValue:
    if not isinstance(tool, dict):
        raise refused(where, "give an object")
    kind = tool.get("type")
    if kind is None or kind == "custom" or (isinstance(kind, str) and kind.startswith(_OWN_TOOLS)):
        return tool
    raise refused(where, "a tool that runs on Anthropic's servers costs more than can be known beforehand; remove it")


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


_CHAT = "ChatCompletionRequest"


def openai_chat_draft(fields: JsonObject) -> Draft:
    """A chat completion. Raises Untranslatable and GoJsonError."""
    for name in ("functions", "function_call"):
        if lookup(fields, name) is not None:
            raise refused(name, "OpenAI has replaced it; use `tools` and `tool_choice`")
    if bool_field(fields, "logprobs", _CHAT):
        raise refused("logprobs")
    turns = Turns()
    for index, message in enumerate(messages_of(INFERENCE_ROUTES[Endpoint.OPENAI_CHAT], fields)):
        if isinstance(message, dict):
            _add_openai(turns, message, f"messages[{index}]")
    tools = function_tools(array_field(fields, "tools", _CHAT, "[]api.Tool"), nested=True)
    choice = tool_choice(lookup(fields, "tool_choice"), lookup(fields, "parallel_tool_calls"), "tool_choice")
    wanted = response_format(object_field(fields, "response_format", _CHAT, "openai.ResponseFormat"), "response_format")
    return _openai_draft(fields, _CHAT, turns, tools=tools, choice=choice, wanted=wanted)


def completion_draft(fields: JsonObject) -> Draft:
    """A text completion: the prompt is one user message. Raises Untranslatable and GoJsonError."""
    struct = "CompletionRequest"
    for name in ("suffix", "logprobs", "echo"):
        value = lookup(fields, name)
        if value is not None and value is not False and value != "":
            raise refused(name)
    if (integer_field(fields, "best_of", struct) or 1) > 1:
        raise refused("best_of", "one answer per request")
    prompt = string_field(fields, "prompt", struct)
    if not prompt.strip():
        raise refused("prompt", "there is nothing in it to answer")
    turns = Turns()
    turns.say("user", [text_block(prompt)], "prompt")
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


def response_format(given_format: JsonObject, where: str) -> JsonValue:
    """`"json"`, a schema, or None for text, from a `response_format` or a Responses `text.format`.

    Raises:
        Untranslatable: another kind, or a schema that is missing.
    """
    kind = lookup(given_format, "type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return "json"
    described = lookup(given_format, "json_schema")
    schema = lookup(described if isinstance(described, dict) else given_format, "schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise refused(where, "its type is text, json_object, or json_schema with a schema")
    return schema


def _add_openai(turns: Turns, message: JsonObject, where: str) -> None:
    role, content = string_field(message, "role", "Message"), lookup(message, "content")
    place = f"{where}.content"
    if role in ("system", "developer"):
        turns.instruct(plain_text(content, place))
    elif role == "tool":
        turns.result(string_field(message, "tool_call_id", "Message"), "", content_blocks(content, place), where)
    elif role == "assistant":
        turns.say(role, [text_block(plain_text(content, place))], where)
        for index, call in enumerate(array_field(message, "tool_calls", "Message", "[]openai.ToolCall")):
            _add_call(turns, call, f"{where}.tool_calls[{index}]")
    elif role == "user":
        turns.say(role, content_blocks(content, place), where)
    else:
        raise refused(f"{where}.role", "it is system, developer, user, assistant or tool")


def _add_call(turns: Turns, call: JsonValue, where: str) -> None:
    function = lookup(call, "function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise refused(where, "give an object with a function")
    arguments = arguments_in(lookup(function, "arguments") or "", f"{where}.function.arguments")
    turns.call(string_field(call, "id", "ToolCall"), string_field(function, "name", "ToolCallFunction"), arguments, where)


_OPENAI_STRUCT = "ResponsesRequest"
_REMEMBERED = ("previous_response_id", "conversation", "prompt")
_REPEATED = ("instructions", "tools", "text", "temperature", "top_p", "max_output_tokens")


def response_draft(fields: JsonObject) -> Draft:
    """A response. Raises Untranslatable and GoJsonError."""
    for name in _REMEMBERED:
        if lookup(fields, name) is not None:
            raise refused(name, "nothing is remembered between requests; send the whole conversation as `input`")
    if bool_field(fields, "background", _OPENAI_STRUCT):
        raise refused("background", "ask in the foreground")
    turns = Turns()
    turns.instruct(string_field(fields, "instructions", _OPENAI_STRUCT))
    _add_input(turns, lookup(fields, "input"))
    tools = function_tools(array_field(fields, "tools", _OPENAI_STRUCT, "[]openai.ResponsesTool"), nested=False)
    text = object_field(fields, "text", _OPENAI_STRUCT, "openai.ResponsesText")
    wanted = object_field(text, "format", "ResponsesText", "openai.ResponsesTextFormat")
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        tool_choice=tool_choice(lookup(fields, "tool_choice"), lookup(fields, "parallel_tool_calls"), "tool_choice"),
        limit_tokens=integer_field(fields, "max_output_tokens", _OPENAI_STRUCT),
        wanted=response_format(wanted, "text.format"),
        asked={name: lookup(fields, name) for name in _REPEATED},
    )


def _add_input(turns: Turns, asked: JsonValue) -> None:
    if isinstance(asked, str):
        turns.say("user", [text_block(asked)], "input")
        return
    if not isinstance(asked, list):
        raise refused("input", "give a text or a list of items")
    for index, item in enumerate(asked):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise refused(where, "give an object with a type")
        _add_item(turns, item, where)


def _add_item(turns: Turns, item: JsonObject, where: str) -> None:
    kind = lookup(item, "type")
    if kind in (None, "message"):
        _add_message(turns, item, where)
    elif kind == "function_call":
        arguments = arguments_in(lookup(item, "arguments") or "", f"{where}.arguments")
        turns.call(string_field(item, "call_id", "ResponsesInputItem"), string_field(item, "name", "ResponsesInputItem"), arguments, where)
    elif kind == "function_call_output":
        output = content_blocks(lookup(item, "output"), f"{where}.output")
        turns.result(string_field(item, "call_id", "ResponsesInputItem"), "", output, where)
    elif kind != "reasoning":
        raise refused(f"{where}.type", "only messages, function calls and their outputs can be carried")


def _add_message(turns: Turns, item: JsonObject, where: str) -> None:
    role, content, place = string_field(item, "role", "ResponsesInputItem") or "user", lookup(item, "content"), f"{where}.content"
    if role in ("system", "developer"):
        turns.instruct(plain_text(content, place))
    elif role in ("user", "assistant"):
        turns.say(role, content_blocks(content, place), where)
    else:
        raise refused(f"{where}.role", "it is system, developer, user or assistant")
