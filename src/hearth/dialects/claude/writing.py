"""What the writers of all dialects have in common. Called by the writers (`to_...`) and `answering`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from hearth.dialects.claude.asking import ClaudeRequest
from hearth.dialects.claude.telling import Call, Event, Said, Telling
from hearth.dialects.gojson import encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """What an answer is given for.

    Attributes:
        model: the name that the caller asked for, and is shown.
        created_wall_s: seconds since 1970 at the instant `started_at` of the monotonic clock.
        names: what ids of the answer end with; unlike those of any other answer.
    """

    request: ClaudeRequest
    model: str
    names: str
    created_wall_s: float
    started_at: float

    def wall_s(self, now: float) -> float:
        """The calendar instant of `now`."""
        return self.created_wall_s + now - self.started_at


class Writer(Protocol):
    """Writes one answer in one dialect. A caller is given either what `take` and `end` return, or `whole`."""

    def take(self, event: Event, new: list[Said], now: float) -> bytes:
        """The bytes for one event of Claude's, which added `new` to the answer."""

    def end(self, now: float) -> bytes:
        """The last bytes of a stream."""

    def whole(self, now: float) -> bytes:
        """The answer in one piece."""


_FINISHES: Mapping[str, str] = MappingProxyType(
    {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "pause_turn": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "tool_use": "stop",
        "refusal": "refusal",
    }
)


def finish(telling: Telling) -> str:
    """Why the answer ended: `stop`, `length`, or `refusal`; reasons that are not known yet are a plain stop."""
    return _FINISHES.get(telling.stop_reason or "", "stop")


def arguments_text(call: Call) -> str:
    """The arguments of a call as Go would write them; Claude's own letters where they are not JSON."""
    return call.written if call.arguments is None else encode(call.arguments).decode()
