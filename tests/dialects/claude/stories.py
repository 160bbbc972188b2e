"""Streams as Anthropic sends them, event by event, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hearth.dialects.claude_answer import Answer, Meter
from hearth.dialects.claude_request import ClaudeRequest, claude_request
from tests.support.fields import Fields

Event = Fields

MODEL = "m"
STARTED_AT = 100.0
CREATED_WALL_S = 1_795_227_019.25
STEP_S = 0.25
"""Between two events."""

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
JPEG = "/9j/4AAQSkZJRg=="
GIF = "R0lGODlhAQABAAAAACw="
WEBP = "UklGRiIAAABXRUJQ"


def start(**usage: int) -> Event:
    message = {
        "id": "msg_01XFDUDYJgAACzvnptvVoYEL",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-5-5",
        "content": [],
    }
    ends = {"stop_reason": None, "stop_sequence": None}
    return {
        "type": "message_start",
        "message": {**message, **ends, "usage": {"input_tokens": 24, "output_tokens": 1, **usage}},
    }


def block(index: int, opening: Event, deltas: Iterable[Event]) -> list[Event]:
    opened = {"type": "content_block_start", "index": index, "content_block": opening}
    told = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [opened, *told, {"type": "content_block_stop", "index": index}]


def text(index: int, *pieces: str) -> list[Event]:
    return block(
        index,
        {"type": "text", "text": ""},
        [{"type": "text_delta", "text": piece} for piece in pieces],
    )


def thinking(index: int, *pieces: str) -> list[Event]:
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        [*deltas, {"type": "signature_delta", "signature": "Eq=="}],
    )


def tool(index: int, name: str, *pieces: str, call_id: str = "toolu_01A") -> list[Event]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas)


def end(reason: str = "end_turn", **usage: int) -> list[Event]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 6, **usage}},
        {"type": "message_stop"},
    ]


def story(*parts: list[Event], reason: str = "end_turn") -> list[Event]:
    return [start(), {"type": "ping"}, *(event for part in parts for event in part), *end(reason)]


HELLO = [{"role": "user", "content": "hello"}]
QUESTIONS: dict[str, Event] = {
    "/api/chat": {"messages": HELLO},
    "/api/generate": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"max_tokens": 100, "messages": HELLO},
}
ROUTES = list(QUESTIONS)
WITH_TOOLS = [path for path in ROUTES if path not in ("/api/generate", "/v1/completions")]


def asked(path: str, **fields: Any) -> ClaudeRequest:
    """What a question with these fields becomes."""
    body = json.dumps({"model": MODEL, **QUESTIONS.get(path, {}), **fields}).encode()
    return claude_request(path, body, default_max_tokens=4096)


def answer(path: str, *, stream: bool, **fields: Any) -> Answer:
    request = asked(path, stream=stream, **fields)
    meter = Meter(max_tokens=request.max_tokens, thinks=False)
    return Answer(
        path,
        request,
        meter,
        model=MODEL,
        request_id="req_0123abcd",
        created_wall_s=CREATED_WALL_S,
        started_at=STARTED_AT,
    )


def told(to: Answer, events: Sequence[Event]) -> list[bytes]:
    """What a caller is sent for each event, and at the end."""
    chunks = [
        to.feed(event, STARTED_AT + (index + 1) * STEP_S) for index, event in enumerate(events)
    ]
    return [*chunks, to.finish(STARTED_AT + (len(events) + 1) * STEP_S)]


def streamed(path: str, events: Sequence[Event], **fields: Any) -> bytes:
    return b"".join(told(answer(path, stream=True, **fields), events))


def whole(path: str, events: Sequence[Event], **fields: Any) -> Any:
    chunks = told(answer(path, stream=False, **fields), events)
    assert not any(chunks[:-1]), "an answer in one piece has begun before its end"
    return json.loads(chunks[-1])
