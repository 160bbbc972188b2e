"""An answer of Claude in the native, the OpenAI and the Anthropic dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from hearth.dialects.claude.asking import ClaudeRequest
from hearth.dialects.claude.stream import Call, Event, Said, Telling, Text
from hearth.dialects.gojson import GoJsonError, JsonObject, JsonValue, decode, encode
from hearth.errors import BackendProtocolError

_DAY_S = 86_400
_NS = 1_000_000_000
_ERA_DAYS = 146_097
"""Days in 400 years, after which the calendar repeats."""

_EPOCH_DAYS = 719_468
"""From the first of March of the year 0 to the first of January 1970."""


def rfc3339(wall_s: float) -> str:
    """Seconds since 1970 as `2026-11-21T02:09:14.423976812Z`; up to nine decimals, without zeros at their end."""
    days, second = divmod(int(wall_s), _DAY_S)
    fraction = int(wall_s % 1 * _NS)
    year, month, day = _date(days)
    decimals = f".{fraction:09d}".rstrip("0").rstrip(".")
    return f"{year:04d}-{month:02d}-{day:02d}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{decimals}Z"


def _date(days: int) -> tuple[int, int, int]:
    """The date so many days after 1 January 1970; years begin in March inside, so that leap days come last."""
    era, day_of_era = divmod(days + _EPOCH_DAYS, _ERA_DAYS)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march_month = (5 * day_of_year + 2) // 153
    month = march_month + 3 if march_month < 10 else march_month - 9
    return year_of_era + era * 400 + (month <= 2), month, day_of_year - (153 * march_month + 2) // 5 + 1


def nanoseconds(duration_s: float) -> int:
    """At least one: Ollama leaves zeros out, and a phase that has ended was never zero long."""
    return max(1, int(duration_s * _NS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """What an answer is given for.

    Attributes:
        model: the name that the caller asked for, and is shown.
        created_wall_s: seconds since 1970 at the instant `started_at` of the monotonic clock.
        names: what ids of the answer end with; unlike those of any other answer.
    """

    request: ClaudeRequest
    model: str
    names: str
    created_wall_s: float
    started_at: float

    def wall_s(self, now: float) -> float:
        """The calendar instant of `now`."""
        return self.created_wall_s + now - self.started_at


class Writer(Protocol):
    """Writes one answer in one dialect. A caller is given either what `take` and `end` return, or `whole`."""

    def take(self, event: Event, new: list[Said], now: float) -> bytes:
        """The bytes for one event of Claude's, which added `new` to the answer."""

    def end(self, now: float) -> bytes:
        """The last bytes of a stream."""

    def whole(self, now: float) -> bytes:
        """The answer in one piece."""


_FINISHES: Mapping[str, str] = MappingProxyType(
    {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "pause_turn": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "stop",
        "refusal": "refusal",
    }
)


def finish(telling: Telling) -> str:
    """Why the answer ended: `stop`, `length`, or `refusal`; reasons that are not known yet are a plain stop."""
    return _FINISHES.get(telling.stop_reason or "", "stop")


def arguments_text(call: Call) -> str:
    """The arguments of a call as Go would write them; Claude's own letters where they are not JSON."""
    return call.written if call.arguments is None else encode(call.arguments).decode()


class NativeWriter:
    """One answer."""

    def __init__(self, occasion: Occasion, telling: Telling, *, chat: bool) -> None:
        self._occasion = occasion
        self._telling = telling
        self._chat = chat
        self._calls = 0

    def take(self, _event: Event, new: list[Said], now: float) -> bytes:
        return b"".join(self._piece(said, now) for said in new)

    def end(self, now: float) -> bytes:
        return self._last("", [], now) + b"\n"

    def whole(self, now: float) -> bytes:
        whole = [call for call in self._telling.calls if call.arguments is not None]
        return self._last(self._telling.text, [_call(call, index) for index, call in enumerate(whole)], now)

    def _piece(self, said: Said, now: float) -> bytes:
        if isinstance(said, Text):
            return encode(self._head(now) | self._message(said.text, []) | {"done": False}) + b"\n"
        if said.arguments is None:
            return b""
        index, self._calls = self._calls, self._calls + 1
        return encode(self._head(now) | self._message("", [_call(said, index)]) | {"done": False}) + b"\n"

    def _head(self, now: float) -> JsonObject:
        return {"model": self._occasion.model, "created_at": rfc3339(self._occasion.wall_s(now))}

    def _message(self, text: str, calls: list[JsonValue]) -> JsonObject:
        if not self._chat:
            return {"response": text}
        called: JsonObject = {"tool_calls": calls} if calls else {}
        return {"message": {"role": "assistant", "content": text, **called}}

    def _last(self, text: str, calls: list[JsonValue], now: float) -> bytes:
        reason = finish(self._telling)
        if reason == "stop" and any(call.arguments is None for call in self._telling.calls):
            raise BackendProtocolError("Claude called a tool with arguments that are not JSON")
        end: JsonObject = {"done": True, "done_reason": reason}
        return encode(self._head(now) | self._message(text, calls) | end | self._timings(now))

    def _timings(self, now: float) -> JsonObject:
        started_at, usage = self._occasion.started_at, self._telling.usage
        first_at = now if self._telling.first_at is None else self._telling.first_at
        timings: JsonObject = {
            "total_duration": nanoseconds(now - started_at),
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first_at - started_at),
            "eval_count": usage.output_tokens,
            "eval_duration": nanoseconds(now - first_at),
        }
        return {name: value for name, value in timings.items() if value}


def _call(call: Call, index: int) -> JsonObject:
    function: JsonObject = {"index": index, "name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "function": function}


_DONE = b"data: [DONE]\n\n"
_FINISHES_OF_TO_OPENAI = {"refusal": "content_filter"}


class OpenAiWriter:
    """One answer."""

    def __init__(self, occasion: Occasion, telling: Telling, *, chat: bool) -> None:
        self._occasion = occasion
        self._telling = telling
        self._chat = chat
        self._begun = False
        self._calls = 0

    def take(self, _event: Event, new: list[Said], _now: float) -> bytes:
        return b"".join(_frame(self._piece(said)) for said in new)

    def end(self, _now: float) -> bytes:
        reason = self._reason()
        last = self._chat_chunk(self._delta({}), reason) if self._chat else self._text_chunk("", reason)
        usage = _frame(self._usage_chunk()) if self._occasion.request.include_usage else b""
        return _frame(last) + usage + _DONE

    def whole(self, _now: float) -> bytes:
        choice = self._chat_choice() if self._chat else self._text_choice(self._telling.text, self._reason())
        head = self._head("chat.completion" if self._chat else "text_completion")
        return encode(head | self._made_by() | {"choices": [choice], "usage": self._usage()}) + b"\n"

    def _piece(self, said: Said) -> JsonObject:
        if not self._chat:
            return self._text_chunk(said.text if isinstance(said, Text) else "", None)
        if isinstance(said, Text):
            return self._chat_chunk(self._delta({"content": said.text}), None)
        index, self._calls = self._calls, self._calls + 1
        return self._chat_chunk(self._delta({"content": "", "tool_calls": [_call_of_to_openai(said, index)]}), None)

    def _delta(self, said: JsonObject) -> JsonObject:
        begun, self._begun = self._begun, True
        return said if begun else {"role": "assistant", **said}

    def _chat_chunk(self, delta: JsonObject, reason: str | None) -> JsonObject:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": reason}
        return self._head("chat.completion.chunk") | self._made_by() | {"choices": [choice]}

    def _text_chunk(self, text: str, reason: str | None) -> JsonObject:
        chunk = self._head("text_completion") | {"choices": [self._text_choice(text, reason)]} | self._made_by()
        zero: JsonObject = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return chunk | {"usage": zero} if self._occasion.request.include_usage else chunk

    def _usage_chunk(self) -> JsonObject:
        if self._chat:
            return self._head("chat.completion.chunk") | self._made_by() | {"choices": [], "usage": self._usage()}
        return self._head("text_completion") | {"choices": []} | self._made_by() | {"usage": self._usage()}

    def _head(self, kind: str) -> JsonObject:
        prefix = "chatcmpl" if self._chat else "cmpl"
        return {"id": f"{prefix}-{self._occasion.names}", "object": kind, "created": int(self._occasion.created_wall_s)}

    def _made_by(self) -> JsonObject:
        return {"model": self._occasion.model, "system_fingerprint": "fp_claude"}

    def _chat_choice(self) -> JsonObject:
        message: JsonObject = {"role": "assistant", "content": self._telling.text}
        if self._telling.calls:
            message["tool_calls"] = [_call_of_to_openai(call, index) for index, call in enumerate(self._telling.calls)]
        return {"index": 0, "message": message, "finish_reason": self._reason()}

    def _text_choice(self, text: str, reason: str | None) -> JsonObject:
        return {"text": text, "index": 0, "finish_reason": reason}

    def _reason(self) -> str:
        reason = finish(self._telling)
        if reason == "stop" and self._telling.calls:
            return "tool_calls"
        return _FINISHES_OF_TO_OPENAI.get(reason, reason)

    def _usage(self) -> JsonObject:
        prompt, output = self._telling.usage.prompt_tokens, self._telling.usage.output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _frame(value: JsonObject) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _call_of_to_openai(call: Call, index: int) -> JsonObject:
    function: JsonObject = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": call.call_id, "index": index, "type": "function", "function": function}


_PASSED = frozenset(
    {"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "ping"}
)
"""Errors are told in Hearth's words; what a client library adds to the events is none of the caller's."""

_GROWING = {"text_delta": "text", "thinking_delta": "thinking"}


class MessagesWriter:
    """One answer."""

    def __init__(self, occasion: Occasion) -> None:
        self._occasion = occasion
        self._message: JsonObject = {}
        self._blocks: list[JsonObject] = []
        self._inputs: list[str] = []

    def take(self, event: Event, _new: list[Said], _now: float) -> bytes:
        kind = event.get("type")
        if not isinstance(kind, str) or kind not in _PASSED:
            return b""
        fields = _plain(event)
        message = fields.get("message")
        if isinstance(message, dict):
            fields["message"] = message = {**message, "model": self._occasion.model}
            self._message = dict(message)
        self._gather(kind, fields)
        return b"event: " + kind.encode() + b"\ndata: " + encode(fields) + b"\n\n"

    def end(self, _now: float) -> bytes:
        return b""

    def whole(self, _now: float) -> bytes:
        return encode({**self._message, "content": [*self._blocks]}) + b"\n"

    def _gather(self, kind: str, fields: JsonObject) -> None:
        if kind == "content_block_start":
            self._blocks.append(_object(fields.get("content_block")))
            self._inputs.append("")
        elif kind == "content_block_delta" and self._blocks:
            self._grow(self._blocks[-1], _object(fields.get("delta")))
        elif kind == "content_block_stop" and self._blocks and self._inputs[-1]:
            self._blocks[-1]["input"] = _input(self._inputs[-1])
        elif kind == "message_delta":
            usage = {**_object(self._message.get("usage")), **_told(_object(fields.get("usage")))}
            self._message |= {**_object(fields.get("delta")), "usage": usage}

    def _grow(self, block: JsonObject, delta: JsonObject) -> None:
        kind = str(delta.get("type"))
        if kind in _GROWING:
            name = _GROWING[kind]
            block[name] = f"{block.get(name) or ''}{delta.get(name) or ''}"
        elif kind == "signature_delta":
            block["signature"] = delta.get("signature")
        elif kind == "input_json_delta":
            self._inputs[-1] += str(delta.get("partial_json") or "")
        elif kind == "citations_delta":
            citations = block.get("citations")
            block["citations"] = [*(citations if isinstance(citations, list) else []), delta.get("citation")]


def _input(written: str) -> JsonValue:
    """A tool's input; empty where the answer was cut off in the middle of it."""
    try:
        return decode(written.encode(errors="replace"))
    except GoJsonError:
        return {}


def _told(fields: JsonObject) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _object(value: JsonValue) -> JsonObject:
    return dict(value) if isinstance(value, dict) else {}


def _plain(fields: Event) -> JsonObject:
    return {name: _value(value) for name, value in fields.items()}


def _value(value: object) -> JsonValue:
    if isinstance(value, Mapping):
        return {str(name): _value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(inner) for inner in value]
    return value if isinstance(value, bool | int | float | str) else None
