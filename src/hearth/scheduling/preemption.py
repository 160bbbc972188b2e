"""Who must yield so that the house's own work can run.

External work yields to internal work, and nothing else yields to anything: equal or lower rank never interrupts. Only within active
hours. Never what its caller has already seen bytes of, never what has been interrupted often enough to be protected, never what is
estimated to end within `preempt_min_remaining_s` (an estimate that turns out wrong loses that protection when its time is up).
"""

from __future__ import annotations

from collections.abc import Iterable

from hearth.scheduling.actions import Action, Preempt
from hearth.scheduling.residency import Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry, Place
from hearth.types import Band


def interruptible(state: State, entry: Entry) -> bool:
    """May this running entry be stopped and put back without its caller noticing?"""
    return entry.external and entry.place is Place.RUNNING and not entry.forwarded and not protected(state, entry)


def protected(state: State, entry: Entry) -> bool:
    """Interrupted so often that it finishes now."""
    return entry.interrupts >= state.settings.queue.max_interrupt_count


def yield_slots(state: State, waiter: Entry, residents: Iterable[Resident], band: Band, now: float) -> list[Action]:
    """Free a slot for each internal waiter of this model (None: any) up to `band`, counting those that are about to be free anyway.

    A slot that is about to be free on a model with waiters of its own is theirs before it is anybody's who would take any model.
    """
    if waiter.external or not state.active:
        return []
    wanted, victims = state.waiting.up_to(band, waiter.item.model), list[Entry]()
    for resident in residents:
        staying = [entry for entry in resident.running.values() if not _leaving(state, entry, now)]
        spoken_for = state.waiting.up_to(band, resident.model) if waiter.item.model is None else 0
        wanted -= max(0, len(resident.running) - len(staying) - spoken_for)
        victims += [entry for entry in staying if interruptible(state, entry)]
    victims.sort(key=lambda entry: (entry.dispatched_at, entry.item.sequence), reverse=True)
    return [_preempt(entry) for entry in victims[: max(0, wanted)]]


def yield_memory(state: State, waiter: Entry, running: list[Entry], now: float) -> list[Action]:
    """Stop everything that keeps models from being evicted for an internal waiter; nothing, if one of them has to finish anyway."""
    if waiter.external or not state.active:
        return []
    staying = [entry for entry in running if not _leaving(state, entry, now)]
    if not all(interruptible(state, entry) for entry in staying):
        return []
    return [_preempt(entry) for entry in staying]


def _leaving(state: State, entry: Entry, now: float) -> bool:
    """It is stopping, or will end by itself very soon."""
    if entry.place is Place.STOPPING:
        return True
    remaining_s = entry.expected_end_at - now
    if 0 < remaining_s <= state.settings.scheduling.preempt_min_remaining_s:
        state.wake_at(entry.expected_end_at)
        return True
    return False


def _preempt(entry: Entry) -> Action:
    entry.place = Place.STOPPING
    return Preempt(sequence=entry.item.sequence, attempt=entry.attempts)
