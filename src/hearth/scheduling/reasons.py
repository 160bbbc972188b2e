"""Why a waiting item has not been started, for people: the first reason that holds.

A reason is its `kind`, and what belongs to it: `model`, `cost_s` (estimated), `since` and `until`
(monotonic), `task`, `busy` of `parallel` slots.
"""

from __future__ import annotations

from hearth.scheduling.residency import Resident
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import Entry
from hearth.types import JsonDict

Reason = JsonDict
CALLER_PAUSED = "caller_paused"
"""That of all that is set aside."""


def reason_of(device: DeviceState, entry: Entry, now: float) -> Reason:  # noqa: PLR0911
    # a closed set, one answer each
    gateway = device.gateway
    if entry.is_set_aside:
        return {"kind": CALLER_PAUSED, "caller": entry.item.caller}
    unanswered_since = device.unanswered_since(entry)
    if unanswered_since is not None:
        return {"kind": "backend_down", "since": unanswered_since}
    if gateway.draining:
        return {"kind": "stopping"}
    if gateway.handing_over:
        return {"kind": "handing_over"}
    if entry.external and gateway.paused:
        return {"kind": "paused"}
    if _is_kept_out(device, entry):
        kind = "lease" if device.leases.taken else "memory"
        return {"kind": kind, "model": entry.wanted_model, "until": device.leases.until}
    # it could still run when an announced internal task is due
    held = device.held_for(entry, now)
    if held is not None:
        return {"kind": "announced", "task": held[1], "until": held[0]}
    if entry.background and device.external_waits:
        return {"kind": "background"}
    if entry.wanted_model is None:
        return _of_any_model(device)
    return _of_model(device, entry, entry.wanted_model, now)


def _is_kept_out(device: DeviceState, entry: Entry) -> bool:
    """Do other programs have the memory of its model, or are they about to?"""
    resident = device.residency.residents.get(entry.wanted_model or "")
    must_go = resident is not None and resident.yields_at is not None
    return must_go or device.is_barred_to(entry)


def _of_any_model(device: DeviceState) -> Reason:
    residents = device.residency.residents.values()
    ready = [each for each in residents if each.phase == "ready" and not each.is_away]
    if not ready:
        cost_s = device.estimates.swap_s("", device.home or "")
        return {"kind": "swap", "model": device.home, "cost_s": cost_s}
    return _of_resident(device, max(ready, key=lambda each: each.free_slots > 0))


def _of_model(device: DeviceState, entry: Entry, model: str, now: float) -> Reason:
    residents = device.residency.residents
    retry_at = device.not_before.get(model)
    is_left_alone = retry_at is not None and retry_at > now
    is_refused = is_left_alone and device.listing.is_off_card(model)
    if model in residents and not is_refused:
        return _of_resident(device, residents[model])
    pinned = device.gateway.pinned_name if entry.external else None
    if pinned in residents:
        evicts = device.residency.eviction_for(model, (pinned,), entry.item.task_type)
        if evicts is None:
            return {"kind": "pinned", "model": pinned}
    if is_left_alone:
        kind = "refused" if is_refused else "left_alone"
        return {"kind": kind, "model": model, "until": retry_at}
    turn = device.turn
    if turn is not None and not entry.external:
        return {"kind": "others_turn", "model": turn.model, "until": turn.until}
    hold = device.hold
    if hold is not None and entry.external:
        return {"kind": "held", "model": hold.model, "caller": hold.caller, "until": hold.until}
    cost_s = device.estimates.swap_s(device.residency.origin, model)
    return {"kind": "swap", "model": model, "cost_s": cost_s, "until": device.held_until}


def _of_resident(device: DeviceState, resident: Resident) -> Reason:
    model = resident.model
    swap = device.residency.swap
    if resident.phase == "loading":
        origin, since = ("", None) if swap is None else (swap.origin, swap.started_at)
        cost_s = device.estimates.swap_s(origin, model)
        return {"kind": "load", "model": model, "since": since, "cost_s": cost_s}
    if resident.is_leaving:
        return {"kind": "swap", "model": model, "cost_s": device.estimates.swap_s("", model)}
    kept = device.kept_slot
    if resident.free_slots > 0 and kept is not None and kept.model == model:
        return {"kind": "held", "model": model, "caller": kept.caller, "until": kept.until}
    if resident.free_slots > 0:
        return {"kind": "turn"}
    parallel = device.gateway.settings.parallel(model)
    return {"kind": "slot", "model": model, "busy": len(resident.running), "parallel": parallel}
