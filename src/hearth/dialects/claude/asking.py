"""A request for Claude: what a body of any dialect becomes as parameters of Anthropic's `POST /v1/messages`.

Must never leave out what would change the meaning of an answer: that is refused. What cannot change it much, and is not read here, is left
out. The rules, for callers: docs/http-api.md, "When Claude answers".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hearth.dialects.claude.messages import messages_draft
from hearth.dialects.claude.readers import chat_draft, completion_draft, generate_draft, openai_chat_draft, response_draft
from hearth.dialects.claude.request import Draft, refused, text_block
from hearth.dialects.claude.tools import strict_schema
from hearth.dialects.gojson import Body, JsonObject, JsonValue, decode
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import Untranslatable
from hearth.types import Dialect

_DRAFTS: Mapping[Endpoint, Callable[[Body], Draft]] = MappingProxyType(
    {
        Endpoint.CHAT: chat_draft,
        Endpoint.GENERATE: generate_draft,
        Endpoint.OPENAI_CHAT: openai_chat_draft,
        Endpoint.OPENAI_COMPLETIONS: completion_draft,
        Endpoint.OPENAI_RESPONSES: response_draft,
        Endpoint.ANTHROPIC_MESSAGES: messages_draft,
    }
)

_ONLY_JSON = "Answer with one JSON object and with nothing else: no words before or after it, and no code fence around it."
"""Any JSON object is a wish that structured outputs cannot express, and newer models refuse a forced tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeRequest:
    """What to send, and what the answer has to know of the request.

    Attributes:
        body: parameters of `POST /v1/messages` without `model` and `stream`; always with `messages` and `max_tokens`, never with
            `temperature`, `top_p` and `top_k`: version 2026-10-21 of the API refuses them at any value.
        streaming: what the caller wants; Claude itself is always asked for a stream.
        max_tokens: the output limit in `body`.
        json_text: the answer is meant to be bare JSON without a schema; code fences around it are taken off.
        include_usage: OpenAI's `stream_options.include_usage`.
        asked: fields that a Responses answer repeats.
    """

    body: Mapping[str, object]
    streaming: bool
    max_tokens: int
    json_text: bool = False
    include_usage: bool = False
    asked: Mapping[str, JsonValue] = field(default_factory=dict)


def claude_request(path: str, body: bytes, *, default_max_tokens: int) -> ClaudeRequest:
    """What Claude is to be asked for a request to `path`; the default limit is for who gives none, a negative one, or 0.

    Raises:
        Untranslatable: the request wants something that Claude cannot do; says which field, and what to do.
        BadRequest: the body is malformed.
    """
    route = INFERENCE_ROUTES.get(path)
    if route is None or route.path not in _DRAFTS:
        raise Untranslatable("Claude makes no embeddings: ask a local embedding model")
    asked = Body(decode(body))
    streaming = asked.flag("stream", default=route.dialect is Dialect.OLLAMA)
    draft = _DRAFTS[route.path](asked)
    max_tokens = draft.limit_tokens if draft.limit_tokens is not None and draft.limit_tokens > 0 else default_max_tokens
    thinking = draft.others.get("thinking")
    budget = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    if isinstance(budget, int) and budget >= max_tokens:
        raise refused("thinking.budget_tokens", f"it must be less than the output limit, which is {max_tokens} tokens here")
    return ClaudeRequest(
        body=_parameters(draft, max_tokens),
        streaming=streaming,
        max_tokens=max_tokens,
        json_text=draft.wanted == "json",
        include_usage=draft.include_usage,
        asked=draft.asked,
    )


def _parameters(draft: Draft, max_tokens: int) -> JsonObject:
    schema = strict_schema(draft.wanted, "schema") if isinstance(draft.wanted, dict) else None
    optional: JsonObject = {
        "system": [*draft.system, text_block(_ONLY_JSON)] if draft.wanted == "json" else draft.system,
        "tools": draft.tools or draft.called,
        "tool_choice": draft.tool_choice if draft.tools else {"type": "none"} if draft.called else None,
        "stop_sequences": [*draft.stop],
        "output_config": None if schema is None else {"format": {"type": "json_schema", "schema": schema}},
    }
    parameters: JsonObject = {"max_tokens": max_tokens, "messages": draft.messages}
    parameters |= {name: value for name, value in optional.items() if value}
    return {**parameters, **draft.others}
