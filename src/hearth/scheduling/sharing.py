"""How internal and external work share memory in which only one of their models fits.

All of this is for `scheduling.preemption: priced`. An internal caller that comes back is called the
assistant here. In the rules, a and b are the seconds to load the internal model and the other one,
trip = a + b, w is the weight of the internal band (3, 1, 1/3), n the number of external requests
that wait for a model that is not in memory, and q is `scheduling.others_share`. docs/scheduling.md
has the same numbers and what they were measured to do.

1. Hold. After an internal answer its model is kept for the time h that loses least, from 0 to
   trip + w a / n: the sum over the assistant's gaps g of 2 n g where g <= h, else of
   2 n (min(g, h + b) + a) + w (a + what is left of a load that cannot be cut). With fewer than
   three gaps, h is the trip.
2. Turn. An external request that has waited P = (trip + S) (1 - q) / q, where S = min(8 trip, 60 s),
   gets a turn. P counts from its arrival, its interruption or the end of the last turn, whichever
   is the latest, without the time in which external work runs. The turn begins early, at the end
   of an internal answer, where P would pass before half of the assistant's gaps, and up to P later
   while internal work runs on what has to go.
3. In a turn nothing internal evicts the turn's model for S from the moment it is loaded. The turn
   ends when no work is left for its model; an external caller who usually returns within 3 s is
   waited for.
4. Outside a turn internal work interrupts at once, as `scheduling.preemption` (the module) says.
5. A load that no internal request waits for is cut when an internal request needs the memory,
   never twice in a row for the same request.
6. Grace. Before it evicts a model that external requests use or wait for, BACKGROUND work waits two
   trips, 120 s at most. NORMAL work waits as long as its load takes and at least 2 s, but no longer
   than two trips or 30 s. CRITICAL work never waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from hearth.scheduling.estimates import Habit
from hearth.scheduling.preemption import WEIGHTS
from hearth.scheduling.residency import Evictions
from hearth.scheduling.state import ModelHold, State, Turn
from hearth.scheduling.waiting import EXTERNAL_BANDS, Entry
from hearth.types import Band

MIN_GAPS = 3  # fewer say little of when a caller comes back
LATE = 1.1
LATE_S = 0.1  # a caller may be this much later than it was before
OTHERS_WEIGHT = 2.0
"""What a second of the others' waiting counts in a hold. Measured: 1 gives them less and spares
the assistant nothing."""
TURN_TRIPS = 8.0
MAX_TURN_S = 60.0
MAX_LINGER_S = 3.0
CUT_S = 1.0
"""Seconds until a load that is cut has left the memory (6 of 6 on Ollama 0.33)."""
GRACE_TRIPS = 2.0
MOST_DUES = 8
LEAST_S = 1e-6  # what sums of seconds may be off by
_WAITS_SINCE = attrgetter("waits_since")
LEAST_GRACE_S = 2.0
MAX_GRACE_S = {Band.NORMAL: 30.0, Band.BACKGROUND: 120.0}


class Trip(NamedTuple):
    """What a swap away from an internal model and back costs, in seconds."""

    back_s: float
    there_s: float

    @property
    def whole_s(self) -> float:
        return self.back_s + self.there_s

    @property
    def turn_s(self) -> float:
        """S of rule 2."""
        return min(TURN_TRIPS * self.whole_s, MAX_TURN_S)

    def period_s(self, share: float) -> float:
        """P of rule 2: turns of `turn_s` with a trip each then take `share` of the time."""
        return (self.whole_s + self.turn_s) * (1 - share) / share


def trip_between(state: State, internal: str, other: str) -> Trip:
    swap_s = state.estimates.swap_s
    return Trip(swap_s(other, internal), swap_s(internal, other))


# Rule 1.


def hold_for(state: State, model: str, evicts: Iterable[str], now: float) -> ModelHold | None:
    """Whom what an external request for `model` would evict is kept for; None where it may go."""
    waiting = _waiting_for_room(state)
    holds = []
    for name in evicts:
        trip = trip_between(state, name, model)
        for habit in state.arrivals.internal_habits(name):
            until = habit.since + hold_s(habit, now - habit.since, trip, waiting, state.can_cut)
            if until > now:
                holds.append(ModelHold(model=name, caller=habit.caller, until=until))
    return max(holds, key=lambda hold: hold.until, default=None)


def hold_s(habit: Habit, quiet_s: float, trip: Trip, waiting: int, can_cut: bool) -> float:  # noqa: FBT001
    """Seconds from its caller's last answer for which a model is kept, `quiet_s` of them over."""
    if len(habit.gaps) < MIN_GAPS:
        return trip.whole_s
    # Of the gaps seen, those that can still come true; each is as likely as any other.
    latest_s = {gap: LATE * gap + LATE_S - quiet_s for gap in habit.gaps}
    rests_s = [max(gap - quiet_s, left_s / 2) for gap, left_s in latest_s.items() if left_s > 0]
    if not rests_s:
        return 0.0
    weight = WEIGHTS[habit.band]
    longest_s = trip.whole_s + weight * trip.back_s / waiting - quiet_s

    def loss(hold: float) -> float:
        return sum(_loss(rest, hold, trip, OTHERS_WEIGHT * waiting, weight, can_cut) for rest in rests_s)

    holds = [left_s for left_s in latest_s.values() if 0 < left_s <= longest_s]
    return quiet_s + min([0.0, *holds], key=loss)


def _loss(rest_s: float, hold_s: float, trip: Trip, others: float, weight: float, can_cut: bool) -> float:  # noqa: FBT001
    """What is lost if the assistant returns after `rest_s` and its model is kept for `hold_s`."""
    if rest_s <= hold_s:
        return others * rest_s
    loaded_at_s = hold_s + trip.there_s
    blocked_s = max(0.0, loaded_at_s - rest_s)
    if can_cut:
        blocked_s = min(blocked_s, CUT_S)
    # The others have nothing of a load that the assistant's return undoes.
    return others * (min(rest_s, loaded_at_s) + trip.back_s) + weight * (trip.back_s + blocked_s)


def _waiting_for_room(state: State) -> int:
    """n of rule 1, at least 1."""
    residents, lines = state.residency.residents, _external_lines(state)
    waiting = [len(line) for each in lines for model, line in each.items() if model not in residents]
    return max(1, sum(waiting))


def _external_lines(state: State) -> list[dict[str | None, list[Entry]]]:
    return [state.waiting.lines[band] for band in EXTERNAL_BANDS]


# Rules 2 and 3.


def take_turns(state: State, now: float) -> Turn | None:
    """The turn that is under way at this instant, after the last has ended and the next begun."""
    turn = state.turn
    if turn is not None and _is_over(state, turn, now):
        state.turn_ended_at = state.unserved_s(now)
        turn = None
    may_begin = not state.paused and not any(state.near_tasks(now)) and _is_shared(state)
    if turn is None and may_begin:
        turn = _next_turn(state, now)
    state.turn = turn
    return turn


def _is_shared(state: State) -> bool:
    """Does internal work want the memory, or may it soon?"""
    if state.waiting.ahead_of(Band.BACKGROUND) > 0:
        return True
    residents = state.residency.residents
    return any(state.arrivals.internal_habits(name) or _has_internal_work(state, name) for name in residents)


def _next_turn(state: State, now: float) -> Turn | None:
    """The turn that begins now. Asks to be woken when one is due."""
    due = min(_dues(state, now), key=lambda due: due.at, default=None)
    if due is None or not _may_begin(state, due.model):
        return None
    if any(_runs_internal(state, name) for name in due.evicts if name != due.model):
        # What runs is waited for, and with several slots that may go on for ever: then it is drained.
        due = due._replace(at=due.at + due.period_s)
    if not _is_kept_by_work(state, due):
        hold = hold_for(state, due.model, due.evicts, now)
        if hold is None:
            return None  # nothing internal is in its way
        due = due._replace(at=due.at - _median_gap_s(state, hold.model))
    left_s = due.at - state.unserved_s(now)
    if left_s > LEAST_S:
        state.wake_at(now + left_s)
        return None
    return Turn(model=due.model, length_s=due.length_s)


class _Due(NamedTuple):
    """An external request that needs a swap, and when it has a turn due, by the clock of `State.unserved_s`."""

    at: float
    model: str
    evicts: tuple[str, ...]
    length_s: float
    period_s: float


def _dues(state: State, now: float) -> Iterator[_Due]:
    """Of the requests that have waited longest: with a hundred models, all would be too many."""
    residency = state.residency
    share = state.settings.scheduling.others_share
    evictions = _evictions(state)
    heads = [line[0] for lines in _external_lines(state) for line in lines.values()]
    for head in sorted(heads, key=_WAITS_SINCE)[:MOST_DUES]:
        model = head.item.model
        if model is None or residency.ready(model) is not None or state.is_held(head, now):
            continue
        is_loading = residency.loading == model
        evicts = (model,) if is_loading else evictions.find(model, head.item.task_type)
        if not evicts:
            continue
        trip = max([trip_between(state, name, model) for name in evicts], key=lambda trip: trip.whole_s)
        waits_since = max(head.waits_since, state.turn_ended_at)
        period_s = trip.period_s(share)
        yield _Due(waits_since + period_s, model, evicts, trip.turn_s, period_s)


def _evictions(state: State) -> Evictions:
    return Evictions(state.residency, () if state.pinned is None else (state.pinned,))


def _may_begin(state: State, model: str) -> bool:
    """No swap for anybody else is under way, and what was loaded for internal work has served it."""
    residency = state.residency
    if residency.swap is not None and residency.loading != model:
        return False
    unsettled = [each.model for each in residency.residents.values() if not each.settled]
    return not any(state.waiting.up_to(Band.BACKGROUND, name) for name in unsettled)


def _is_kept_by_work(state: State, due: _Due) -> bool:
    """Does internal work use what has to go, or would it cut the load that is under way?"""
    if state.residency.loading == due.model:
        return state.waiting.ahead_of(Band.BACKGROUND) > 0
    return any(_has_internal_work(state, name) for name in due.evicts)


def _has_internal_work(state: State, model: str) -> bool:
    return state.waiting.up_to(Band.BACKGROUND, model) > 0 or _runs_internal(state, model)


def _runs_internal(state: State, model: str) -> bool:
    return any(not entry.external for entry in state.residency.residents[model].running.values())


def _median_gap_s(state: State, model: str) -> float:
    """After how long the last internal caller of a model usually returns; 0 where nobody knows."""
    gaps = next((habit.gaps for habit in state.arrivals.internal_habits(model)), ())
    return median(gaps) if len(gaps) >= MIN_GAPS else 0.0


def _is_over(state: State, turn: Turn, now: float) -> bool:
    """Asks to be woken when the turn is over."""
    if state.paused:
        return True
    resident = state.residency.residents.get(turn.model)
    is_waited_for = any(turn.model in lines for lines in _external_lines(state))
    if resident is None:
        return not is_waited_for or _evictions(state).find(turn.model) is None
    if resident.phase != "ready":
        return not is_waited_for
    if turn.until is None:
        turn.until = now + turn.length_s
    # Not beyond an announced internal task, for which external work is held back anyway.
    turn.until = until = min([turn.until, *[at for at, _ in state.announced if at > now]])
    if not is_waited_for and not resident.running:
        until = min(until, _linger_until(state, turn.model, now))
    if now < until:
        state.wake_at(until)
    return now >= until


def _linger_until(state: State, model: str, now: float) -> float:
    """Until when a turn without work waits for a caller who usually returns within seconds."""
    until = now
    for habit in state.arrivals.habits(model):
        if habit.is_external and len(habit.gaps) >= MIN_GAPS:
            gap_s = median(habit.gaps)
            if gap_s <= MAX_LINGER_S:
                until = max(until, habit.since + LATE * gap_s + LATE_S)
    return until


# Rule 6.


def grace_until(state: State, entry: Entry, evicts: Iterable[str], now: float) -> float:
    """Until when an internal request lets external work go on before it evicts these models."""
    if entry.band not in MAX_GRACE_S or any(state.near_tasks(now)):
        return -inf
    used = [name for name in evicts if _has_external_work(state, name)]
    if not used:
        return -inf
    trip = max([trip_between(state, entry.item.model or "", name) for name in used], key=lambda trip: trip.whole_s)
    grace_s = GRACE_TRIPS * trip.whole_s
    if entry.band is Band.NORMAL:
        grace_s = min(grace_s, max(trip.back_s, LEAST_GRACE_S))
    return entry.item.arrived_at + min(grace_s, MAX_GRACE_S[entry.band])


def _has_external_work(state: State, model: str) -> bool:
    running = state.residency.residents[model].running.values()
    if any(entry.external for entry in running):
        return True
    return not state.paused and any(model in lines for lines in _external_lines(state))
