"""Writes the rest of an answer in the caller's dialect, frame by frame, in the shape of the frames that were sent.

Names and numbers are put right by `replay`, which knows those that the caller knows. Called by `continuing` only. Source: ollama/ollama
v0.33.0-rc2, `api/types.go`, `openai/openai.go`, `openai/responses.go`, `anthropic/anthropic.go`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol

from hearth.dialects.gojson import JsonObject, JsonValue, encode, lookup
from hearth.dialects.replay_frames import Frame
from hearth.dialects.replay_reading import at
from hearth.dialects.routes import Endpoint, Route
from hearth.types import Dialect, value

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


@value
class Ended:
    """How an answer ended: the native last line with the counts of the whole, Ollama's reason, the whole text, when."""

    line: JsonObject
    reason: str
    prompt_tokens: int
    output_tokens: int
    text: str
    wall_s: int


@dataclass(slots=True)
class Heard:
    """What the frames that were sent say of the ones to come.

    Attributes:
        text_frame: the last one with a piece of the text, perhaps only the beginning of it.
        index: of the block or item that is open; response, items: of a Responses answer, as it was created, and its finished items.
    """

    text_frame: Frame | None = None
    index: int = 0
    item_id: str = "msg_0"
    response: JsonObject = field(default_factory=dict)
    items: list[JsonValue] = field(default_factory=list)

    def note(self, frame: Frame) -> None:
        """Take in a frame that is more than text."""
        fields = frame.fields
        index = fields.get("index", fields.get("output_index"))
        item = fields.get("item")
        self.index = index if isinstance(index, int) else self.index
        if frame.event == "response.created":
            response = fields.get("response")
            self.response = response if isinstance(response, dict) else {}
        elif frame.event == "response.output_item.added" and isinstance(item, dict):
            self.item_id = str(item.get("id"))
        elif frame.event == "response.output_item.done" and self.text_frame is None:
            self.items.append(item)


class Writer(Protocol):
    """One caller's frames."""

    def text(self, text: str, line: JsonObject, /) -> bytes:
        """A piece of the answer; `line` is the native one that brought it."""

    def ending(self, ended: Ended) -> list[bytes]:
        """The frames after the text, one element each."""


def writer_for(route: Route, fields: JsonObject, heard: Heard) -> Writer:
    """What writes the rest of an answer to the request with these fields."""
    if route.dialect is Dialect.OLLAMA:
        return _Native(chat=route.path is Endpoint.CHAT)
    if route.dialect is Dialect.ANTHROPIC:
        return _Messages(heard)
    if route.path is Endpoint.OPENAI_RESPONSES:
        return _Responses(heard)
    return _OpenAi(heard, fields, chat=route.path is Endpoint.OPENAI_CHAT)


class _Native:
    def __init__(self, *, chat: bool) -> None:
        self._chat = chat

    def text(self, text: str, line: JsonObject, /) -> bytes:
        return self._line({name: line.get(name) for name in ("model", "created_at")} | {"response": text, "done": False})

    def ending(self, ended: Ended) -> list[bytes]:
        return [self._line(ended.line | {"response": "", "done_reason": ended.reason})]

    def _line(self, fields: JsonObject) -> bytes:
        if self._chat:
            message: JsonObject = {"role": "assistant", "content": fields["response"]}
            fields = {("message" if name == "response" else name): (message if name == "response" else one) for name, one in fields.items()}
        return encode(fields) + b"\n"


class _OpenAi:
    """Frames of a chat or text completion, made after the last that was sent."""

    def __init__(self, heard: Heard, fields: JsonObject, *, chat: bool) -> None:
        self._chat = chat
        options = lookup(fields, "stream_options")
        self._usage = isinstance(options, dict) and lookup(options, "include_usage") is True
        self._fields = self._made(fields)
        sent = heard.text_frame
        if sent is not None and sent.foot and isinstance(at(sent.fields, ("choices", 0)), dict):
            self._fields = deepcopy(sent.fields)
            delta = at(self._fields, ("choices", 0, "delta"))
            if isinstance(delta, dict):
                delta.pop("role", None)

    def _made(self, fields: JsonObject) -> JsonObject:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head: JsonObject = {"id": "-", "object": kind, "created": 0}
        by: JsonObject = {"model": lookup(fields, "model"), "system_fingerprint": "fp_ollama"}
        said: JsonObject = {"index": 0, "delta": {"content": ""}} if self._chat else {"text": "", "index": 0}
        choices: JsonObject = {"choices": [{**said, "finish_reason": None}]}
        if self._chat:
            return head | by | choices
        zero: JsonObject = {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}} if self._usage else {}
        return head | choices | by | zero

    def text(self, text: str, _line: JsonObject, /) -> bytes:
        return self._frame({"content": text} if self._chat else text, None)

    def ending(self, ended: Ended) -> list[bytes]:
        frames = [self._frame({} if self._chat else "", ended.reason)]
        if self._usage:
            prompt, output = ended.prompt_tokens, ended.output_tokens
            usage: JsonObject = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
            frames.append(b"data: " + encode({**self._fields, "choices": [], "usage": usage}) + b"\n\n")
        return [*frames, b"data: [DONE]\n\n"]

    def _frame(self, said: JsonValue, reason: str | None) -> bytes:
        choice = at(self._fields, ("choices", 0))
        told: JsonObject = {"delta" if self._chat else "text": said, "finish_reason": reason}
        return b"data: " + encode({**self._fields, "choices": [(choice if isinstance(choice, dict) else {}) | told]}) + b"\n\n"


class _Messages:
    def __init__(self, heard: Heard) -> None:
        self._index = heard.index

    def text(self, text: str, _line: JsonObject, /) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": {"type": "text_delta", "text": text}})

    def ending(self, ended: Ended) -> list[bytes]:
        usage: JsonObject = {"input_tokens": ended.prompt_tokens, "output_tokens": ended.output_tokens}
        reason: JsonObject = {"stop_reason": _STOP_REASONS.get(ended.reason, "stop_sequence")}
        return [
            _event({"type": "content_block_stop", "index": self._index}),
            _event({"type": "message_delta", "delta": reason, "usage": usage}),
            _event({"type": "message_stop"}),
        ]


class _Responses:
    """Events are maps in Go: their keys come out sorted. `sequence_number` is set by `replay`."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def text(self, text: str, _line: JsonObject, /) -> bytes:
        return self._send("output_text.delta", self._place() | {"delta": text, "logprobs": []})

    def ending(self, ended: Ended) -> list[bytes]:
        heard, place = self._heard, self._place()
        part: JsonObject = {"annotations": [], "logprobs": [], "text": ended.text, "type": "output_text"}
        item: JsonObject = {"content": [part], "id": heard.item_id, "role": "assistant", "status": "completed", "type": "message"}
        prompt, output = ended.prompt_tokens, ended.output_tokens
        counts: JsonObject = {"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output}
        details: JsonObject = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        told: JsonObject = {"status": "completed", "completed_at": ended.wall_s, "output": [*heard.items, item], "usage": counts | details}
        return [
            self._send("output_text.done", place | {"logprobs": [], "text": ended.text}),
            self._send("content_part.done", place | {"part": part}),
            self._send("output_item.done", {"item": item, "output_index": heard.index}),
            self._send("completed", {"response": heard.response | told}),
        ]

    def _place(self) -> JsonObject:
        return {"content_index": 0, "item_id": self._heard.item_id, "output_index": self._heard.index}

    def _send(self, name: str, fields: JsonObject) -> bytes:
        return _event(_sorted({**fields, "sequence_number": 0, "type": f"response.{name}"}))


def _event(fields: JsonObject) -> bytes:
    return f"event: {fields['type']}\ndata: ".encode() + encode(fields) + b"\n\n"


def _sorted(fields: JsonObject) -> JsonObject:
    return {name: _in_order(fields[name]) for name in sorted(fields)}


def _in_order(one: JsonValue) -> JsonValue:
    if isinstance(one, dict):
        return _sorted(one)
    return [_in_order(each) for each in one] if isinstance(one, list) else one
