"""Claude's answer for one caller: the events of Anthropic's stream in, the bytes of the caller's own dialect out.

Incremental: what an event adds is written at once, what does not stream is written at the end. Only `message_stop` completes an answer: an
end is never invented.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hearth.dialects.claude.asking import ClaudeRequest
from hearth.dialects.claude.stream import AssembledMessage, ClaudeStream, Event, Meter
from hearth.dialects.frames import event as event_frame
from hearth.dialects.gojson import encode
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.writers import NativeWriter, OpenAiWriter, ResponsesWriter, Writer, response_in_progress
from hearth.errors import BackendGone, BackendProtocolError
from hearth.types import Dialect

if TYPE_CHECKING:
    from hearth.dialects.gojson import JsonObject

_PASSED = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "ping")
"""Errors are told in Hearth's words; what a client library adds to the events is none of the caller's."""
_INCOMPLETE = {"length": "max_output_tokens", "refusal": "content_filter"}
"""Unlike Ollama's, a response that was cut off says so, as OpenAI's reference has it."""


class Answer:
    """One answer; `feed` every event, then `finish`."""

    def __init__(
        self, path: str, request: ClaudeRequest, meter: Meter, *, model: str, request_id: str, created_wall_s: float, started_at: float
    ) -> None:
        """Args:
        meter: counts the events of this answer, which are shown to it here.
        model: the name to show, the one that the caller asked for.
        created_wall_s: seconds since 1970 at the instant `started_at`.
        """
        self._route = INFERENCE_ROUTES[path]
        self._request, self._request_id, self._model = request, request_id, model
        self._created_wall_s, self._started_at = created_wall_s, started_at
        self._meter = meter
        self._stream = ClaudeStream(meter, json_text=request.json_text)
        self._message = AssembledMessage()
        self._writer = self._new_writer()

    def feed(self, event: Event, now: float) -> bytes:
        """The bytes that one event of Claude's stream adds; always empty for a caller who does not stream."""
        self._meter.note(event)
        if self._writer is None:
            return self._pass_on(event)
        new = self._stream.take(event, now)
        if not self._request.streaming:
            return b""
        begun = self._writer.begin() if event.get("type") == "message_start" else []
        wall_s = self._wall_s(now)
        return b"".join([*begun, *(frame for said in new for frame in self._writer.say(said, wall_s))])

    def finish(self, now: float) -> bytes:
        """The last bytes of a stream, or the whole answer of a caller who does not stream.

        Raises BackendGone: the stream ended before the answer did. BackendProtocolError: the answer cannot be written in this dialect.
        """
        if not self._meter.stopped:
            raise BackendGone("Claude's stream ended before the answer was complete")
        if self._writer is None:
            return b"" if self._request.streaming else encode(self._message.fields) + b"\n"
        done, wall_s = self._stream.generation(started_at=self._started_at, now=now), self._wall_s(now)
        native = self._route.dialect is Dialect.OLLAMA
        if native and done.reason == "stop" and any(call.arguments is None for call in done.calls):
            raise BackendProtocolError("Claude called a tool with arguments that are not JSON")
        if self._request.streaming:
            return b"".join(self._writer.end(done, wall_s))
        return encode(self._writer.whole(done, wall_s)) + (b"" if native else b"\n")

    @property
    def content_type(self) -> str:
        """As Ollama labels such an answer."""
        native = self._route.dialect is Dialect.OLLAMA
        if self._request.streaming:
            return "application/x-ndjson" if native else "text/event-stream"
        return "application/json; charset=utf-8" if native else "application/json"

    def _wall_s(self, now: float) -> float:
        return self._created_wall_s + now - self._started_at

    def _new_writer(self) -> Writer | None:
        """None for `/v1/messages`, whose events are Claude's own."""
        name, path = self._request_id.removeprefix("req_"), self._route.path
        if self._route.dialect is Dialect.OLLAMA:
            return NativeWriter(self._model, chat=path is Endpoint.CHAT)
        if self._route.dialect is Dialect.ANTHROPIC:
            return None
        created_wall_s = self._created_wall_s
        if path is Endpoint.OPENAI_RESPONSES:
            response = response_in_progress(name, self._model, self._request.asked, created_wall_s)
            return ResponsesWriter(name, response, incomplete=_INCOMPLETE)
        return OpenAiWriter(
            name,
            self._model,
            chat=path is Endpoint.OPENAI_CHAT,
            created_wall_s=created_wall_s,
            made_by="fp_claude",
            include_usage=self._request.include_usage,
        )

    def _pass_on(self, event: Event) -> bytes:
        fields = cast("JsonObject", dict(event))
        if fields.get("type") not in _PASSED:
            return b""
        message = fields.get("message")
        if isinstance(message, dict):
            fields["message"] = {**message, "model": self._model}
        if self._request.streaming:
            return event_frame(fields)
        self._message.add(fields)
        return b""
