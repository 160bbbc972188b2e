"""The signs of life in a stream while its caller waits, in each dialect.

A waiting caller is sent what official clients read over: OpenAI SSE a comment, Anthropic its `ping`
event, Ollama a line with empty content. Clients that count nothing but events are sent events: a
Responses stream begins and says that it is in progress, Claude Code gets `message_start` and
`message_delta` without a reason to stop. The model server's own beginning is left out then, and its
events are numbered after those that were sent. A sign may only be sent between frames, and it
starts the answer: from then on there is no status to choose. Where a person is to see how long it
takes, a sign says so as thinking (`dialects.thinking`).
"""

from __future__ import annotations

import re

from hearth.dialects.errors import stream_error
from hearth.dialects.frames import WholeFrames, event, frame_of, frames_in
from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.routes import Endpoint, Route
from hearth.dialects.thinking import BlockThinking, ChunkThinking, SummaryThinking, Thinking
from hearth.dialects.writers import NativeWriter, TextPart
from hearth.errors import HearthError
from hearth.types import MIB, Headers

_COMMENT = b": waiting\n\n"
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_ENDED = re.compile(
    rb"^event: ?(?:message_delta|message_stop|response\.(?:completed|incomplete|failed)|error)$",
    re.MULTILINE,
)
"""After these nothing may follow that says the answer goes on."""
_END = b"\n\n"
_NUMBER = re.compile(rb'"sequence_number": ?(\d{1,15})\b')
_KEPT_BYTES = MIB
"""Of a stream's beginning and of its last frames; where they are longer, nothing is learned from
them.
"""
_OPENINGS = ("response.created", "response.in_progress", "message_start")


def stream_headers(route: Route) -> Headers:
    """The headers of a stream that begins before the backend's own head is there."""
    if route.is_native:
        return ((b"content-type", b"application/x-ndjson"),)
    return ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))


def whole_answer_headers(route: Route) -> Headers:
    """The same of an answer that does not stream."""
    charset = b"; charset=utf-8" if route.is_native else b""
    return ((b"content-type", b"application/json" + charset),)


class PresenceSignals:
    """The signs of life of one stream, and what of the model server's stream fits after them.

    Args:
        model: as the caller wrote it; name: what the ids of an answer that begins with a sign end
        with. user_agent: what the client says it is.
    """

    __slots__ = (
        "_first",
        "_frames",
        "_last",
        "_model",
        "_name",
        "_number",
        "_response",
        "_route",
        "_thinking",
        "_wants_events",
    )

    def __init__(self, route: Route, model: str, name: str, user_agent: str) -> None:
        self._route = route
        self._model = model
        self._name = name
        # Codex and Claude Code give up after 300 s without an event. Codex sees no comments, and
        # Claude Code's library shows it no pings.
        is_claude_code = route.path is Endpoint.ANTHROPIC_MESSAGES and user_agent.startswith(
            "claude-cli/"
        )
        self._wants_events = is_claude_code or route.path is Endpoint.OPENAI_RESPONSES
        self._first = b""
        self._last = b""
        """The caller's first whole frames, and its last ones, as they came together; `_last` is
        empty before the first byte only.
        """
        self._number = 0
        self._response: JsonObject = {}
        self._frames: WholeFrames | None = None
        self._thinking: Thinking | None = None

    def note(self, sent: tuple[bytes, ...]) -> None:
        """The caller has been sent this of the answer."""
        if self._wants_events:
            # A frame that came in parts is put together behind the last whole one. Where nothing
            # was sent, the last stays: an empty one says that there was no byte yet.
            more = b"".join(sent)
            begins_anew = self._last.endswith(_END) and _END in more
            self._last = (more if begins_anew else self._last + more)[:_KEPT_BYTES]
            self._first = self._first or (self._last if self._last.endswith(_END) else b"")

    def signal(self, wall_s: float, words: str = "") -> bytes:
        """One sign of life; `wall_s`: seconds since 1970.

        `words`: what it says as thinking, where the dialect has any; only before the answer has
        begun.
        """
        if words and self._route.path is not Endpoint.OPENAI_COMPLETIONS:
            return self._thought(words, wall_s)
        is_anthropic = self._route.dialect == "anthropic"
        if self._wants_events and not _ENDED.search(self._last):
            return self._delta(wall_s) if is_anthropic else self._in_progress(wall_s)
        if not self._route.is_native:
            return _PING if is_anthropic else _COMMENT
        return self._line(wall_s)

    def error(self, error: HearthError, request_id: str) -> bytes:
        """The last frame of a stream that cannot go on."""
        numbers = _NUMBER.findall(self._last) if self._frames is None else ()
        number = int(numbers[-1]) + 1 if numbers else self._number
        return stream_error(self._route, error, request_id, number=number)

    def _line(self, wall_s: float, words: str = "") -> bytes:
        writer = NativeWriter(self._model, chat=self._route.path is Endpoint.CHAT)
        line = writer.line(wall_s, (TextPart(text=words, thinking=True),))
        return encode(line | {"done": False}) + b"\n"

    def _thought(self, words: str, wall_s: float) -> bytes:
        if self._route.is_native:
            return self._line(wall_s, words)
        opening = self._begin(wall_s)
        if self._thinking is None:
            self._thinking = self._new_thinking(wall_s)
        return opening + self._thinking.say(words)

    def _new_thinking(self, wall_s: float) -> Thinking:
        if self._route.path is Endpoint.OPENAI_CHAT:
            return ChunkThinking(self._name, self._model, int(wall_s))
        if self._route.dialect == "anthropic":
            return BlockThinking()
        return SummaryThinking(self._name, self._event)

    def passed(self, chunks: tuple[bytes, ...], *, last: bool) -> tuple[bytes, ...]:
        """What of these bytes the caller is sent; after the `last` nothing is held back."""
        if self._frames is None:
            return chunks
        ending = b"" if self._thinking is None or not any(chunks) else self._thinking.end()
        frames = [self._fitted(raw) for chunk in chunks for raw in self._frames.split(chunk)]
        return tuple(filter(None, (ending, *frames, self._frames.rest if last else b"")))

    def _begin(self, wall_s: float) -> bytes:
        """What an answer begins with that the model server has not begun; once."""
        if self._frames is not None:
            return b""
        self._frames = WholeFrames(self._route)
        if self._route.path is Endpoint.OPENAI_RESPONSES:
            self._response = _response(f"resp_{self._name}", self._model, int(wall_s))
            return self._event("response.created", {"response": self._response})
        return self._message_start() if self._route.dialect == "anthropic" else b""

    def _in_progress(self, wall_s: float) -> bytes:
        opening = b"" if self._last else self._begin(wall_s)
        if self._frames is None and not self._read_on():
            return _COMMENT
        self._frames = self._frames or WholeFrames(self._route)
        return opening + self._event("response.in_progress", {"response": self._response})

    def _read_on(self) -> bool:
        """Learn from the stream that the caller has the beginning of how to go on with it; False
        where that is not to be seen.
        """
        first, last = (
            [frame.fields for frame in frames_in(self._route, sent)] or [{}]
            for sent in (self._first, self._last)
        )
        response = first[0].get("response")
        number = last[-1].get("sequence_number")
        if not isinstance(response, dict) or not isinstance(number, int):
            return False
        self._response = response
        self._number = number + 1
        return True

    def _event(self, kind: str, fields: JsonObject) -> bytes:
        number = self._number
        self._number = self._number + 1
        return event({**fields, "sequence_number": number, "type": kind})

    def _delta(self, wall_s: float) -> bytes:
        """Says nothing that lasts: an empty block of text would, and no such block may be sent back
        in the next turn.
        """
        opening = b"" if self._last else self._begin(wall_s)
        return opening + event(
            {
                "type": "message_delta",
                "delta": {"stop_reason": None, "stop_sequence": None},
                "usage": {"output_tokens": 0},
            }
        )

    def _message_start(self) -> bytes:
        message: JsonObject = {
            "id": f"msg_{self._name}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return event({"type": "message_start", "message": message})

    def _fitted(self, raw: bytes) -> bytes:
        frame = frame_of(self._route, raw)
        if frame.event in _OPENINGS:
            return b""
        fields = frame.fields if self._thinking is None else self._thinking.fitted(frame.fields)
        if "sequence_number" in fields:
            fields = self._numbered(fields)
        return frame.saying(fields).raw

    def _numbered(self, fields: JsonObject) -> JsonObject:
        number = self._number
        self._number = self._number + 1
        numbered = {**fields, "sequence_number": number}
        response = fields.get("response")
        if isinstance(response, dict):
            numbered["response"] = response | {
                name: self._response[name]
                for name in ("id", "created_at")
                if name in self._response
            }
        return numbered


def _response(response_id: str, model: str, created_at: int) -> JsonObject:
    """A response of which nothing is there yet: what OpenAI's reference requires of one."""
    known: JsonObject = {
        "created_at": created_at,
        "id": response_id,
        "model": model,
        "object": "response",
        "status": "in_progress",
        "metadata": {},
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **dict.fromkeys(
            ("error", "incomplete_details", "instructions", "temperature", "top_p", "usage")
        ),
    }
    return dict(sorted(known.items()))
