"""Claude's answer as `/v1/messages` gives it: its own events, with the model's name that the caller asked for.

Called by `answering`. Source: Anthropic's reference of streamed messages.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.dialects.claude.telling import Event, Said
from hearth.dialects.claude.writing import Occasion
from hearth.dialects.gojson import GoJsonError, JsonObject, JsonValue, decode, encode

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
