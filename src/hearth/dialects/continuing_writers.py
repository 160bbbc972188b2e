"""Writes the rest of an answer in the caller's dialect, frame by frame, in the shape of the frames that were sent.

Names and numbers are put right by `replay`, which knows those that the caller knows. Source: ollama/ollama v0.33.0-rc2, `api/types.go`,
`openai/openai.go`, `openai/responses.go`, `anthropic/anthropic.go`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from hearth.dialects.frames import Frame, at
from hearth.dialects.gojson import JsonObject, JsonValue, encode, lookup
from hearth.dialects.routes import Endpoint, Route
from hearth.dialects.stream import event
from hearth.types import Dialect, value

TOOL_CALLS = "tool_calls"
"""Why an answer ended that calls tools: in OpenAI's words, since Ollama has none."""
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", TOOL_CALLS: "tool_use"}


@value
class Ended:
    """How an answer ended: the native last line with the counts of the whole, Ollama's reason (or TOOL_CALLS), the whole text, when."""

    line: JsonObject
    reason: str
    prompt_tokens: int
    output_tokens: int
    text: str
    wall_s: int


@dataclass(slots=True)
class SentFrames:
    """What the frames that were sent say of the ones to come.

    Attributes:
        text_frame: the last one with a piece of the text.
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
        index, item, response = fields.get("index", fields.get("output_index")), fields.get("item"), fields.get("response")
        self.index = index if isinstance(index, int) else self.index
        if frame.event == "response.created":
            self.response = response if isinstance(response, dict) else {}
        elif frame.event == "response.output_item.added" and isinstance(item, dict):
            self.item_id = str(item.get("id"))
        elif frame.event == "response.output_item.done" and self.text_frame is None:
            self.items.append(item)


class Writer(Protocol):
    """One caller's frames."""

    def text(self, text: str, line: JsonObject, /) -> bytes:
        """A piece of the answer; `line` is the native one that brought it."""

    def calls(self, calls: list[JsonObject], text: str, line: JsonObject, /) -> list[bytes]:
        """The frames of tool calls, one element each; `calls` are Ollama's own, `text` is all that was said before them."""

    def ending(self, ended: Ended) -> list[bytes]:
        """The frames after the text and the calls, one element each."""


def writer_for(route: Route, fields: JsonObject, sent: SentFrames) -> Writer:
    """What writes the rest of an answer to the request with these fields."""
    if route.dialect is Dialect.OLLAMA:
        return _Native(chat=route.path is Endpoint.CHAT)
    if route.dialect is Dialect.ANTHROPIC:
        return _Messages(sent)
    if route.path is Endpoint.OPENAI_RESPONSES:
        return _Responses(sent)
    return _OpenAi(sent, fields, chat=route.path is Endpoint.OPENAI_CHAT)


class _Native:
    def __init__(self, *, chat: bool) -> None:
        self._chat = chat

    def text(self, text: str, line: JsonObject, /) -> bytes:
        return self._line({name: line.get(name) for name in ("model", "created_at")} | {"response": text, "done": False})

    def calls(self, _calls: list[JsonObject], _text: str, line: JsonObject, /) -> list[bytes]:
        return [encode(line) + b"\n"]

    def ending(self, ended: Ended) -> list[bytes]:
        reason = "stop" if ended.reason == TOOL_CALLS else ended.reason
        return [self._line(ended.line | {"response": "", "done_reason": reason})]

    def _line(self, fields: JsonObject) -> bytes:
        if self._chat:
            message: JsonObject = {"role": "assistant", "content": fields["response"]}
            fields = {("message" if name == "response" else name): (message if name == "response" else one) for name, one in fields.items()}
        return encode(fields) + b"\n"


class _OpenAi:
    """Frames of a chat or text completion, made after the last that was sent."""

    def __init__(self, sent: SentFrames, fields: JsonObject, *, chat: bool) -> None:
        self._chat = chat
        options = lookup(fields, "stream_options")
        self._usage = isinstance(options, dict) and lookup(options, "include_usage") is True
        last = None if sent.text_frame is None else at(sent.text_frame.fields, ("choices", 0))
        self._choice: JsonObject = last if isinstance(last, dict) else {"index": 0}
        self._fields: JsonObject = {} if sent.text_frame is None else sent.text_frame.fields

    def text(self, text: str, _line: JsonObject, /) -> bytes:
        return self._frame({"content": text} if self._chat else text, None)

    def calls(self, calls: list[JsonObject], _text: str, _line: JsonObject, /) -> list[bytes]:
        told: list[JsonValue] = []
        for index, call in enumerate(calls):
            function: JsonObject = {"name": _function(call).get("name"), "arguments": _arguments(call)}
            told.append({"id": call.get("id"), "index": index, "type": "function", "function": function})
        return [self._frame({"content": "", "tool_calls": told}, None)]

    def ending(self, ended: Ended) -> list[bytes]:
        frames = [self._frame({} if self._chat else "", ended.reason)]
        if self._usage:
            prompt, output = ended.prompt_tokens, ended.output_tokens
            usage: JsonObject = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
            frames.append(b"data: " + encode({**self._fields, "choices": [], "usage": usage}) + b"\n\n")
        return [*frames, b"data: [DONE]\n\n"]

    def _frame(self, said: JsonValue, reason: str | None) -> bytes:
        told: JsonObject = {"delta" if self._chat else "text": said, "finish_reason": reason}
        return b"data: " + encode({**self._fields, "choices": [self._choice | told]}) + b"\n\n"


class _Messages:
    def __init__(self, sent: SentFrames) -> None:
        self._index = sent.index
        self._in_text = True

    def text(self, text: str, _line: JsonObject, /) -> bytes:
        return _event_of({"type": "content_block_delta", "index": self._index, "delta": {"type": "text_delta", "text": text}})

    def calls(self, calls: list[JsonObject], _text: str, _line: JsonObject, /) -> list[bytes]:
        frames = self._end_of_text()
        for call in calls:
            self._index += 1
            block: JsonObject = {"type": "tool_use", "id": call.get("id"), "name": _function(call).get("name"), "input": {}}
            delta: JsonObject = {"type": "input_json_delta", "partial_json": _arguments(call)}
            frames += [
                _event_of({"type": "content_block_start", "index": self._index, "content_block": block}),
                _event_of({"type": "content_block_delta", "index": self._index, "delta": delta}),
                _event_of({"type": "content_block_stop", "index": self._index}),
            ]
        return frames

    def _end_of_text(self) -> list[bytes]:
        was_open, self._in_text = self._in_text, False
        return [_event_of({"type": "content_block_stop", "index": self._index})] if was_open else []

    def ending(self, ended: Ended) -> list[bytes]:
        usage: JsonObject = {"input_tokens": ended.prompt_tokens, "output_tokens": ended.output_tokens}
        reason: JsonObject = {"stop_reason": _STOP_REASONS.get(ended.reason, "stop_sequence")}
        return [
            *self._end_of_text(),
            _event_of({"type": "message_delta", "delta": reason, "usage": usage}),
            _event_of({"type": "message_stop"}),
        ]


class _Responses:
    """Events are maps in Go: their keys come out sorted. `sequence_number` is set by `replay`."""

    def __init__(self, sent: SentFrames) -> None:
        self._sent = sent
        self._items: list[JsonValue] = [*sent.items]
        self._in_text = True

    def text(self, text: str, _line: JsonObject, /) -> bytes:
        return self._send("output_text.delta", self._place() | {"delta": text, "logprobs": []})

    def calls(self, calls: list[JsonObject], text: str, _line: JsonObject, /) -> list[bytes]:
        frames = self._end_of_text(text)
        for call in calls:
            place: JsonObject = {"output_index": self._sent.index - len(self._sent.items) + len(self._items)}
            name, arguments = _function(call).get("name"), _arguments(call)
            item: JsonObject = {"call_id": call.get("id"), "id": f"fc_{call.get('id')}", "name": name, "type": "function_call"}
            named, done = place | {"item_id": item["id"]}, item | {"arguments": arguments, "status": "completed"}
            self._items.append(done)
            frames += [
                self._send("output_item.added", place | {"item": item | {"arguments": "", "status": "in_progress"}}),
                self._send("function_call_arguments.delta", named | {"delta": arguments}),
                self._send("function_call_arguments.done", named | {"arguments": arguments}),
                self._send("output_item.done", place | {"item": done}),
            ]
        return frames

    def _end_of_text(self, text: str) -> list[bytes]:
        if not self._in_text:
            return []
        sent, place, self._in_text = self._sent, self._place(), False
        part: JsonObject = {"annotations": [], "logprobs": [], "text": text, "type": "output_text"}
        item: JsonObject = {"content": [part], "id": sent.item_id, "role": "assistant", "status": "completed", "type": "message"}
        self._items.append(item)
        return [
            self._send("output_text.done", place | {"logprobs": [], "text": text}),
            self._send("content_part.done", place | {"part": part}),
            self._send("output_item.done", {"item": item, "output_index": sent.index}),
        ]

    def ending(self, ended: Ended) -> list[bytes]:
        frames = self._end_of_text(ended.text)
        prompt, output = ended.prompt_tokens, ended.output_tokens
        counts: JsonObject = {"input_tokens": prompt, "output_tokens": output, "total_tokens": prompt + output}
        details: JsonObject = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        told: JsonObject = {"status": "completed", "completed_at": ended.wall_s, "output": self._items, "usage": counts | details}
        return [*frames, self._send("completed", {"response": self._sent.response | told})]

    def _place(self) -> JsonObject:
        return {"content_index": 0, "item_id": self._sent.item_id, "output_index": self._sent.index}

    def _send(self, name: str, fields: JsonObject) -> bytes:
        kind = f"response.{name}"
        return event(kind, _sorted({**fields, "sequence_number": 0, "type": kind}))


def _function(call: JsonObject) -> JsonObject:
    function = call.get("function")
    return function if isinstance(function, dict) else {}


def _arguments(call: JsonObject) -> str:
    return encode(_function(call).get("arguments") or {}).decode()


def _event_of(fields: JsonObject) -> bytes:
    return event(str(fields["type"]), fields)


def _sorted(fields: JsonObject) -> JsonObject:
    return {name: _in_order(fields[name]) for name in sorted(fields)}


def _in_order(one: JsonValue) -> JsonValue:
    if isinstance(one, dict):
        return _sorted(one)
    return [_in_order(each) for each in one] if isinstance(one, list) else one
