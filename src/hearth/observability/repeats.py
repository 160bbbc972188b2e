"""Refusals that are alike: the first few of a minute get a log line each, the rest are counted and told in one.

A program that asks again at once, whatever it is told, would write gigabytes a day. Pure; only `logs` uses it.
"""

from __future__ import annotations

import math

from hearth.events import RequestRejected
from hearth.types import value

TOLD = 10
"""Alike: the same caller, status and reason."""
WINDOW_S = 60.0
KINDS = 1000
"""Told apart in a minute; the rest share a count. All who have shown no key are one caller, without a name."""
OTHERS = "others"


@value
class Kind:
    """What makes two refusals alike."""

    caller: str
    status: int
    reason: str


_REST = Kind(caller=OTHERS, status=0, reason=OTHERS)


class Repeats:
    """Counts of the current minute, which begins with the first refusal after the last one."""

    def __init__(self) -> None:
        self._ends_at = math.inf
        self._seen: dict[Kind, int] = {}

    def admits(self, refusal: RequestRejected) -> bool:
        """Whether it gets a line of its own; it is counted either way."""
        if not self._seen:
            self._ends_at = refusal.at + WINDOW_S
        kind = Kind(caller=refusal.caller, status=refusal.status, reason=refusal.reason)
        if kind not in self._seen and len(self._seen) >= KINDS:
            kind = _REST
        self._seen[kind] = self._seen.get(kind, 0) + 1
        return self._seen[kind] <= TOLD

    def left_out(self, now: float) -> list[tuple[Kind, int]]:
        """How many got no line in a minute that is over by `now`; told once."""
        if now < self._ends_at:
            return []
        seen, self._seen, self._ends_at = self._seen, {}, math.inf
        return [(kind, count - TOLD) for kind, count in seen.items() if count > TOLD]
