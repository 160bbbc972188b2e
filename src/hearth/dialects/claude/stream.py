"""What Claude says, gathered from the events of its stream, in words that belong to no dialect.

Tolerant of what it does not know: Anthropic may add events, blocks and fields at any time. Source: Anthropic's reference of streamed
messages; counters of `message_delta` are totals that replace those of `message_start`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hearth.dialects.gojson import GoJsonError, JsonObject, decode

_OPENING = re.compile(r"\s*```[A-Za-z0-9]*[ \t]*\r?\n")
_MAYBE_OPENING = re.compile(r"\s*(?:`{1,2}|```[A-Za-z0-9]*[ \t]*\r?)?")
_FENCE = "```"


class Unfenced:
    """One text; `feed` its pieces, then `end`."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False
        self._fenced = False

    def feed(self, piece: str) -> str:
        """What of the text is certain by now."""
        self._held += piece
        if not self._begun:
            if _MAYBE_OPENING.fullmatch(self._held):
                return ""
            self._begin()
        return self._certain()

    def end(self) -> str:
        """The rest of the text."""
        rest, self._held = self._held, ""
        return "" if self._fenced and rest.strip() == _FENCE else rest

    def _begin(self) -> None:
        self._begun = True
        opening = _OPENING.match(self._held)
        if opening is not None:
            self._fenced = True
            self._held = self._held[opening.end() :]

    def _certain(self) -> str:
        if not self._fenced:
            said, self._held = self._held, ""
            return said
        said = self._held.rstrip().rstrip("`").rstrip()
        self._held = self._held[len(said) :]
        return said


Event: TypeAlias = Mapping[str, object]

_COUNTERS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeUsage:
    """What an answer is billed for, as far as its stream has said.

    Attributes:
        input_tokens: of the prompt, without those that were read from or written to Anthropic's prompt cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        """The whole prompt, as other APIs count it."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A whole tool call.

    Attributes:
        arguments: None where `written`, what Claude wrote, is not a JSON object: it was cut off.
    """

    call_id: str
    name: str
    written: str
    arguments: JsonObject | None


Said: TypeAlias = Text | Call


class Telling:
    """One answer; `take` its events in order."""

    def __init__(self, *, json_text: bool) -> None:
        self.said: list[Said] = []
        self.stop_reason: str | None = None
        self.complete = False
        self.first_at: float | None = None
        """When the first part of the answer came, thinking too."""
        self._json_text = json_text
        self._counts: dict[str, int] = {}
        self._unfenced: Unfenced | None = None
        self._call: tuple[str, str] | None = None
        self._written: list[str] = []

    @property
    def usage(self) -> ClaudeUsage:
        return ClaudeUsage(**self._counts)

    @property
    def text(self) -> str:
        return "".join(said.text for said in self.said if isinstance(said, Text))

    @property
    def calls(self) -> list[Call]:
        return [said for said in self.said if isinstance(said, Call)]

    def take(self, event: Event, now: float) -> list[Said]:
        """What the event adds to the answer."""
        kind = event.get("type")
        if kind == "message_start":
            self._count(_object(_object(event.get("message")).get("usage")))
        elif kind == "message_delta":
            self._count(_object(event.get("usage")))
            reason = _object(event.get("delta")).get("stop_reason")
            self.stop_reason = reason if isinstance(reason, str) else self.stop_reason
        elif kind == "message_stop":
            self.complete = True
        new = self._content(kind, event, now)
        self.said += new
        return new

    def _content(self, kind: object, event: Event, now: float) -> list[Said]:
        if kind == "content_block_start":
            return self._open(_object(event.get("content_block")))
        if kind == "content_block_delta":
            self.first_at = now if self.first_at is None else self.first_at
            delta = _object(event.get("delta"))
            self._written.append(_string(delta, "partial_json"))
            return self._text(_string(delta, "text"))
        return self._close() if kind in ("content_block_stop", "message_stop") else []

    def _open(self, block: Event) -> list[Said]:
        closed = self._close()
        if block.get("type") == "tool_use":
            self._call, self._written = (_string(block, "id"), _string(block, "name")), []
            return closed
        return closed + self._text(_string(block, "text"))

    def _text(self, piece: str) -> list[Said]:
        if piece and self._json_text:
            self._unfenced = self._unfenced or Unfenced()
            piece = self._unfenced.feed(piece)
        return [Text(text=piece)] if piece else []

    def _close(self) -> list[Said]:
        rest = self._unfenced.end() if self._unfenced is not None else ""
        self._unfenced = None
        said: list[Said] = [Text(text=rest)] if rest else []
        if self._call is not None:
            said.append(_call(*self._call, "".join(self._written)))
        self._call = None
        return said

    def _count(self, usage: Event) -> None:
        counted = {ours: usage.get(theirs) for theirs, ours in _COUNTERS.items()}
        self._counts |= {name: value for name, value in counted.items() if isinstance(value, int) and value >= 0}


def _call(call_id: str, name: str, written: str) -> Call:
    try:
        value = decode(written.encode(errors="replace")) if written.strip() else {}
    except GoJsonError:
        value = None
    return Call(call_id=call_id, name=name, written=written, arguments=value if isinstance(value, dict) else None)


def _object(value: object) -> Event:
    return value if isinstance(value, Mapping) else {}


def _string(fields: Event, name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
