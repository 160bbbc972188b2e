"""What each inference route demands of a body before Ollama would look for the model.

Refusing here what Ollama would refuse anyway keeps broken requests out of the queue and from forcing a swap. Must never demand more than
Ollama does, apart from the two limits named here. Texts and their order: Ollama's handlers (server/routes.go), middleware
(middleware/openai.go, middleware/anthropic.go) and, for `keep_alive`, `Duration.UnmarshalJSON` (api/types.go).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from hearth.dialects.gojson import (
    GoJsonError,
    JsonObject,
    JsonValue,
    array_field,
    bool_field,
    integer_field,
    lookup,
    mismatch,
    string_field,
)
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import BadRequest, HearthError, ModelNotFound
from hearth.types import Dialect, WorkKind

_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")
_UNIT_NS: Mapping[str, int] = MappingProxyType(
    {
        "ns": 1,
        "us": 1_000,
        "\u00b5s": 1_000,
        "\u03bcs": 1_000,
        "ms": 1_000_000,
        "s": 1_000_000_000,
        "m": 60_000_000_000,
        "h": 3_600_000_000_000,
    }
)
_LONGEST_NS = 2**63 - 1
_LONGEST_S = 1e10


def keep_alive_ns(value: JsonValue) -> int | None:
    """Nanoseconds that a `keep_alive` asks for, None for absent or null; negative ones mean for ever and are returned as 2**63 - 1.

    Raises GoJsonError with Ollama's text for anything else than a number or a Go duration.
    """
    if value is None:
        return None
    if isinstance(value, str):
        duration_ns = parse_duration_ns(value)
    elif isinstance(value, bool | list | dict):
        raise GoJsonError(f"Unsupported type: '{_go_type(value)}'")
    else:
        duration_ns = int(min(max(value, -1), _LONGEST_S) * 1_000_000_000)
    return duration_ns if 0 <= duration_ns <= _LONGEST_NS else _LONGEST_NS


def _go_type(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "bool"
    return "[]interface {}" if isinstance(value, list) else "map[string]interface {}"


def parse_duration_ns(text: str) -> int:
    """A Go duration (`1h30m`, `-1.5s`, `0`) in nanoseconds. Raises GoJsonError with Go's text."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise _invalid(text)
    total_ns = 0
    while rest:
        part_ns, rest = _part_ns(rest, text)
        total_ns += part_ns
        if total_ns > _LONGEST_NS:
            raise _invalid(text)
    return sign * total_ns


def _part_ns(rest: str, whole: str) -> tuple[int, str]:
    found = _PART.match(rest)
    digits, fraction, unit = ("", None, "") if found is None else found.groups()
    if (not digits and not fraction) or len(digits) > 19:
        raise _invalid(whole)
    if not unit:
        raise GoJsonError(f"time: missing unit in duration {_quoted(whole)}")
    scale = _UNIT_NS.get(unit)
    if scale is None:
        raise GoJsonError(f"time: unknown unit {_quoted(unit)} in duration {_quoted(whole)}")
    part_ns = int(digits or "0") * scale + int(float(f"0.{fraction or '0'}") * scale)
    return part_ns, rest[len(digits) + (0 if fraction is None else len(fraction) + 1) + len(unit) :]


def _invalid(text: str) -> GoJsonError:
    return GoJsonError(f"time: invalid duration {_quoted(text)}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


MAX_ITEMS = 10_000
"""Most messages or inputs in one body."""

MAX_NAME_CHARS = 256
"""Longest model name."""

MODEL_REQUIRED = "model is required"
INVALID_NAME = "invalid model name"
INVALID_INPUT = "invalid input type"

_NAME_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_MODEL_NAME = re.compile(
    rf"(?:(?:(?:[^/]*://)?[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,349}}/)?[A-Za-z0-9_][A-Za-z0-9_-]{{0,79}}/)?{_NAME_PART}(?::{_NAME_PART})?"
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
