"""What does a waiting item wait for? Read from the scheduler's state, never changing it; the page puts it into words.

One reason each, the first that holds: nothing answers, a stop, a pause, an announced task, memory (a pinned model that leaves no room, a
swap, a load under way, a model that is left alone after a failure), a slot, and last its turn.
"""

from __future__ import annotations

from hearth.scheduling.residency import Phase, Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry
from hearth.types import Lane

Reason = dict[str, object]


def reason_of(state: State, entry: Entry, now: float) -> Reason:
    """Why a waiting item has not been started.

    Returns:
        `kind`, and what belongs to it: `model`, `cost_s` (estimated), `since` and `until` (monotonic), `task`, `busy` of `parallel` slots.
    """
    return _held(state, entry) or _announced(state, entry, now) or _of_model(state, entry, now)


def _held(state: State, entry: Entry) -> Reason | None:
    """What holds everything, or all of a lane."""
    if state.down_since is not None:
        return {"kind": "backend_down", "since": state.down_since}
    if state.draining:
        return {"kind": "stopping"}
    return {"kind": "paused"} if state.orders.paused and entry.item.lane is Lane.EXTERNAL else None


def _of_model(state: State, entry: Entry, now: float) -> Reason:
    model = entry.item.model
    if model is None:
        return _anywhere(state)
    resident = state.residency.residents.get(model)
    if resident is not None:
        return _present(state, resident)
    return _kept_out(state, entry, model) or _absent(state, model, now)


def _announced(state: State, entry: Entry, now: float) -> Reason | None:
    """Held back, as an external item that could still run when the house's own task is due."""
    if entry.item.lane is not Lane.EXTERNAL:
        return None
    window_s = state.settings.scheduling.schedule_drain_minutes * 60
    needed_s = _needed_s(state, entry)
    for due_at, task in state.announced:
        if due_at - window_s <= now < due_at < now + needed_s:
            return {"kind": "announced", "task": task, "until": due_at}
    return None


def _needed_s(state: State, entry: Entry) -> float:
    model = entry.item.model or state.home or ""
    service_s = state.estimates.service_s(entry.item, model, entry.kept_tokens)
    there = entry.item.model is None or state.residency.ready(model) is not None
    return service_s if there else service_s + state.estimates.swap_s(_in_memory(state), model)


def _anywhere(state: State) -> Reason:
    ready = [resident for resident in state.residency.residents.values() if resident.phase is Phase.READY]
    if not ready:
        return {"kind": "swap", "model": state.home, "cost_s": state.estimates.swap_s("", state.home or "")}
    free = [resident for resident in ready if state.residency.free_slots(resident) > 0]
    return {"kind": "turn"} if free else _slot(state, ready[0])


def _kept_out(state: State, entry: Entry, model: str) -> Reason | None:
    """The pinned model, where an external item's model would have to take its place."""
    pinned = state.orders.pinned
    if pinned is None or entry.item.lane is not Lane.EXTERNAL or pinned not in state.residency.residents:
        return None
    fits = state.residency.eviction_for(model, (pinned,), entry.item.task_type) is not None
    return None if fits else {"kind": "pinned", "model": pinned}


def _absent(state: State, model: str, now: float) -> Reason:
    retry_at = state.not_before.get(model)
    if retry_at is not None and retry_at > now:
        return {"kind": "left_alone", "model": model, "until": retry_at}
    cost_s = state.estimates.swap_s(_in_memory(state), model)
    return {"kind": "swap", "model": model, "cost_s": cost_s, "until": state.held_until}


def _present(state: State, resident: Resident) -> Reason:
    if resident.phase is Phase.LOADING:
        swap = state.residency.swap
        since = None if swap is None else swap.started_at
        origin = "" if swap is None or not swap.replaced else swap.replaced[0]
        return {"kind": "load", "model": resident.model, "since": since, "cost_s": state.estimates.swap_s(origin, resident.model)}
    if resident.phase is Phase.UNLOADING or resident.suspect:
        return {"kind": "swap", "model": resident.model, "cost_s": state.estimates.swap_s("", resident.model)}
    return {"kind": "turn"} if state.residency.free_slots(resident) > 0 else _slot(state, resident)


def _slot(state: State, resident: Resident) -> Reason:
    parallel = state.settings.parallel(resident.model)
    return {"kind": "slot", "model": resident.model, "busy": len(resident.running), "parallel": parallel}


def _in_memory(state: State) -> str:
    return next(iter(state.residency.residents), "")
