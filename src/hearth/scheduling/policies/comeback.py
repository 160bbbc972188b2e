"""How long a model that has run dry is kept for callers who are about to be back.

An agent's next turn comes when its tools have run, a round of a script when both of its answers are there. To swap away in between costs
a round trip; to hold costs everybody who waits the time of the hold. From the gaps that were seen of each of the last callers, the
hold is chosen that wins most: chance of the comeback times its worth, less the waiting. It is a bet on a distribution, not a rule like
ski rental ("hold for as long as the swap costs"), which pays twice the best even where the past says that nobody will come.

Only a likely comeback is waited for. With random arrivals a hold wins little or nothing, whatever its length; what wins is structure.
"""

from __future__ import annotations

from hearth.scheduling.arrivals import Habit
from hearth.scheduling.policies.situation import Option, Situation

HOLD_SHARE = 0.3
"""No hold is longer than this part of the swap and the way back, counted from the caller's last end."""
MOST_TRIPS = 4.0
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
    if oldest_s > MOST_TRIPS * option.trip_s:
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
