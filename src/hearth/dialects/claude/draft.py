"""A request in Claude's words, before the owner's limits are put on it.

Called by the readers of the dialects (`from_...`), which make it, and `asking`, which finishes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hearth.dialects.claude.refusing import refused
from hearth.dialects.gojson import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a body of any dialect asks of Claude.

    Attributes:
        system: texts or blocks for the system prompt, in order.
        limit_tokens: the caller's own limit of the output; None without one.
        wanted: `"json"` for any JSON object, a JSON schema, or None for text.
        called: stand-ins for the tools that the conversation has called, for where none is offered any more.
        others: parameters that go on as they are.
        asked: what an answer has to repeat of the request.
    """

    messages: list[JsonValue]
    system: list[JsonValue]
    tools: list[JsonValue]
    tool_choice: JsonObject | None = None
    called: list[JsonValue] = field(default_factory=list)
    limit_tokens: int | None = None
    stop: tuple[str, ...] = ()
    wanted: JsonValue = None
    others: Mapping[str, JsonValue] = field(default_factory=dict)
    include_usage: bool = False
    asked: Mapping[str, JsonValue] = field(default_factory=dict)


def stop_texts(value: JsonValue, where: str) -> tuple[str, ...]:
    """The texts that end an answer, from one or a list of them; empty ones do nothing and are left out.

    Raises:
        Untranslatable: something else, or nothing but white space, which Claude refuses.
    """
    listed = value if isinstance(value, list) else [] if value is None else [value]
    texts = tuple(text for text in listed if isinstance(text, str))
    if len(texts) != len(listed):
        raise refused(where, "give a text or a list of texts")
    if any(text and not text.strip() for text in texts):
        raise refused(where, "a stop text of nothing but white space; use one with a letter in it, or ask a local model")
    return tuple(text for text in texts if text)
