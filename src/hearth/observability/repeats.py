"""Refusals that are alike: the first few of a minute get a log line each, the rest are counted and told in one.

A program that asks again at once, whatever it is told, would write gigabytes a day. Pure; only `logs` uses it.
"""

from __future__ import annotations

import math

from hearth.errors import BudgetExceeded
from hearth.events import BudgetExhausted, RequestRejected
from hearth.types import value

TOLD = 10
"""Alike: the same event, caller, status and reason."""
WINDOW_S = 60.0
KINDS = 1000
"""Told apart in a minute; the rest share a count. All who have shown no key are one caller, without a name."""
OTHERS = "others"
REJECTED, EXHAUSTED = "more_requests_rejected", "more_budget_exhausted"


@value
class Kind:
    """What makes two refusals alike; `summary` is the event of the line that counts them."""

    summary: str
    caller: str
    status: int
    reason: str


_REST = Kind(summary=REJECTED, caller=OTHERS, status=0, reason=OTHERS)


class Repeats:
    """Counts of the current minute, which begins with the first refusal after the last one."""

    def __init__(self) -> None:
        self._ends_at = math.inf
        self._seen: dict[Kind, int] = {}

    def admits(self, refusal: RequestRejected | BudgetExhausted) -> bool:
        """Whether it gets a line of its own; it is counted either way."""
        if not self._seen:
            self._ends_at = refusal.at + WINDOW_S
        kind = _kind_of(refusal)
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


def _kind_of(refusal: RequestRejected | BudgetExhausted) -> Kind:
    if isinstance(refusal, BudgetExhausted):
        return Kind(summary=EXHAUSTED, caller=refusal.caller, status=BudgetExceeded.status, reason=BudgetExceeded.reason)
    return Kind(summary=REJECTED, caller=refusal.caller, status=refusal.status, reason=refusal.reason)
