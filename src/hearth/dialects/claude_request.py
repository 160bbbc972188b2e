"""A request for Claude: what a body of any dialect becomes as parameters of Anthropic's `POST
/v1/messages`.

Must never leave out what would change the meaning of an answer: that is refused. What cannot change
it much, and is not read here, is left out. The rules, for callers: docs/http-api/claude.md. Source:
Anthropic's reference, version 2026-10-21.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TypeAlias

from hearth.dialects.claude_blocks import (
    Turns,
    arguments_in,
    content_blocks,
    function_tools,
    image_block,
    refused,
    strict_schema,
    text_block,
    tool_choice,
)
from hearth.dialects.gojson import MAX_INT, Body, JsonObject, JsonValue, decode
from hearth.dialects.request import messages_of
from hearth.dialects.responses_writer import RESPONSE_REPEATS
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BadRequest, Untranslatable
from hearth.types import Dialect, JsonMapping, frozen

_ONLY_JSON = (
    "Answer with one JSON object and with nothing else: no words before or after it, and no code"
    " fence around it."
)
"""Any JSON object is a wish that structured outputs cannot express, and newer models refuse a
forced tool.
"""
_ROLES: Mapping[Endpoint, tuple[str, ...]] = MappingProxyType(
    {
        Endpoint.CHAT: ("system", "user", "assistant", "tool"),
        Endpoint.OPENAI_CHAT: ("system", "developer", "user", "assistant", "tool"),
        Endpoint.OPENAI_RESPONSES: ("system", "developer", "user", "assistant"),
    }
)
_OWN_TOOLS = ("bash_", "text_editor_", "memory_")
"""Anthropic's tools that run at the caller's: they cost nothing but their tokens."""
_BLOCKS = (
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
)
_SIZED_SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"image": ("base64",), "document": ("content", "text")}
)
"""Sources whose tokens can be bounded: not an address, not a stored file, not the pages of a
PDF.
"""


@frozen
class ClaudeRequest:
    """What to send, and what the answer has to know of the request.

    Attributes:
        body: parameters of `POST /v1/messages` without `model` and `stream`; always with `messages`
        and `max_tokens`, never with
            `temperature`, `top_p` and `top_k`: version 2026-10-21 of the API refuses them at any
            value.
        streaming: what the caller wants; Claude itself is always asked for a stream. max_tokens:
        the output limit in `body`. json_text: the answer is meant to be bare JSON without a schema;
        code fences around it are taken off. include_usage: OpenAI's `stream_options.include_usage`.
        asked: fields that a Responses answer repeats.
    """

    body: JsonMapping
    streaming: bool
    max_tokens: int
    json_text: bool = False
    include_usage: bool = False
    asked: Mapping[str, JsonValue] = field(default_factory=dict)


def claude_request(path: str, body: bytes, *, default_max_tokens: int) -> ClaudeRequest:
    """What Claude is to be asked for a request to `path`; the default limit is for who gives none,
    a negative one, or 0.

    Raises:
        Untranslatable: the request wants something that Claude cannot do; says which field, and
        what to do. BadRequest: the body is malformed.
    """
    route = INFERENCE_ROUTES.get(path)
    if route is None or route.kind != "generate":
        raise Untranslatable("Claude makes no embeddings: ask a local embedding model")
    asked = Body(decode(body))
    streaming = asked.flag("stream", default=route.is_native)
    parameters, json_text = _READERS[route.dialect](asked, route.path)
    limit = parameters["max_tokens"]
    thinking = parameters.get("thinking")
    max_tokens = limit if isinstance(limit, int) and limit > 0 else default_max_tokens
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if isinstance(budget, int) and budget >= max_tokens:
        raise refused(
            "thinking.budget_tokens",
            f"it must be less than the output limit, which is {max_tokens} tokens here",
        )
    return ClaudeRequest(
        body={**parameters, "max_tokens": max_tokens},
        streaming=streaming,
        max_tokens=max_tokens,
        json_text=json_text,
        include_usage=route.dialect == "openai"
        and asked.object("stream_options").flag("include_usage"),
        asked={name: asked.get(name) for name in RESPONSE_REPEATS},
    )


_Parameters: TypeAlias = tuple[JsonObject, bool]
"""For Claude, with the caller's own limit of the output (None or at most 0 without one); and
whether any JSON object is wanted.
"""


def _parameters(
    limit: int | None,
    messages: list[JsonValue],
    system: list[JsonValue],
    *,
    wanted: JsonValue = None,
    **others: JsonValue,
) -> _Parameters:
    """`wanted` is `"json"` for any JSON object, a JSON schema, or None for text; `others` go on
    where they say anything.
    """
    parameters: JsonObject = {"max_tokens": limit, "messages": messages}
    if wanted == "json":
        system = [*system, text_block(_ONLY_JSON)]
    elif wanted is not None:
        others["output_config"] = {
            "format": {"type": "json_schema", "schema": strict_schema(wanted, "schema")}
        }
    parameters |= {
        name: value
        for name, value in {"system": system, **others}.items()
        if value not in (None, [])
    }
    return parameters, wanted == "json"


def _of_turns(
    limit: int | None,
    turns: Turns,
    tools: list[JsonValue],
    choice: JsonObject | None,
    *,
    wanted: JsonValue = None,
    stop: Sequence[str] = (),
) -> _Parameters:
    """A conversation that has called tools and offers none any more gets stand-ins for them, which
    it must not call.
    """
    called = turns.stand_ins
    choice = choice if tools else {"type": "none"} if called else None
    return _parameters(
        limit,
        turns.messages,
        turns.system,
        wanted=wanted,
        tools=tools or called,
        tool_choice=choice,
        stop_sequences=[*stop],
    )


def _native(body: Body, endpoint: Endpoint) -> _Parameters:
    """`/api/chat`, and `/api/generate`, whose prompt is one user message."""
    if endpoint is Endpoint.CHAT:
        turns = _turns_of(body, endpoint)
        tools = function_tools(body.array("tools"))
    else:
        for name in ("context", "suffix", "template", "raw"):
            if body.get(name):
                raise refused(name)
        turns = Turns()
        tools = []
        prompt = _prompt(body)
        turns.instruct(body.string("system"))
        turns.say("user", [*_images(body, ""), text_block(prompt)], "prompt")
    for name in ("logprobs", "_debug_render_only"):
        if body.flag(name):
            raise refused(name)
    options = body.object("options")
    wanted = body.get("format")
    stop = options.get("stop")
    limit = options.get("num_predict")
    if stop is not None and not isinstance(stop, list):
        raise BadRequest('option "stop" must be of type array')
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise BadRequest('option "num_predict" must be of type integer')
    if not (wanted is None or wanted in ("", "json") or isinstance(wanted, dict)):
        raise refused("format", 'give "json" or a JSON schema object')
    limit_tokens = None if limit is None else int(min(limit, MAX_INT))
    wanted = "json" if wanted == {} else wanted or None
    return _of_turns(
        limit_tokens, turns, tools, None, wanted=wanted, stop=_stop_texts(stop, "options.stop")
    )


def _openai(body: Body, endpoint: Endpoint) -> _Parameters:
    """`/v1/chat/completions`, and `/v1/completions`, whose prompt is one user message."""
    if endpoint is Endpoint.OPENAI_RESPONSES:
        return _response(body)
    choice = None
    wanted = None
    if endpoint is Endpoint.OPENAI_CHAT:
        for name in ("functions", "function_call"):
            if body.get(name) is not None:
                raise refused(name, "OpenAI has replaced it; use `tools` and `tool_choice`")
        if body.flag("logprobs"):
            raise refused("logprobs")
        turns = _turns_of(body, endpoint)
        tools = function_tools(body.array("tools"))
        choice = tool_choice(
            body.get("tool_choice"), body.get("parallel_tool_calls"), "tool_choice"
        )
        wanted = _response_format(body.object("response_format"), "response_format")
    else:
        for name in ("suffix", "logprobs", "echo"):
            value = body.get(name)
            if value is not None and value is not False and value != "":
                raise refused(name)
        if (body.integer("best_of") or 1) > 1:
            raise refused("best_of", "only one answer per request is supported")
        turns = Turns()
        tools = []
        turns.say("user", [text_block(_prompt(body))], "prompt")
    if (body.integer("n") or 1) > 1:
        raise refused("n", "only one answer per request is supported")
    limit = body.integer("max_completion_tokens")
    limit_before = body.integer("max_tokens")
    stop = _stop_texts(body.get("stop"), "stop")
    return _of_turns(
        limit_before if limit is None else limit, turns, tools, choice, wanted=wanted, stop=stop
    )


def _response(body: Body) -> _Parameters:
    """`/v1/responses`."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if body.get(name) is not None:
            raise refused(
                name, "conversations are not stored; send the whole conversation as `input`"
            )
    if body.flag("background"):
        raise refused("background", "background requests are not supported; leave it out")
    turns = Turns()
    turns.instruct(body.string("instructions"))
    _add_input(turns, body.get("input"))
    tools = function_tools(body.array("tools"), nested=False)
    limit = body.integer("max_output_tokens")
    choice = tool_choice(body.get("tool_choice"), body.get("parallel_tool_calls"), "tool_choice")
    return _of_turns(
        limit,
        turns,
        tools,
        choice,
        wanted=_response_format(body.object("text").object("format"), "text.format"),
    )


def _add_input(turns: Turns, given: JsonValue) -> None:
    if isinstance(given, str):
        turns.say("user", [text_block(given)], "input")
        return
    if not isinstance(given, list):
        raise refused("input", "give a text or a list of items")
    for index, one in enumerate(given):
        where = f"input[{index}]"
        if not isinstance(one, dict):
            raise refused(where, "give an object with a type")
        item = Body(one)
        match item.get("type"):
            case None | "message":
                _add_message(turns, item, where, Endpoint.OPENAI_RESPONSES)
            case "function_call":
                arguments = arguments_in(item.get("arguments"), f"{where}.arguments")
                turns.call(item.string("call_id"), item.string("name"), arguments, where)
            case "function_call_output":
                turns.result(
                    item.string("call_id"),
                    "",
                    content_blocks(item.get("output"), f"{where}.output"),
                    where,
                )
            case "reasoning":
                pass
            case _:
                raise refused(
                    f"{where}.type", "only messages, function calls and their outputs are supported"
                )


def _turns_of(body: Body, endpoint: Endpoint) -> Turns:
    turns = Turns()
    for index, message in enumerate(messages_of(body)):
        _add_message(turns, message, f"messages[{index}]", endpoint)
    return turns


def _add_message(turns: Turns, message: Body, where: str, endpoint: Endpoint) -> None:
    native = endpoint is Endpoint.CHAT
    roles = _ROLES[endpoint]
    role = message.string("role") or ("user" if endpoint is Endpoint.OPENAI_RESPONSES else "")
    if role not in roles:
        raise refused(f"{where}.role", f"it is {', '.join(roles[:-1])} or {roles[-1]}")
    if native:
        text = message.string("content")
        blocks = [*_images(message, f"{where}."), *([text_block(text)] if text else [])]
    else:
        blocks = content_blocks(message.get("content"), f"{where}.content")
    instructs = role in ("system", "developer")
    if instructs or (role == "assistant" and endpoint is Endpoint.OPENAI_CHAT):
        if any(block["type"] != "text" for block in blocks):
            place, advice = (
                ("images", "a system message can only contain text")
                if native
                else ("content", "only text is supported here")
            )
            raise refused(f"{where}.{place}", advice)
        blocks = [text_block("".join(str(block["text"]) for block in blocks))]
    if instructs:
        turns.instruct(str(blocks[0]["text"]))
    elif role == "tool":
        turns.result(
            message.string("tool_call_id"),
            message.string("tool_name") if native else "",
            blocks,
            where,
        )
    else:
        turns.say(role, blocks, where)
        if role == "assistant" and endpoint is not Endpoint.OPENAI_RESPONSES:
            for index, call in enumerate(message.objects("tool_calls")):
                place = f"{where}.tool_calls[{index}]"
                function = call.object("function")
                if not function.fields:
                    raise refused(place, "give an object with a function")
                arguments = arguments_in(function.get("arguments"), f"{place}.function.arguments")
                turns.call(call.string("id"), function.string("name"), arguments, place)


def _images(body: Body, where: str) -> list[JsonObject]:
    return [
        image_block(image, f"{where}images[{index}]")
        for index, image in enumerate(body.array("images"))
    ]


def _prompt(body: Body) -> str:
    prompt = body.string("prompt")
    if not prompt.strip():
        raise refused("prompt", "there is nothing in it to answer")
    return prompt


def _response_format(given: Body, where: str) -> JsonValue:
    """`"json"`, a schema, or None for text, from a `response_format` or a Responses
    `text.format`.
    """
    kind = given.get("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return "json"
    described = given.get("json_schema")
    schema = (Body(described) if isinstance(described, dict) else given).get("schema")
    if kind != "json_schema" or not isinstance(schema, dict):
        raise refused(where, "its type is text, json_object, or json_schema with a schema")
    return schema


def _stop_texts(value: JsonValue, where: str) -> list[str]:
    """The texts that end an answer, from one or a list of them; empty ones do nothing, and Claude
    refuses white space.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    texts = [text for text in listed if isinstance(text, str)]
    if len(texts) != len(listed):
        raise refused(where, "give a text or a list of texts")
    if any(text and not text.strip() for text in texts):
        raise refused(
            where,
            "a stop text of only white space is not supported; use one with a letter in it, or ask"
            " a local model",
        )
    return [text for text in texts if text]


def _messages(body: Body, _: Endpoint) -> _Parameters:
    """`/v1/messages`: the caller's words, without what would cost more than the gateway can
    foresee. The caller believes to speak to Ollama, so the history may hold what only Ollama says
    (thinking without a signature).
    """
    for name in ("container", "mcp_servers", "fallbacks"):
        if body.get(name) is not None:
            raise refused(name)
    limit = body.integer("max_tokens")
    if limit is None or limit <= 0:
        raise BadRequest("max_tokens is required and must be positive")
    messages, late_system = _own_messages(body)
    given = body.get("system")
    system: list[JsonValue] = (
        given if isinstance(given, list) else [text_block(given)] if isinstance(given, str) else []
    )
    system = _blocks(system, "system", role="system") + late_system
    tools: JsonValue = [
        _own_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.array("tools"))
    ]
    objects: JsonObject = {
        name: _object(body, name)
        for name in ("tool_choice", "thinking", "output_config", "cache_control")
    }
    objects["tool_choice"] = objects["tool_choice"] if tools else None
    stop: JsonValue = [*_stop_texts(body.get("stop_sequences"), "stop_sequences")]
    return _parameters(limit, messages, system, tools=tools, stop_sequences=stop, **objects)


def _object(body: Body, name: str) -> JsonObject | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise refused(name, "give an object")
    return value


def _own_messages(body: Body) -> tuple[list[JsonValue], list[JsonValue]]:
    """The turns, and what system messages among them say: not every model takes them there."""
    kept: list[JsonValue] = []
    system: list[JsonValue] = []
    for index, message in enumerate(messages_of(body)):
        where = f"messages[{index}]"
        role = message.string("role")
        content = message.get("content")
        blocks: JsonValue = [text_block(content)] if isinstance(content, str) else content
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
    if (
        not isinstance(block, dict)
        or not isinstance(kind, str)
        or kind not in _BLOCKS
        or (role == "system" and kind != "text")
    ):
        raise refused(where, "this kind of content is not supported")
    if kind == "text":
        if not Body(block).string("text").strip():
            return None
        return (
            {key: value for key, value in block.items() if key != "citations"}
            if role == "user"
            else block
        )
    if kind == "thinking":
        return block if block.get("signature") and isinstance(block.get("signature"), str) else None
    if kind in _SIZED_SOURCES:
        _check_source(block, _SIZED_SOURCES[kind], f"{where}.source")
    content = block.get("content")
    if kind == "tool_result" and isinstance(content, list):
        return {**block, "content": _blocks(content, f"{where}.content", role="user")}
    return block


def _check_source(block: JsonObject, forms: tuple[str, ...], where: str) -> None:
    source = block.get("source")
    if not isinstance(source, dict) or source.get("type") not in forms:
        raise refused(
            where, f"its cost cannot be known in advance; send it as {' or '.join(forms)}"
        )
    inner = source.get("content")
    if isinstance(inner, list):
        _blocks(inner, f"{where}.content", role="user")


def _own_tool(tool: JsonValue, where: str) -> JsonValue:
    if not isinstance(tool, dict):
        raise refused(where, "give an object")
    kind = tool.get("type")
    if kind is None or kind == "custom" or (isinstance(kind, str) and kind.startswith(_OWN_TOOLS)):
        return tool
    raise refused(
        where,
        "the cost of a tool that runs on Anthropic's servers cannot be known in advance; remove it",
    )


_READERS: Mapping[Dialect, Callable[[Body, Endpoint], _Parameters]] = MappingProxyType(
    {"ollama": _native, "openai": _openai, "anthropic": _messages}
)
