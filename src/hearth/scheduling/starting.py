"""Starting an item on a model; and two short ways to it: that of a quiet day, and that of a busy one.

`placement` would say the same, in two and three times the time: that is all there is to them. So whatever is out of the ordinary is left
to it.
"""

from __future__ import annotations

from hearth.scheduling.actions import Dispatch
from hearth.scheduling.packing import budget_tokens
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.residency import Phase, Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry, Place
from hearth.types import WorkKind

_READY, _RUNNING, _EMBED = Phase.READY, Place.RUNNING, WorkKind.EMBED
"""Members of an enumeration, looked up once: in Python 3.11 that takes as long as calling a function."""


def start(state: State, entry: Entry, resident: Resident, now: float) -> Dispatch:
    """Give a waiting entry a slot."""
    item, model = entry.item, resident.model
    state.waiting.remove(entry)
    entry.place = _RUNNING
    entry.attempts += 1
    entry.model = model
    entry.dispatched_at = now
    entry.expected_end_at = now + state.estimates.service_s(item, model, entry.kept_tokens)
    resident.running[item.sequence] = entry
    if item.model is not None or state.waiting.best_band(model) is None:
        resident.settled = True
    if item.kind is _EMBED:
        resident.embeds = True
    state.residency.used(resident, now)
    return Dispatch(sequence=item.sequence, attempt=entry.attempts, model=model)


def start_alone(state: State, now: float) -> Dispatch | None:
    """Start the only item that waits, where its model is in memory and has a free slot: then no policy has a choice.

    None where it is not so plain: where an order, an announced task, a swap, a hold or a model that is unwell may have a say.
    """
    residency, orders = state.residency, state.orders
    if len(state.waiting) != 1 or residency.swap is not None or state.cleared_for is not None or state.held_until is not None:
        return None
    if state.announced or orders.paused or orders.wanted or orders.unwanted:
        return None
    for other in residency.residents.values():
        if other.suspect:
            return None
    (model,) = state.waiting.lines_of
    resident = residency.residents.get(model) if model is not None else None
    if resident is None or resident.phase is not _READY or not _takes_one(state, resident):
        return None
    return start(state, state.waiting.only(), resident, now)


def _takes_one(state: State, resident: Resident) -> bool:
    """A slot is free, and nothing is admitted in rounds."""
    if resident.parallel == 1:
        return not resident.running
    return len(resident.running) < resident.parallel and budget_tokens(state.settings.scheduling.packing) is None


def start_next_of_line(state: State, now: float) -> Dispatch | None:
    """Start the next item for the one model in memory, where a look at the heads of the lines is enough to know that it is next.

    None for urgent work, work for any model, several models or slots, an announced task, a swap, an item that is old enough to force one.
    While external work is paused, only urgent work brings a decision here.
    """
    resident = _only_model(state)
    if resident is None or state.announced or state.held_until is not None or state.cleared_for is not None:
        return None
    *urgent, lines = state.waiting.lines
    own = lines.get(resident.model)
    scheduling = state.settings.scheduling
    if own is None or own.head is None or None in lines or any(urgent) or not POLICIES[scheduling.policy].stays:
        return None
    for line in lines.values():
        if line is not own and line.head is not None and now - line.head.item.arrived_at >= scheduling.max_swap_wait_s:
            return None
    return start(state, own.head, resident, now)


def _only_model(state: State) -> Resident | None:
    """The one model in memory, if it has one slot, nothing runs on it, and all is well with it.

    One that was just loaded is not: while it is being settled, nobody else's swap may count on its memory.
    """
    residency = state.residency
    if len(residency.residents) != 1 or residency.swap is not None:
        return None
    (resident,) = residency.residents.values()
    is_free = not resident.running and resident.parallel == 1
    is_well = resident.phase is _READY and resident.settled and not resident.suspect
    return resident if is_free and is_well else None
