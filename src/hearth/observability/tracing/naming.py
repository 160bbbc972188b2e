"""What the spans of an item are called, and what they carry: names, numbers and outcomes, never a text of anybody.

Names beginning with `gen_ai.`, `http.` and `error.` are OpenTelemetry's (semantic conventions 1.37 and later; those for generative AI are
marked "in development" there); what has no name there is `hearth.`. A model call's attributes stand on the call's own span only, so that
who adds up tokens does not count them twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearth.dialects.routes import Endpoint
from hearth.events import ItemEnded
from hearth.observability.tracing.spans import Attributes, Origin

_OPERATIONS: Mapping[str, str] = MappingProxyType(
    {
        Endpoint.CHAT: "chat",
        Endpoint.OPENAI_CHAT: "chat",
        Endpoint.OPENAI_RESPONSES: "chat",
        Endpoint.ANTHROPIC_MESSAGES: "chat",
        Endpoint.GENERATE: "text_completion",
        Endpoint.OPENAI_COMPLETIONS: "text_completion",
        Endpoint.EMBED: "embeddings",
        Endpoint.EMBEDDINGS: "embeddings",
        Endpoint.OPENAI_EMBEDDINGS: "embeddings",
    }
)
_OTHER_OPERATION = "text_completion"
"""Hearth's own address for completions, jobs, and programs that embed Hearth: a prompt in, a text out, whatever is called for it."""


def root_name(origin: Origin) -> str:
    """`POST /api/chat`, or `item` for what did not come over HTTP."""
    return f"POST {origin.route}" if origin.route else "item"


def call_name(origin: Origin, model: str) -> str:
    """`chat llama3.1:8b`."""
    return f"{_operation(origin)} {model}".rstrip()


def root_attributes(event: ItemEnded, origin: Origin) -> Attributes:
    """Of the whole item."""
    known: dict[str, str | int | float | bool | None] = {
        "http.request.method": "POST" if origin.route else None,
        "http.route": origin.route or None,
        "http.response.status_code": event.status if origin.route else None,
        "error.type": event.reason or None,
        "hearth.request_id": event.request_id,
        "hearth.sequence": event.sequence,
        "hearth.caller": event.caller,
        "hearth.lane": event.lane.value,
        "hearth.model": event.model,
        "hearth.task_type": event.task_type,
        "hearth.outcome": event.outcome.value,
        "hearth.attempts": event.attempts,
        "hearth.interruptions": event.interrupt_count,
        "hearth.queue_s": event.queue_s,
        "hearth.swap_s": event.swap_s,
        "hearth.prompt_tokens": event.prompt_tokens,
        "hearth.output_tokens": event.output_tokens,
        "hearth.cost_usd": event.cost_usd,
    }
    return _without_none(known)


def call_attributes(origin: Origin, model: str, attempt: int) -> dict[str, str | int | float | bool]:
    """Of one call of a model, as far as they are known when it begins."""
    return {
        "gen_ai.operation.name": _operation(origin),
        "gen_ai.provider.name": origin.provider,
        "gen_ai.request.model": model,
        "hearth.attempt": attempt,
    }


def result_attributes(event: ItemEnded) -> Attributes:
    """What the call that an item ended with adds."""
    return _without_none(
        {
            "gen_ai.response.model": event.model if event.output_tokens is not None else None,
            "gen_ai.usage.input_tokens": event.prompt_tokens,
            "gen_ai.usage.output_tokens": event.output_tokens,
            "http.response.status_code": event.status,
        }
    )


def _operation(origin: Origin) -> str:
    return _OPERATIONS.get(origin.route, _OTHER_OPERATION)


def _without_none(known: Mapping[str, str | int | float | bool | None]) -> dict[str, str | int | float | bool]:
    return {name: value for name, value in known.items() if value is not None}
