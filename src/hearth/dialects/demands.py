"""What each inference route demands of a body before Ollama would look for the model.

Refusing here what Ollama would refuse anyway keeps broken requests out of the queue and from forcing a swap. Must never demand more than
Ollama does, apart from the two limits named here. Texts and their order: Ollama's handlers (server/routes.go) and middleware
(middleware/openai.go, middleware/anthropic.go).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from hearth.dialects.gojson import JsonObject, JsonValue, array_field, bool_field, integer_field, lookup, mismatch, string_field
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import BadRequest, HearthError, ModelNotFound
from hearth.types import Dialect, WorkKind

MAX_ITEMS = 10_000
"""Most messages or inputs in one body."""

MAX_NAME_CHARS = 256
"""Longest model name."""

MODEL_REQUIRED = "model is required"
INVALID_NAME = "invalid model name"
INVALID_INPUT = "invalid input type"

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_MODEL_NAME = re.compile(
    rf"(?:(?:(?:[^/]*://)?[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,349}}/)?[A-Za-z0-9_][A-Za-z0-9_-]{{0,79}}/)?{_PART}(?::{_PART})?"
)


def is_model_name(name: str) -> bool:
    """Whether Ollama can parse `name` as `[host/][namespace/]model[:tag]` (types/model/name.go)."""
    return len(name) <= MAX_NAME_CHARS and _parses(name)


@lru_cache(maxsize=256)
def _parses(name: str) -> bool:
    """Houses have few models: a name is looked at once, and not with every request."""
    return _MODEL_NAME.fullmatch(name) is not None


def check_request(route: Route, fields: JsonObject) -> str:
    """The model a body names, once everything the route demands is there.

    Raises:
        BadRequest, ModelNotFound: with the text Ollama answers for this body on this route.
    """
    model = string_field(fields, "model", route.go_struct)
    if route.kind is WorkKind.GENERATE:
        bool_field(fields, "stream", route.go_struct)
    if not model and route.dialect is Dialect.ANTHROPIC:
        raise BadRequest(MODEL_REQUIRED)
    _CHECKS[route.path](route, fields)
    if not model:
        raise _missing_model(route)
    if not is_model_name(model):
        raise BadRequest(INVALID_NAME)
    return model


def messages_of(route: Route, fields: JsonObject) -> list[JsonValue]:
    """The messages of a chat body, none if absent. Raises BadRequest where they are too many or not an array of objects."""
    go_type = f"{route.package}.{'MessageParam' if route.dialect is Dialect.ANTHROPIC else 'Message'}"
    messages = array_field(fields, "messages", route.go_struct, f"[]{go_type}")
    _check_count(messages, "messages")
    for message in messages:
        if message is not None and not isinstance(message, dict):
            raise mismatch(message, "messages", route.go_struct, go_type)
    return messages


def _check_count(items: list[JsonValue], what: str) -> None:
    if len(items) > MAX_ITEMS:
        raise BadRequest(f"too many {what}: {len(items)}, at most {MAX_ITEMS} are accepted")


def _chat(route: Route, fields: JsonObject) -> None:
    for message in messages_of(route, fields):
        if isinstance(message, dict):
            string_field(message, "content", f"{route.go_struct}.messages")


def _prompt(route: Route, fields: JsonObject) -> None:
    string_field(fields, "prompt", route.go_struct)
    if route.dialect is Dialect.OPENAI:
        integer_field(fields, "max_tokens", route.go_struct)


def _embed(_route: Route, fields: JsonObject) -> None:
    given = lookup(fields, "input")
    if isinstance(given, list):
        _check_count(given, "inputs")
        if all(isinstance(item, str) for item in given):
            return
    elif given is None or isinstance(given, str):
        return
    raise BadRequest(INVALID_INPUT)


def _openai_embed(route: Route, fields: JsonObject) -> None:
    if lookup(fields, "input") in (None, []):
        raise BadRequest("invalid input")
    _embed(route, fields)


def _openai_chat(route: Route, fields: JsonObject) -> None:
    integer_field(fields, "max_tokens", route.go_struct)
    if not messages_of(route, fields):
        raise BadRequest("[] is too short - 'messages'")


def _responses(route: Route, fields: JsonObject) -> None:
    integer_field(fields, "max_output_tokens", route.go_struct)
    given = lookup(fields, "input")
    if isinstance(given, list):
        _check_count(given, "inputs")


def _anthropic(route: Route, fields: JsonObject) -> None:
    limit = integer_field(fields, "max_tokens", route.go_struct)
    messages = messages_of(route, fields)
    if limit is None or limit <= 0:
        raise BadRequest("max_tokens is required and must be positive")
    if not messages:
        raise BadRequest("messages is required")


_CHECKS: Mapping[Endpoint, Callable[[Route, JsonObject], None]] = MappingProxyType(
    {
        Endpoint.CHAT: _chat,
        Endpoint.GENERATE: _prompt,
        Endpoint.EMBED: _embed,
        Endpoint.EMBEDDINGS: _prompt,
        Endpoint.OPENAI_CHAT: _openai_chat,
        Endpoint.OPENAI_COMPLETIONS: _prompt,
        Endpoint.OPENAI_EMBEDDINGS: _openai_embed,
        Endpoint.OPENAI_RESPONSES: _responses,
        Endpoint.ANTHROPIC_MESSAGES: _anthropic,
    }
)


def _missing_model(route: Route) -> HearthError:
    """Handlers that look the model up without asking for a name first report the empty name as not found."""
    if route.path in (Endpoint.GENERATE, Endpoint.EMBED, Endpoint.OPENAI_COMPLETIONS, Endpoint.OPENAI_EMBEDDINGS):
        return ModelNotFound("model '' not found")
    return BadRequest(MODEL_REQUIRED)
