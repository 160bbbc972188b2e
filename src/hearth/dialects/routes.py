"""Which addresses there are, and what each of them speaks.

Source: Ollama's server/routes.go, its OpenAI and Anthropic layers.
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
    TRANSCRIPTIONS = "/v1/audio/transcriptions"
    TRANSLATIONS = "/v1/audio/translations"
    SPEECH = "/v1/audio/speech"
    IMAGES = "/v1/images/generations"
    RERANK = "/v1/rerank"


@dataclass(frozen=True, slots=True)
class Route:
    """One inference address; always POST.

    Attributes:
        kind: a body can turn GENERATE into LOAD or UNLOAD. name: what Ollama
        calls its request. limit_field: where a body limits the output; empty for native routes,
        which have `options.num_predict`, and for embeddings.
    """

    path: Endpoint
    dialect: Dialect
    kind: WorkKind
    name: str
    limit_field: str = ""

    @property
    def is_native(self) -> bool:
        """Of Ollama's own API."""
        return self.dialect == "ollama"


_ROUTES = (
    Route(Endpoint.CHAT, "ollama", "generate", "ChatRequest"),
    Route(Endpoint.GENERATE, "ollama", "generate", "GenerateRequest"),
    Route(Endpoint.EMBED, "ollama", "embed", "EmbedRequest"),
    Route(Endpoint.EMBEDDINGS, "ollama", "embed", "EmbeddingRequest"),
    Route(Endpoint.OPENAI_CHAT, "openai", "generate", "ChatCompletionRequest", "max_tokens"),
    Route(Endpoint.OPENAI_COMPLETIONS, "openai", "generate", "CompletionRequest", "max_tokens"),
    Route(Endpoint.OPENAI_EMBEDDINGS, "openai", "embed", "EmbedRequest"),
    Route(Endpoint.OPENAI_RESPONSES, "openai", "generate", "ResponsesRequest", "max_output_tokens"),
    Route(Endpoint.ANTHROPIC_MESSAGES, "anthropic", "generate", "MessagesRequest", "max_tokens"),
)
INFERENCE_ROUTES: Mapping[str, Route] = MappingProxyType(
    {route.path.value: route for route in _ROUTES}
)
"""Inference routes by path: those of every dialect whose answers Hearth reads."""

_MEDIA_ROUTES = (
    Route(Endpoint.TRANSCRIPTIONS, "openai", "transcribe", "TranscriptionRequest"),
    Route(Endpoint.TRANSLATIONS, "openai", "transcribe", "TranslationRequest"),
    Route(Endpoint.SPEECH, "openai", "speak", "SpeechRequest"),
    Route(Endpoint.IMAGES, "openai", "image", "ImageRequest"),
    Route(Endpoint.RERANK, "openai", "rerank", "RerankRequest"),
)
MEDIA_ROUTES: Mapping[str, Route] = MappingProxyType(
    {route.path.value: route for route in _MEDIA_ROUTES}
)
"""By path, those that go to the engine of their model as they are, and back; few engines have
them.
"""
UPLOADS = frozenset({Endpoint.TRANSCRIPTIONS.value, Endpoint.TRANSLATIONS.value})
"""Those whose body is a form with a file."""
WORK_ROUTES: Mapping[str, Route] = MappingProxyType({**INFERENCE_ROUTES, **MEDIA_ROUTES})
"""All that run a model, by path."""


def route_of(target: str) -> Route:
    """The route of an address that runs a model, which may have a query."""
    return WORK_ROUTES[target.partition("?")[0]]


INFO_ROUTES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/": ("GET", "HEAD"),
        "/api/version": ("GET", "HEAD"),
        "/api/status": ("GET",),
        "/api/tags": ("GET", "HEAD"),
        "/api/ps": ("GET",),
        "/api/show": ("POST",),
        "/v1/models": ("GET",),
        "/v1/models/{model:path}": ("GET",),
    }
)
"""Methods by address (a Starlette template): run no model, passed through without queueing."""

MANAGEMENT_ROUTES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/api/pull": ("POST",),
        "/api/push": ("POST",),
        "/api/create": ("POST",),
        "/api/copy": ("POST",),
        "/api/delete": ("DELETE",),
        "/api/blobs/{digest}": ("HEAD", "POST"),
    }
)
"""As `INFO_ROUTES`; they change what is installed: admin keys only."""

COUNT_TOKENS_PATH = "/v1/messages/count_tokens"
"""POST; Ollama has no such route, Hearth answers it itself (`dialects.request.count_tokens`)."""


def dialect_of(path: str) -> Dialect:
    """The dialect whose error shape a caller of `path` expects, for any path whatever; Hearth's own
    pages use the native shape.
    """
    if path == Endpoint.ANTHROPIC_MESSAGES or path.startswith("/v1/messages/"):
        return "anthropic"
    return "openai" if path == "/v1" or path.startswith("/v1/") else "ollama"
