"""Which addresses there are, and what each of them speaks.

The one table that routes, envelope, framing and error shapes agree on. Must never hold a handler or a policy. Read by whoever has a
route in hand, from `api` to the executor. Source: Ollama's route table (server/routes.go) and its OpenAI and Anthropic layers.
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One inference address; always POST.

    Attributes:
        kind: GENERATE or EMBED; a body can turn GENERATE into LOAD or UNLOAD (see `envelope`).
        go_struct: the Go struct Ollama fills from the body, as its error texts name it.
        package: the Go package of that struct, for texts about the whole value.
    """

    path: Endpoint
    dialect: Dialect
    kind: WorkKind
    go_struct: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRoute:
    """An address that runs no model; `path` is a Starlette template, `methods` in upper case."""

    path: str
    methods: tuple[str, ...]


def _native(path: Endpoint, kind: WorkKind, go_struct: str) -> Route:
    return Route(path=path, dialect=Dialect.OLLAMA, kind=kind, go_struct=go_struct, package="api")


def _openai(path: Endpoint, kind: WorkKind, go_struct: str) -> Route:
    return Route(path=path, dialect=Dialect.OPENAI, kind=kind, go_struct=go_struct, package="openai")


INFERENCE_ROUTES: Mapping[str, Route] = MappingProxyType(
    {
        route.path.value: route
        for route in (
            _native(Endpoint.CHAT, WorkKind.GENERATE, "ChatRequest"),
            _native(Endpoint.GENERATE, WorkKind.GENERATE, "GenerateRequest"),
            _native(Endpoint.EMBED, WorkKind.EMBED, "EmbedRequest"),
            _native(Endpoint.EMBEDDINGS, WorkKind.EMBED, "EmbeddingRequest"),
            _openai(Endpoint.OPENAI_CHAT, WorkKind.GENERATE, "ChatCompletionRequest"),
            _openai(Endpoint.OPENAI_COMPLETIONS, WorkKind.GENERATE, "CompletionRequest"),
            _openai(Endpoint.OPENAI_EMBEDDINGS, WorkKind.EMBED, "EmbedRequest"),
            _openai(Endpoint.OPENAI_RESPONSES, WorkKind.GENERATE, "ResponsesRequest"),
            Route(
                path=Endpoint.ANTHROPIC_MESSAGES,
                dialect=Dialect.ANTHROPIC,
                kind=WorkKind.GENERATE,
                go_struct="MessagesRequest",
                package="anthropic",
            ),
        )
    }
)
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
