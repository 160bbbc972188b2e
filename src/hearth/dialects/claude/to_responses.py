"""Claude's answer as OpenAI's `/v1/responses`, in the shape that Ollama gives it.

Whole answers have Ollama's field order; streamed events are maps there, so their keys come out sorted. Unlike Ollama's, an answer that was
cut off says so (`incomplete`, as OpenAI's reference has it).
"""

from __future__ import annotations

from hearth.dialects.claude.stream import Call, Event, Said, Telling, Text
from hearth.dialects.claude.writers import Occasion, arguments_text, finish
from hearth.dialects.gojson import JsonObject, JsonValue, encode

_INCOMPLETE = {"length": "max_output_tokens", "refusal": "content_filter"}


class ResponsesWriter:
    """One answer: its items in order, and the numbered events that tell of them."""

    def __init__(self, occasion: Occasion, telling: Telling) -> None:
        self._occasion = occasion
        self._telling = telling
        self._number = 0
        self._items: list[JsonValue] = []
        self._message: list[str] | None = None
        """The texts of the message that is open."""

    def take(self, event: Event, new: list[Said], _now: float) -> bytes:
        begun = self._begin() if event.get("type") == "message_start" else b""
        return begun + b"".join(self._text(said.text) if isinstance(said, Text) else self._call(said) for said in new)

    def end(self, now: float) -> bytes:
        nothing = b"" if self._items or self._message is not None else self._open_message()
        closed = nothing + self._close_message()
        reason = _INCOMPLETE.get(finish(self._telling))
        return closed + self._event("incomplete" if reason else "completed", {"response": self._whole(now)})

    def whole(self, now: float) -> bytes:
        self.end(now)
        return encode(self._whole(now)) + b"\n"

    def _begin(self) -> bytes:
        return b"".join(self._event(name, {"response": self._frame()}) for name in ("created", "in_progress"))

    def _text(self, text: str) -> bytes:
        opened = self._open_message() if self._message is None else b""
        if self._message is not None:
            self._message.append(text)
        return opened + self._event("output_text.delta", self._place() | {"delta": text, "logprobs": []})

    def _open_message(self) -> bytes:
        self._message = []
        item: JsonObject = {"content": [], "id": self._message_id(), "role": "assistant", "status": "in_progress", "type": "message"}
        added = self._event("output_item.added", {"item": item, "output_index": len(self._items)})
        return added + self._event("content_part.added", self._place() | {"part": _part("")})

    def _close_message(self) -> bytes:
        if self._message is None:
            return b""
        text, place = "".join(self._message), self._place()
        head: JsonObject = {"id": self._message_id(), "type": "message", "status": "completed", "role": "assistant"}
        item: JsonObject = head | {"content": [_part(text)]}
        done = self._event("output_text.done", place | {"logprobs": [], "text": text})
        done += self._event("content_part.done", place | {"part": _part(text)})
        done += self._event("output_item.done", {"item": item, "output_index": len(self._items)})
        self._message = None
        self._items.append(item)
        return done

    def _call(self, call: Call) -> bytes:
        closed, arguments = self._close_message(), arguments_text(call)
        place: JsonObject = {"output_index": len(self._items)}
        named: JsonObject = place | {"item_id": f"fc_{call.call_id}"}
        done = _function_call(call, "completed", arguments)
        told = self._event("output_item.added", place | {"item": _function_call(call, "in_progress", "")})
        told += self._event("function_call_arguments.delta", named | {"delta": arguments})
        told += self._event("function_call_arguments.done", named | {"arguments": arguments})
        told += self._event("output_item.done", place | {"item": done})
        self._items.append(done)
        return closed + told

    def _message_id(self) -> str:
        return f"msg_{self._occasion.names}" + (f"_{len(self._items)}" if self._items else "")

    def _place(self) -> JsonObject:
        return {"content_index": 0, "item_id": self._message_id(), "output_index": len(self._items)}

    def _event(self, name: str, fields: JsonObject) -> bytes:
        kind = f"response.{name}"
        numbered: JsonObject = fields | {"sequence_number": self._number, "type": kind}
        self._number += 1
        return f"event: {kind}\ndata: ".encode() + encode(_sorted(numbered)) + b"\n\n"

    def _whole(self, now: float) -> JsonObject:
        """The finished response: the frame's keys keep their places, only values change."""
        reason = _INCOMPLETE.get(finish(self._telling))
        ended: JsonObject = {"completed_at": int(self._occasion.wall_s(now)), "status": "completed"}
        if reason is not None:
            ended = {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return self._frame() | ended | {"output": self._items, "usage": self._usage()}

    def _usage(self) -> JsonObject:
        usage = self._telling.usage
        return {
            "input_tokens": usage.prompt_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.prompt_tokens + usage.output_tokens,
            "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
            "output_tokens_details": {"reasoning_tokens": 0},
        }

    def _frame(self) -> JsonObject:
        """The response in progress, keys in Ollama's order."""
        asked = self._occasion.request.asked
        text = asked.get("text")
        wanted = text.get("format") if isinstance(text, dict) else None
        return {
            "id": f"resp_{self._occasion.names}",
            "object": "response",
            "created_at": int(self._occasion.created_wall_s),
            "completed_at": None,
            "status": "in_progress",
            "incomplete_details": None,
            "model": self._occasion.model,
            "previous_response_id": None,
            "instructions": asked.get("instructions"),
            "output": [],
            "error": None,
            "tools": asked.get("tools") or [],
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": True,
            "text": {"format": wanted if isinstance(wanted, dict) else {"type": "text"}},
            "top_p": _or_one(asked.get("top_p")),
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "top_logprobs": 0,
            "temperature": _or_one(asked.get("temperature")),
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


def _or_one(asked: JsonValue) -> JsonValue:
    return 1 if asked is None else asked


def _part(text: str) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _function_call(call: Call, status: str, arguments: str) -> JsonObject:
    head: JsonObject = {"id": f"fc_{call.call_id}", "type": "function_call", "status": status, "call_id": call.call_id}
    return head | {"name": call.name, "arguments": arguments}


def _sorted(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value
