"""Claude's answer as Ollama's `/api/chat` and `/api/generate` give it: lines of NDJSON, or one object.

Field order, omission of zeros and the place of the counters as in ollama/ollama v0.33.0-rc2 (`api/types.go`). Called by `answering`.
"""

from __future__ import annotations

from hearth.dialects.claude.dates import nanoseconds, rfc3339
from hearth.dialects.claude.telling import Call, Event, Said, Telling, Text
from hearth.dialects.claude.writing import Occasion, finish
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.errors import BackendProtocolError


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
