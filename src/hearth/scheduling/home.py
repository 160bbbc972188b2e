"""Back to the home model, or the one that the owner has pinned, when nobody needs another one.

A restore is a decision like any other, taken when the house has been idle for `restore_home_delay_s`: never a task beside the
scheduler, so an arrival at any instant simply changes the next decision. A failed restore is tried again ever later, then left alone
until something else was loaded or the settings changed.
"""

from __future__ import annotations

from hearth.scheduling.actions import SwapReason
from hearth.scheduling.placement import Placement
from hearth.scheduling.state import State

MAX_RESTORES = 5


def restore(state: State, placement: Placement, now: float) -> None:
    """With the house at rest, start restoring the model to come back to if its time has come; else ask to be woken when it has."""
    if state.idle_since is None:
        state.idle_since = now
    home = state.comes_back
    if state.orders.wanted:
        return
    if home is None or home in state.residency.residents or state.residency.swap is not None or state.residency.never_fits(home):
        return
    if state.home_failures >= MAX_RESTORES:
        return
    due_at = state.idle_since + state.settings.gpu.restore_home_delay_s * 2**state.home_failures
    if now < due_at:
        state.wake_at(due_at)
    else:
        placement.make_room(home, SwapReason.HOME)
