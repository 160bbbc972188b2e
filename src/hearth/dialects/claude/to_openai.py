"""Claude's answer as OpenAI's chat and text completions, in the shape that Ollama gives them.

A tool call is one delta with all its arguments, as Ollama sends it: clients that expect OpenAI's pieces read that too, the reverse does not
hold. Called by `answering`.
"""

from __future__ import annotations

from hearth.dialects.claude.telling import Call, Event, Said, Telling, Text
from hearth.dialects.claude.writing import Occasion, arguments_text, finish
from hearth.dialects.gojson import JsonObject, encode

_DONE = b"data: [DONE]\n\n"
_FINISHES = {"refusal": "content_filter"}


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
        return self._chat_chunk(self._delta({"content": "", "tool_calls": [_call(said, index)]}), None)

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
            message["tool_calls"] = [_call(call, index) for index, call in enumerate(self._telling.calls)]
        return {"index": 0, "message": message, "finish_reason": self._reason()}

    def _text_choice(self, text: str, reason: str | None) -> JsonObject:
        return {"text": text, "index": 0, "finish_reason": reason}

    def _reason(self) -> str:
        reason = finish(self._telling)
        if reason == "stop" and self._telling.calls:
            return "tool_calls"
        return _FINISHES.get(reason, reason)

    def _usage(self) -> JsonObject:
        prompt, output = self._telling.usage.prompt_tokens, self._telling.usage.output_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _frame(value: JsonObject) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def _call(call: Call, index: int) -> JsonObject:
    function: JsonObject = {"name": call.name, "arguments": arguments_text(call)}
    return {"id": call.call_id, "index": index, "type": "function", "function": function}
