"""Claude's answer for one caller: the events of Anthropic's stream in, the bytes of the caller's
own dialect out, and what will be billed.

Incremental: what an event adds is written at once, what does not stream is written at the end. Only
`message_stop` completes an answer: an end is never invented. Tolerant of what is not known:
Anthropic may add events, blocks and fields at any time. Source: Anthropic's reference of streamed
messages; counters of `message_delta` are totals that replace those of `message_start`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from hearth.dialects.claude_blocks import decoded_arguments
from hearth.dialects.claude_request import ClaudeRequest
from hearth.dialects.frames import event as event_frame
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.responses_writer import (
    INCOMPLETE,
    ResponsesWriter,
    response_in_progress,
)
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.stream import count_in
from hearth.dialects.writers import (
    AnswerPart,
    Generation,
    NativeWriter,
    OpenAiWriter,
    TextPart,
    ToolCall,
    Writer,
    nanoseconds,
)
from hearth.errors import BackendGone, BackendProtocolError
from hearth.types import MAX_TOKENS, BilledTokens, JsonMapping, without_none

_PASSED = (
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
    "ping",
)
"""Errors are told in Hearth's words; what a client library adds to the events is none of the
caller's.
"""
_REASONS = {"max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "refusal"}
"""Why an answer ended; any other reason is a plain `stop`."""
_OPENING = re.compile(r"\s*```[A-Za-z0-9]*[ \t]*\r?\n")
_MAYBE_OPENING = re.compile(r"\s*(?:`{1,2}|```[A-Za-z0-9]*[ \t]*\r?)?")
_COUNTERS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class Meter:
    """One call's counts; `started`: `message_start` was seen, so the prompt is charged; `stopped`:
    `message_stop` was seen.
    """

    def __init__(self, *, max_tokens: int, thinks: bool) -> None:
        self._max_tokens = max_tokens
        self._thinks = thinks
        self._usage: dict[str, int] = {}
        self._seen_bytes = 0
        self._reported = False
        self.started = False
        self.stopped = False

    def note(self, event: JsonObject) -> None:
        """Take in one event; what is malformed, unknown or beyond what anybody can use counts
        nothing.
        """
        match event.get("type"):
            case "message_start":
                self.started = True
                self._read(_object(_object(event.get("message")).get("usage")))
            case "message_delta":
                usage = _object(event.get("usage"))
                self._reported = (
                    self._reported or count_in(usage, "output_tokens", MAX_TOKENS) is not None
                )
                self._read(usage)
            case "message_stop":
                self.stopped = True
            case "content_block_start":
                block = _object(event.get("content_block"))
                self._thinks = self._thinks or block.get("type") in (
                    "thinking",
                    "redacted_thinking",
                )
                self._seen_bytes += _text_bytes(block)
            case "content_block_delta":
                self._seen_bytes += _text_bytes(_object(event.get("delta")))

    @property
    def tokens(self) -> BilledTokens:
        """What is charged. Where the output was not reported: a token for each byte that came, or
        all that were allowed where Claude may have thought unseen.
        """
        usage = self._usage
        hour = usage.get("hour", 0)
        output = usage.get("output_tokens", 0)
        if not self._reported:
            output = (
                self._max_tokens
                if self._thinks
                else min(self._max_tokens, max(self._seen_bytes, output))
            )
        return BilledTokens(
            input=usage.get("input_tokens", 0),
            output=output,
            cache_read=usage.get("cache_read_input_tokens", 0),
            cache_write=max(0, usage.get("cache_creation_input_tokens", 0) - hour),
            cache_write_hour=hour,
        )

    def _read(self, usage: JsonObject) -> None:
        cached = _object(usage.get("cache_creation"))
        counts = {name: count_in(usage, name, MAX_TOKENS) for name in _COUNTERS}
        counts["hour"] = count_in(cached, "ephemeral_1h_input_tokens", MAX_TOKENS)
        self._usage |= without_none(counts)


class Answer:
    """One answer; `feed` every event, then `finish`."""

    def __init__(
        self,
        path: str,
        request: ClaudeRequest,
        meter: Meter,
        *,
        model: str,
        request_id: str,
        created_wall_s: float,
        started_at: float,
    ) -> None:
        """Args:
        meter: counts the events of this answer, which are shown to it here.
        model: the name to show, the one that the caller asked for.
        created_wall_s: seconds since 1970 at the instant `started_at`.
        """
        self._route = INFERENCE_ROUTES[path]
        self._request = request
        self._model = model
        self._meter = meter
        self._created_wall_s = created_wall_s
        self._started_at = started_at
        self._writer = self._new_writer(request_id.removeprefix("req_"))
        self._events: list[JsonObject] = []
        """Of a message that does not stream."""
        self._parts: list[AnswerPart] = []
        self._first_at: float | None = None
        """When the first part of the answer came, thinking too."""
        self._reason = "stop"
        self._unfenced: Unfenced | None = None
        self._call: tuple[str, str] | None = None
        self._written: list[str] = []

    def feed(self, event: JsonMapping, now: float) -> bytes:
        """The bytes that one event of Claude's stream adds; always empty for a caller who does not
        stream.
        """
        fields = cast("JsonObject", event)
        self._meter.note(fields)
        new = self._added(fields, now)
        self._parts += new
        if self._writer is None:
            return self._pass_on(fields)
        if not self._request.streaming:
            return b""
        begun = self._writer.begin() if fields.get("type") == "message_start" else []
        wall_s = self._wall_s(now)
        return b"".join(
            [*begun, *(frame for part in new for frame in self._writer.write(part, wall_s))]
        )

    def finish(self, now: float) -> bytes:
        """The last bytes of a stream, or the whole answer of a caller who does not stream. Raises
        BackendGone: the stream ended before the answer did. BackendProtocolError: the answer cannot
        be written in this dialect.
        """
        if not self._meter.stopped:
            raise BackendGone("Claude's stream ended before the answer was complete")
        done = self._generation(now)
        wall_s = self._wall_s(now)
        native = self._route.is_native
        only_objects = native or (self._writer is None and not self._request.streaming)
        if (
            only_objects
            and done.reason == "stop"
            and any(call.arguments is None for call in done.calls)
        ):
            raise BackendProtocolError(
                "Claude called a tool with arguments that are not a JSON object"
            )
        if self._writer is None:
            return b"" if self._request.streaming else encode(assembled(self._events)) + b"\n"
        if self._request.streaming:
            return b"".join(self._writer.end(done, wall_s))
        return encode(self._writer.whole(done, wall_s)) + (b"" if native else b"\n")

    @property
    def content_type(self) -> str:
        """As Ollama labels such an answer."""
        native = self._route.is_native
        if self._request.streaming:
            return "application/x-ndjson" if native else "text/event-stream"
        return "application/json; charset=utf-8" if native else "application/json"

    def _wall_s(self, now: float) -> float:
        return self._created_wall_s + now - self._started_at

    def _new_writer(self, name: str) -> Writer | None:
        """None for `/v1/messages`, whose events are Claude's own."""
        path = self._route.path
        created_wall_s = self._created_wall_s
        if self._route.is_native:
            return NativeWriter(self._model, chat=path is Endpoint.CHAT)
        if self._route.dialect == "anthropic":
            return None
        if path is Endpoint.OPENAI_RESPONSES:
            response = response_in_progress(name, self._model, self._request.asked, created_wall_s)
            return ResponsesWriter(f"msg_{name}", response, incomplete=INCOMPLETE)
        chat = path is Endpoint.OPENAI_CHAT
        include_usage = self._request.include_usage
        return OpenAiWriter(
            f"chatcmpl-{name}" if chat else f"cmpl-{name}",
            self._model,
            chat=chat,
            created_wall_s=created_wall_s,
            made_by="fp_claude",
            include_usage=include_usage,
        )

    def _pass_on(self, fields: JsonObject) -> bytes:
        if fields.get("type") not in _PASSED:
            return b""
        if isinstance(message := fields.get("message"), dict):
            fields = {**fields, "message": {**message, "model": self._model}}
        if self._request.streaming:
            return event_frame(fields)
        self._events.append(fields)
        return b""

    def _added(self, event: JsonObject, now: float) -> list[AnswerPart]:
        """What the event adds to the answer."""
        match event.get("type"):
            case "message_delta":
                reason = _object(event.get("delta")).get("stop_reason")
                self._reason = _REASONS.get(str(reason), "stop") if reason else self._reason
            case "content_block_start":
                block = _object(event.get("content_block"))
                closed = self._closed()
                if block.get("type") != "tool_use":
                    return closed + self._text(_string(block, "text"))
                self._call = (_string(block, "id"), _string(block, "name"))
                self._written = []
                return closed
            case "content_block_delta":
                self._first_at = now if self._first_at is None else self._first_at
                delta = _object(event.get("delta"))
                self._written.append(_string(delta, "partial_json"))
                return self._text(_string(delta, "text"))
            case "content_block_stop" | "message_stop":
                return self._closed()
        return []

    def _text(self, piece: str) -> list[AnswerPart]:
        if piece and self._request.json_text:
            self._unfenced = self._unfenced or Unfenced()
            piece = self._unfenced.feed(piece)
        return [TextPart(text=piece)] if piece else []

    def _closed(self) -> list[AnswerPart]:
        """What was held back of the block that ends."""
        rest = self._unfenced.end() if self._unfenced is not None else ""
        parts: list[AnswerPart] = [TextPart(text=rest)] if rest else []
        if self._call is not None:
            call_id, name = self._call
            written = "".join(self._written)
            parts.append(
                ToolCall(
                    call_id=call_id,
                    name=name,
                    arguments=decoded_arguments(written),
                    written=written,
                )
            )
        self._unfenced = None
        self._call = None
        return parts

    def _generation(self, now: float) -> Generation:
        tokens = self._meter.tokens
        first_at = now if self._first_at is None else self._first_at
        return Generation(
            parts=self._parts,
            reason=self._reason,
            prompt_tokens=tokens.prompt,
            output_tokens=tokens.output,
            cached_tokens=tokens.cache_read,
            total_ns=nanoseconds(now - self._started_at),
            prompt_ns=nanoseconds(first_at - self._started_at),
            output_ns=nanoseconds(now - first_at),
        )


class Unfenced:
    """One text without the code fence around it: `feed` its pieces, then `end`."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False
        self._fenced = False

    def feed(self, piece: str) -> str:
        """What of the text is certain by now."""
        self._held += piece
        if not self._begun:
            if _MAYBE_OPENING.fullmatch(self._held):
                return ""
            self._begun = True
            opening = _OPENING.match(self._held)
            if opening is not None:
                self._fenced = True
                self._held = self._held[opening.end() :]
        certain = self._held.rstrip().rstrip("`").rstrip() if self._fenced else self._held
        self._held = self._held[len(certain) :]
        return certain

    def end(self) -> str:
        """The rest of the text."""
        rest = self._held
        self._held = ""
        return "" if self._fenced and rest.strip() == "```" else rest


def assembled(events: Iterable[JsonObject]) -> JsonObject:
    """The message that the events of a stream make; tolerant of events and blocks that are not
    known yet.
    """
    blocks: list[JsonValue] = []
    message: JsonObject = {"content": blocks}
    block: JsonObject = {}
    written = ""
    for event in events:
        delta = _object(event.get("delta"))
        match event.get("type"):
            case "message_start":
                message = {**_object(event.get("message")), "content": blocks}
            case "content_block_start":
                block = dict(_object(event.get("content_block")))
                written = ""
                blocks.append(block)
            case "content_block_delta":
                written += str(delta.get("partial_json") or "")
                block |= {
                    name: f"{block.get(name) or ''}{delta[name]}"
                    for name in ("text", "thinking")
                    if delta.get(name)
                }
                block |= {"signature": delta["signature"]} if "signature" in delta else {}
                if "citation" in delta:
                    citations = block.get("citations")
                    block["citations"] = [
                        *(citations if isinstance(citations, list) else []),
                        delta["citation"],
                    ]
            case "content_block_stop" if written:
                # what was cut off is no call, and no object
                block["input"] = decoded_arguments(written) or {}
            case "message_delta":
                reported = {
                    name: one
                    for name, one in _object(event.get("usage")).items()
                    if one is not None
                }
                usage = _object(message.pop("usage", None)) | reported
                message |= delta | {"usage": usage}
    return message


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _string(fields: JsonObject, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _text_bytes(part: JsonObject) -> int:
    return sum(
        len(value.encode("utf-8", "replace"))
        for name, value in part.items()
        if name != "type" and isinstance(value, str)
    )
