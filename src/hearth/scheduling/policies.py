"""Which model a band serves next when it has a choice.

A policy compares the first request of each model in a band, and how many wait behind it. It never
looks across bands, and knows learned estimates only. Rules that hold for every policy (bands,
settling, one swap at a time) are in `scheduling.placement`.

`cost_aware` is the coalescing policy of llmux's switching efficiency report: five checks, in its
order, with its four parameters. For work that needs a swap: 1. what has waited `max_wait_s` swaps;
2. an empty GPU, or room beside what is there, swaps; 3. a model serves for at least what the swap
costs, and for `min_active_s`; 4. a queue of `amortization_factor` times the swap's seconds swaps;
5. a smaller one swaps after `coalesce_window_s`. A deferral is checked again when it ends, and a
model that still has work is left only after `residency_factor` times the cost of the swap: else
overload would be nothing but swapping.

`time_slice` is the report's last recommendation. Each model serves for a slice in proportion to its
waiting work, never below `min_slice_factor` times what the swap costs, and swaps come only between
slices, for what waits longest. The slices of a round add up to the least slices of all models that
have work. A model that runs dry gives the rest of its slice away.

`adaptive` serves a model until nothing waits for it, then the one that answers the most requests
per second. docs/scheduling/rules.md has the bounds, and numbers the rules as they are here. The
first that applies decides.

1. The request that has waited longest for a swap is late (`is_late`): a. nothing waits for a loaded
   model, and the request has waited twice its patience, or once if the loaded model has earned its
   swap; b. requests wait for a loaded model, the late one has waited its patience, and that model
   has earned its swap `LEAVING_FACTOR` times; c. a loaded model was served and its queue did not
   become shorter, and the late request has waited `MOST_TRIPS` round trips.
2. A loaded model that has waiting requests is served. It is replaced before that, by the model of
   rule 3, only if it has earned its swap `LEAVING_FACTOR` times and the callers of the other model
   are spared much more waiting than all others are caused.
3. The model that serves the most waiting requests per second of swap and work, weighed by the age
   of the oldest (`_gain_among`). Before the swap, the loaded model is held for a caller that is
   likely to return soon (`held_until`). The gaps seen between the last requests of each caller give
   the time: the one with the largest gain, which is the chance of a return times what it saves,
   less the waiting.

Patience is `PATIENCE` times what serving the whole band takes, and at least `max_swap_wait_s`: in
overload every request is old, and swapping because of age would make all of them older. Rules 1b
and 2 take at most `1 / (1 + LEAVING_FACTOR)` of the time, rule 1c at most `1 / (1 + MOST_TRIPS)`,
and only of a model whose own load is 1 or more; rule 1a replaces no model that has waiting
requests.

What a swap destroys belongs to its price: the seconds in which warm conversations are read again
(`scheduling.warm`). The round trip contains those of the models that go, and of the request that
they go for, whose conversation is lost on the way back; so does the backlog of rule 1. A model has
earned its place when it was in memory for a multiple of the swap and the reading that its going
costs. In rule 3 a model is held for at least `READ_SHARE` of the time of reading the conversation
of its last callers, unless all of their gaps are longer, and by `LATE_READ_SHARE` of it longer than
these gaps say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from hearth.config.choices import PolicyName
from hearth.scheduling.estimates import Habit
from hearth.scheduling.evictions import Evictions
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import Entry, Key
from hearth.types import Band, entity, frozen

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

# a request is late when it has waited this many times what serving the whole band takes
PATIENCE = 3.0
# cost of a swap and the swap back for a waiting request, in round trips: one now, the rest for
# later arrivals
LEAVING_COST = 1.5
LEAVING_FACTOR = 20.0
"""A model with waiting requests is replaced only after it ran for this many times the cost of its
swap. So at most `1 / (1 + LEAVING_FACTOR)` of the time goes into avoidable swaps, and the queue
stays stable up to a load of 0.95.
"""
MOST_TRIPS = 10.0  # maximum wait behind a queue that does not get shorter, in round trips
# a request as old as this share of what serving everybody takes, swaps weighed, counts twice in
# rule 3
OLD_SHARE = 0.6
LEAST_OLD_S = 30.0
# maximum length of a hold as a part of the round trip, counted from the caller's last end
HOLD_SHARE = 0.3
OLDEST_TRIPS = 4.0  # a request that has waited this many round trips is not kept waiting by a hold
# what a return saves, as a part of the round trip: the caller is served at once, but others wait
# for that
WORTH = 0.5
LIKELY = 0.6  # minimum chance of a return
DOUBT = 0.5  # returns counted as missing although none was seen, since few gaps prove little
LATE = 1.05
LATE_S = 0.005  # a caller may be this much later than ever before
UNKNOWN_HOLD_S = 0.15
UNKNOWN_SHARE = 0.02
"""Hold for a caller without known gaps and without other open requests: the next request of a loop
comes at once.
"""
READ_SHARE = 0.15
"""Least hold for a caller whose conversation is warm, as a part of the time of reading it: a caller
that answers in turn with its tools is back within seconds.
"""
LATE_READ_SHARE = 0.1  # it may be this much later than ever before
# with fewer gaps, the hold is no longer than for an unknown caller: one or two short gaps are
# common in random traffic
MIN_GAPS = 3


class Work(NamedTuple):
    """What waits in a line."""

    waiting: int  # requests for the model in this band and in more urgent ones
    work_s: float  # of serving them, in expected seconds


class SwapCost(NamedTuple):
    """What bringing a model in would mean, in expected seconds."""

    # models to unload first; none if it fits beside them, or cannot be loaded now
    evicts: tuple[str, ...] = ()
    swap_s: float = 0.0  # until the model is loaded; 0 if it is
    # of the swap and the swap back, and of reading again what that destroys: the round trip
    trip_s: float = 0.0
    reread_s: float = 0.0  # of it, the reading

    @property
    def price_s(self) -> float:
        """Of the swap and what it destroys."""
        return self.swap_s + self.reread_s


NO_SWAP = SwapCost()


@entity
class Candidate:
    """The head of a line at one instant.

    What its line and its swap mean is reckoned once, when that is first asked for.
    """

    entry: Entry
    device: DeviceState
    band: Band
    now: float
    resident: bool  # its model is in memory, or on its way in, and stays
    evictions: Evictions
    model: str = field(init=False)  # what it runs on
    _work: Work | None = None
    _swap: SwapCost | None = None

    def __post_init__(self) -> None:
        self.model = self.entry.wanted_model or self.device.home or ""

    @property
    def work(self) -> Work:
        if self._work is None:
            gateway = self.device.gateway
            waiting = gateway.waiting.up_to(self.band, self.entry.wanted_model)
            turns = ceil(waiting / gateway.settings.parallel(self.model))
            self._work = Work(waiting, turns * self.device.estimates.run_s(self.model))
        return self._work

    @property
    def swap(self) -> SwapCost:
        if self.resident:
            return NO_SWAP
        if self._swap is None:
            model = self.model
            expected_s = self.device.estimates.swap_s
            evicts = self.evictions.find(model, self.entry.item.task_type) or ()
            swap_s = max([expected_s(origin, model) for origin in evicts or ("",)])
            back_s = sum([expected_s(model, origin) for origin in evicts])
            reread_s = 0.0
            if evicts:  # on the way back, what is read now is lost
                reread_s = self.evictions.reread_s(evicts, self.now)
                reread_s += self.device.residency.caches.lost_again_s(self.entry.item, model)
            self._swap = SwapCost(evicts, swap_s, swap_s + back_s + reread_s, reread_s)
        return self._swap

    def in_memory_s(self) -> float:
        """How long the youngest of what it evicts has been in memory."""
        residents = self.device.residency.residents
        times_s = [self.now - residents[name].loaded_at for name in self.swap.evicts]
        return min(times_s, default=0.0)

    def may_evict(self, least: float = 0.0) -> bool:
        """Has all that it evicts earned its place, at least `least` times what the swap costs?"""
        return all(
            earned(self.device, name, self.model, self.now, least) for name in self.swap.evicts
        )


@dataclass(slots=True)
class Candidates:
    """The heads of a band that are still to be chosen from."""

    served: list[Candidate]  # those that need no swap
    others: list[Candidate]

    def __iter__(self) -> Iterator[Candidate]:
        yield from self.served
        yield from self.others

    def __len__(self) -> int:
        return len(self.served) + len(self.others)

    def remove(self, candidate: Candidate) -> None:
        (self.served if candidate.resident else self.others).remove(candidate)


def earned(device: DeviceState, resident: str, target: str, now: float, least: float = 0.0) -> bool:
    """Has a model been in memory for `residency_factor`, and at least `least`, times what its
    coming cost or its going costs?

    That bounds the time spent on swaps that are forced on a model with work: to `1 / (1 +
    residency_factor)` at any load.
    """
    swap_s = max(device.estimates.swap_s("", resident), device.estimates.swap_s(resident, target))
    price_s = swap_s + device.residency.reread_s(resident, now)
    factor = max(least, device.gateway.settings.scheduling.residency_factor)
    return now - device.residency.residents[resident].loaded_at >= factor * price_s


def first(candidates: Iterable[Candidate]) -> Candidate | None:
    """The one that is first in the band, None of none."""
    return min(candidates, key=_key, default=None)


def _key(candidate: Candidate) -> Key:
    return candidate.entry.key


def fifo(candidates: Candidates, _device: DeviceState, _now: float) -> Candidate:
    """The item that is first in the band."""
    return min(candidates, key=_key)


def affinity(candidates: Candidates, _device: DeviceState, _now: float) -> Candidate:
    """The first item that needs no swap; where all need one, the first item of the band."""
    return min(candidates.served or candidates.others, key=_key)


def all_earned(oldest: Candidate, _candidates: Candidates, device: DeviceState, now: float) -> bool:
    """What `affinity` is forced by: all that is in memory and may go has earned its place, whether
    or not it has to go.
    """
    residents = device.residency.residents.values()
    return all(
        earned(device, each.model, oldest.model, now)
        for each in residents
        if each.phase == "ready" and each.may_go
    )


def cost_aware(candidates: Candidates, device: DeviceState, now: float) -> Candidate | float:
    """See the module docstring."""
    served = candidates.served
    swap_at = inf
    for other in sorted(candidates.others, key=_key):
        at = _swaps_at(other, device, now)
        if at <= now and (not served or not other.swap.evicts or other.may_evict()):
            return other
        swap_at = min(swap_at, at)
    return first(served) or swap_at


def _swaps_at(candidate: Candidate, device: DeviceState, now: float) -> float:
    """The instant at which the checks let this swap happen, if nothing changes; now or earlier: at
    once.

    Check 1 comes first by being an upper bound of all that follows.
    """
    rules = device.gateway.settings.scheduling.cost_aware
    arrived_at = candidate.entry.item.arrived_at
    stale_at = arrived_at + rules.max_wait_s
    if not candidate.swap.evicts:
        return now
    window_ends_at = now - candidate.in_memory_s() + max(candidate.swap.price_s, rules.min_active_s)
    if now < window_ends_at:
        return min(stale_at, window_ends_at)
    if candidate.work.waiting >= max(1, ceil(rules.amortization_factor * candidate.swap.price_s)):
        return now
    return min(stale_at, arrived_at + rules.coalesce_window_s)


def time_slice(candidates: Candidates, device: DeviceState, _now: float) -> Candidate:
    """See the module docstring."""
    others = candidates.others
    own = first(candidates.served)
    following = first(others)
    if following is None or own is None:
        return min(candidates, key=_key)
    if not following.swap.evicts:
        return following
    factor = device.gateway.settings.scheduling.time_slice.min_slice_factor
    if following.in_memory_s() < factor * following.swap.price_s or not following.may_evict():
        return own
    round_s = factor * (following.swap.price_s + sum(other.swap.price_s for other in others))
    all_work_s = own.work.work_s + sum(other.work.work_s for other in others)
    share = own.work.work_s / max(all_work_s, 1e-9)
    return following if following.in_memory_s() >= share * round_s else own


def is_late(oldest: Candidate, candidates: Candidates, device: DeviceState, now: float) -> bool:
    """Rule 1 of the module docstring: is this item, which has waited `max_swap_wait_s`, late?"""
    waited_s = now - oldest.entry.item.arrived_at
    if not candidates.served:  # 1a
        # No loaded model has work, so this only goes before rule 3. Where what it evicts has not
        # earned its own swap yet, it takes twice the patience.
        has_earned = oldest.may_evict()
        counted_s = waited_s if has_earned else waited_s / 2
        return _is_past_patience(counted_s, oldest, candidates, device)
    if not oldest.may_evict(MOST_TRIPS):
        return False  # neither 1c nor 1b, which asks for more
    if oldest.may_evict(LEAVING_FACTOR) and _is_past_patience(waited_s, oldest, candidates, device):
        return True  # 1b
    if waited_s < MOST_TRIPS * oldest.swap.trip_s:
        return False
    return not any(_became_shorter(own, device) for own in candidates.served)  # 1c


def _became_shorter(own: Candidate, device: DeviceState) -> bool:
    """Has the line of a loaded model lost more than it gained since the load? A model whose line
    does not, is asked for as fast as it can serve: it would never run dry by itself.
    """
    loaded = device.residency.residents.get(own.entry.wanted_model or "")
    return loaded is None or own.work.waiting < loaded.waiting_at_load


def _is_past_patience(
    waited_s: float, oldest: Candidate, candidates: Candidates, device: DeviceState
) -> bool:
    """Is this at least `max_swap_wait_s`, and `PATIENCE` times what serving all candidates takes?
    Reckons no further than needed.
    """
    if waited_s < device.gateway.settings.scheduling.max_swap_wait_s:
        return False
    backlog_s = oldest.swap.reread_s
    for each in candidates:
        backlog_s += each.work.work_s + device.estimates.swap_s("", each.model)
        if PATIENCE * backlog_s > waited_s:
            return False
    return True


def adaptive(candidates: Candidates, device: DeviceState, now: float) -> Candidate | float:
    """Rules 2 and 3 of the module docstring."""
    own = first(candidates.served)
    if own is not None:
        return _served_on(own, candidates, device, now)
    best = max(candidates.others, key=_gain_among(candidates, now))
    evicts = best.swap.evicts
    if not evicts or device.residency.swap is not None or any(map(device.runs_on, evicts)):
        return best  # nothing is unloaded yet, so there is nothing to hold
    until = held_until(best, candidates, device, now)
    return best if until is None or until <= now else until


def _served_on(
    own: Candidate, candidates: Candidates, device: DeviceState, now: float
) -> Candidate:
    """Rule 2: the loaded model's first request, or the one that the model is left for."""
    if not candidates.others or not _any_left(device, now):
        return own
    loaded = device.residency.residents.get(own.entry.wanted_model or "")
    if loaded is not None and not earned(device, loaded.model, loaded.model, now):
        return own  # it has not even earned its own coming
    best = max(candidates.others, key=_gain_among(candidates, now))
    return best if _leaves(own, best) else own


def _any_left(device: DeviceState, now: float) -> bool:
    """May anything in memory have been there long enough to be left while it has work? If not, no
    candidate need be reckoned.
    """
    residents = device.residency.residents.values()
    swap_s = device.estimates.swap_s
    return any(
        now - each.loaded_at >= LEAVING_FACTOR * swap_s("", each.model) for each in residents
    )


def _gain_among(
    candidates: Candidates, now: float
) -> Callable[[Candidate], tuple[float, float, int]]:
    """Rule 3's order among these: requests per second, weighed by the age of the oldest; among
    equals the one that came first.

    The rate alone starves a dear model that few ask for. Age counts with its square, as a share of
    what serving everybody takes: little where swaps are a small part of that, as in overload, where
    the rate alone leaves the least waiting.
    """
    work_s = sum([each.work.work_s for each in candidates])
    swaps_s = sum([each.swap.price_s for each in candidates.others])
    everybody_s = (work_s + swaps_s) * (1 + work_s / max(2 * swaps_s, 1e-9))
    old_s = OLD_SHARE * max(LEAST_OLD_S, everybody_s)

    def gain(candidate: Candidate) -> tuple[float, float, int]:
        item = candidate.entry.item
        # The way back is as dear as the way there.
        swaps_s = 2 * candidate.swap.swap_s + candidate.swap.reread_s
        rate = candidate.work.waiting / max(swaps_s + candidate.work.work_s, 1e-9)
        age_s = now - item.arrived_at
        return (rate * (1 + (age_s / old_s) ** 2), -item.arrived_at, -item.sequence)

    return gain


def _leaves(own: Candidate, other: Candidate) -> bool:
    """Do the callers of the other model win more by being served first than all lose by the swap
    and the way back?

    Served first, the other's items are spared the work of this line, while this line's wait for the
    round trip and the other's work; the trip itself delays everybody.
    """
    if not other.swap.evicts or not other.may_evict(LEAVING_FACTOR):
        return False
    ours = own.work
    theirs = other.work
    trip_s = other.swap.trip_s
    all_waiting = ours.waiting + theirs.waiting
    lost_s = ours.waiting * (trip_s + theirs.work_s) + LEAVING_COST * trip_s * all_waiting
    return theirs.waiting * ours.work_s > lost_s


def held_until(
    best: Candidate, candidates: Candidates, device: DeviceState, now: float
) -> float | None:
    """Until when what the best one evicts should be held while all of these wait; None where it
    should not.
    """
    oldest_s = now - min(candidate.entry.item.arrived_at for candidate in candidates)
    if oldest_s > OLDEST_TRIPS * best.swap.trip_s:
        return None
    gateway = device.gateway
    waiting = sum(candidate.work.waiting for candidate in candidates)
    external = best.entry.external
    if not external and not gateway.priced:
        return None
    # Nothing internal waits for an external caller, and external work waits for an internal one by
    # rule 1 of `sharing`, which knows its habits by themselves.
    used_last = [
        (habit, _lost_for(best, habit, name))
        for name in best.swap.evicts
        for habit in gateway.arrivals.habits(name)
        if habit.is_external is external and best.model not in habit.choices
    ]
    # Each of these holds pays by itself. Of several the longest counts: a swap after a shorter one
    # would lose what the longer one was to win.
    returns = [
        returns_by(habit, now, trip_s, waiting, reread_s) for habit, (trip_s, reread_s) in used_last
    ]
    return max([until for until in returns if until is not None], default=None)


def _lost_for(best: Candidate, habit: Habit, model: str) -> tuple[float, float]:
    """What it takes to come back to a model: the trip, and of that reading the conversation of a
    caller.
    """
    swap = best.swap
    if not best.entry.external and habit.band > best.band:
        # Its next request comes behind this one, so its conversation is lost however long it is.
        return swap.trip_s - swap.reread_s, 0.0
    return swap.trip_s, best.device.residency.caches.reread_of_s(habit.caller, model)


def returns_by(
    habit: Habit, now: float, trip_s: float, waiting: int, reread_s: float = 0.0
) -> float | None:
    """By when its caller is back, if it is worth waiting for that while so many others wait;
    `reread_s`: of its conversation, should it be lost.
    """
    until = _expected_by(habit, now, trip_s, waiting)
    if not reread_s:
        return until
    soon_s = READ_SHARE * reread_s
    is_quick = len(habit.gaps) < MIN_GAPS or min(habit.gaps) <= soon_s
    if until is None:
        return habit.since + soon_s if is_quick else None
    late = until + LATE_READ_SHARE * reread_s
    return max(late, habit.since + soon_s) if is_quick else late


def _expected_by(habit: Habit, now: float, trip_s: float, waiting: int) -> float | None:
    """The same, by the gaps that were seen."""
    if not habit.gaps:
        # nobody knows; but a caller that has other requests open is busy with those
        return None if habit.waits else habit.since + min(UNKNOWN_HOLD_S, UNKNOWN_SHARE * trip_s)
    quiet_s = now - habit.since
    longest_s = HOLD_SHARE * trip_s
    if len(habit.gaps) < MIN_GAPS:
        longest_s = min(longest_s, UNKNOWN_HOLD_S)
    # Each gap that was seen, and is not over yet, is as likely as any other. To hold until the n-th
    # shortest of them wins a part of the trip in the n cases in which the caller is back by then;
    # it costs everybody who waits the time until the return in each of these, and the whole hold in
    # the others.
    gaps_s = sorted(gap_s for gap_s in habit.gaps if gap_s * LATE + LATE_S > quiet_s)
    cases = len(gaps_s) + DOUBT
    until_returns_s = 0.0
    most_won_s = 0.0
    best_s: float | None = None
    for returned, gap_s in enumerate(gaps_s, start=1):
        if gap_s > longest_s:
            break
        hold_s = max(0.0, gap_s - quiet_s)
        until_returns_s += hold_s
        lost_s = waiting * (until_returns_s + hold_s * (cases - returned))
        won_s = returned * WORTH * trip_s - lost_s
        if returned >= LIKELY * cases and won_s > most_won_s:
            most_won_s = won_s
            best_s = gap_s
    return None if best_s is None else habit.since + best_s * LATE + LATE_S


@frozen
class Policy:
    """A way to choose."""

    # of the candidates of a band at an instant, the one to serve next; or the instant until which
    # no swap is started, which only makes sense where all of them need one
    choose: Callable[[Candidates, DeviceState, float], Candidate | float]
    learns: bool  # it reads what was learned of callers (`arrivals`) itself
    # may the longest waiting item that needs a swap, `max_swap_wait_s` old, force it now (rule 5 of
    # `placement`)? None: never
    forces: Callable[[Candidate, Candidates, DeviceState, float], bool] | None = None
    # a model that is likely to be asked for next is loaded while nothing else is to be done
    preloads: bool = False


POLICIES: Mapping[PolicyName, Policy] = MappingProxyType(
    {
        PolicyName.FIFO: Policy(choose=fifo, learns=False),
        PolicyName.AFFINITY: Policy(choose=affinity, learns=False, forces=all_earned),
        PolicyName.COST_AWARE: Policy(choose=cost_aware, learns=True),
        PolicyName.TIME_SLICE: Policy(choose=time_slice, learns=True),
        PolicyName.ADAPTIVE: Policy(choose=adaptive, learns=True, forces=is_late, preloads=True),
    }
)


def learns_of_callers(settings: SchedulerSettings) -> bool:
    """Does anything read what is learned of callers? Holds do, under every policy."""
    scheduling = settings.scheduling
    return POLICIES[scheduling.policy].learns or scheduling.preemption == "priced"
