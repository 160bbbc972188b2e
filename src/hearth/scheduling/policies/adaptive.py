"""The policy `adaptive`, and how long it holds a model for work that is likely to come back.

How long a model that has run dry is kept for callers who are about to be back.

An agent's next turn comes when its tools have run, a round of a script when both of its answers are there. To swap away in between costs
a round trip; to hold costs everybody who waits the time of the hold. From the gaps that were seen of each of the last callers, the
hold is chosen that wins most: chance of the comeback times its worth, less the waiting. It is a bet on a distribution, not a rule like
ski rental ("hold for as long as the swap costs"), which pays twice the best even where the past says that nobody will come.

Only a likely comeback is waited for. With random arrivals a hold wins little or nothing, whatever its length; what wins is structure.

Hearth's own policy: serve a model to the end, then the one that answers the most callers per second. docs/scheduling.md has the theory,
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

from hearth.scheduling.arrivals import Habit
from hearth.scheduling.policies.context import Candidate, Hold, Option, Situation

HOLD_SHARE = 0.3
"""No hold is longer than this part of the swap and the way back, counted from the caller's last end."""
OLDEST_TRIPS = 4.0
"""What has waited for this many round trips is kept waiting for nobody."""
WORTH = 0.5
"""What a comeback saves, as a part of the swap and the way back: the caller is served at once, but others wait for that in turn."""
LIKELY = 0.6
"""The least chance of a comeback that is waited for."""
DOUBT = 0.5
"""Comebacks that were never seen and are counted as missing all the same, since few gaps prove little."""
LATE = 1.05
LATE_S = 0.005
"""A caller may be this much later than it ever was."""
UNKNOWN_HOLD_S = 0.15
UNKNOWN_SHARE = 0.02
"""A caller of whom nothing is known gets a moment, if it has nothing else open with us: the next request of a loop comes at once."""
MIN_GAPS = 3
"""Fewer gaps earn no hold that is longer than that moment: one or two short ones are common among callers who come at random."""


def held_until(situation: Situation, option: Option, waiting: int) -> float | None:
    """Until when what `option` evicts should be held while `waiting` items wait; None where it should not."""
    oldest_s = situation.now - min(candidate.entry.item.arrived_at for candidate in situation.candidates)
    if oldest_s > OLDEST_TRIPS * option.trip_s:
        return None
    found = [until for habit in situation.habits(option) if (until := _until(habit, situation.now, option.trip_s, waiting)) is not None]
    return max(found, default=None)


def _until(habit: Habit, now: float, trip_s: float, waiting: int) -> float | None:
    if not habit.gaps:
        return None if habit.waits else habit.since + min(UNKNOWN_HOLD_S, UNKNOWN_SHARE * trip_s)
    quiet_s = now - habit.since
    longest_s = HOLD_SHARE * trip_s
    if len(habit.gaps) < MIN_GAPS:
        longest_s = min(longest_s, UNKNOWN_HOLD_S)
    still_possible = sorted(gap for gap in habit.gaps if gap * LATE + LATE_S > quiet_s)
    count, passed_s = len(still_possible) + DOUBT, 0.0
    most, best = 0.0, None
    for back, gap_s in enumerate(still_possible, start=1):
        hold_s = max(0.0, gap_s - quiet_s)
        if gap_s > longest_s:
            break
        passed_s += hold_s
        won_s = back * WORTH * trip_s - waiting * (passed_s + hold_s * (count - back))
        if back >= LIKELY * count and won_s > most:
            most, best = won_s, gap_s
    return None if best is None else habit.since + best * LATE + LATE_S


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
