"""Claude's answer for one caller: the events of Anthropic's stream in, the bytes of the caller's own dialect out.

Sans-IO and incremental: what an event adds is written at once, what does not stream is written at the end. Must never invent an end: only
`message_stop` completes an answer.
"""

from __future__ import annotations

from hearth.dialects.claude.asking import ClaudeRequest
from hearth.dialects.claude.stream import ClaudeUsage, Event, Telling
from hearth.dialects.claude.to_responses import ResponsesWriter
from hearth.dialects.claude.writers import MessagesWriter, NativeWriter, Occasion, OpenAiWriter, Writer
from hearth.dialects.errors import stream_error
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint, Route
from hearth.errors import BackendGone, HearthError
from hearth.types import Dialect, RequestId

__all__ = ["Answer", "ClaudeUsage"]


class Answer:
    """One answer; `feed` every event, then `finish`."""

    status = 200

    def __init__(self, path: str, request: ClaudeRequest, *, model: str, request_id: str, created_wall_s: float, started_at: float) -> None:
        """Args:
        model: the name to show, the one that the caller asked for.
        created_wall_s: seconds since 1970 at the instant `started_at`.
        """
        self._route = INFERENCE_ROUTES[path]
        self._request_id = RequestId(request_id)
        self._telling = Telling(json_text=request.json_text)
        names = request_id.removeprefix("req_")
        self._occasion = Occasion(request=request, model=model, names=names, created_wall_s=created_wall_s, started_at=started_at)
        self._writer = _writer(self._route, self._occasion, self._telling)

    def feed(self, event: Event, now: float) -> bytes:
        """The bytes that one event of Claude's stream adds; always empty for a caller who does not stream."""
        written = self._writer.take(event, self._telling.take(event, now), now)
        return written if self._occasion.request.streaming else b""

    def finish(self, now: float) -> bytes:
        """The last bytes of a stream, or the whole answer of a caller who does not stream.

        Raises:
            BackendGone: the stream ended before the answer did.
            BackendProtocolError: the answer cannot be written in this dialect.
        """
        if not self.complete:
            raise BackendGone("Claude's stream ended before the answer was complete")
        return self._writer.end(now) if self._occasion.request.streaming else self._writer.whole(now)

    def failure(self, error: HearthError) -> bytes:
        """The error as the last bytes of a stream that has begun; nothing where the answer is one document, which has no place for it."""
        return stream_error(self._route, error, self._request_id) if self._occasion.request.streaming else b""

    @property
    def content_type(self) -> str:
        """As Ollama labels such an answer."""
        native = self._route.dialect is Dialect.OLLAMA
        if self._occasion.request.streaming:
            return "application/x-ndjson" if native else "text/event-stream"
        return "application/json; charset=utf-8" if native else "application/json"

    @property
    def usage(self) -> ClaudeUsage:
        """What has been counted so far; final once `complete`."""
        return self._telling.usage

    @property
    def complete(self) -> bool:
        """Claude has said that this is all."""
        return self._telling.complete


def _writer(route: Route, occasion: Occasion, telling: Telling) -> Writer:
    if route.dialect is Dialect.ANTHROPIC:
        return MessagesWriter(occasion)
    if route.path is Endpoint.OPENAI_RESPONSES:
        return ResponsesWriter(occasion, telling)
    if route.dialect is Dialect.OPENAI:
        return OpenAiWriter(occasion, telling, chat=route.path is Endpoint.OPENAI_CHAT)
    return NativeWriter(occasion, telling, chat=route.path is Endpoint.CHAT)
