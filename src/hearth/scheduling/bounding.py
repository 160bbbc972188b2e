"""Sleepers that give up more for no other model: all take more of main memory than they may, or one
is too old by the report's rule (`scheduling.sleeping`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.scheduling.state import DeviceState

if TYPE_CHECKING:
    from hearth.scheduling.placement import Placement


def bound(device: DeviceState, placement: Placement, now: float) -> None:
    """Begin that while nobody needs the swap there may be; asks to be woken when one is too old."""
    sleepers = device.residency.sleepers
    old, next_at = sleepers.too_old(now)
    if next_at is not None:
        device.gateway.wake_at(next_at)
    if device.residency.swap is not None or device.cleared_for is not None:
        return
    stuck = placement.stuck_sleepers
    becomes = dict([old]) if old is not None else sleepers.too_many(stuck)
    if becomes and not becomes.keys() & stuck:
        placement.unload(next(iter(becomes)), becomes, "sleep")
