"""An answer in each dialect as Ollama writes it: one JSON object, or a stream frame by frame.

Key order, omission of zeros and grouping into frames are those of ollama/ollama v0.33.0-rc2: here
`api/types.go` and `openai/openai.go`; `/v1/responses` and `/v1/messages` have modules of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import TypeAlias

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
        return text_of(self.parts)

    @property
    def calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]


HOLE = "\0"
"""Stands for a value in a frame that is encoded once, and then filled in for each token."""
_ENCODED_HOLE = encode(HOLE)


def form_of(frame: bytes) -> bytes:
    """The frame as a format with a place for each hole."""
    return frame.replace(b"%", b"%%").replace(_ENCODED_HOLE, b"%b")


class Writer(ABC):
    """One answer: either `write` every part and then `end`, or `whole`.

    `wall_s` is now, in seconds since 1970; an element is a frame.
    """

    next_number: int = 0
    """Of the next frame, in a dialect that numbers them."""

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
        thinking = text_of(parts, thinking=True)
        content: JsonObject = {
            "content" if self._chat else "response": text_of(parts),
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
        line = self.line(0.0, (TextPart(text=HOLE),)) | {"created_at": HOLE, "done": False}
        return form_of(encode(line) + b"\n")

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
        return form_of(_data(self._chunk({"content": HOLE})))

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
        thinking = text_of(done.parts, thinking=True)
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


def text_of(parts: Sequence[AnswerPart], *, thinking: bool = False) -> str:
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
