"""The route table of the emulated server. Called by `server` only."""

from __future__ import annotations

from hearth.emulator import anthropic, embeddings, listings, management, native, openai, responses
from hearth.emulator.routing import RouteTable
from hearth.types import Dialect


def build_routes() -> RouteTable:
    """Every path that Ollama v0.33.0-rc2 serves, cloud routes excepted."""
    table = RouteTable()
    _add_native(table)
    _add_management(table)
    _add_v1(table)
    return table


def _add_native(table: RouteTable) -> None:
    table.add("GET HEAD", "/", listings.root)
    table.add("GET HEAD", "/api/version", listings.version)
    table.add("GET", "/api/status", listings.status)
    table.add("GET HEAD", "/api/tags", listings.tags)
    table.add("GET", "/api/ps", listings.ps)
    table.add("POST", "/api/generate", native.generate)
    table.add("POST", "/api/chat", native.chat)
    table.add("POST", "/api/embed", embeddings.embed)
    table.add("POST", "/api/embeddings", embeddings.legacy)


def _add_management(table: RouteTable) -> None:
    table.add("POST", "/api/show", management.show)
    table.add("POST", "/api/create", management.create)
    table.add("POST", "/api/pull", management.pull)
    table.add("POST", "/api/push", management.push)
    table.add("POST", "/api/copy", management.copy)
    table.add("DELETE", "/api/delete", management.delete)
    table.add("HEAD", "/api/blobs/*", management.find_blob)
    table.add("POST", "/api/blobs/*", management.put_blob)


def _add_v1(table: RouteTable) -> None:
    table.add("POST", "/v1/chat/completions", openai.chat_completions, Dialect.OPENAI)
    table.add("POST", "/v1/completions", openai.completions, Dialect.OPENAI)
    table.add("POST", "/v1/embeddings", embeddings.openai, Dialect.OPENAI)
    table.add("POST", "/v1/responses", responses.responses, Dialect.OPENAI)
    table.add("POST", "/v1/messages", anthropic.messages, Dialect.ANTHROPIC)
    table.add("POST", "/v1/audio/transcriptions", openai.transcriptions, Dialect.OPENAI)
    table.add("GET", "/v1/models", listings.v1_models, Dialect.OPENAI)
    table.add("GET", "/v1/models/*", listings.v1_model, Dialect.OPENAI)
