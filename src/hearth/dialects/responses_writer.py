"""An answer as Ollama writes it for `/v1/responses`, after its `openai/responses.go`; see
`hearth.dialects.writers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hearth.dialects.frames import event
from hearth.dialects.gojson import JsonObject, JsonValue, encode
from hearth.dialects.writers import (
    HOLE,
    AnswerPart,
    Generation,
    ToolCall,
    Writer,
    form_of,
)


class ResponsesWriter(Writer):
    """`/v1/responses`: numbered events, which are maps in Go, so that their keys come out sorted.

    Args:
        message_id: of the message that it opens first, as its caller reads it; those that follow
        have its name and their place. response: the response in progress. items: what was finished
        before. incomplete: which reasons of an end the response calls incomplete, and
        how; Ollama knows none. shows_thoughts: thoughts are items of their own; else they are left
        out.
    """

    def __init__(
        self,
        message_id: str,
        response: JsonObject,
        *,
        items: Sequence[JsonValue] = (),
        incomplete: Mapping[str, str] = MappingProxyType({}),
        shows_thoughts: bool = False,
    ) -> None:
        self._id = message_id
        self._response = response
        self._incomplete = incomplete
        self._items = [*items]
        self._first_place = len(items)
        self._delta_form = b""
        self._open = False
        self._texts: list[str] = []
        """The texts of the message that is open, if one is."""
        self._shows_thoughts = shows_thoughts
        self._thoughts: list[str] = []
        """Those of the item of thoughts that is open; none where none is."""

    def resume(self, parts: Sequence[AnswerPart], next_number: int) -> None:
        super().resume(parts, next_number)
        self.next_number = next_number

    def begin(self) -> list[bytes]:
        return (
            []
            if self.next_number
            else [self._event(name, response=self._response) for name in ("created", "in_progress")]
        )

    def write(self, part: AnswerPart, wall_s: float) -> list[bytes]:
        if isinstance(part, ToolCall):
            return [*self.begin(), *self._close(), *self._call(part)]
        if part.thinking:
            return self._think(part.text) if self._shows_thoughts else []
        return self.write_text(part.text, wall_s)

    def write_text(self, text: str, wall_s: float) -> list[bytes]:
        del wall_s
        opened = (
            [] if self._open else [*self.begin(), *self._close_thoughts(), *self._open_message()]
        )
        self._texts.append(text)
        number = self.next_number
        self.next_number += 1
        return [*opened, self._delta_form % (encode(text), b"%d" % number)]

    def end(self, done: Generation, wall_s: float) -> list[bytes]:
        begun = self.begin()
        if done.reason is None:
            return begun
        thought = self._close_thoughts()
        opened = [*thought, *([] if self._items or self._open else self._open_message())]
        closed = self._close()
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
        delta = self._fields("output_text.delta", **self._place(), delta=HOLE, logprobs=[])
        self._delta_form = form_of(event(delta | {"sequence_number": HOLE}))
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

    def _close(self) -> list[bytes]:
        """Whatever is open."""
        return [*self._close_thoughts(), *self._close_message()]

    def _think(self, text: str) -> list[bytes]:
        """A piece of thoughts, as OpenAI's open models show them."""
        opened: list[bytes] = []
        if not self._thoughts:
            opened = [*self.begin(), *self._close_message()]
            item = self._thought([]) | {"status": "in_progress"}
            opened.append(
                self._event("output_item.added", item=item, output_index=len(self._items))
            )
        self._thoughts.append(text)
        return [*opened, self._event("reasoning_text.delta", **self._thought_place(), delta=text)]

    def _close_thoughts(self) -> list[bytes]:
        if not self._thoughts:
            return []
        text = "".join(self._thoughts)
        place = self._thought_place()
        item = self._thought([{"type": "reasoning_text", "text": text}]) | {"status": "completed"}
        index = len(self._items)
        self._thoughts = []
        self._items.append(item)
        return [
            self._event("reasoning_text.done", **place, text=text),
            self._event("output_item.done", item=item, output_index=index),
        ]

    def _thought(self, content: list[JsonValue]) -> JsonObject:
        identity = self._thought_place()["item_id"]
        return {"id": identity, "type": "reasoning", "summary": [], "content": content}

    def _thought_place(self) -> JsonObject:
        index = len(self._items)
        name = self._id.removeprefix("msg_")
        return {"content_index": 0, "item_id": f"rs_{name}_{index}", "output_index": index}

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
        self.next_number += 1
        return written

    def _fields(self, name: str, **fields: JsonValue) -> JsonObject:
        fields |= {"sequence_number": self.next_number, "type": f"response.{name}"}
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

INCOMPLETE: Mapping[str, str] = MappingProxyType(
    {"length": "max_output_tokens", "refusal": "content_filter"}
)
"""What OpenAI calls a response that was cut off; Ollama never says so."""
