"""An answer in each dialect as Ollama writes it: one JSON object, or a stream frame by frame.

Key order, omission of zeros and grouping into frames are those of ollama/ollama v0.33.0-rc2:
`api/types.go`, `openai/openai.go`, `openai/responses.go`, `anthropic/anthropic.go`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import TypeAlias

from hearth.dialects.frames import event
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.types import value


@value
class TextPart:
    """A piece of the answer, or of the thinking before it; `logprobs` are its tokens' entries where
    the caller asked for them.
    """

    text: str
    thinking: bool = False
    logprobs: Sequence[JsonValue] = ()

    @property
    def is_plain(self) -> bool:
        """Text of the answer, and nothing beside it."""
        return not (self.thinking or self.logprobs)


@value
class ToolCall:
    """A whole tool call; `arguments` is None where `written`, what the model wrote, is not a JSON
    object: it was cut off.
    """

    call_id: str
    name: str
    arguments: JsonObject | None
    written: str = ""

    @property
    def arguments_text(self) -> str:
        """The arguments as Go would write them."""
        return self.written if self.arguments is None else encode(self.arguments).decode()


AnswerPart: TypeAlias = TextPart | ToolCall


@value
class Generation:
    """A whole answer, in the words of no dialect.

    Attributes:
        reason: why it ended: `stop`, `length` or `refusal`; None where the model server broke it
        off without an end. context: token numbers of the whole conversation (`/api/generate` only).
        total_ns, load_ns, prompt_ns, output_ns: durations; 0 leaves the field out.
    """

    parts: Sequence[AnswerPart]
    reason: str | None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    context: Sequence[int] = ()
    total_ns: int = 0
    load_ns: int = 0
    prompt_ns: int = 0
    output_ns: int = 0

    @property
    def text(self) -> str:
        return _text(self.parts)

    @property
    def calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]


_HOLE = "\0"
"""Stands for a value in a frame that is encoded once, and then filled in for each token."""
_ENCODED_HOLE = encode(_HOLE)


def _form(frame: bytes) -> bytes:
    """The frame as a format with a place for each hole."""
    return frame.replace(b"%", b"%%").replace(_ENCODED_HOLE, b"%b")


class Writer(ABC):
    """One answer: either `write` every part and then `end`, or `whole`.

    `wall_s` is now, in seconds since 1970; an element is a frame.
    """

    def resume(self, parts: Sequence[AnswerPart], next_number: int) -> None:
        """Go on behind these parts, which an earlier run has written.

        Args:
            next_number: of the next frame, in a dialect that numbers them.
        """
        del next_number
        self.begin()
        for part in parts:
            self.write(part, 0.0)

    def begin(self) -> list[bytes]:
        """The frames before the first part; again is harmless."""
        return []

    @abstractmethod
    def write(self, part: AnswerPart, wall_s: float) -> list[bytes]:
        """The frames of one part."""

    def write_text(self, text: str, wall_s: float) -> list[bytes]:
        """As `write` for text of the answer, and nothing beside it: nearly all parts are that."""
        return self.write(TextPart(text=text), wall_s)

    @abstractmethod
    def end(self, done: Generation, wall_s: float) -> list[bytes]:
        """The frames after the last part; none where the answer was broken off."""

    @abstractmethod
    def whole(self, done: Generation, wall_s: float) -> JsonObject:
        """The answer that does not stream."""

    def broken(self) -> list[bytes]:
        """The frames that Ollama sends where the runner dies within a stream."""
        return []


class NativeWriter(Writer):
    """`/api/chat` and `/api/generate`."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat
        self._calls = 0

    def line(self, wall_s: float, parts: Sequence[AnswerPart] = ()) -> JsonObject:
        """The first fields of an object, with these parts of the answer; calls that were cut off
        are left out.
        """
        thinking = _text(parts, thinking=True)
        content: JsonObject = {
            "content" if self._chat else "response": _text(parts),
            **({"thinking": thinking} if thinking else {}),
        }
        if self._chat:
            whole = [
                one for one in parts if isinstance(one, ToolCall) and one.arguments is not None
            ]
            calls: list[JsonValue] = [
                {
                    "id": call.call_id,
                    "function": {"index": index, "name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(whole, self._calls)
            ]
            content = {
                "message": {
                    "role": "assistant",
                    **content,
                    **({"tool_calls": calls} if calls else {}),
                }
            }
        return {"model": self._model, "created_at": rfc3339(wall_s), **content}

    def write(self, part: AnswerPart, wall_s: float) -> list[bytes]:
        if isinstance(part, ToolCall) and part.arguments is None:
            return []
        if isinstance(part, TextPart) and part.is_plain:
            return self.write_text(part.text, wall_s)
        line = encode(self.line(wall_s, (part,)) | {"done": False} | _logprobs((part,))) + b"\n"
        self._calls += isinstance(part, ToolCall)
        return [line]

    def write_text(self, text: str, wall_s: float) -> list[bytes]:
        return [self._text_form % (_created_at(wall_s), encode(text))]

    @cached_property
    def _text_form(self) -> bytes:
        line = self.line(0.0, (TextPart(text=_HOLE),)) | {"created_at": _HOLE, "done": False}
        return _form(encode(line) + b"\n")

    def end(self, done: Generation, wall_s: float) -> list[bytes]:
        if done.reason is None:
            return []
        return [encode(self.line(wall_s) | _ending(done, {})) + b"\n"]

    def whole(self, done: Generation, wall_s: float) -> JsonObject:
        line = self.line(wall_s, done.parts)
        logprobs = _logprobs(done.parts)
        return line | (
            {"done": False} | logprobs if done.reason is None else _ending(done, logprobs)
        )


def _logprobs(parts: Sequence[AnswerPart]) -> JsonObject:
    entries = [entry for one in parts if isinstance(one, TextPart) for entry in one.logprobs]
    return {"logprobs": entries} if entries else {}


def _ending(done: Generation, logprobs: JsonObject) -> JsonObject:
    ending: JsonObject = {
        "done": True,
        "done_reason": done.reason,
        **({"context": [*done.context]} if done.context else {}),
    }
    timings: JsonObject = {
        "total_duration": done.total_ns,
        "load_duration": done.load_ns,
        "prompt_eval_count": done.prompt_tokens,
        "prompt_eval_duration": done.prompt_ns,
        "eval_count": done.output_tokens,
        "eval_duration": done.output_ns,
    }
    return ending | logprobs | {name: count for name, count in timings.items() if count}


class OpenAiWriter(Writer):
    """`/v1/chat/completions`, or with `chat=False` `/v1/completions`; `answer_id` as its caller
    reads it.
    """

    def __init__(
        self,
        answer_id: str,
        model: str,
        *,
        chat: bool,
        created_wall_s: float,
        made_by: str,
        include_usage: bool,
    ) -> None:
        self._chat = chat
        self._include_usage = include_usage
        self._id = answer_id
        self._created = int(created_wall_s)
        self._made_by: JsonObject = {"model": model, "system_fingerprint": made_by}
        self._begun = False
        self._calls = 0

    def write(self, part: AnswerPart, wall_s: float) -> list[bytes]:
        if isinstance(part, ToolCall):
            index = self._calls
            self._calls = self._calls + 1
            return [_data(self._chunk({"content": "", "tool_calls": [_function(part, index)]}))]
        if part.thinking and not self._chat:  # a text completion has no place for thoughts
            return []
        if part.is_plain:
            return self.write_text(part.text, wall_s)
        delta: JsonObject = (
            {"content": "", "reasoning": part.text} if part.thinking else {"content": part.text}
        )
        return [_data(self._chunk(delta, part=part))]

    def write_text(self, text: str, wall_s: float) -> list[bytes]:
        del wall_s
        if not self._begun:
            return [_data(self._chunk({"content": text}))]
        return [self._text_form % encode(text)]

    @cached_property
    def _text_form(self) -> bytes:
        return _form(_data(self._chunk({"content": _HOLE})))

    def end(self, done: Generation, wall_s: float) -> list[bytes]:
        del wall_s
        if done.reason is None:
            return []
        usage = _data(self._chunk() | {"usage": _usage(done)}) if self._include_usage else b""
        return [_data(self._chunk({}, reason=_finish_reason(done))) + usage + b"data: [DONE]\n\n"]

    def broken(self) -> list[bytes]:
        """Empty text, no model, and nothing after it."""
        self._begun = True
        return [_data(self._chunk({"content": ""}) | {"model": ""})]

    def whole(self, done: Generation, wall_s: float) -> JsonObject:
        del wall_s
        text: JsonObject = {"text": done.text, "index": 0, "finish_reason": _finish_reason(done)}
        head = self._head("chat.completion") | self._made_by
        return head | {
            "choices": [self._choice(done) if self._chat else text],
            "usage": _usage(done),
        }

    def _head(self, chat_object: str) -> JsonObject:
        return {
            "id": self._id,
            "object": chat_object if self._chat else "text_completion",
            "created": self._created,
        }

    def _choice(self, done: Generation) -> JsonObject:
        thinking = _text(done.parts, thinking=True)
        calls = [_function(call, index) for index, call in enumerate(done.calls)]
        message: JsonObject = {
            "role": "assistant",
            "content": done.text,
            **({"reasoning": thinking} if thinking else {}),
        }
        message |= {"tool_calls": [*calls]} if calls else {}
        return {
            "index": 0,
            "message": message,
            "finish_reason": _finish_reason(done),
            **_openai_logprobs(done.parts),
        }

    def _chunk(
        self,
        delta: JsonObject | None = None,
        *,
        reason: str | None = None,
        part: TextPart | None = None,
    ) -> JsonObject:
        """One chunk; without a delta one without choices."""
        head = self._head("chat.completion.chunk")
        if delta is None:
            return (
                head | self._made_by | {"choices": []}
                if self._chat
                else head | {"choices": []} | self._made_by
            )
        begun = self._begun
        self._begun = True  # the first delta names the role
        if not self._chat:
            choice: JsonObject = {
                "text": delta.get("content", ""),
                "index": 0,
                "finish_reason": reason,
            }
            zero: JsonObject = (
                {"usage": _usage(Generation(parts=(), reason=None))} if self._include_usage else {}
            )
            return head | {"choices": [choice]} | self._made_by | zero
        choice = {
            "index": 0,
            "delta": delta if begun else {"role": "assistant", **delta},
            "finish_reason": reason,
        }
        return (
            head
            | self._made_by
            | {"choices": [choice | _openai_logprobs(() if part is None else (part,))]}
        )


def _data(fields: JsonObject) -> bytes:
    return b"data: " + encode(fields) + b"\n\n"


def _function(call: ToolCall, index: int) -> JsonObject:
    function: JsonObject = {"name": call.name, "arguments": call.arguments_text}
    return {"id": call.call_id, "index": index, "type": "function", "function": function}


def _finish_reason(done: Generation) -> str | None:
    if done.calls and done.reason in ("stop", None):
        return "tool_calls"
    return "content_filter" if done.reason == "refusal" else done.reason


def _openai_logprobs(parts: Sequence[AnswerPart]) -> JsonObject:
    entries = _logprobs(parts).get("logprobs")
    return {"logprobs": {"content": entries}} if entries else {}


def _usage(done: Generation) -> JsonObject:
    prompt = done.prompt_tokens
    output = done.output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


class ResponsesWriter(Writer):
    """`/v1/responses`: numbered events, which are maps in Go, so that their keys come out sorted.

    Args:
        message_id: of the message that it opens first, as its caller reads it; those that follow
        have its name and their place. response: the response in progress. items: what was finished
        before. incomplete: which reasons of an end the response calls incomplete, and
        how; Ollama knows none.
    """

    def __init__(
        self,
        message_id: str,
        response: JsonObject,
        *,
        items: Sequence[JsonValue] = (),
        incomplete: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._id = message_id
        self._response = response
        self._incomplete = incomplete
        self._items = [*items]
        self._first_place = len(items)
        self._number = 0
        self._delta_form = b""
        self._open = False
        self._texts: list[str] = []
        """The texts of the message that is open, if one is."""

    def resume(self, parts: Sequence[AnswerPart], next_number: int) -> None:
        super().resume(parts, next_number)
        self._number = next_number

    def begin(self) -> list[bytes]:
        return (
            []
            if self._number
            else [self._event(name, response=self._response) for name in ("created", "in_progress")]
        )

    def write(self, part: AnswerPart, wall_s: float) -> list[bytes]:
        if isinstance(part, ToolCall):
            return [*self.begin(), *self._close_message(), *self._call(part)]
        return [] if part.thinking else self.write_text(part.text, wall_s)

    def write_text(self, text: str, wall_s: float) -> list[bytes]:
        del wall_s
        opened = [] if self._open else [*self.begin(), *self._open_message()]
        self._texts.append(text)
        number = self._number
        self._number = self._number + 1
        return [*opened, self._delta_form % (encode(text), b"%d" % number)]

    def end(self, done: Generation, wall_s: float) -> list[bytes]:
        begun = self.begin()
        if done.reason is None:
            return begun
        opened = [] if self._items or self._open else self._open_message()
        closed = self._close_message()
        name = "incomplete" if done.reason in self._incomplete else "completed"
        return [*begun, *opened, *closed, self._event(name, response=self._ended(done, wall_s))]

    def whole(self, done: Generation, wall_s: float) -> JsonObject:
        for part in done.parts:
            self.write(part, wall_s)
        self.end(replace(done, reason=done.reason or "stop"), wall_s)
        return self._ended(done, wall_s)

    def _open_message(self) -> list[bytes]:
        self._open = True
        self._texts = []
        item: JsonObject = {
            "content": [],
            "id": self._message_id(),
            "role": "assistant",
            "status": "in_progress",
            "type": "message",
        }
        delta = self._fields("output_text.delta", **self._place(), delta=_HOLE, logprobs=[])
        self._delta_form = _form(event(delta | {"sequence_number": _HOLE}))
        return [
            self._event("output_item.added", item=item, output_index=len(self._items)),
            self._event("content_part.added", **self._place(), part=_part("")),
        ]

    def _close_message(self) -> list[bytes]:
        if not self._open:
            return []
        text = "".join(self._texts)
        place = self._place()
        index = len(self._items)
        item: JsonObject = {
            "id": self._message_id(),
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [_part(text)],
        }
        self._open = False
        self._items.append(item)
        return [
            self._event("output_text.done", **place, logprobs=[], text=text),
            self._event("content_part.done", **place, part=_part(text)),
            self._event("output_item.done", item=item, output_index=index),
        ]

    def _call(self, call: ToolCall) -> list[bytes]:
        index = len(self._items)
        arguments = call.arguments_text
        item_id = f"fc_{call.call_id}"
        head: JsonObject = {
            "id": item_id,
            "type": "function_call",
            "status": "in_progress",
            "call_id": call.call_id,
            "name": call.name,
        }
        place: JsonObject = {"item_id": item_id, "output_index": index}
        done = head | {"status": "completed", "arguments": arguments}
        self._items.append(done)
        return [
            self._event("output_item.added", item=head | {"arguments": ""}, output_index=index),
            self._event("function_call_arguments.delta", delta=arguments, **place),
            self._event("function_call_arguments.done", arguments=arguments, **place),
            self._event("output_item.done", item=done, output_index=index),
        ]

    def _message_id(self) -> str:
        place = len(self._items)
        return self._id if place == self._first_place else f"{self._id}_{place}"

    def _place(self) -> JsonObject:
        return {"content_index": 0, "item_id": self._message_id(), "output_index": len(self._items)}

    def _event(self, name: str, **fields: JsonValue) -> bytes:
        written = event(self._fields(name, **fields))
        self._number += 1
        return written

    def _fields(self, name: str, **fields: JsonValue) -> JsonObject:
        fields |= {"sequence_number": self._number, "type": f"response.{name}"}
        return {key: _sorted(fields[key]) for key in sorted(fields)}

    def _ended(self, done: Generation, wall_s: float) -> JsonObject:
        """The finished response: the keys of the frame keep their places."""
        usage: JsonObject = {
            "input_tokens": done.prompt_tokens,
            "output_tokens": done.output_tokens,
            "total_tokens": done.prompt_tokens + done.output_tokens,
            "input_tokens_details": {"cached_tokens": done.cached_tokens},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        ended: JsonObject = {"completed_at": int(wall_s), "status": "completed"}
        incomplete = self._incomplete.get(done.reason or "")
        if incomplete is not None:
            ended = {"status": "incomplete", "incomplete_details": {"reason": incomplete}}
        return self._response | ended | {"output": self._items, "usage": usage}


def response_in_progress(
    name: str, model: str, asked: Mapping[str, JsonValue], created_wall_s: float
) -> JsonObject:
    """Keys in Go's order; `asked` are the fields of the request that it repeats
    (`RESPONSE_REPEATS`).
    """
    text = asked.get("text")
    wanted = text.get("format") if isinstance(text, dict) else None
    top_p = asked.get("top_p")
    temperature = asked.get("temperature")
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": int(created_wall_s),
        "completed_at": None,
        "status": "in_progress",
        "incomplete_details": None,
        "model": model,
        "previous_response_id": None,
        "instructions": asked.get("instructions"),
        "output": [],
        "error": None,
        "tools": asked.get("tools") or [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": wanted if isinstance(wanted, dict) else {"type": "text"}},
        "top_p": 1 if top_p is None else top_p,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "top_logprobs": 0,
        "temperature": 1 if temperature is None else temperature,
        "reasoning": None,
        "usage": None,
        "max_output_tokens": asked.get("max_output_tokens"),
        "max_tool_calls": None,
        "store": False,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


RESPONSE_REPEATS = ("instructions", "tools", "text", "temperature", "top_p", "max_output_tokens")
"""Fields of a request that a response repeats."""


class MessagesWriter(Writer):
    """`/v1/messages`; `estimated_tokens` is what the first event gives as the size of the
    prompt.
    """

    def __init__(self, message_id: str, model: str, *, estimated_tokens: int) -> None:
        self._message: JsonObject = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
        }
        usage: JsonObject = {"input_tokens": estimated_tokens, "output_tokens": 0}
        self._start: JsonObject | None = {
            "type": "message_start",
            "message": self._message | {"usage": usage},
        }
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
        delta: JsonObject = {"type": delta_type, text_key: _HOLE}
        self._delta_form = _form(
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


def _block_type(part: AnswerPart) -> str:
    return "tool_use" if isinstance(part, ToolCall) else "thinking" if part.thinking else "text"


def _stop_reason(done: Generation) -> JsonObject:
    return {
        "stop_reason": (
            "tool_use" if done.calls else "max_tokens" if done.reason == "length" else "end_turn"
        )
    }


def _anthropic_usage(done: Generation) -> JsonObject:
    return {"input_tokens": done.prompt_tokens, "output_tokens": done.output_tokens}


def _text(parts: Sequence[AnswerPart], *, thinking: bool = False) -> str:
    return "".join(
        [one.text for one in parts if isinstance(one, TextPart) and one.thinking is thinking]
    )


def nanoseconds(duration_s: float, *, step: int = 1) -> int:
    """A positive whole number of nanoseconds, a multiple of `step`: Ollama omits zeros, and a
    finished phase is never zero long.
    """
    return max(step, int(duration_s * 1e9) // step * step)


def rfc3339(wall_s: float) -> str:
    """Seconds since 1970 as `2026-11-21T02:09:14.423976812Z`; up to nine decimals, without zeros at
    their end.
    """
    decimals = f".{int(wall_s % 1 * 1e9):09d}".rstrip("0").rstrip(".")
    return f"{_to_the_second(int(wall_s))}{decimals}Z"


@lru_cache(maxsize=4)  # the tokens of a burst come at one instant
def _created_at(wall_s: float) -> bytes:
    return encode(rfc3339(wall_s))


@lru_cache(maxsize=4)  # tokens come many a second
def _to_the_second(wall_s: int) -> str:
    days, second = divmod(wall_s, 86_400)
    # The calendar repeats after 400 years of 146,097 days. Years begin in March here, so that leap
    # days come last.
    era, day_of_era = divmod(days + 719_468, 146_097)
    year = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day = day_of_era - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    year += era * 400 + (month >= 10)
    month += 3 if month < 10 else -9
    date = f"{year:04d}-{month:02d}-{day:02d}"
    return f"{date}T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
