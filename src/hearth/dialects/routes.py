"""Which addresses there are, and what each of them speaks. Source: Ollama's server/routes.go, its OpenAI and Anthropic layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hearth.types import Dialect, WorkKind


class Endpoint(StrEnum):
    """The addresses that run a model; each member equals its path."""

    CHAT = "/api/chat"
    GENERATE = "/api/generate"
    EMBED = "/api/embed"
    EMBEDDINGS = "/api/embeddings"
    OPENAI_CHAT = "/v1/chat/completions"
    OPENAI_COMPLETIONS = "/v1/completions"
    OPENAI_EMBEDDINGS = "/v1/embeddings"
    OPENAI_RESPONSES = "/v1/responses"
    ANTHROPIC_MESSAGES = "/v1/messages"


@dataclass(frozen=True, slots=True)
class Route:
    """One inference address; always POST.

    Attributes:
        kind: GENERATE or EMBED; a body can turn GENERATE into LOAD or UNLOAD.
        struct: the Go struct that Ollama fills from the body, as its error texts name it.
        limit_field: where a body limits the output; empty for native routes, which have `options.num_predict`, and for embeddings.
    """

    path: Endpoint
    dialect: Dialect
    kind: WorkKind
    struct: str
    limit_field: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRoute:
    """An address that runs no model; `path` is a Starlette template, `methods` in upper case."""

    path: str
    methods: tuple[str, ...]


_ROUTES = (
    Route(Endpoint.CHAT, Dialect.OLLAMA, WorkKind.GENERATE, "api.ChatRequest"),
    Route(Endpoint.GENERATE, Dialect.OLLAMA, WorkKind.GENERATE, "api.GenerateRequest"),
    Route(Endpoint.EMBED, Dialect.OLLAMA, WorkKind.EMBED, "api.EmbedRequest"),
    Route(Endpoint.EMBEDDINGS, Dialect.OLLAMA, WorkKind.EMBED, "api.EmbeddingRequest"),
    Route(Endpoint.OPENAI_CHAT, Dialect.OPENAI, WorkKind.GENERATE, "openai.ChatCompletionRequest", "max_tokens"),
    Route(Endpoint.OPENAI_COMPLETIONS, Dialect.OPENAI, WorkKind.GENERATE, "openai.CompletionRequest", "max_tokens"),
    Route(Endpoint.OPENAI_EMBEDDINGS, Dialect.OPENAI, WorkKind.EMBED, "openai.EmbedRequest"),
    Route(Endpoint.OPENAI_RESPONSES, Dialect.OPENAI, WorkKind.GENERATE, "openai.ResponsesRequest", "max_output_tokens"),
    Route(Endpoint.ANTHROPIC_MESSAGES, Dialect.ANTHROPIC, WorkKind.GENERATE, "anthropic.MessagesRequest", "max_tokens"),
)
INFERENCE_ROUTES: Mapping[str, Route] = MappingProxyType({route.path.value: route for route in _ROUTES})
"""Inference routes by path."""

INFO_ROUTES: tuple[PlainRoute, ...] = (
    PlainRoute(path="/", methods=("GET", "HEAD")),
    PlainRoute(path="/api/version", methods=("GET", "HEAD")),
    PlainRoute(path="/api/status", methods=("GET",)),
    PlainRoute(path="/api/tags", methods=("GET", "HEAD")),
    PlainRoute(path="/api/ps", methods=("GET",)),
    PlainRoute(path="/api/show", methods=("POST",)),
    PlainRoute(path="/v1/models", methods=("GET",)),
    PlainRoute(path="/v1/models/{model:path}", methods=("GET",)),
)
"""Passed through without queueing."""

MANAGEMENT_ROUTES: tuple[PlainRoute, ...] = (
    PlainRoute(path="/api/pull", methods=("POST",)),
    PlainRoute(path="/api/push", methods=("POST",)),
    PlainRoute(path="/api/create", methods=("POST",)),
    PlainRoute(path="/api/copy", methods=("POST",)),
    PlainRoute(path="/api/delete", methods=("DELETE",)),
    PlainRoute(path="/api/blobs/{digest}", methods=("HEAD", "POST")),
)
"""Change what is installed: admin keys only, passed through without queueing."""

TRANSCRIPTIONS_PATH = "/v1/audio/transcriptions"
"""POST; refused on purpose: its body is a form, in which the queue looks for no model."""

COUNT_TOKENS_PATH = "/v1/messages/count_tokens"
"""POST; Ollama has no such route, Hearth answers it itself (see `anthropic.count_tokens`)."""


def dialect_of(path: str) -> Dialect:
    """The dialect whose error shape a caller of `path` expects, for any path whatever; Hearth's own pages use the native shape."""
    if path == Endpoint.ANTHROPIC_MESSAGES or path.startswith("/v1/messages/"):
        return Dialect.ANTHROPIC
    return Dialect.OPENAI if path == "/v1" or path.startswith("/v1/") else Dialect.OLLAMA
