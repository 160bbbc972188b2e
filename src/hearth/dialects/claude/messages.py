"""Anthropic's own `/v1/messages` as a draft: the caller's words, without what would cost more than the gateway can foresee.

A caller of this address believes to speak to Ollama, so its history may hold what only Ollama says (thinking without a signature), and its
request what Ollama overlooks. Source: Anthropic's reference of `POST /v1/messages`, version 2026-10-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearth.dialects.claude.readers import stop_texts
from hearth.dialects.claude.request import Draft, refused, text_block
from hearth.dialects.gojson import Body, JsonObject, JsonValue
from hearth.dialects.validation import messages_of
from hearth.errors import BadRequest

_OWN_TOOLS = ("bash_", "text_editor_", "memory_")
"""Anthropic's tools that run at the caller's: they cost nothing but their tokens."""
_BLOCKS = ("text", "image", "document", "search_result", "thinking", "redacted_thinking", "tool_use", "tool_result")
_SIZED_SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType({"image": ("base64",), "document": ("content", "text")})
"""Sources whose tokens can be bounded: not an address, not a stored file, not the pages of a PDF."""


def messages_draft(body: Body) -> Draft:
    """A Messages request. Raises Untranslatable, and BadRequest."""
    for name in ("container", "mcp_servers", "fallbacks"):
        if body.get(name) is not None:
            raise refused(name)
    limit = body.integer("max_tokens")
    if limit is None or limit <= 0:
        raise BadRequest("max_tokens is required and must be positive")
    messages, late_system = _messages(body)
    given = body.get("system")
    system: list[JsonValue] = given if isinstance(given, list) else [text_block(given)] if isinstance(given, str) else []
    return Draft(
        messages=messages,
        system=_blocks(system, "system", role="system") + late_system,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.array("tools"))],
        tool_choice=_object(body, "tool_choice"),
        limit_tokens=limit,
        stop=stop_texts(body.get("stop_sequences"), "stop_sequences"),
        others={name: value for name in ("thinking", "output_config", "cache_control") if (value := _object(body, name)) is not None},
    )


def _object(body: Body, name: str) -> JsonObject | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise refused(name, "give an object")
    return value


def _messages(body: Body) -> tuple[list[JsonValue], list[JsonValue]]:
    """The turns, and what system messages among them say: not every model takes them there."""
    kept: list[JsonValue] = []
    system: list[JsonValue] = []
    for index, message in enumerate(messages_of(body)):
        where, role, content = f"messages[{index}]", message.string("role"), message.get("content")
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
    if not isinstance(block, dict) or not isinstance(kind, str) or kind not in _BLOCKS or (role == "system" and kind != "text"):
        raise refused(where, "this kind of content cannot be carried")
    if kind == "text":
        if not Body(block).string("text").strip():
            return None
        return {key: value for key, value in block.items() if key != "citations"} if role == "user" else block
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
        raise refused(where, f"what it costs could not be known beforehand; send it as {' or '.join(forms)}")
    inner = source.get("content")
    if isinstance(inner, list):
        _blocks(inner, f"{where}.content", role="user")


def _tool(tool: JsonValue, where: str) -> JsonValue:
    if not isinstance(tool, dict):
        raise refused(where, "give an object")
    kind = tool.get("type")
    if kind is None or kind == "custom" or (isinstance(kind, str) and kind.startswith(_OWN_TOOLS)):
        return tool
    raise refused(where, "a tool that runs on Anthropic's servers costs more than can be known beforehand; remove it")
