"""What a waiting caller is sent so that nobody in between, nor the client itself, gives the connection up.

Each dialect has a form of its own that official clients read over: OpenAI SSE a comment, Anthropic its `ping` event, Ollama a line with
empty content. It must only be sent between lines, and it starts the answer: from then on there is no status code to choose. Called by
`api.relay`.
"""

from __future__ import annotations

from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.routes import Endpoint, Route
from hearth.types import Dialect, Headers

_SSE: Headers = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))
_NDJSON: Headers = ((b"content-type", b"application/x-ndjson"),)


def stream_headers(route: Route) -> Headers:
    """The headers of a stream that begins before the backend's own head is there."""
    return _NDJSON if route.dialect is Dialect.OLLAMA else _SSE


def keep_alive(route: Route, model: str, created_at: str) -> bytes:
    """One sign of life; `created_at` is RFC 3339 in UTC."""
    if route.dialect is Dialect.OPENAI:
        return b": waiting\n\n"
    if route.dialect is Dialect.ANTHROPIC:
        return b'event: ping\ndata: {"type": "ping"}\n\n'
    content: JsonObject = {"message": {"role": "assistant", "content": ""}} if route.path is Endpoint.CHAT else {"response": ""}
    return encode({"model": model, "created_at": created_at, **content, "done": False}) + b"\n"
