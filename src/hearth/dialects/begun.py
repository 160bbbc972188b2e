"""The beginning of an answer that its caller has, read for what it takes to go on with it."""

from __future__ import annotations

from hearth.dialects.frames import ROLE, Frame, at, identities, read
from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.dialects.routes import Route

_TEXTS = frozenset({"content", "text", "response.output_text.delta"})
_THOUGHTS = frozenset({"thinking", "reasoning", "response.reasoning_summary_text.delta"})
_IGNORED = frozenset({ROLE, "signature"})
_OPENINGS = (
    "message_start",
    "content_block_start",
    "response.created",
    "response.in_progress",
    "response.output_item.added",
)


class Begun:
    """What was sent, read frame by frame.

    Attributes:
        first: the fields of the first frame, which names the model; items: what a Responses answer
        had finished before the text. names: the ids and instants that later frames repeat, by what
        they name; next_number: of the next frame, where frames are numbered. endings, reason: how
        many frames of the end were sent, and what they say of why. is_plain: nothing has come that
        plain text cannot follow.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self.first: JsonObject = {}
        self.items: list[JsonValue] = []
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.names: JsonObject = {}
        self.next_number = 0
        self.tokens = 0
        self.endings = 0
        self.reason = ""
        self.is_plain = True

    def note(self, frame: Frame) -> None:
        """Take in the next frame."""
        self.first = self.first or frame.fields
        self.names |= identities(self._route, frame)
        number = frame.fields.get("sequence_number")
        self.next_number = number + 1 if isinstance(number, int) else self.next_number
        reading = read(self._route, frame)
        slots = [slot for slot in reading.slots if slot.text and slot.channel not in _IGNORED]
        for slot in slots:
            is_text = slot.channel in _TEXTS
            self.is_plain = self.is_plain and (
                is_text or (slot.channel in _THOUGHTS and not self.texts)
            )
            (self.texts if is_text else self.thoughts).append(slot.text)
        self.tokens += bool(slots)
        if reading.marks:
            self._mark(frame)

    def _mark(self, frame: Frame) -> None:
        kind = frame.event
        block = frame.fields.get("content_block", frame.fields.get("item"))
        called = at(frame.fields, ("message", "tool_calls")) or at(
            frame.fields, ("choices", 0, "delta", "tool_calls")
        )
        if called or (
            isinstance(block, dict) and block.get("type") in ("tool_use", "function_call")
        ):
            self.is_plain = False
        if self.texts and kind not in _OPENINGS:
            self.endings += 1
            reason = at(frame.fields, ("delta", "stop_reason")) or at(
                frame.fields, ("choices", 0, "finish_reason")
            )
            self.reason = self.reason or (
                {"max_tokens": "length", "end_turn": "stop"}.get(reason, reason)
                if isinstance(reason, str)
                else ""
            )
        elif kind == "response.output_item.done":
            self.items.append(block)
        elif not kind:
            self.is_plain = False

    def frames_with(self, characters: int) -> int:
        """How many of the last frames hold any of the last characters."""
        frames = 0
        while characters > 0:
            frames += 1
            characters -= len(self.texts[-frames])
        return frames
