"""The policy `adaptive`: serve a model to the end, then the one that answers the most callers per second.

docs/scheduling.md has the theory, the bounds and the numbers, with the same numbers for the rules. The first that applies decides.

1. The longest waiting item that needs a swap is late (`is_late`):
   a. nothing in memory has work, and it has waited twice its patience, or once if the model in memory has earned its place;
   b. a model in memory has work, and it has waited its patience, and that model has earned its place `LEAVING_FACTOR` times;
   c. a model in memory has work that has not become less while it was served, and it has waited `MOST_TRIPS` trips.
2. A model in memory that has work is served.
   It is left before that, for the option of rule 3, only where it has earned its place `LEAVING_FACTOR` times and the callers of the
   other model are spared much more waiting than everybody else is caused.
3. The model that serves the most waiting items per second of swap and work, once the hold for a caller who is about to be back is over
   (`held_until`): of the gaps that were seen of each of the last callers, the hold that wins most, chance of the comeback times its
   worth, less the waiting. Only a likely comeback is waited for.

Patience is `PATIENCE` times what serving the whole band takes, and at least `max_swap_wait_s`: in overload everybody is old, and swapping
for age would make everybody older. Rules 1b and 2 take at most `1 / (1 + LEAVING_FACTOR)` of the time, rule 1c at most
`1 / (1 + MOST_TRIPS)`, and only of a model whose own load is 1 or more; rule 1a leaves nothing that has work.
"""

from __future__ import annotations

from hearth.scheduling.arrivals import Habit
from hearth.scheduling.policies.candidates import Candidate, Candidates, earned, first, split
from hearth.scheduling.state import State

PATIENCE = 3.0  # an item is late by the standard of the queue when it has waited this many times what serving the whole band takes
LEAVING_COST = 1.5  # what a swap and the way back cost each item that waits, in trips: one now, and the rest for those who come meanwhile
LEAVING_FACTOR = 20.0
"""A model with work is left only after so many times what its coming or its going costs. So at most `1 / (1 + LEAVING_FACTOR)` of the time
goes into swaps that could be done without at this load: the queue stays stable up to a load of 0.95."""
MOST_TRIPS = 10.0  # longer than so many times the swap and the way back no item waits for a line that does not get shorter
HOLD_SHARE = 0.3  # no hold is longer than this part of the swap and the way back, counted from the caller's last end
OLDEST_TRIPS = 4.0  # what has waited for this many round trips is kept waiting for nobody
WORTH = 0.5  # what a comeback saves, as a part of the swap and the way back: the caller is served at once, but others wait for that in turn
LIKELY = 0.6  # the least chance of a comeback that is waited for
DOUBT = 0.5  # comebacks that were never seen and are counted as missing all the same, since few gaps prove little
LATE = 1.05
LATE_S = 0.005  # a caller may be this much later than it ever was
UNKNOWN_HOLD_S = 0.15
UNKNOWN_SHARE = 0.02
"""A caller of whom nothing is known gets a moment, if it has nothing else open with us: the next request of a loop comes at once."""
MIN_GAPS = 3  # fewer gaps earn no hold that is longer than that moment: one or two short ones are common among callers who come at random


def is_late(oldest: Candidate, candidates: Candidates, state: State, now: float) -> bool:
    """Rule 1 of the module docstring: is this item, which has waited `max_swap_wait_s`, late?"""
    waited_s = now - oldest.entry.item.arrived_at
    backlog_s = sum(each.cost.work_s + state.estimates.swap_s("", each.model) for each in candidates)
    patience_s = max(state.settings.scheduling.max_swap_wait_s, PATIENCE * backlog_s)
    served, _ = split(candidates)
    if not served:
        return waited_s >= (patience_s if oldest.may_evict() else 2 * patience_s)
    if waited_s >= patience_s and oldest.may_evict(LEAVING_FACTOR):
        return True
    if waited_s < MOST_TRIPS * oldest.cost.trip_s or not oldest.may_evict(MOST_TRIPS):
        return False
    loaded = [state.residency.residents.get(each.entry.item.model or "") for each in served]
    return not any(each is None or own.cost.waiting < each.waiting_at_load for own, each in zip(served, loaded, strict=True))


def adaptive(candidates: Candidates, state: State, now: float) -> Candidate | float:
    """Rules 2 and 3 of the module docstring."""
    served, others = split(candidates)
    own = first(served)
    if own is not None:
        loaded = state.residency.residents.get(own.entry.item.model or "")
        is_young = loaded is not None and not earned(state, loaded.model, loaded.model, now)  # it has not even earned its own coming
        best = None if is_young else max(others, key=_gain, default=None)
        return own if best is None or not _leaves(own, best) else best
    best = max(others, key=_gain)
    evicts = best.cost.evicts
    swaps_at_once = evicts and state.residency.swap is None and not any(map(state.runs_on, evicts))
    until = held_until(best, candidates, state, now) if swaps_at_once else None
    return best if until is None or until <= now else until


def _gain(candidate: Candidate) -> tuple[float, float, int]:
    """Items served per second, the way back counted as dear as the way there; among equals the one that came first."""
    item = candidate.entry.item
    return (candidate.cost.waiting / max(2 * candidate.cost.swap_s + candidate.cost.work_s, 1e-9), -item.arrived_at, -item.sequence)


def _leaves(own: Candidate, other: Candidate) -> bool:
    """Do the callers of the other model win more by being served first than all lose by the swap and the way back?

    Served first, the other's items are spared the work of this line, while this line's wait for the round trip and the other's work; the
    trip itself delays everybody.
    """
    if not other.cost.evicts or not other.may_evict(LEAVING_FACTOR):
        return False
    ours, theirs, trip_s = own.cost, other.cost, other.cost.trip_s
    lost_s = ours.waiting * (trip_s + theirs.work_s) + LEAVING_COST * trip_s * (ours.waiting + theirs.waiting)
    return theirs.waiting * ours.work_s > lost_s


def held_until(best: Candidate, candidates: Candidates, state: State, now: float) -> float | None:
    """Until when what the best one evicts should be held while all of these wait; None where it should not."""
    oldest_s = now - min(candidate.entry.item.arrived_at for candidate in candidates)
    if oldest_s > OLDEST_TRIPS * best.cost.trip_s:
        return None
    waiting = sum(candidate.cost.waiting for candidate in candidates)
    habits = (habit for name in best.cost.evicts for habit in state.arrivals.habits(name))  # of those who used last what it evicts
    found = (_comes_back_by(habit, now, best.cost.trip_s, waiting) for habit in habits)
    return max((until for until in found if until is not None), default=None)


def _comes_back_by(habit: Habit, now: float, trip_s: float, waiting: int) -> float | None:
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
