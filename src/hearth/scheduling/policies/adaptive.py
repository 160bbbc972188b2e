"""Hearth's own policy: serve a model to the end, then the one that answers the most callers per second. docs/scheduling.md has the theory,
the bounds and the numbers.

The choice is one decision tree; the rules have the same numbers in the code and in the documentation. The first that applies decides.

1. The longest waiting item that needs a swap is late (`forces`):
   a. nothing in memory has work, and it has waited twice its patience, or once if the model in memory has earned its place;
   b. a model in memory has work, and it has waited its patience, and that model has earned its place `LEAVING_FACTOR` times;
   c. a model in memory has work that has not become less while it was served, and it has waited `MOST_TRIPS` trips.
2. A model in memory that has work is served.
   It is left before that, for the option of rule 3, only where it has earned its place `LEAVING_FACTOR` times and the callers of the
   other model are spared much more waiting than everybody else is caused.
3. The model that serves the most waiting items per second of swap and work, once the hold for a caller who is about to be back is over
   (`comeback`).

Patience is `PATIENCE` times what serving the whole band takes, and at least `max_swap_wait_s`: in overload everybody is old, and swapping
for age would make everybody older. Bounds: rules 1b and 2 take at most `1 / (1 + LEAVING_FACTOR)` of the time, rule 1c at most
`1 / (1 + MOST_TRIPS)`, and only of a model whose own load is 1 or more; rule 1a leaves nothing that has work.
"""

from __future__ import annotations

from hearth.scheduling.policies.candidate import Candidate
from hearth.scheduling.policies.comeback import held_until
from hearth.scheduling.policies.situation import Hold, Option, Situation

PATIENCE = 3.0
"""An item is late by the standard of the queue when it has waited this many times what serving the whole band takes."""
LEAVING_COST = 1.5
"""What a swap and the way back cost each item that waits, in trips: one now, and the rest for those who come meanwhile."""
LEAVING_FACTOR = 20.0
"""A model with work is left only after so many times what its coming or its going costs. So at most `1 / (1 + LEAVING_FACTOR)` of the time
goes into swaps that a house with this load could do without: it stays stable up to a load of 0.95."""
MOST_TRIPS = 10.0
"""Longer than so many times the swap and the way back no item waits for a line that does not get shorter."""


def adaptive(situation: Situation) -> Candidate | Hold:
    """Rules 2 and 3 of the module docstring."""
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


def forces(situation: Situation, oldest: Candidate) -> bool:
    """Rule 1 of the module docstring: is this item, which has waited `max_swap_wait_s`, late?"""
    waited_s, option = situation.now - oldest.entry.item.arrived_at, situation.option(oldest)
    backlog_s = sum(situation.option(each).work_s + situation.load_s(each) for each in situation.candidates)
    patience_s = max(situation.rules.max_swap_wait_s, PATIENCE * backlog_s)
    served = [candidate for candidate in situation.candidates if candidate.resident]
    if not served:
        return waited_s >= (patience_s if situation.earned(option) else 2 * patience_s)
    if waited_s >= patience_s and situation.earned(option, LEAVING_FACTOR):
        return True
    may_shrink = waited_s < MOST_TRIPS * option.trip_s or any(situation.shrinks(each) for each in served)
    return not may_shrink and situation.earned(option, MOST_TRIPS)


def _gain(option: Option) -> tuple[float, float, int]:
    """Items served per second, the way back counted as dear as the way there; among equals the one that came first."""
    item = option.candidate.entry.item
    return (option.waiting / max(2 * option.swap_s + option.work_s, 1e-9), -item.arrived_at, -item.sequence)


def _leaves(situation: Situation, own: Candidate, other: Option) -> bool:
    """Do the callers of the other model win more by being served first than all lose by the swap and the way back?

    Served first, the other's items are spared the work of this line, while this line's wait for the round trip and the other's work; the
    trip itself delays everybody.
    """
    if not other.evicts or not situation.earned(other, LEAVING_FACTOR):
        return False
    this = situation.option(own)
    won_s = other.waiting * this.work_s
    lost_s = this.waiting * (other.trip_s + other.work_s) + LEAVING_COST * other.trip_s * (this.waiting + other.waiting)
    return won_s > lost_s
