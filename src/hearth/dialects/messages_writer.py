"""An answer as Ollama writes it for `/v1/messages`, after its `anthropic/anthropic.go`; see
`hearth.dialects.writers`.
"""

from __future__ import annotations

from itertools import groupby

from hearth.dialects.frames import event
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.writers import (
    HOLE,
    AnswerPart,
    Generation,
    TextPart,
    ToolCall,
    Writer,
    form_of,
)


class MessagesWriter(Writer):
    """`/v1/messages`; `estimated_tokens` is what the first event gives as the size of the
    prompt.
    """

    def __init__(self, message_id: str, model: str, *, estimated_tokens: int) -> None:
        self._start: JsonObject | None = message_start(message_id, model, estimated_tokens)
        self._message = _message(message_id, model)
        self._open: str | None = None
        self._index = -1
        self._delta_form = b""

    def write(self, part: AnswerPart, wall_s: float) -> list[bytes]:
        del wall_s
        if isinstance(part, ToolCall):
            block: JsonObject = {
                "type": "tool_use",
                "id": part.call_id,
                "name": part.name,
                "input": {},
            }
            opened = self._open_block(block, "input_json_delta", "partial_json")
            return [*opened, self._delta_form % encode(part.arguments_text)]
        kind = _block_type(part)
        is_open = self._open == kind
        opened = (
            [] if is_open else self._open_block({"type": kind, kind: ""}, f"{kind}_delta", kind)
        )
        return [*opened, self._delta_form % encode(part.text)]

    def end(self, done: Generation, wall_s: float) -> list[bytes]:
        del wall_s
        if done.reason is None:
            return []
        delta: JsonObject = {
            "type": "message_delta",
            "delta": _stop_reason(done),
            "usage": _anthropic_usage(done),
        }
        return [*self._begin(), *self._close_block(), event(delta), event({"type": "message_stop"})]

    def whole(self, done: Generation, wall_s: float) -> JsonObject:
        del wall_s
        content: list[JsonValue] = []
        for kind, parts in groupby(done.parts, _block_type):
            if kind == "tool_use":
                calls = [call for call in parts if isinstance(call, ToolCall)]
                content += [
                    {
                        "type": kind,
                        "id": call.call_id,
                        "name": call.name,
                        "input": call.arguments or {},
                    }
                    for call in calls
                ]
            else:
                content.append(
                    {
                        "type": kind,
                        kind: "".join([one.text for one in parts if isinstance(one, TextPart)]),
                    }
                )
        return self._message | {
            "content": content,
            **_stop_reason(done),
            "usage": _anthropic_usage(done),
        }

    def _begin(self) -> list[bytes]:
        start = self._start
        self._start = None
        return [] if start is None else [event(start)]

    def _open_block(self, block: JsonObject, delta_type: str, text_key: str) -> list[bytes]:
        before = [*self._begin(), *self._close_block()]
        self._open = str(block["type"])
        self._index += 1
        delta: JsonObject = {"type": delta_type, text_key: HOLE}
        self._delta_form = form_of(
            event({"type": "content_block_delta", "index": self._index, "delta": delta})
        )
        return [
            *before,
            event({"type": "content_block_start", "index": self._index, "content_block": block}),
        ]

    def _close_block(self) -> list[bytes]:
        was_open = self._open
        self._open = None
        return (
            []
            if was_open is None
            else [event({"type": "content_block_stop", "index": self._index})]
        )


def message_start(message_id: str, model: str, estimated_tokens: int) -> JsonObject:
    """The first event of a stream; `estimated_tokens`: the size of the prompt."""
    usage: JsonObject = {"input_tokens": estimated_tokens, "output_tokens": 0}
    return {"type": "message_start", "message": _message(message_id, model) | {"usage": usage}}


def _message(message_id: str, model: str) -> JsonObject:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
    }


def _block_type(part: AnswerPart) -> str:
    return "tool_use" if isinstance(part, ToolCall) else "thinking" if part.thinking else "text"


def _stop_reason(done: Generation) -> JsonObject:
    named = {"length": "max_tokens", "refusal": "refusal"}
    reason = named.get(done.reason or "", "end_turn")
    return {"stop_reason": "tool_use" if done.calls else reason}


def _anthropic_usage(done: Generation) -> JsonObject:
    """Anthropic counts what was in the cache beside what was not."""
    cached = done.cached_tokens
    return {
        "input_tokens": done.prompt_tokens - cached,
        "output_tokens": done.output_tokens,
        **({"cache_read_input_tokens": cached} if cached else {}),
    }
