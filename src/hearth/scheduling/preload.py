"""Loading what the last caller is likely to ask for next while the house is idle, so that its think time hides the swap.

An agent that plans with one model and works with another comes back after some seconds, and so far has always come back the same way. Only
with nothing else to do, once in an idle time, for a step that was seen several times and nearly always, and only where it will be
used before the home model is due: the two never fight, and a caller who stays away changes nothing about going home.
"""

from __future__ import annotations

from collections import Counter

from hearth.scheduling.actions import SwapReason
from hearth.scheduling.arrivals import Step
from hearth.scheduling.home import delay_s
from hearth.scheduling.placement import Placement
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.state import State

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
