"""Hearth's own policy: serve a model to the end, then the one that answers the most callers per second, and wait for a caller who is about
to be back. docs/scheduling.md has the theory and the numbers.

1. A model in memory is served while it has work. It is left before that only once it has earned its place (`residency_factor`) and when
   the callers of another model would be spared much more waiting than everybody else would be caused.
2. Else the model that serves the most waiting items per second of swap and work.
3. Before a model that has run dry goes, its last callers may be given time to come back (`comeback`): a hold, at most `HOLD_SHARE` of
   the swap and the way back.
4. Age forces a swap only for an item that has waited several times as long as serving the whole band would take: in overload everybody
   is old, and swapping for age would make everybody older.
"""

from __future__ import annotations

from hearth.scheduling.policies.candidate import Candidate
from hearth.scheduling.policies.comeback import held_until
from hearth.scheduling.policies.situation import Hold, Option, Situation

PATIENCE = 3.0
"""An item is late by the standard of the queue when it has waited this many times what serving the whole band takes."""
LEAVING_COST = 1.5
"""What a swap and the way back cost each item that waits, in trips: one now, and the rest for those who come meanwhile."""


def adaptive(situation: Situation) -> Candidate | Hold:
    """See the module docstring."""
    served = [candidate for candidate in situation.candidates if candidate.resident]
    own = min(served, key=lambda candidate: candidate.entry.key) if served else None
    if own is not None and (len(served) == len(situation.candidates) or situation.is_young(own)):
        return own
    options = [situation.option(candidate) for candidate in situation.candidates if not candidate.resident]
    best = max(options, key=_gain)
    if own is not None:
        return best.candidate if _leaves(situation, own, best) else own
    until = held_until(situation, best, sum(option.waiting for option in options)) if situation.resting(best) else None
    return best.candidate if until is None or until <= situation.now else Hold(until=until)


def patience_s(situation: Situation) -> float:
    """How long an item may wait before its age forces a swap."""
    backlog_s = sum(situation.option(candidate).work_s + situation.load_s(candidate) for candidate in situation.candidates)
    return max(situation.rules.max_swap_wait_s, PATIENCE * backlog_s)


def _gain(option: Option) -> tuple[float, int]:
    """Items served per second; among equals the one that came first."""
    return (option.waiting / max(option.swap_s + option.work_s, 1e-9), -option.candidate.entry.item.sequence)


def _leaves(situation: Situation, own: Candidate, other: Option) -> bool:
    """Do the callers of the other model win more by being served first than all lose by the swap and the way back?

    Served first, the other's items are spared the work of this line, while this line's wait for the round trip and the other's work; the
    trip itself delays everybody.
    """
    if not other.evicts or not situation.earned(other):
        return False
    this = situation.option(own)
    won_s = other.waiting * this.work_s
    lost_s = this.waiting * (other.trip_s + other.work_s) + LEAVING_COST * other.trip_s * (this.waiting + other.waiting)
    return won_s > lost_s
