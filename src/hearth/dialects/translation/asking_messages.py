"""A request of Anthropic's Messages as one of OpenAI's chat.

Left out is what does not reach a model's text, or only Anthropic's own servers can follow: cache
marks, metadata, the size of a thinking budget, context management, `is_error` of a tool's result,
and what else is in `_LEFT_OUT`.
Source: Anthropic's reference of `POST /v1/messages`, version 2026-10-21.
"""

from __future__ import annotations

from collections.abc import Sequence

from hearth.dialects.gojson import Body, JsonObject, JsonValue, encode
from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.parts import (
    Asked,
    ServerApi,
    going_on,
    image_part,
    refuse_others,
    refused,
    schema_format,
    streamed,
    thinking,
)
from hearth.types import without_none

_NOT_CARRIED = ("container", "mcp_servers")
_CARRIED = frozenset(
    {
        "max_tokens",
        "messages",
        "model",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        "system",
        "temperature",
        "thinking",
        "tool_choice",
        "tools",
        "top_k",
        "top_p",
    }
)
_LEFT_OUT = frozenset(
    {
        "betas",
        "billing_policy",
        "cache_control",
        "compaction",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
_THINKING = ("enabled", "adaptive", "disabled")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ROLES = ("user", "assistant", "system")


def asked_of_messages(body: Body, api: ServerApi) -> Asked:
    """See `asking.asked_of`."""
    for name in _NOT_CARRIED:
        if body.get(name):
            raise refused(name, "it runs on Anthropic's servers; leave it out")
    refuse_others(body, _CARRIED | _LEFT_OUT | {*_NOT_CARRIED})
    messages = [*_system(body.get("system")), *_messages(body, api)]
    wished = body.object("output_config")
    sampling = {name: body.get(name) for name in ("max_tokens", "temperature", "top_p")}
    asked: JsonObject = {
        "model": body.get("model"),
        "messages": [*messages],
        **without_none(sampling),
        **_top_k(body, api),
        **({"stop": stops} if (stops := body.array("stop_sequences")) else {}),
        **_tools(body),
        **_choice(body.object("tool_choice")),
        **_thinking(body, wished, api),
        **_format(wished.get("format") or body.get("output_format")),
        **streamed(),
        **going_on(messages, api, f"messages[{len(body.array('messages')) - 1}].role"),
    }
    return Asked(path=Endpoint.OPENAI_CHAT, fields=asked)


def _top_k(body: Body, api: ServerApi) -> JsonObject:
    wanted = body.get("top_k")
    if wanted is None:
        return {}
    if "top_k" not in api.options:
        raise refused("top_k", "it has no such option")
    return {api.options["top_k"]: wanted}


def _system(given: JsonValue) -> list[JsonObject]:
    if isinstance(given, str) or given is None:
        return [{"role": "system", "content": given}] if given else []
    blocks = given if isinstance(given, list) else [given]
    texts = [_text(Body(block), f"system[{place}]") for place, block in enumerate(blocks)]
    return [{"role": "system", "content": "".join(texts)}] if texts else []


def _text(block: Body, where: str) -> str:
    if block.get("type") != "text":
        raise refused(f"{where}.type", "it can only be text here")
    return block.string("text")


def _messages(body: Body, api: ServerApi) -> list[JsonObject]:
    turns: list[JsonObject] = []
    for place, message in enumerate(body.objects("messages")):
        where = f"messages[{place}]"
        role = message.string("role")
        if role not in _ROLES:
            raise refused(f"{where}.role", f"give one of {', '.join(_ROLES)}")
        content = message.get("content")
        if isinstance(content, str):
            turns.append({"role": role, "content": content})
        else:
            blocks = message.objects("content")
            turns += _turns(role, blocks, f"{where}.content", api)
    return turns


def _turns(role: str, blocks: Sequence[Body], where: str, api: ServerApi) -> list[JsonObject]:
    """The answers of tools first: OpenAI wants them right behind their calls."""
    parts: list[JsonObject] = []
    thoughts = ""
    calls: list[JsonValue] = []
    results: list[JsonObject] = []
    for place, block in enumerate(blocks):
        at_ = f"{where}[{place}]"
        match block.get("type"):
            case "thinking":
                thoughts += block.string("thinking")
            case "tool_use":
                calls.append(_call(block))
            case "tool_result":
                results.append(_result(block, at_))
            case _:
                parts += _parts(block, at_)
    turn: JsonObject = {"role": role, "content": content_of(parts)}
    turn |= {api.thoughts: thoughts} if thoughts else {}
    turn |= {"tool_calls": calls} if calls else {}
    said = parts or len(turn) > 2
    return [*results, *([turn] if said else [])]


def content_of(parts: Sequence[JsonObject]) -> JsonValue:
    """A content: a plain text where it is nothing else, since some servers take no parts."""
    if any(part["type"] != "text" for part in parts):
        return [*parts]
    return "".join([str(part["text"]) for part in parts])


def _call(block: Body) -> JsonObject:
    written = encode(block.map("input")).decode()
    function: JsonObject = {"name": block.get("name"), "arguments": written}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(block: Body, where: str) -> JsonObject:
    parts = _content(block.get("content"), f"{where}.content")
    return {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id"),
        "content": content_of(parts),
    }


def _parts(block: Body, where: str) -> list[JsonObject]:
    """What a block says, as parts of a content."""
    kind = block.get("type")
    if kind == "text":
        return [{"type": "text", "text": block.string("text")}]
    if kind not in ("image", "document"):
        raise refused(
            f"{where}.type", "it knows texts, images, thoughts, tool calls and their results"
        )
    for name in ("title", "context", "citations"):
        wish = block.get(name)
        if kind == "document" and wish and wish != {"enabled": False}:
            raise refused(f"{where}.{name}", "write it into the text")
    source = block.object("source")
    match kind, source.get("type"):
        case "document", "text":
            return [{"type": "text", "text": source.string("data")}]
        case "document", "content":
            return _content(source.get("content"), f"{where}.source.content")
        case "image", "base64":
            media = source.string("media_type")
            return [image_part(f"data:{media};base64,{source.string('data')}")]
        case "image", "url":
            return [image_part(source.string("url"))]
    raise refused(f"{where}.source", "give base64 of an image, or plain text")


def _content(given: JsonValue, where: str) -> list[JsonObject]:
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    blocks = Body({"content": given}).objects("content")
    return [
        part for place, block in enumerate(blocks) for part in _parts(block, f"{where}[{place}]")
    ]


def _tools(body: Body) -> JsonObject:
    tools: list[JsonValue] = []
    for place, tool in enumerate(body.objects("tools")):
        if tool.get("type") not in (None, "custom"):
            raise refused(f"tools[{place}].type", "only tools that the caller runs are supported")
        if tool.get("input_examples"):
            raise refused(f"tools[{place}].input_examples", "write them into the description")
        described = {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
            "strict": tool.get("strict"),
        }
        tools.append({"type": "function", "function": without_none(described)})
    return {"tools": tools} if tools else {}


def _choice(choice: Body) -> JsonObject:
    kind = choice.string("type")
    alone: JsonObject = (
        {"parallel_tool_calls": False} if choice.flag("disable_parallel_tool_use") else {}
    )
    if not kind:
        return alone
    if kind == "tool":
        function: JsonObject = {"name": choice.get("name")}
        return {"tool_choice": {"type": "function", "function": function}, **alone}
    if kind not in _CHOICES:
        raise refused("tool_choice.type", "give auto, any, tool or none")
    return {"tool_choice": _CHOICES[kind], **alone}


def _thinking(body: Body, wished: Body, api: ServerApi) -> JsonObject:
    kind = body.object("thinking").get("type")
    if kind not in (None, *_THINKING):
        raise refused("thinking.type", f"give one of {', '.join(_THINKING)}")
    effort = wished.get("effort")
    if kind == "disabled":
        return thinking(wish=False, api=api, where="thinking.type")
    if effort is not None:
        return thinking(effort, api, "output_config.effort")
    return {} if kind is None else thinking(wish=True, api=api, where="thinking.type")


def _format(given: JsonValue) -> JsonObject:
    if given is None:
        return {}
    wanted = Body(given)
    schema = wanted.map("schema")
    if wanted.get("type") != "json_schema" or not schema:
        raise refused("output_config.format", "its type is json_schema, with a schema")
    return schema_format(schema)
