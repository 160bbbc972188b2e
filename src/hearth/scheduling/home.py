"""What is loaded while nothing waits: back to the home model, or what the last caller is likely to
ask for next.

A restore is a decision like any other, taken when nothing has run long enough: an arrival at any
instant simply changes the next decision. How long is enough is learned for each set of models that
an idle time began with (`delay_s`). An agent that so far has always gone on with the same other
model finds it loaded, once in an idle time, where that comes before the home model is due.
"""

from __future__ import annotations

from collections import Counter

from hearth.scheduling.placement import Placement
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.state import State
from hearth.types import Band, QueueItem

MAX_RESTORES = 5  # then it is left alone until something else was loaded or the settings changed
MIN_ENDS = 8  # idle times that must be known before they are gone by
LATE = 1.5
LATE_S = 1.0  # a caller may be this much later than it was before
# what a second of waiting counts in these bands; 1 in the others
WEIGHTS = {Band.CRITICAL: 4.0, Band.NORMAL: 2.0}
SETTLE_S = 0.15  # the next request of a loop comes within this; whoever comes later is thinking
MIN_STEPS = 3
SURE = 0.8


def idle_ended(state: State, item: QueueItem, now: float) -> None:
    """Learn from the item that ends an idle time, where that began with the home model out of
    memory.
    """
    models, may_start = state.idle_with, not state.paused or item.band <= Band.BACKGROUND
    if (
        state.idle_since is None
        or models is None
        or state.comes_back in {None, *models}
        or not may_start
    ):
        return
    state.estimates.learn_idle_end(
        models, (now - state.idle_since, WEIGHTS.get(item.band, 1.0), item.model or "")
    )


def restore(state: State, placement: Placement, now: float) -> None:
    """With everything at rest, start restoring the model to come back to if its time has come; else
    ask to be woken when it has.
    """
    if state.idle_since is None:
        state.idle_since, state.idle_with = now, tuple(sorted(state.residency.residents))
    home = state.comes_back
    if home is None or not _may_load(state, home) or state.home_failures >= MAX_RESTORES:
        return
    setting_s = state.settings.gpu.restore_home_delay_s
    due_at = state.idle_since + (
        setting_s * 2**state.home_failures if state.home_failures else delay_s(state, home)
    )
    if now < due_at:
        state.wake_at(due_at)
    else:
        placement.make_room(home, "home")


def _may_load(state: State, model: str) -> bool:
    """Is it out of memory, and neither an order of the owner nor a swap before it?"""
    residency = state.residency
    return not (
        state.wanted
        or model in residency.residents
        or residency.swap is not None
        or residency.never_fits(model)
    )


def delay_s(state: State, home: str) -> float:
    """How long nothing runs before the home model is loaded, given what was in memory when that
    began.

    The shortest delay up to the setting at which those who ended such idle times would have waited
    least, weighted by their bands. Who came during the delay waited for a swap from what was in
    memory; who came later, for the rest of the load and for a swap from there.
    """
    setting_s, there = state.settings.gpu.restore_home_delay_s, state.idle_with
    ends = () if there is None or home in there else state.estimates.idle_ends(there)
    if there is None or len(ends) < MIN_ENDS:
        return setting_s
    swap_s, evicted = state.estimates.swap_s, state.residency.eviction_for(home, ()) or ()
    origin = there[0] if there else ""
    load_s = swap_s(evicted[0] if evicted else origin, home)
    waits: list[tuple[float, float, float, float]] = []
    for gap_s, weight, model in ends:
        target = model or origin or home
        stayed_s = 0.0 if target in there else swap_s(origin, target)
        gone_s = (
            0.0
            if target == home or (target in there and target not in evicted)
            else swap_s(home, target)
        )
        waits.append((gap_s, weight, stayed_s, gone_s))

    def waited_s(at_s: float) -> float:
        return sum(
            weight * (stayed_s if gap_s <= at_s else gone_s + max(0.0, at_s + load_s - gap_s))
            for gap_s, weight, stayed_s, gone_s in waits
        )

    return min(
        (0.0, *sorted(min(setting_s, gap_s * LATE + LATE_S) for gap_s, *_ in waits)), key=waited_s
    )


def preload(state: State, placement: Placement, now: float) -> None:
    """Begin loading what is likely to be asked for next, or ask to be woken when that is due."""
    idle_since = state.idle_since
    if (
        state.paused
        or state.pinned is not None
        or idle_since is None
        or state.preloaded_at == idle_since
    ):
        return
    target = _expected(state, now) if POLICIES[state.settings.scheduling.policy].preloads else None
    if target is None or not _may_load(state, target):
        return
    if now < idle_since + SETTLE_S:
        state.wake_at(idle_since + SETTLE_S)
        return
    placement.make_room(target, "expected")
    if target in state.residency.residents:
        state.preloaded_at = idle_since


def _expected(state: State, now: float) -> str | None:
    """The model that the last caller asks for next, if that is sure enough and soon enough.

    The caller was back late enough for a load to help, will be back before the home model is due,
    and is not late already.
    """
    steps = state.arrivals.next_steps()
    if (
        len(steps) < MIN_STEPS
        or {model for model, _ in steps} <= state.residency.residents.keys()
        or any(state.near_tasks(now))
    ):
        return None
    model, count = Counter(model for model, _ in steps).most_common(1)[0]
    gaps_s = [gap_s for asked_for, gap_s in steps if asked_for == model]
    quiet_s = now - (state.idle_since or now)
    if (
        count < SURE * len(steps)
        or not state.has(model)
        or min(gaps_s) <= SETTLE_S
        or quiet_s >= max(gaps_s)
    ):
        return None
    return model if state.home is None or max(gaps_s) < delay_s(state, state.home) else None
