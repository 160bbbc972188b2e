"""What is loaded while nothing waits: back to the home model, or what the last caller is likely to ask for next.

A restore is a decision like any other, taken when nothing has run long enough: never a task beside the scheduler, so an arrival at any
instant simply changes the next decision. A failed restore is tried again ever later, then left alone until something else was loaded or the
settings changed. How long is enough is learned for each set of models that an idle time began with: of the last such times, how long they
were, what was asked for next, and how urgent that was. The delay is the one with which those requests would have waited least, weighted by
their band, and never more than `restore_home_delay_s`. Where too little is known, it is that setting.

An agent that plans with one model and works with another comes back after some seconds, and so far has always come back the same way. Its
next model is loaded with nothing else to do, once in an idle time, for a step that was seen several times and nearly always, and only where
it will be used before the home model is due: the two never fight, and a caller who stays away changes nothing about going home.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import accumulate
from operator import itemgetter

from hearth.scheduling.actions import SwapReason
from hearth.scheduling.arrivals import Step
from hearth.scheduling.estimates import IdleEnd
from hearth.scheduling.placement import Placement
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.state import State
from hearth.types import Band, Lane, QueueItem

MAX_RESTORES = 5
MIN_ENDS = 8
"""Idle times that must be known before they are gone by."""
LATE = 1.5
LATE_S = 1.0
"""A caller may be this much later than it was before."""
WEIGHTS = {Band.CRITICAL: 4.0, Band.NORMAL: 2.0}
"""What a second of waiting counts in these bands; 1 in the others."""


def idle_ended(state: State, item: QueueItem, now: float) -> None:
    """Learn from the item that ends an idle time, where that began with the home model out of memory."""
    models, may_start = state.idle_with, not state.orders.paused or item.lane is not Lane.EXTERNAL
    if state.idle_since is None or models is None or state.comes_back in {None, *models} or not may_start:
        return
    state.estimates.learn_idle_end(models, (now - state.idle_since, WEIGHTS.get(item.band, 1.0), item.model or ""))


def restore(state: State, placement: Placement, now: float) -> None:
    """With the house at rest, start restoring the model to come back to if its time has come; else ask to be woken when it has."""
    if state.idle_since is None:
        state.idle_since, state.idle_with = now, tuple(sorted(state.residency.residents))
    home = state.comes_back
    if state.orders.wanted:
        return
    if home is None or home in state.residency.residents or state.residency.swap is not None or state.residency.never_fits(home):
        return
    if state.home_failures >= MAX_RESTORES:
        return
    setting_s = state.settings.gpu.restore_home_delay_s
    due_at = state.idle_since + (setting_s * 2**state.home_failures if state.home_failures else delay_s(state, home))
    if now < due_at:
        state.wake_at(due_at)
    else:
        placement.make_room(home, SwapReason.HOME)


def delay_s(state: State, home: str) -> float:
    """How long the house is idle before the home model is loaded, given what was in memory when that began."""
    setting_s, models = state.settings.gpu.restore_home_delay_s, state.idle_with
    ends = () if models is None or home in models else state.estimates.idle_ends(models)
    if models is None or len(ends) < MIN_ENDS:
        return setting_s
    return _cheapest_s(state, home, models, sorted(ends, key=itemgetter(0)))


def _cheapest_s(state: State, home: str, there: tuple[str, ...], ends: list[IdleEnd]) -> float:
    """The delay up to the setting at which those who ended idle times would have waited least; the shortest of several.

    Who came during the delay waited for a swap from what was in memory; who came later, for the rest of the load of the home model
    and for a swap from there. All sums are prefix sums over the idle times, the shortest first.
    """
    swap_s, evicted = state.estimates.swap_s, state.residency.eviction_for(home, ()) or ()
    origin = there[0] if there else ""
    load_s = swap_s(evicted[0] if evicted else origin, home)
    gaps_s = [gap_s for gap_s, _, _ in ends]
    stayed, gone, weights, weighted_gaps = [0.0], [0.0], [0.0], [0.0]
    for gap_s, weight, model in ends:
        target = model or (origin or home)
        stayed.append(0.0 if target in there else weight * swap_s(origin, target))
        gone.append(0.0 if target == home or (target in there and target not in evicted) else weight * swap_s(home, target))
        weights.append(weight)
        weighted_gaps.append(weight * gap_s)
    stayed, gone, weights, weighted_gaps = (list(accumulate(each)) for each in (stayed, gone, weights, weighted_gaps))

    def waited_s(at_s: float) -> float:
        first, last = bisect_right(gaps_s, at_s), bisect_left(gaps_s, at_s + load_s)
        loading_s = (at_s + load_s) * (weights[last] - weights[first]) - (weighted_gaps[last] - weighted_gaps[first])
        return stayed[first] + gone[-1] - gone[first] + max(0.0, loading_s)

    setting_s = state.settings.gpu.restore_home_delay_s
    return min((0.0, *(min(setting_s, gap_s * LATE + LATE_S) for gap_s in gaps_s)), key=waited_s)


SETTLE_S = 0.15
"""The next request of a loop comes within this; whoever comes later is thinking."""
MIN_STEPS = 3
SURE = 0.8


def preload(state: State, placement: Placement, now: float) -> None:
    """Begin loading what is likely to be asked for next, or ask to be woken when that is due."""
    idle_since, orders = state.idle_since, state.orders
    if orders.paused or orders.wanted or state.pinned is not None:
        return
    if not POLICIES[state.settings.scheduling.policy].preloads or idle_since is None or state.preloaded_at == idle_since:
        return
    target = _expected(state, now)
    if target is None or target in state.residency.residents or state.residency.swap is not None or state.residency.never_fits(target):
        return
    if now < idle_since + SETTLE_S:
        state.wake_at(idle_since + SETTLE_S)
        return
    placement.make_room(target, SwapReason.EXPECTED)
    if target in state.residency.residents:
        state.preloaded_at = idle_since


def _expected(state: State, now: float) -> str | None:
    """The model that the last caller asks for next, if that is sure enough and soon enough."""
    steps = state.arrivals.next_steps()
    if len(steps) < MIN_STEPS or {step.model for step in steps} <= state.residency.residents.keys() or state.task_is_near(now):
        return None
    model, count = Counter(step.model for step in steps).most_common(1)[0]
    if count < SURE * len(steps):
        return None
    return model if state.has(model) and _in_time(state, [step for step in steps if step.model == model], now) else None


def _in_time(state: State, steps: list[Step], now: float) -> bool:
    """Was the caller back late enough for this to help, will it be back before the home model is due, and is it not late already?"""
    gaps_s = sorted(step.gap_s for step in steps)
    quiet_s = now - (state.idle_since or now)
    soon = state.home is None or gaps_s[-1] < delay_s(state, state.home)
    return soon and gaps_s[0] > SETTLE_S and quiet_s < gaps_s[-1]
