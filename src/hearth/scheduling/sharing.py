"""How internal and external work share memory in which only one of their models fits.

All of this is for `scheduling.preemption: priced`. An internal caller that comes back is called the
assistant here. In the rules, a and b are the seconds to load the internal model and the other one,
trip = a + b, w is the weight of the internal band (3, 1, 1/3), n the number of external requests
that wait for a model that is not in memory, and q is `scheduling.others_share`.
docs/scheduling/assistant.md has the same numbers and what they were measured to do.

1. Hold. After an internal answer its model is kept for the time h that loses least, from 0 to
   trip + w a / n: the sum over the assistant's gaps g of 2 n g where g <= h, else of
   2 n (min(g, h + b) + a) + w (a + what is left of a load that cannot be cut). With fewer than
   three gaps, h is the trip. Where the other model serves the assistant as well, by an alias, it
   loses only what is left of the load: h is from 0 to b, and the sum that of 2 n min(g, h) and,
   where g > h, of w (h + b - g); with fewer than three gaps, h is 0.
2. Turn. An external request that has waited P = (trip + S) (1 - q) / q, where S = min(8 trip, 60
   s), gets a turn. P counts from its arrival, its interruption or the end of the last turn,
   whichever is the latest. Time in which external work runs does not count, but after 3 P a turn is
   due all the same. It begins early, at the end of an internal answer, where P would pass before
   half of the assistant's gaps, and up to P later while internal work runs on what has to go. None
   begins while a CRITICAL request waits that came before the last one ended.
3. In a turn nothing internal evicts the turn's model for S from the moment it is loaded. The turn
   ends when no work is left for its model; an external caller who usually returns within 3 s is
   waited for. Where loads can be cut it also ends when the load takes 10 s more than twice what was
   expected, or more than 130 s where no load of that model was measured.
4. Outside a turn internal work interrupts at once, as `scheduling.preemption` (the module) says.
5. A load that no internal request waits for is cut when an internal request needs the memory.
6. Grace. Before it evicts a model that external requests use or wait for, BACKGROUND work waits two
   trips, 120 s at most. NORMAL work waits as long as its load takes and at least 2 s, but no longer
   than two trips or 30 s. CRITICAL work never waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from math import inf
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from hearth.scheduling.estimates import Habit
from hearth.scheduling.evictions import Evictions
from hearth.scheduling.preemption import WEIGHTS
from hearth.scheduling.state import DeviceState, GatewayState, ModelHold, Turn
from hearth.scheduling.waiting import Entry
from hearth.scheduling.warm import MOST_READ_S
from hearth.types import Band

MIN_GAPS = 3  # fewer say little of when a caller comes back
LATE = 1.1
LATE_S = 0.1  # a caller may be this much later than it was before
OTHERS_WEIGHT = 2.0
"""What a second of the others' waiting counts in a hold. Measured: 1 gives them less and spares
the assistant nothing."""
TURN_TRIPS = 8.0
MAX_TURN_S = 60.0
LEAST_READ_TURN_S = 5.0  # of a turn, after the first prompt of a long conversation is read
MAX_LINGER_S = 3.0
MOST_PERIODS = 3.0
LATE_LOAD = 2.0
UNKNOWN_LOAD_S = 60.0  # of a model whose load was never measured
LATE_LOAD_S = 10.0  # a load that takes longer than this and twice what was expected may hang
CUT_S = 1.0
"""Seconds until a load that is cut has left the memory (6 of 6 measured)."""
GRACE_TRIPS = 2.0
MOST_DUES = 8
LEAST_S = 1e-6  # what sums of seconds may be off by
_WAITS_SINCE = attrgetter("waits_since")
_LEFT_S = attrgetter("left_s")
LEAST_GRACE_S = 2.0
_IN_TURNS = (Band.INTERRUPTED, Band.EXTERNAL)
MAX_GRACE_S = {Band.NORMAL: 30.0, Band.BACKGROUND: 120.0}


class Trip(NamedTuple):
    """What a swap away from an internal model and back costs, in seconds."""

    back_s: float
    there_s: float
    reread_s: float = 0.0  # of what is warm on the model that is left
    read_s: float = 0.0  # of what the model is loaded for, where it belongs to a conversation

    @property
    def return_s(self) -> float:
        return self.back_s + self.reread_s

    @property
    def whole_s(self) -> float:
        return self.back_s + self.there_s + self.reread_s

    @property
    def turn_s(self) -> float:
        """S of rule 2."""
        turn_s = TURN_TRIPS * (self.back_s + self.there_s)
        if self.read_s:
            turn_s = max(turn_s, self.read_s + LEAST_READ_TURN_S)
        return min(turn_s, MAX_TURN_S)

    def period_s(self, share: float) -> float:
        """P of rule 2: turns of `turn_s` with a trip each then take `share` of the time; what is
        read for a turn is lost with its end.
        """
        return (self.whole_s + self.read_s + self.turn_s) * (1 - share) / share


def trip_between(device: DeviceState, internal: str, other: str, left: str, now: float) -> Trip:
    """`left`: which of the two is in memory."""
    swap_s = device.estimates.swap_s
    reread_s = device.residency.reread_s(left, now)
    return Trip(swap_s(other, internal), swap_s(internal, other), reread_s)


def _trip_for(device: DeviceState, head: Entry, model: str, left: str, now: float) -> Trip:
    """The trip from what is in memory to the model of an external request."""
    trip = trip_between(device, left, model, left, now)
    if head.item.conversation and device.residency.caches.enabled:
        return trip._replace(read_s=min(device.read_s(head.item, model), MOST_READ_S))
    return trip


# Rule 1.


def hold_for(
    device: DeviceState, head: Entry, model: str, evicts: Iterable[str], now: float
) -> ModelHold | None:
    """Whom what an external request for `model` would evict is kept for; None where it may go."""
    waiting = _waiting_for_room(device)
    holds = []
    for name in evicts:
        trip = _trip_for(device, head, model, name, now)
        for habit in device.gateway.arrivals.internal_habits(name):
            quiet_s = now - habit.since
            is_served = model in habit.choices
            if is_served:
                until = now + _hold_before_load_s(habit, quiet_s, trip.there_s, waiting)
            else:
                until = habit.since + hold_s(habit, quiet_s, trip, waiting, device.can_cut(model))
            if until > now:
                hold = ModelHold(
                    model=name, caller=habit.caller, until=until, is_served_there=is_served
                )
                holds.append(hold)
    return max(holds, key=lambda hold: hold.until, default=None)


def hold_s(
    habit: Habit,
    quiet_s: float,
    trip: Trip,
    waiting: int,
    can_cut: bool,  # noqa: FBT001
) -> float:
    """Seconds from its caller's last answer for which a model is kept, `quiet_s` of them over."""
    if len(habit.gaps) < MIN_GAPS:
        return trip.whole_s
    # Of the gaps seen, those that can still come true; each is as likely as any other.
    latest_s = {gap: LATE * gap + LATE_S - quiet_s for gap in habit.gaps}
    rests_s = [max(gap - quiet_s, left_s / 2) for gap, left_s in latest_s.items() if left_s > 0]
    if not rests_s:
        return 0.0
    weight = WEIGHTS[habit.band]
    longest_s = trip.whole_s + weight * trip.return_s / waiting - quiet_s

    def loss(hold: float) -> float:
        return sum(
            _loss(rest, hold, trip, OTHERS_WEIGHT * waiting, weight, can_cut) for rest in rests_s
        )

    holds = [left_s for left_s in latest_s.values() if 0 < left_s <= longest_s]
    return quiet_s + min([0.0, *holds], key=loss)


def _hold_before_load_s(habit: Habit, quiet_s: float, load_s: float, waiting: int) -> float:
    """For how much longer a model is kept whose caller the next one serves as well: it loses only
    the time for which it waits for that load, and the others the time of the hold.
    """
    if len(habit.gaps) < MIN_GAPS:
        return 0.0
    latest_s = {gap: LATE * gap + LATE_S - quiet_s for gap in habit.gaps}
    rests_s = [max(gap - quiet_s, left_s / 2) for gap, left_s in latest_s.items() if left_s > 0]
    weight = WEIGHTS[habit.band]

    def loss(hold: float) -> float:
        return sum(
            OTHERS_WEIGHT * waiting * min(rest, hold)
            + weight * (max(0.0, hold + load_s - rest) if rest > hold else 0.0)
            for rest in rests_s
        )

    return min([0.0, *(left_s for left_s in latest_s.values() if 0 < left_s <= load_s)], key=loss)


def _loss(
    rest_s: float,
    hold_s: float,
    trip: Trip,
    others: float,
    weight: float,
    can_cut: bool,  # noqa: FBT001
) -> float:
    """What is lost if the assistant returns after `rest_s` and its model is kept for `hold_s`."""
    if rest_s <= hold_s:
        return others * rest_s
    loaded_at_s = hold_s + trip.there_s
    useful_at_s = loaded_at_s + trip.read_s
    blocked_s = max(0.0, loaded_at_s - rest_s)
    if can_cut:
        blocked_s = min(blocked_s, CUT_S)
    # The others have nothing of a load, and of a prompt that is read, which the assistant's return
    # undoes.
    # Until the assistant's conversation is read again, it and all others wait.
    return others * (min(rest_s, useful_at_s) + trip.return_s) + weight * (
        trip.return_s + blocked_s
    )


def _waiting_for_room(device: DeviceState) -> int:
    """n of rule 1, at least 1."""
    residents = device.residency.residents
    is_plain = device.is_plain
    waiting = [
        len(line)
        for lines in _external_lines(device.gateway)
        for model, line in lines.items()
        if model not in residents and (is_plain or device.can_serve(model))
    ]
    return max(1, sum(waiting))


def _external_lines(gateway: GatewayState) -> list[dict[str | None, list[Entry]]]:
    """What a program asks for beside its user's turns has no turn before it has risen by its
    age.
    """
    return [gateway.waiting.lines[band] for band in _IN_TURNS]


# Rules 2 and 3.


def take_turns(device: DeviceState, now: float) -> Turn | None:
    """The turn that is under way at this instant, after the last has ended and the next begun."""
    gateway = device.gateway
    turn = device.turn
    if turn is not None and _is_over(device, turn, now):
        device.turn_ended = gateway.since(now)
        turn = None
    # The cheap question goes first: of most decisions it is the only one.
    may_begin = _needs_swap(device) and not gateway.paused and not any(gateway.near_tasks(now))
    if turn is None and may_begin and _is_shared(device):
        turn = _next_turn(device, now)
    device.turn = turn
    return turn


def _needs_swap(device: DeviceState) -> bool:
    """Does external work wait for a model that is not in memory, or is a swap under way?"""
    residency = device.residency
    if residency.swap is not None:
        return True
    residents = residency.residents
    is_plain = device.is_plain
    return any(
        model not in residents and (is_plain or device.can_serve(model))
        for lines in _external_lines(device.gateway)
        for model in lines
    )


def _is_shared(device: DeviceState) -> bool:
    """Does internal work want the memory, or may it soon?"""
    if device.gateway.waiting.ahead_of(Band.BACKGROUND) > 0:
        return True
    residents = device.residency.residents
    return any(
        device.gateway.arrivals.internal_habits(name) or _has_internal_work(device, name)
        for name in residents
    )


def _next_turn(device: DeviceState, now: float) -> Turn | None:
    """The turn that begins now, of those the one that was due first.

    Asks to be woken when one is due.
    """
    if _is_serving_loads(device) or _has_waited_through_turn(device):
        return None
    gateway = device.gateway
    for due in sorted(_dues(device, now), key=_LEFT_S):
        later_s = _later_s(device, due)
        if due.left_s + later_s > LEAST_S:
            # While external work runs, the clock that `left_s` goes by stands still: only the bound
            # comes nearer.
            left_s = due.latest_s if gateway.external_running else due.left_s
            gateway.wake_at(now + later_s + left_s)
        elif _is_kept(device, due, now):
            return Turn(model=due.model, length_s=due.length_s)
    return None


def _is_kept(device: DeviceState, due: _Due, now: float) -> bool:
    """Would it have to wait without a turn? What nothing internal claims is swapped anyway."""
    shares = any(_runs_external(device, name) for name in due.evicts)
    # Where other external work runs, a turn would wait for its end, and nothing more could start
    # there. For those whom an alias lets use either model that is worse than no turn.
    if shares:
        is_used = any(_has_work_beyond(device, name, due.model) for name in due.evicts)
    else:
        is_used = _is_kept_by_work(device, due)
    if is_used:
        return True
    hold = hold_for(device, due.head, due.model, due.evicts, now)
    return hold is not None and not (shares and hold.is_served_there)


class _Due(NamedTuple):
    """An external request that needs a swap, and in how many seconds it has a turn due."""

    left_s: float
    latest_s: float  # whatever runs meanwhile
    head: Entry
    model: str
    evicts: tuple[str, ...]  # or, where its load is under way, what would be loaded instead
    length_s: float
    period_s: float


def _dues(device: DeviceState, now: float) -> Iterator[_Due]:
    """Of the requests that have waited longest: with a hundred models, all would be too many."""
    gateway = device.gateway
    share = gateway.settings.scheduling.others_share
    unserved_s = gateway.unserved_s(now)
    for head, evicts in islice(_in_need(device, now), MOST_DUES):
        model = head.wanted_model or ""
        trip = max(
            [_trip_for(device, head, model, name, now) for name in evicts],
            key=lambda trip: trip.whole_s,
        )
        since = max(head.waits_since, device.turn_ended)
        period_s = trip.period_s(share)
        latest_s = since.at + MOST_PERIODS * period_s - now
        left_s = min(since.unserved_s + period_s - unserved_s, latest_s)
        yield _Due(left_s, latest_s, head, model, evicts, trip.turn_s, period_s)


def _in_need(device: DeviceState, now: float) -> Iterator[tuple[Entry, tuple[str, ...]]]:
    """External requests that need a swap and what is in its way, the longest waiting first."""
    residency = device.residency
    if residency.swap is not None:
        # No swap for anybody else can begin. A load that may hang has no claim to the memory.
        rivals = _rivals(device)
        if rivals and now < _late_at(device):
            lines = [
                each[residency.loading]
                for each in _external_lines(device.gateway)
                if residency.loading in each
            ]
            yield from ((line[0], rivals) for line in lines)
        return
    residents = residency.residents
    is_plain = device.is_plain
    lines = [
        line
        for each in _external_lines(device.gateway)
        for model, line in each.items()
        if model not in residents and (is_plain or device.can_serve(model))
    ]
    evictions = _evictions(device)
    for head in sorted([line[0] for line in lines], key=_WAITS_SINCE):
        if head.wanted_model is None:
            continue
        evicts = evictions.find(head.wanted_model, head.item.task_type)
        if evicts:
            yield head, evicts


def _rivals(device: DeviceState) -> tuple[str, ...]:
    """The models for which internal work would have the load under way cut, as far as that is cheap
    to know.
    """
    residency = device.residency
    waiting = [
        name
        for lines in device.gateway.waiting.lines[: Band.INTERRUPTED]
        for name in lines
        if name is not None
    ]
    is_plain = device.is_plain
    absent = [
        name
        for name in waiting
        if name not in residency.residents and (is_plain or device.can_serve(name))
    ]
    return tuple(absent[:MOST_DUES])


def _later_s(device: DeviceState, due: _Due) -> float:
    """How much later, or earlier, than it is due a turn begins."""
    if any(_runs_internal(device, name) for name in due.evicts):
        # What runs is waited for, and with several slots that may go on for ever: then it is
        # drained.
        return due.period_s
    if _is_kept_by_work(device, due):
        return 0.0
    return -min([_median_gap_s(device, name) for name in due.evicts])


def _evictions(device: DeviceState) -> Evictions:
    return Evictions(device.residency, () if device.pinned is None else (device.pinned,))


def _is_serving_loads(device: DeviceState) -> bool:
    """Was something loaded for internal work that has not served it yet?"""
    unsettled = [each.model for each in device.residency.residents.values() if not each.settled]
    return any(device.gateway.waiting.up_to(Band.BACKGROUND, name) for name in unsettled)


def _has_waited_through_turn(device: DeviceState) -> bool:
    """Does critical work wait that came before the last turn ended?"""
    return any(
        line[0].item.arrived_at < device.turn_ended.at and device.contends(model)
        for model, line in device.gateway.waiting.lines[Band.CRITICAL].items()
    )


def _is_kept_by_work(device: DeviceState, due: _Due) -> bool:
    """Does internal work use what has to go, or would it cut the load that is under way?"""
    return any(_has_internal_work(device, name) for name in due.evicts)


def _has_internal_work(device: DeviceState, model: str) -> bool:
    return device.gateway.waiting.up_to(Band.BACKGROUND, model) > 0 or _runs_internal(device, model)


def _runs_external(device: DeviceState, model: str) -> bool:
    return any(entry.external for entry in _running_on(device, model))


def _has_work_beyond(device: DeviceState, model: str, other: str) -> bool:
    """Does internal work use a model that the other one does not serve?"""
    lines = device.gateway.waiting.lines[: Band.INTERRUPTED]
    waiting = [entry for each in lines for entry in each.get(model, ())]
    running = [entry for entry in _running_on(device, model) if not entry.external]
    return any(other not in entry.item.choices for entry in (*waiting, *running))


def _running_on(device: DeviceState, model: str) -> Collection[Entry]:
    resident = device.residency.residents.get(model)
    return () if resident is None else resident.running.values()


def _runs_internal(device: DeviceState, model: str) -> bool:
    return any(not entry.external for entry in _running_on(device, model))


def _median_gap_s(device: DeviceState, model: str) -> float:
    """After how long the last internal caller of a model usually returns; 0 where nobody knows."""
    gaps = next((habit.gaps for habit in device.gateway.arrivals.internal_habits(model)), ())
    return median(gaps) if len(gaps) >= MIN_GAPS else 0.0


def _is_over(device: DeviceState, turn: Turn, now: float) -> bool:
    """Asks to be woken when the turn is over."""
    gateway = device.gateway
    if gateway.paused or device.listing.is_away(turn.model):
        return True
    resident = device.residency.residents.get(turn.model)
    is_waited_for = any(turn.model in lines for lines in _external_lines(gateway))
    if resident is None:
        return not is_waited_for or _evictions(device).find(turn.model) is None
    if resident.phase != "ready":
        late_at = _late_at(device)
        if now < late_at < inf:
            gateway.wake_at(late_at)
        return not is_waited_for or now >= late_at
    if turn.until is None:
        turn.until = now + turn.length_s
    # Not beyond an announced internal task, for which external work is held back anyway.
    turn.until = min([turn.until, *[at for at, _ in gateway.announced if at > now]])
    until = turn.until
    if not is_waited_for and not resident.running:
        until = min(until, _linger_until(gateway, turn.model, now))
    if now < until:
        gateway.wake_at(until)
    return now >= until


def _late_at(device: DeviceState) -> float:
    """When the load under way has taken so long that it may never end; never where it could not be
    cut anyway.
    """
    residency = device.residency
    loading = residency.loading
    if residency.swap is None or loading is None or not device.can_cut(loading):
        return inf
    expected_s = UNKNOWN_LOAD_S
    if device.estimates.knows_load(loading):
        swap = residency.swap
        expected_s = device.estimates.load_s(swap.origin, loading, swap.level)
    return residency.swap.started_at + LATE_LOAD * expected_s + LATE_LOAD_S


def _linger_until(gateway: GatewayState, model: str, now: float) -> float:
    """Until when a turn without work waits for a caller who usually returns within seconds."""
    until = now
    for habit in gateway.arrivals.habits(model):
        if habit.is_external and len(habit.gaps) >= MIN_GAPS:
            gap_s = median(habit.gaps)
            if gap_s <= MAX_LINGER_S:
                until = max(until, habit.since + LATE * gap_s + LATE_S)
    return until


# Rule 6.


def grace_until(device: DeviceState, entry: Entry, evicts: Iterable[str], now: float) -> float:
    """Until when an internal request lets external work go on before it evicts these models."""
    if entry.band not in MAX_GRACE_S or any(device.gateway.near_tasks(now)):
        return -inf
    wanted = entry.wanted_model or ""
    used = [name for name in evicts if _has_external_work(device, name, wanted)]
    if not used:
        return -inf
    trip = max(
        [trip_between(device, wanted, name, name, now) for name in used],
        key=lambda trip: trip.whole_s,
    )
    grace_s = GRACE_TRIPS * trip.whole_s
    if entry.band is Band.NORMAL:
        grace_s = min(grace_s, max(trip.return_s, LEAST_GRACE_S))
    return entry.item.arrived_at + min(grace_s, MAX_GRACE_S[entry.band])


def _has_external_work(device: DeviceState, model: str, other: str) -> bool:
    """Does external work run on a model, or wait for it that the other one does not serve?"""
    running = device.residency.residents[model].running.values()
    if any(entry.external for entry in running):
        return True
    waiting = (entry for lines in _external_lines(device.gateway) for entry in lines.get(model, ()))
    return not device.gateway.paused and any(other not in entry.choices for entry in waiting)
