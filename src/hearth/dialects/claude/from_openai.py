"""OpenAI's chat completions and responses, read as a request to Claude."""

from __future__ import annotations

from hearth.dialects.claude.request import Draft, Turns, content_blocks, plain_text, refused, stop_texts, text_block
from hearth.dialects.claude.tools import arguments_in, function_tools, tool_choice
from hearth.dialects.demands import messages_of
from hearth.dialects.gojson import (
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

_CHAT = "ChatCompletionRequest"


def chat_draft(fields: JsonObject) -> Draft:
    """A chat completion. Raises Untranslatable and GoJsonError."""
    for name in ("functions", "function_call"):
        if lookup(fields, name) is not None:
            raise refused(name, "OpenAI has replaced it; use `tools` and `tool_choice`")
    if bool_field(fields, "logprobs", _CHAT):
        raise refused("logprobs")
    turns = Turns()
    for index, message in enumerate(messages_of(INFERENCE_ROUTES[Endpoint.OPENAI_CHAT], fields)):
        if isinstance(message, dict):
            _add(turns, message, f"messages[{index}]")
    tools = function_tools(array_field(fields, "tools", _CHAT, "[]api.Tool"), nested=True)
    choice = tool_choice(lookup(fields, "tool_choice"), lookup(fields, "parallel_tool_calls"), "tool_choice")
    wanted = response_format(object_field(fields, "response_format", _CHAT, "openai.ResponseFormat"), "response_format")
    return _draft(fields, _CHAT, turns, tools=tools, choice=choice, wanted=wanted)


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
    return _draft(fields, struct, turns, tools=[], choice=None, wanted=None)


def _draft(fields: JsonObject, struct: str, turns: Turns, *, tools: list[JsonValue], choice: JsonObject | None, wanted: JsonValue) -> Draft:
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


def _add(turns: Turns, message: JsonObject, where: str) -> None:
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


_STRUCT = "ResponsesRequest"
_REMEMBERED = ("previous_response_id", "conversation", "prompt")
_REPEATED = ("instructions", "tools", "text", "temperature", "top_p", "max_output_tokens")


def response_draft(fields: JsonObject) -> Draft:
    """A response. Raises Untranslatable and GoJsonError."""
    for name in _REMEMBERED:
        if lookup(fields, name) is not None:
            raise refused(name, "nothing is remembered between requests; send the whole conversation as `input`")
    if bool_field(fields, "background", _STRUCT):
        raise refused("background", "ask in the foreground")
    turns = Turns()
    turns.instruct(string_field(fields, "instructions", _STRUCT))
    _add_input(turns, lookup(fields, "input"))
    tools = function_tools(array_field(fields, "tools", _STRUCT, "[]openai.ResponsesTool"), nested=False)
    text = object_field(fields, "text", _STRUCT, "openai.ResponsesText")
    wanted = object_field(text, "format", "ResponsesText", "openai.ResponsesTextFormat")
    return Draft(
        messages=turns.messages,
        system=turns.system,
        tools=tools,
        called=turns.stand_ins,
        tool_choice=tool_choice(lookup(fields, "tool_choice"), lookup(fields, "parallel_tool_calls"), "tool_choice"),
        limit_tokens=integer_field(fields, "max_output_tokens", _STRUCT),
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
