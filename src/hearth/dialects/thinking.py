"""Hearth's own words as the model's thinking, before the model says anything, and what of the model
server's stream fits behind them.

Ollama's lines need nothing else. OpenAI's chunks all have one id and one date. In a message and in
a response the words are a block of their own, which ends before the model's first one; those count
from 1 then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hearth.dialects.frames import event
from hearth.dialects.gojson import JsonObject, JsonValue, encode


class Thinking(Protocol):
    """The words in one stream: `say` as often as there are any, then `end`; what follows is
    `fitted`.
    """

    def say(self, text: str) -> bytes:
        """The frames of these words."""
        ...

    def end(self) -> bytes:
        """The frames before the model's own; again is harmless."""
        ...

    def fitted(self, fields: JsonObject) -> JsonObject:
        """A frame of the model server as it fits behind the words."""
        ...


class ChunkThinking:
    """In `/v1/chat/completions`. The role is left to the model's first chunk: clients join what
    the chunks say, the role included.
    """

    def __init__(self, name: str, model: str, created: int) -> None:
        self._names: JsonObject = {"id": f"chatcmpl-{name}", "created": created}
        self._head: JsonObject = {
            "id": f"chatcmpl-{name}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }

    def say(self, text: str) -> bytes:
        # Ollama's name and everybody else's: most clients read one of them
        delta: JsonObject = {"content": "", "reasoning": text, "reasoning_content": text}
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": None}
        return b"data: " + encode(self._head | {"choices": [choice]}) + b"\n\n"

    def end(self) -> bytes:
        return b""

    def fitted(self, fields: JsonObject) -> JsonObject:
        return {key: self._names.get(key, one) for key, one in fields.items()}


class BlockThinking:
    """In `/v1/messages`. The block is not signed, as Ollama's are not."""

    def __init__(self) -> None:
        self._is_open = False

    def say(self, text: str) -> bytes:
        opening = b"" if self._is_open else _block("start", content_block=_EMPTY_BLOCK)
        self._is_open = True
        return opening + _block("delta", delta={"type": "thinking_delta", "thinking": text})

    def end(self) -> bytes:
        was_open = self._is_open
        self._is_open = False
        return _block("stop") if was_open else b""

    def fitted(self, fields: JsonObject) -> JsonObject:
        return _shifted(fields, "index")


_EMPTY_BLOCK: JsonObject = {"type": "thinking", "thinking": "", "signature": ""}


def _block(kind: str, **fields: JsonValue) -> bytes:
    return event({"type": f"content_block_{kind}", "index": 0, **fields})


class SummaryThinking:
    """In `/v1/responses`, as the summary of an item of reasoning: a part each time, in bold, which
    is what Codex shows in its status line.

    Args:
        number_event: writes an event of this type with the next number of the stream.
    """

    def __init__(self, name: str, number_event: Callable[[str, JsonObject], bytes]) -> None:
        self._event = number_event
        self._id = f"rs_{name}"
        self._summary: list[JsonValue] = []
        self._is_open = False

    @property
    def _item(self) -> JsonObject:
        return {"id": self._id, "type": "reasoning", "summary": [*self._summary]}

    def say(self, text: str) -> bytes:
        opening = b"" if self._is_open else self._of_item("added")
        self._is_open = True
        bold = f"**{text.rstrip()}**\n\n"
        written = [
            self._of_part("part.added", part=_part("")),
            self._of_part("text.delta", delta=bold),
            self._of_part("text.done", text=bold),
            self._of_part("part.done", part=_part(bold)),
        ]
        self._summary.append(_part(bold))
        return opening + b"".join(written)

    def end(self) -> bytes:
        was_open = self._is_open
        self._is_open = False
        return self._of_item("done") if was_open else b""

    def _of_item(self, kind: str) -> bytes:
        fields: JsonObject = {"item": self._item, "output_index": 0}
        return self._event(f"response.output_item.{kind}", fields)

    def _of_part(self, kind: str, **fields: JsonValue) -> bytes:
        place: JsonObject = {
            "item_id": self._id,
            "output_index": 0,
            "summary_index": len(self._summary),
        }
        return self._event(f"response.reasoning_summary_{kind}", place | fields)

    def fitted(self, fields: JsonObject) -> JsonObject:
        response = fields.get("response")
        output = response.get("output") if isinstance(response, dict) else None
        if isinstance(response, dict) and isinstance(output, list):
            fields = {**fields, "response": {**response, "output": [self._item, *output]}}
        return _shifted(fields, "output_index")


def _part(text: str) -> JsonObject:
    return {"type": "summary_text", "text": text}


def _shifted(fields: JsonObject, key: str) -> JsonObject:
    """With the block that comes before the model's own counted."""
    place = fields.get(key)
    return {**fields, key: place + 1} if isinstance(place, int) else fields
