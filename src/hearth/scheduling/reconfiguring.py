"""What other models, another model server and other settings change for what waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hearth.scheduling import inputs
from hearth.scheduling.actions import Action
from hearth.scheduling.estimates import Arrivals
from hearth.scheduling.policies import learns_of_callers
from hearth.scheduling.refusals import is_gone, never_fits
from hearth.scheduling.shares import share_anew
from hearth.scheduling.state import DeviceState, GatewayState

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings


def replaced(device: DeviceState, learned: Mapping[str, Any] | None, now: float) -> None:
    """What was learned of one server does not hold for another, nor what is in its memory; what
    the owner wants stays.
    """
    device.forget(now)
    if learned is not None:
        device.estimates.restore(learned)
    _learn_arrivals_anew(device.gateway)


def _learn_arrivals_anew(gateway: GatewayState) -> None:
    learns = learns_of_callers(gateway.settings)
    callers = [entry.item.caller for entry in gateway.entries.values()]
    gateway.arrivals = Arrivals(learns=learns, open_callers=callers)


def listed(device: DeviceState, fact: inputs.ModelsListed) -> list[Action]:
    """What waits for a model that is not there is given up before anything is unloaded for it.

    What the model server before this one accepted did not name a wrong model.
    """
    gateway = device.gateway
    device.listing.take(fact, device.residency.residents)
    device.residency.mark()
    device.home_failures = 0
    for model in gateway.wanted:
        if not device.has(model) or device.listing.stays(model):
            gateway.settle(model)
    gone = [entry for entry in gateway.all_waiting() if is_gone(device, entry)]
    earlier = [entry for entry in gone if entry.item.arrived_at <= device.replaced_at]
    later = [entry for entry in gone if entry.item.arrived_at > device.replaced_at]
    return gateway.give_up(earlier, "server_changed") + gateway.give_up(later, "not_installed")


def reconfigured(device: DeviceState, settings: SchedulerSettings, now: float) -> list[Action]:
    """What waits and could never be loaded under the new settings is given up, as it would be on
    arrival; what was ordered is void.
    """
    gateway = device.gateway
    gateway.settings = settings
    device.home_failures = 0
    device.residency.configure(settings)
    device.estimates.swap_prior_s = settings.gpu.swap_cost_prior_s
    gateway.set_aside_anew()
    share_anew(device, now)
    waiting = gateway.all_waiting()
    gateway.aging.clear()  # nobody falls back to a lower band
    for entry in waiting:
        gateway.expect_promotion(entry)
    for model in gateway.wanted:
        if device.never_fits(model):
            gateway.settle(model)
    if learns_of_callers(settings) is not gateway.arrivals.learns:
        _learn_arrivals_anew(gateway)
    stranded = [entry for entry in waiting if never_fits(device, entry)]
    return gateway.give_up(stranded, "never_fits")
