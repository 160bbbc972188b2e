"""What Claude says, gathered from the events of its stream, and what it will be billed as.

Tolerant of what is not known: Anthropic may add events, blocks and fields at any time. Source: Anthropic's reference of streamed messages;
counters of `message_delta` are totals that replace those of `message_start`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from hearth.dialects.gojson import GoJsonError, JsonObject, JsonValue, decode
from hearth.dialects.writers import Generation, Said, Text, ToolCall
from hearth.types import MAX_TOKENS, BilledTokens

Event: TypeAlias = Mapping[str, object]

_OPENING = re.compile(r"\s*```[A-Za-z0-9]*[ \t]*\r?\n")
_MAYBE_OPENING = re.compile(r"\s*(?:`{1,2}|```[A-Za-z0-9]*[ \t]*\r?)?")
_COUNTERS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_REASONS = {"max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "refusal"}
"""Why an answer ended; any other reason is a plain `stop`."""


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
                self._fenced, self._held = True, self._held[opening.end() :]
        certain = self._held.rstrip().rstrip("`").rstrip() if self._fenced else self._held
        self._held = self._held[len(certain) :]
        return certain

    def end(self) -> str:
        """The rest of the text."""
        rest, self._held = self._held, ""
        return "" if self._fenced and rest.strip() == "```" else rest


class Meter:
    """One call's counts.

    Attributes:
        started: `message_start` was seen, so the prompt is charged; stopped: `message_stop` was seen.
    """

    def __init__(self, *, max_tokens: int, thinks: bool) -> None:
        self._max_tokens = max_tokens
        self._thinks = thinks
        self._usage: dict[str, int] = {}
        self._seen_bytes = 0
        self._reported = False
        self.started = False
        self.stopped = False

    def note(self, event: Event) -> None:
        """Take in one event; what is malformed, unknown or beyond what anybody can use counts nothing."""
        match event.get("type"):
            case "message_start":
                self.started = True
                self._read(_object(_object(event.get("message")).get("usage")))
            case "message_delta":
                usage = _object(event.get("usage"))
                self._reported = self._reported or _count(usage.get("output_tokens")) is not None
                self._read(usage)
            case "message_stop":
                self.stopped = True
            case "content_block_start":
                block = _object(event.get("content_block"))
                self._thinks = self._thinks or block.get("type") in ("thinking", "redacted_thinking")
                self._seen_bytes += _text_bytes(block)
            case "content_block_delta":
                self._seen_bytes += _text_bytes(_object(event.get("delta")))

    @property
    def tokens(self) -> BilledTokens:
        """What is charged. Where the output was not reported: a token for each byte that came, or all that were allowed where Claude
        may have thought unseen."""
        usage = self._usage
        hour = usage.get("hour", 0)
        output = usage.get("output_tokens", 0)
        if not self._reported:
            output = self._max_tokens if self._thinks else min(self._max_tokens, max(self._seen_bytes, output))
        return BilledTokens(
            input=usage.get("input_tokens", 0),
            output=output,
            cache_read=usage.get("cache_read_input_tokens", 0),
            cache_write=max(0, usage.get("cache_creation_input_tokens", 0) - hour),
            cache_write_hour=hour,
        )

    def _read(self, usage: Event) -> None:
        hour = _object(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")
        counts = {**{name: _count(usage.get(name)) for name in _COUNTERS}, "hour": _count(hour)}
        self._usage |= {name: count for name, count in counts.items() if count is not None}


class ClaudeStream:
    """The parts of one answer; `take` its events in order."""

    def __init__(self, meter: Meter, *, json_text: bool) -> None:
        self.said: list[Said] = []
        self.first_at: float | None = None
        """When the first part of the answer came, thinking too."""
        self._meter = meter
        self._json_text = json_text
        self._stop_reason: object = None
        self._unfenced: Unfenced | None = None
        self._call: tuple[str, str] | None = None
        self._written: list[str] = []

    def take(self, event: Event, now: float) -> list[Said]:
        """What the event adds to the answer."""
        new: list[Said] = []
        match event.get("type"):
            case "message_delta":
                self._stop_reason = _object(event.get("delta")).get("stop_reason") or self._stop_reason
            case "content_block_start":
                block = _object(event.get("content_block"))
                new = self._close()
                if block.get("type") == "tool_use":
                    self._call, self._written = (_string(block, "id"), _string(block, "name")), []
                else:
                    new += self._text(_string(block, "text"))
            case "content_block_delta":
                self.first_at = now if self.first_at is None else self.first_at
                delta = _object(event.get("delta"))
                self._written.append(_string(delta, "partial_json"))
                new = self._text(_string(delta, "text"))
            case "content_block_stop" | "message_stop":
                new = self._close()
        self.said += new
        return new

    def generation(self, *, started_at: float, now: float) -> Generation:
        """The answer as far as it has come."""
        tokens, first_at = self._meter.tokens, now if self.first_at is None else self.first_at
        return Generation(
            said=self.said,
            reason=_REASONS.get(str(self._stop_reason), "stop"),
            prompt_tokens=tokens.prompt,
            output_tokens=tokens.output,
            cached_tokens=tokens.cache_read,
            total_ns=_nanoseconds(now - started_at),
            prompt_ns=_nanoseconds(first_at - started_at),
            output_ns=_nanoseconds(now - first_at),
        )

    def _text(self, piece: str) -> list[Said]:
        if piece and self._json_text:
            self._unfenced = self._unfenced or Unfenced()
            piece = self._unfenced.feed(piece)
        return [Text(text=piece)] if piece else []

    def _close(self) -> list[Said]:
        """What was held back of the block that ends."""
        rest = self._unfenced.end() if self._unfenced is not None else ""
        said: list[Said] = [Text(text=rest)] if rest else []
        if self._call is not None:
            said.append(_tool_call(*self._call, "".join(self._written)))
        self._unfenced = self._call = None
        return said


class AssembledMessage:
    """A message of Anthropic's, put together from the events of its stream; tolerant of events and blocks that are not known yet."""

    def __init__(self) -> None:
        self._blocks: list[JsonValue] = []
        self._block: JsonObject = {}
        self._input = ""
        self.fields: JsonObject = {"content": self._blocks}
        """The message as far as it has come."""

    def add(self, event: JsonObject) -> None:
        """Take in the next event."""
        delta = _json_object(event.get("delta"))
        match event.get("type"):
            case "message_start":
                self.fields = {**_json_object(event.get("message")), "content": self._blocks}
            case "content_block_start":
                self._block, self._input = dict(_json_object(event.get("content_block"))), ""
                self._blocks.append(self._block)
            case "content_block_delta":
                self._block |= {name: f"{self._block.get(name) or ''}{delta[name]}" for name in ("text", "thinking") if delta.get(name)}
                self._block |= {"signature": delta["signature"]} if "signature" in delta else {}
                if "citation" in delta:
                    citations = self._block.get("citations")
                    self._block["citations"] = [*(citations if isinstance(citations, list) else []), delta["citation"]]
                self._input += str(delta.get("partial_json") or "")
            case "content_block_stop" if self._input:
                try:
                    self._block["input"] = decode(self._input.encode(errors="replace"))
                except GoJsonError:  # cut off in the middle
                    self._block["input"] = {}
            case "message_delta":
                reported = {name: one for name, one in _json_object(event.get("usage")).items() if one is not None}
                usage = _json_object(self.fields.pop("usage", None)) | reported
                self.fields |= delta | {"usage": usage}


def _json_object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _tool_call(call_id: str, name: str, written: str) -> ToolCall:
    try:
        arguments = decode(written.encode(errors="replace")) if written.strip() else {}
    except GoJsonError:
        arguments = None
    return ToolCall(call_id=call_id, name=name, arguments=arguments if isinstance(arguments, dict) else None, written=written)


def _nanoseconds(duration_s: float) -> int:
    """At least one: a phase that has ended was never zero long."""
    return max(1, int(duration_s * 1e9))


def _object(value: object) -> Event:
    return value if isinstance(value, Mapping) else {}


def _string(fields: Event, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS else None


def _text_bytes(part: Event) -> int:
    return sum(len(value.encode("utf-8", "replace")) for name, value in part.items() if name != "type" and isinstance(value, str))
