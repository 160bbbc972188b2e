"""Strict readers of every dialect's streams.

They refuse whatever a careful client could stumble over: a second beginning, a name that changes, a
number left out, a block that was not opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.support.fields import Fields
from tests.support.replay_streams import Answer, Part


class Refused(AssertionError):
    """A careful client would stumble over this stream."""


def need(condition: object, why: str) -> None:
    if not condition:
        raise Refused(why)


class Told:
    """What a reader has gathered: parts in order, and whether the stream has ended properly."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.reason: str | None = None
        self.ended = False

    def say(self, kind: str, text: str) -> None:
        if self.parts and self.parts[-1][0] == kind != "call":
            self.parts[-1] = (kind, self.parts[-1][1] + text)
        elif text:
            self.parts.append((kind, text))

    def call(self, name: str, arguments: str) -> None:
        self.parts.append(("call", json.dumps([name, json.loads(arguments)])))

    @property
    def answer(self) -> Answer:
        need(self.ended and self.reason is not None, "no end")
        return Answer(parts=tuple(self.parts), reason=self.reason or "")

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.parts)


def told(path: str, data: bytes) -> Told:
    """Read all whole frames of a stream. Raises Refused."""
    reader = Told()
    if path.startswith("/api/"):
        _read_native(reader, data, chat=path == "/api/chat")
    elif path == "/v1/messages":
        _read_anthropic(reader, _events(data))
    elif path == "/v1/responses":
        _read_responses(reader, _events(data))
    else:
        _read_openai(reader, data)
    return reader


def _read_native(reader: Told, data: bytes, *, chat: bool) -> None:
    for line in data.split(b"\n")[:-1]:
        need(not reader.ended, "something after the end")
        fields = json.loads(line)
        said = fields["message"] if chat else fields
        need(fields["model"] == "m", "another model")
        need(
            fields["created_at"].endswith("Z") and fields["created_at"].count("Z") == 1,
            "a broken date",
        )
        reader.say("thinking", said.get("thinking", ""))
        reader.say("content", said["content" if chat else "response"])
        for call in said.get("tool_calls", ()):
            need(call["id"].startswith("call_"), "a call without a name")
            reader.call(call["function"]["name"], json.dumps(call["function"]["arguments"]))
        if fields["done"]:
            need(fields["eval_count"] > 0 and fields["total_duration"] > 0, "counters")
            reader.ended = True
            reader.reason = fields["done_reason"]


def _read_openai(reader: Told, data: bytes) -> None:
    head = None
    roles = 0
    for frame in data.split(b"\n\n")[:-1]:
        need(frame.startswith(b"data: ") and not reader.ended, "a frame after the end, or none")
        if frame == b"data: [DONE]":
            reader.ended = True
            continue
        fields = json.loads(frame[6:])
        names = (fields["id"], fields["created"], fields["model"], fields["object"])
        head = head or names
        need(head == names, "another name")
        for choice in fields["choices"]:
            need(reader.reason is None, "text after the finish")
            need(choice["index"] == 0, "another choice")
            delta = choice.get("delta", {"content": choice.get("text")})
            roles += "role" in delta
            need("text" in choice or roles == 1, "not one role")
            reader.say("thinking", delta.get("reasoning", ""))
            reader.say("content", delta.get("content", ""))
            for call in delta.get("tool_calls", ()):
                reader.call(call["function"]["name"], call["function"]["arguments"])
            reader.reason = choice["finish_reason"]


def _events(data: bytes) -> Iterator[Fields]:
    for frame in data.split(b"\n\n")[:-1]:
        event, _, payload = frame.partition(b"\ndata: ")
        fields: Fields = json.loads(payload)
        need(event == f"event: {fields['type']}".encode(), "event line and type differ")
        yield fields


def _read_anthropic(reader: Told, events: Iterator[Fields]) -> None:
    expected = "message_start"
    index = -1
    arguments = ""
    block: Fields = {}
    for event in events:
        need(not reader.ended, "something after the end")
        kind = event["type"]
        need((kind == "message_start") == (expected == "message_start"), "not one beginning")
        expected = ""
        if kind == "content_block_start":
            need(not block and event["index"] == index + 1, "a block out of order")
            index = index + 1
            block = event["content_block"]
            arguments = ""
        elif kind == "content_block_delta":
            need(block and event["index"] == index, "a delta outside its block")
            delta = event["delta"]
            need(
                delta["type"].startswith(
                    "input_json" if block["type"] == "tool_use" else block["type"]
                ),
                "a delta of another kind",
            )
            arguments += delta.get("partial_json", "")
            reader.say("thinking", delta.get("thinking", ""))
            reader.say("content", delta.get("text", ""))
        elif kind == "content_block_stop":
            need(block and event["index"] == index, "no block to close")
            if block["type"] == "tool_use":
                reader.call(block["name"], arguments)
            block = {}
        elif kind == "message_delta":
            need(not block and event["usage"]["input_tokens"] > 0, "a block is open")
            reader.reason = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}[
                event["delta"]["stop_reason"]
            ]
        elif kind == "message_stop":
            reader.ended = reader.reason is not None


def _read_responses(reader: Told, events: Iterator[Fields]) -> None:
    names: Fields = {}
    items: list[Fields] = []
    said = ""
    for number, event in enumerate(events):
        need(event["sequence_number"] == number, "a number out of order")
        kind = event["type"].removeprefix("response.")
        need(not reader.ended and (kind == "created") == (number == 0), "beginning or end")
        if "response" in event:
            names = names or {key: event["response"][key] for key in ("id", "created_at")}
            need(all(event["response"][key] == names[key] for key in names), "another response")
        if kind == "output_item.added":
            need(event["output_index"] == len(items), "an item out of order")
            items.append(event["item"])
            said = ""
        elif "item_id" in event:
            need(
                event["item_id"] == items[-1]["id"] and event["output_index"] == len(items) - 1,
                "another item",
            )
            said += event.get("delta", "")
            if "part" in event:
                need(said == event["part"]["text"], "the part is not the whole")
                continue
            need(
                kind.endswith(".delta") or said == event.get("text", event.get("arguments")),
                "the sum is not the whole",
            )
        elif kind == "output_item.done":
            need(
                all(
                    event["item"].get(key) == items[-1].get(key)
                    for key in ("id", "call_id", "type")
                ),
                "another item",
            )
            items[-1] = event["item"]
        elif kind == "completed":
            need(event["response"]["output"] == items, "the output is not the items")
            reader.ended = True
            reader.reason = "stop"
        if kind.endswith(".delta") and "arguments" not in kind:
            reader.say("thinking" if "reasoning" in kind else "content", event["delta"])
        if kind == "function_call_arguments.done":
            reader.call(items[-1]["name"], event["arguments"])
