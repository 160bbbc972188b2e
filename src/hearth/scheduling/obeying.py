"""What the owner has ordered into memory, or out of it, as far as nothing that waits is in its
way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.scheduling.state import DeviceState

if TYPE_CHECKING:
    from hearth.scheduling.placement import Placement


def obey(device: DeviceState, placement: Placement) -> None:
    """Begin what may be done of it, and forget what is done or void."""
    _let_go(device, placement)
    gateway = device.gateway
    residency = device.residency
    for model in gateway.wanted:
        if residency.ready(model) is not None:  # what was to go for a lease has stayed
            gateway.settle(model)
        beside = device.cleared_for is None and residency.eviction_for(model, ()) == ()
        if model not in residency.residents and (beside or device.at_rest):
            placement.make_room(model, "owner")


def _let_go(device: DeviceState, placement: Placement) -> None:
    """One that sleeps is stopped as well."""
    gateway = device.gateway
    residency = device.residency
    asleep = {each.model for each in residency.sleepers.asleep.values() if not each.stays}
    for model in gateway.unwanted:
        stays = not device.loads(model) or not (model in residency.residents or model in asleep)
        if stays or gateway.waits_for(model) or device.runs_on(model):
            gateway.settle(model)
    idle = tuple(
        model
        for model in gateway.unwanted
        if (device.is_there(model) or model in asleep) and not placement.left_alone(model)
    )
    if idle and residency.swap is None and device.cleared_for is None:
        placement.unload(idle[0], dict.fromkeys(idle), "owner")
        for model in idle:
            gateway.settle(model)
