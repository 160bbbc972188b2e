"""OpenAI's `/v1/responses` as drafts for Claude: everything that is in the request itself, nothing that a server would have to remember.

Called by `asking`. Source: OpenAI's reference of the Responses API.
"""

from __future__ import annotations

from hearth.dialects.claude.content import content_blocks, plain_text, text_block
from hearth.dialects.claude.draft import Draft
from hearth.dialects.claude.from_openai import response_format
from hearth.dialects.claude.refusing import refused
from hearth.dialects.claude.tools import arguments_in, function_tools, tool_choice
from hearth.dialects.claude.turns import Turns
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
