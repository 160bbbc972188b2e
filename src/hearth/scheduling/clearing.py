"""Which models go so that other programs get the memory of their leases, and who waits for that no
longer. docs/scheduling/memory.md numbers the rules as they are here.

1. As long as the models that may go take more than the room, the smallest set of them goes that is
   enough: one without the model to come back to, then what is only being loaded, then idle ones, of
   these first those whose conversations outlive an unload, then what is missed least. Where the
   need of one is unknown, all go. The set stays as it is while it is enough and no more than that,
   whatever becomes idle meanwhile.
2. What has to go takes no more work. What runs on it may end by itself within the grace of the
   leases, counted from when the model had to go; a renewal does not make it longer. Then it is
   interrupted whatever it is: no band, pin, turn, hold or setting keeps it. It goes on afterwards,
   and the interruption is not counted.
3. A load is cut where its model has to go, or keeps an idle one that has to go from being unloaded.
4. No other swap begins until the memory is free.
5. What has to go and cannot come back, or was not there and has no room, is barred. An item for it
   is given up after `gpu.yield.hold_s`; one whose caller has a part of its answer waits for as long
   as the leases last.
"""

from __future__ import annotations

from math import inf

from hearth.scheduling.actions import Action
from hearth.scheduling.evictions import Choices, any_unknown, freed_mib
from hearth.scheduling.leases import BarredKind
from hearth.scheduling.residency import Resident
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import Entry

_LOADING, _SAVED, _IDLE = 0, 1, 2
_BUSY = 1_000  # one busy model outweighs any number of idle ones
_HOME = 1_000_000
_MOVING = frozenset({"cutting", "unloading"})


def mark(device: DeviceState, now: float) -> None:
    """Reckon which models have to go for leases (rule 1), and until when each may work."""
    going = _going(device) if device.swaps and device.leases.taken else []
    for resident in device.residency.residents.values():
        if resident not in going:
            resident.yields_at = None
        elif resident.yields_at is None:
            resident.yields_at = now + device.leases.grace_s


def to_go(device: DeviceState) -> list[Resident]:
    """The models that are in memory, or may be, and are to go for leases, those included that are
    on their way out.
    """
    movable = _movable(device)
    room = device.residency.room_mib
    if not device.leases.taken or room is None or not _is_too_much(movable, room):
        return []
    return [each for each in movable if each.yields_at is not None or each.phase in _MOVING]


def _movable(device: DeviceState) -> list[Resident]:
    return [each for each in device.residency.residents.values() if each.may_go]


def _is_too_much(residents: list[Resident], room_mib: float) -> bool:
    return room_mib != inf and (any_unknown(residents) or freed_mib(residents) > room_mib)


def _going(device: DeviceState) -> list[Resident]:
    residency = device.residency
    room = residency.room_mib
    staying = [each for each in _movable(device) if each.phase not in _MOVING]
    if room is None or not _is_too_much(staying, room):
        return []
    if any_unknown(staying):
        return staying
    missing = freed_mib(staying) - room
    marked = [each for each in staying if each.yields_at is not None]
    if _is_just_enough(marked, missing):
        return marked

    def rank(resident: Resident) -> int:
        if resident.model == device.comes_back:
            return _HOME
        if resident.phase == "loading":
            return _LOADING if device.has_cuts(resident.model) else _BUSY
        if resident.running:
            return _BUSY
        return _SAVED if residency.listing.saves(resident.model) else _IDLE

    names = Choices(residency, staying, rank).fewest(missing) or ()
    return [each for each in staying if each.model in names]


def _is_just_enough(residents: list[Resident], missing_mib: float) -> bool:
    """Do these free so much, and would not without one of them?"""
    if not residents:
        return False
    freed = freed_mib(residents)
    least = min(each.reserved_mib or 0.0 for each in residents)
    return freed >= missing_mib > freed - least


def given_up(device: DeviceState, now: float) -> list[Action]:
    """Rule 5: items that have waited for the end of leases as long as they may; asks to be woken
    when the next has.
    """
    gateway = device.gateway
    hold_s = gateway.settings.gpu.yielding.hold_s
    before = device.leases.barred_since
    since: dict[BarredKind, float] = {}
    late = []
    for entry in barred(device):
        kind = _kind_of(entry)
        began_at = since.setdefault(kind, before.get(kind, now))
        until = max(began_at, entry.item.arrived_at) + hold_s
        if entry.has_begun:
            continue
        if until <= now:
            late.append(entry)
        else:
            gateway.wake_at(until)
    device.leases.barred_since = since
    return gateway.give_up(late, "card_taken")


def waits_as_known(device: DeviceState, entry: Entry, now: float) -> bool:
    """Is a newcomer kept from its model as others are, one of whom is given up before it would be?
    Then all are looked at in time, and not each time that one more comes.
    """
    is_known = _kind_of(entry) in device.leases.barred_since
    if not is_known or not device.is_barred_to_all(entry.wanted_model):
        return False
    due_at = device.gateway.next_wake_at
    return due_at is not None and due_at <= now + device.gateway.settings.gpu.yielding.hold_s


def _kind_of(entry: Entry) -> BarredKind:
    return entry.choices or (entry.wanted_model,), entry.item.task_type


def barred(device: DeviceState) -> list[Entry]:
    """What waits, and is kept from its model by leases."""
    known: dict[tuple[str | None, str | None], bool] = {}
    found = []
    for lines in device.gateway.waiting.lines:
        for model, line in lines.items():
            for entry in line:
                task_type = entry.item.task_type
                if (model, task_type) not in known:
                    known[model, task_type] = device.is_barred(model, task_type)
                if known[model, task_type]:
                    found.append(entry)
    return found
