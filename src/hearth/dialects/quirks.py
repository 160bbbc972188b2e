"""Habits of well-known clients that would cost a home its one GPU: what they look like in a body, and the smallest change that mends them.

Must never guess: what is not recognised for certain is left alone. docs/clients/ tells owners what each client does and what becomes of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from hearth.dialects.gojson import JsonObject, JsonValue, decode, encode, lookup, spellings, struct_of
from hearth.dialects.routes import Endpoint, Route

_ATTRIBUTION = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n*")
"""Claude Code's line of version, entry point and a checksum that differs with every request (ggml-org/llama.cpp pull request 20623)."""

BACKGROUND_MARK = b"### Task:"
"""In the body of every background task: most bodies need no closer look."""
_TASK = "### Task:\n"
_HISTORY = "<chat_history>"


class BackgroundTask(StrEnum):
    """What Open WebUI asks for on its own account, after it has shown an answer."""

    TITLE = "title"
    TAGS = "tags"
    FOLLOW_UPS = "follow_ups"


_ANSWERS: Mapping[str, BackgroundTask] = MappingProxyType(
    {'{ "title":': BackgroundTask.TITLE, '{ "tags":': BackgroundTask.TAGS, '{ "follow_ups":': BackgroundTask.FOLLOW_UPS}
)
"""The JSON that each of Open WebUI's default prompts asks for (backend/open_webui/config.py)."""


def background_task(route: Route, fields: JsonObject) -> BackgroundTask | None:
    """The background task a chat body carries: one user message made from Open WebUI's default prompts, nothing but system ones beside it.

    Open WebUI marks the task in `metadata`, which it takes out before it sends a request, so only the prompt is left to tell it by. A
    prompt that the owner has replaced by another is recognised where it keeps the first line, the wanted JSON and `<chat_history>`.
    """
    if route.path not in {Endpoint.CHAT, Endpoint.OPENAI_CHAT}:
        return None
    messages = lookup(fields, "messages")
    prompt = _only_prompt(messages if isinstance(messages, list) else [])
    if prompt is None or not prompt.startswith(_TASK):
        return None
    asked, history, _ = prompt.partition(_HISTORY)
    return next((task for answer, task in _ANSWERS.items() if answer in asked), None) if history else None


def _only_prompt(messages: list[JsonValue]) -> str | None:
    spoken = [message for message in messages if isinstance(message, dict) and lookup(message, "role") != "system"]
    if len(spoken) != 1 or lookup(spoken[0], "role") != "user":
        return None
    content = lookup(spoken[0], "content")
    return content if isinstance(content, str) else None


def without_attribution(fields: JsonObject) -> JsonObject:
    """The fields of a Messages body without Claude Code's attribution line; the very same object where there is none.

    The line opens the system prompt and changes with every request, so no two turns share a prefix and every turn is processed from its
    first token again. A block that holds nothing else is dropped, and the whole `system` where nothing else is left.
    """
    names = spellings(fields, "system")
    kept = {key: _unattributed(value) if key in names else value for key, value in fields.items()}
    if kept == fields:
        return fields
    return {key: value for key, value in kept.items() if value == fields[key] or value not in ("", [])}


def _unattributed(system: JsonValue) -> JsonValue:
    if isinstance(system, str):
        return _ATTRIBUTION.sub("", system)
    if not isinstance(system, list):
        return system
    blocks = [_unattributed_block(block) for block in system]
    return [new for new, old in zip(blocks, system, strict=True) if new == old or not _is_empty(new)]


def _unattributed_block(block: JsonValue) -> JsonValue:
    if not isinstance(block, dict):
        return block
    text = block.get("text")
    return {**block, "text": _ATTRIBUTION.sub("", text)} if isinstance(text, str) else block


def _is_empty(block: JsonValue) -> bool:
    return isinstance(block, dict) and block.get("text") == ""


def on_model(body: bytes, model: str) -> bytes:
    """The same request for another model. `body` must have been read by `read_envelope` before."""
    fields = struct_of(decode(body), "")
    names = spellings(fields, "model")
    return encode({key: model if key in names else value for key, value in fields.items()})
