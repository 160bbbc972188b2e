"""What each inference route demands of a body before Ollama would look for the model.

Refusing here what Ollama would refuse anyway keeps broken requests out of the queue and from forcing a swap. Nothing is demanded that
Ollama does not, apart from the two limits named here. Texts and their order: Ollama's handlers (server/routes.go), middleware
(middleware/openai.go, middleware/anthropic.go) and, for `keep_alive`, `Duration.UnmarshalJSON` (api/types.go).
"""

from __future__ import annotations

import json
import re

from hearth.dialects.gojson import MAX_INT, Body, GoJsonError, JsonValue
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import BadRequest, ModelNotFound
from hearth.types import Dialect, WorkKind

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
_UNIT_NS = {"ns": 1, "us": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_PART = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({'|'.join(sorted(_UNIT_NS, key=len, reverse=True))})")
_DURATION = re.compile(rf"[-+]?(?:0|(?:{_PART.pattern})+)")
_LONGEST_S = 1e10

_LOOKED_UP_FIRST = frozenset({Endpoint.GENERATE, Endpoint.EMBED, Endpoint.OPENAI_COMPLETIONS, Endpoint.OPENAI_EMBEDDINGS})
"""Their handlers look the model up without asking for a name first, and so report the empty name as not found."""
_PROMPTED = frozenset({Endpoint.GENERATE, Endpoint.EMBEDDINGS, Endpoint.OPENAI_COMPLETIONS})
_GIVEN_INPUT = frozenset({Endpoint.OPENAI_RESPONSES, Endpoint.EMBED, Endpoint.OPENAI_EMBEDDINGS})


def keep_alive_ns(value: JsonValue) -> int | None:
    """Nanoseconds that a `keep_alive` asks for, None for absent or null; negative ones mean for ever and are returned as 2**63 - 1.

    Raises GoJsonError for anything else than a number or a Go duration.
    """
    if value is None:
        return None
    if isinstance(value, str):
        duration_ns = _duration_ns(value)
    elif isinstance(value, bool | list | dict):
        raise GoJsonError("keep_alive must be a number of seconds or a duration")
    else:
        duration_ns = int(min(max(value, -1), _LONGEST_S) * 1_000_000_000)
    return duration_ns if 0 <= duration_ns <= MAX_INT else MAX_INT


def _duration_ns(text: str) -> int:
    """A Go duration (`1h30m`, `-1.5s`, `0`) in nanoseconds."""
    total_ns = sum(float(number) * _UNIT_NS[unit] for number, unit in _PART.findall(text))
    if not _DURATION.fullmatch(text) or total_ns > MAX_INT:
        raise GoJsonError(f"invalid duration {json.dumps(text, ensure_ascii=False)}: give a number with a unit, such as 5m")
    return int(-total_ns if text.startswith("-") else total_ns)


def is_model_name(name: str) -> bool:
    """Whether Ollama can parse `name` as `[host/][namespace/]model[:tag]` (types/model/name.go)."""
    return len(name) <= MAX_NAME_CHARS and _MODEL_NAME.fullmatch(name) is not None


def check_request(route: Route, body: Body) -> str:
    """The model a body names, once everything the route demands is there.

    Raises BadRequest, ModelNotFound: with the text Ollama answers for this body on this route.
    """
    model = body.string("model")
    if route.kind is WorkKind.GENERATE:
        body.flag("stream")
    if not model and route.dialect is Dialect.ANTHROPIC:
        raise BadRequest(MODEL_REQUIRED)
    if route.path in _PROMPTED:
        body.string("prompt")
    limit = body.integer(route.limit_field) if route.limit_field else None
    if route.path in _GIVEN_INPUT:
        _check_input(route, body.get("input"))
    elif route.path not in _PROMPTED:
        _check_messages(route, messages_of(body), limit)
    if not model:
        raise ModelNotFound("model '' not found") if route.path in _LOOKED_UP_FIRST else BadRequest(MODEL_REQUIRED)
    if not is_model_name(model):
        raise BadRequest(INVALID_NAME)
    return model


def _check_messages(route: Route, messages: list[Body], limit: int | None) -> None:
    if route.path is Endpoint.CHAT:
        for message in messages:
            message.string("content")
    elif route.path is Endpoint.ANTHROPIC_MESSAGES and (limit is None or limit <= 0):
        raise BadRequest("max_tokens is required and must be positive")
    elif not messages:
        raise BadRequest("messages is required" if route.path is Endpoint.ANTHROPIC_MESSAGES else "[] is too short - 'messages'")


def messages_of(body: Body) -> list[Body]:
    """The messages of a chat body, none if absent. Raises BadRequest where they are too many or not an array of objects."""
    _check_count(body.array("messages"), "messages")
    return body.objects("messages")


def _check_input(route: Route, given: JsonValue) -> None:
    if route.path is Endpoint.OPENAI_EMBEDDINGS and given in (None, []):
        raise BadRequest("invalid input")
    items = given if isinstance(given, list) else []
    _check_count(items, "inputs")
    if route.kind is WorkKind.EMBED and not (isinstance(given, str | list | None) and all(isinstance(item, str) for item in items)):
        raise BadRequest(INVALID_INPUT)


def _check_count(items: list[JsonValue], what: str) -> None:
    if len(items) > MAX_ITEMS:
        raise BadRequest(f"too many {what}: {len(items)}, at most {MAX_ITEMS} are accepted")
