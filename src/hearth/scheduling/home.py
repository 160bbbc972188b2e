"""What is loaded while nothing waits: back to the home model, or what the last caller is likely to
ask for next.

A restore is a decision like any other, taken when nothing has run long enough: an arrival at any
instant simply changes the next decision. How long is enough is learned for each set of models that
an idle time began with (`delay_s`). An agent that so far has always gone on with the same other
model finds it loaded, once in an idle time, where that comes before the home model is due.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hearth.scheduling.placement import Placement
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import Entry
from hearth.types import Band

MAX_RESTORES = 5  # then it is left alone until something else was loaded or the settings changed
MIN_ENDS = 8  # idle times that must be known before they are gone by
LATE = 1.5
LATE_S = 1.0  # a caller may be this much later than it was before
# what a second of waiting counts in these bands; 1 in the others
WEIGHTS = {Band.CRITICAL: 4.0, Band.NORMAL: 2.0}
SETTLE_S = 0.15  # the next request of a loop comes within this; whoever comes later is thinking
MIN_STEPS = 3
SURE = 0.8


class _Visit(NamedTuple):
    """What ended an idle time, and the swap it has to wait for."""

    gap_s: float  # how long that had lasted
    weight: float
    before_s: float  # the swap, from what was in memory then
    after_s: float  # the swap, from the home model once that is loaded

    def waited_s(self, delay_s: float, load_s: float) -> float:
        """What it waits, weighted, if the home model is loaded in `load_s` after `delay_s`."""
        if self.gap_s <= delay_s:
            return self.weight * self.before_s
        # it comes while the home model is being loaded, or later
        rest_s = max(0.0, delay_s + load_s - self.gap_s)
        return self.weight * (self.after_s + rest_s)


def idle_ended(device: DeviceState, entry: Entry, now: float) -> None:
    """Learn from the item that ends an idle time, where that began with the home model out of
    memory.
    """
    models = device.idle_with
    if device.idle_since is None or models is None or device.comes_back in {None, *models}:
        return
    if device.gateway.paused and entry.external:  # it has to wait whatever is loaded
        return
    if not device.contends(entry.wanted_model):
        return
    weight = WEIGHTS.get(entry.band, 1.0)
    gap_s = now - device.idle_since
    device.estimates.learn_idle_end(models, (gap_s, weight, entry.wanted_model or ""))


def restore(device: DeviceState, placement: Placement, now: float) -> None:
    """With everything at rest, start restoring the model to come back to if its time has come; else
    ask to be woken when it has.
    """
    if device.idle_since is None:
        device.idle_since = now
        there = tuple(sorted(device.residency.residents))
        device.idle_with = None if device.leases.taken else there
    home = device.comes_back
    if home is None or not _may_load(device, home) or device.home_failures >= MAX_RESTORES:
        return
    if device.home_failures:
        wait_s = device.gateway.settings.gpu.restore_home_delay_s * 2**device.home_failures
    else:
        wait_s = delay_s(device, home, now)
    due_at = device.idle_since + wait_s
    if now < due_at:
        device.gateway.wake_at(due_at)
    else:
        placement.make_room(home, "home")


def _may_load(device: DeviceState, model: str) -> bool:
    """Is it out of memory, and neither an order of the owner nor a swap before it?"""
    residency = device.residency
    return device.loads(model) and not (
        any(map(device.contends, device.gateway.wanted))
        or model in residency.residents
        or residency.swap is not None
        or device.never_fits(model)
    )


def delay_s(device: DeviceState, home: str, now: float) -> float:
    """How long nothing runs before the home model is loaded, given what was in memory when that
    began.

    The shortest delay up to the setting at which those who ended such idle times would have waited
    least, weighted by their bands.
    """
    setting_s = device.gateway.settings.gpu.restore_home_delay_s
    there = device.idle_with
    if there is None or home in there:
        return setting_s
    ends = device.estimates.idle_ends(there)
    if len(ends) < MIN_ENDS:
        return setting_s
    swap_s = device.estimates.swap_s
    evicted = device.residency.eviction_for(home, ()) or ()
    origin = next(filter(device.loads, there), "")
    load_s = swap_s(evicted[0] if evicted else origin, home)
    reread_s = {name: device.residency.reread_s(name, now) for name in evicted}
    visits = []
    for gap_s, weight, model in ends:
        # who takes any model takes what is there: it waits for no swap before the load, and after
        # it for one only where what it took has gone
        target = model or origin or home
        before_s = 0.0 if target in there else swap_s(origin, target)
        stays = target == home or (target in there and target not in evicted)
        after_s = 0.0 if stays else swap_s(home, target)
        after_s += reread_s.get(target, 0.0)
        visits.append(_Visit(gap_s, weight, before_s, after_s))
    # The sum falls only where one more of them comes before the load: so the best delay is at once,
    # or just after one of the gaps.
    delays = sorted(min(setting_s, visit.gap_s * LATE + LATE_S) for visit in visits)
    return min(
        (0.0, *delays), key=lambda delay: sum(visit.waited_s(delay, load_s) for visit in visits)
    )


def preload(device: DeviceState, placement: Placement, now: float) -> None:
    """Begin loading what is likely to be asked for next, or ask to be woken when that is due."""
    gateway = device.gateway
    idle_since = device.idle_since
    if idle_since is None or device.preloaded_at == idle_since:
        return
    if gateway.paused or device.pinned is not None:
        return
    if not POLICIES[gateway.settings.scheduling.policy].preloads:
        return
    target = _expected(device, now)
    if target is None or not _may_load(device, target):
        return
    if now < idle_since + SETTLE_S:
        gateway.wake_at(idle_since + SETTLE_S)
        return
    placement.make_room(target, "expected")
    if target in device.residency.residents:
        device.preloaded_at = idle_since


def _expected(device: DeviceState, now: float) -> str | None:
    """The model that the last caller asks for next, if that is sure enough and soon enough.

    The caller was back late enough for a load to help, will be back before the home model is due,
    and is not late already.
    """
    steps = device.gateway.arrivals.next_steps()
    if len(steps) < MIN_STEPS or any(device.gateway.near_tasks(now)):
        return None
    if {model for model, _ in steps} <= device.residency.residents.keys():
        return None
    model, count = Counter(model for model, _ in steps).most_common(1)[0]
    if count < SURE * len(steps) or not device.has(model):
        return None
    evicted = device.residency.eviction_for(model, ()) or ()
    reread_s = sum([device.residency.reread_s(name, now) for name in evicted])
    if (len(steps) - count) * reread_s > count * device.estimates.swap_s("", model):
        return None  # what it would destroy is worth more than what it is likely to spare
    gaps_s = [gap_s for asked_for, gap_s in steps if asked_for == model]
    quiet_s = now - (device.idle_since or now)
    if min(gaps_s) <= SETTLE_S or quiet_s >= max(gaps_s):
        return None
    return model if device.home is None or max(gaps_s) < delay_s(device, device.home, now) else None
