"""Who must yield so that internal work, or a turn of an external program's user, can run.

1. External work yields to internal work, within active hours. What a program asks for beside its
   user's turns (band EXTERNAL_BACKGROUND) yields to all other external work as well, at any hour.
   Nothing else yields to anything: equal or lower rank never interrupts.
2. Never what has been interrupted often enough to be protected, never what is estimated to end
   within `preempt_min_remaining_s` (an estimate that turns out wrong loses that protection when its
   time is up).
3. A stream whose caller has seen bytes yields only if it can be resumed: continued, or replayed.
   Otherwise it finishes first, but the item waits no longer than `preempt_finish_bound_s` for that
   (not at all with `unreplayable_streams: error`): then it is cut.
4. An answer that would have to start over yields at once if that pays (`_pays`): if what is lost is
   no more than what the waiting item is spared, weighed by its band. Otherwise it finishes first,
   but the item waits no longer than `preempt_restart_bound_s` for that. What does not pay at
   first never does later: the loss grows and the gain shrinks. So only the bound needs a timer.

None of this keeps anything from yielding to a lease of another program (`yield_card`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from hearth.scheduling.actions import Action, Hold, Stop
from hearth.scheduling.residency import Resident
from hearth.scheduling.state import DeviceState, GatewayState
from hearth.scheduling.waiting import Entry
from hearth.types import Band

WEIGHTS: Mapping[Band, float] = MappingProxyType(
    {
        Band.CRITICAL: 3.0,
        Band.NORMAL: 1.0,
        Band.BACKGROUND: 1 / 3,
        Band.INTERRUPTED: 1.0,
        Band.EXTERNAL: 1.0,
    }
)
"""How many seconds of others a second of an item is worth for which they yield, by the band it
waits in.
"""


SPARED_S = 5.0
"""How long a stream runs, once it was read again, before a request of an alias interrupts it once
more: such requests come to whatever is loaded, so no swap keeps them away.
"""


def interruptible(gateway: GatewayState, entry: Entry) -> bool:
    """May this running entry be stopped and put back without its caller noticing?"""
    return _may_yield(gateway, entry) and (not entry.forwarded or resumable(gateway, entry))


def resumable(gateway: GatewayState, entry: Entry) -> bool:
    """Could a stream of this entry go on after an interruption?"""
    finishing = gateway.settings.scheduling.started_streams == "finish"
    return not finishing and has_way_on(entry)


def has_way_on(entry: Entry) -> bool:
    """The same, whatever the owner prefers."""
    return bool(entry.item.ways) and not entry.unresumable


def protected(gateway: GatewayState, entry: Entry) -> bool:
    """Interrupted, or kept from starting on what was loaded for it, so often that it finishes
    now.
    """
    most = gateway.settings.queue.max_interrupt_count
    if not gateway.priced:
        return entry.interrupts + entry.lost_loads >= most
    return entry.interrupts >= most and not continues(gateway, entry)


def continues(gateway: GatewayState, entry: Entry) -> bool:
    """Does its stream go on where it was interrupted, so that an interruption loses next to
    nothing?
    """
    return "continued" in entry.item.ways and resumable(gateway, entry)


def yield_slots(
    device: DeviceState, waiter: Entry, residents: Collection[Resident], band: Band, now: float
) -> list[Action]:
    """Free a slot for each waiter of this model (None: any) up to `band`, counting those that are
    about to be free anyway.
    """
    gateway = device.gateway
    running = [entry for resident in residents for entry in resident.running.values()]
    if not _may_interrupt(gateway, waiter, running):
        return []
    missing = gateway.waiting.up_to(band, waiter.wanted_model)
    victims = list[Entry]()
    others = list[Entry]()
    for resident in residents:
        staying = [
            entry for entry in resident.running.values() if not _leaving(gateway, entry, now)
        ]
        soon_free = len(resident.running) - len(staying)
        if waiter.wanted_model is None:
            # Those who wait for this very model take its slots before anybody who would take any
            # model: counted for both, one of the two would wait without a slot being freed for it.
            soon_free -= gateway.waiting.up_to(band, resident.model)
        missing -= max(0, soon_free)
        for entry in staying:
            (victims if _yields_to(device, entry, waiter, now) else others).append(entry)
    # the last to start has done the least
    victims.sort(key=lambda entry: (entry.dispatched_at, entry.item.sequence), reverse=True)
    actions = [
        _stop(entry, cut=not interruptible(gateway, entry)) for entry in victims[: max(0, missing)]
    ]
    if missing > len(victims):
        actions += _holds(gateway, waiter, others)
    return actions


def yield_memory(
    device: DeviceState, waiter: Entry, running: list[Entry], now: float
) -> list[Action]:
    """Stop everything that keeps models from being evicted for a waiter; nothing, if one of them
    has to finish anyway.
    """
    gateway = device.gateway
    if not _may_interrupt(gateway, waiter, running):
        return []
    staying = [entry for entry in running if not _leaving(gateway, entry, now)]
    yielding = [entry for entry in staying if _yields_to(device, entry, waiter, now)]
    if len(yielding) == len(staying):
        return [_stop(entry, cut=not interruptible(gateway, entry)) for entry in staying]
    return _holds(gateway, waiter, [entry for entry in staying if entry not in yielding])


def yield_card(gateway: GatewayState, resident: Resident, now: float) -> list[Action]:
    """Stop what runs on a model that has to go for a lease, once that is due; asks to be woken
    then.

    Whoever can go on afterwards does so.
    """
    running = [entry for entry in resident.running.values() if entry.place == "running"]
    if not running or resident.yields_at is None:
        return []
    if now < resident.yields_at:
        gateway.wake_at(resident.yields_at)
        return []
    for entry in running:
        entry.for_lease = True
    return [_stop(entry, cut=entry.forwarded and not has_way_on(entry)) for entry in running]


def _may_interrupt(gateway: GatewayState, waiter: Entry, running: Iterable[Entry]) -> bool:
    """Is there anything that this waiter may interrupt?"""
    if not waiter.external:
        return gateway.active
    return not waiter.background and any(entry.background for entry in running)


def _holds(gateway: GatewayState, waiter: Entry, staying: Iterable[Entry]) -> list[Action]:
    """Of what keeps more urgent work waiting, the streams that would have to yield if they could go
    on; each once.
    """
    held = [
        entry
        for entry in staying
        if not entry.held
        and waiter.outranks(entry)
        and _may_yield(gateway, entry)
        and not interruptible(gateway, entry)
    ]
    for entry in held:
        entry.held = True
    return [Hold(sequence=entry.item.sequence) for entry in held]


def _may_yield(gateway: GatewayState, entry: Entry) -> bool:
    return entry.external and entry.place == "running" and not protected(gateway, entry)


def _yields_to(device: DeviceState, entry: Entry, waiter: Entry, now: float) -> bool:
    """Does this running entry have to go for this waiter now? Asks to be woken when it will."""
    gateway = device.gateway
    if not waiter.outranks(entry) or not _may_yield(gateway, entry):
        return False
    scheduling = gateway.settings.scheduling
    if interruptible(gateway, entry):
        at_once = _pays(device, entry, waiter, now)
        bound_s = scheduling.preempt_restart_bound_s
    else:
        finishes = scheduling.started_streams == "finish"
        at_once = scheduling.unreplayable_streams == "error" and not finishes
        bound_s = scheduling.preempt_finish_bound_s
    until = waiter.item.arrived_at + (0.0 if at_once else bound_s)
    if waiter.choices and entry.interrupts and entry.item.ways:
        until = max(until, _read_at(device, entry) + SPARED_S)
    if now < until:
        gateway.wake_at(until)
    return now >= until


def _read_at(device: DeviceState, entry: Entry) -> float:
    """When a stream that goes on was, or ought to be, read again."""
    if entry.first_byte_at is not None:
        return entry.first_byte_at
    estimates = device.estimates
    model = entry.model or ""
    return entry.dispatched_at + estimates.reading_s(entry.item, model, entry.kept_tokens)


def _pays(device: DeviceState, entry: Entry, waiter: Entry, now: float) -> bool:
    """Is what stopping this entry loses no more than what the waiter is spared? A stream that is
    continued loses next to nothing.

    Lost is what was done so far and, where nobody else brings the model back, the swap back to it.
    If the model goes, what was cached of the prompt is lost as well. Other conversations are lost
    whether it is stopped or finishes first.
    """
    gateway = device.gateway
    if not gateway.priced or continues(gateway, entry):
        return True
    lost_s = now - entry.dispatched_at
    model = entry.model or ""
    wanted = waiter.wanted_model
    if wanted not in {None, model}:
        lost_s += device.residency.caches.reread_of_attempt_s(entry, model)
        if not gateway.waiting.wants(model):
            lost_s += device.estimates.swap_s(wanted or "", model)
    return lost_s <= WEIGHTS[waiter.band] * (entry.expected_end_at - now)


def _leaving(gateway: GatewayState, entry: Entry, now: float) -> bool:
    """It is stopping, or will end by itself very soon."""
    if entry.place == "stopping":
        return True
    remaining_s = entry.expected_end_at - now
    if 0 < remaining_s <= gateway.settings.scheduling.preempt_min_remaining_s:
        gateway.wake_at(entry.expected_end_at)
        return True
    return False


def _stop(entry: Entry, *, cut: bool) -> Action:
    entry.cut = cut
    entry.place = "stopping"
    return Stop(
        sequence=entry.item.sequence, attempt=entry.attempts, how="cut" if entry.cut else "preempt"
    )
