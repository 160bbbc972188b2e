"""Who must yield so that internal work can run.

1. External work yields to internal work, and nothing else yields to anything: equal or lower rank
   never interrupts. Only within active hours.
2. Never what has been interrupted often enough to be protected, never what is estimated to end
   within `preempt_min_remaining_s` (an estimate that turns out wrong loses that protection when its
   time is up).
3. A stream whose caller has seen bytes yields only if it can be resumed: continued, or replayed.
   Otherwise it finishes first, but no internal item waits longer than `preempt_finish_bound_s` for
   that (not at all with `unreplayable_streams: error`): then it is cut.
4. An answer that would have to start over yields at once if that pays (`_pays`): if what is lost is
   no more than what the internal item is spared, weighed by its band. Otherwise it finishes first,
   but no internal item waits longer than `preempt_restart_bound_s` for that. What does not pay at
   first never does later: the loss grows and the gain shrinks. So only the bound needs a timer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hearth.scheduling.actions import Action, Hold, Stop
from hearth.scheduling.residency import Resident
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry
from hearth.types import Band

WEIGHTS: Mapping[Band, float] = MappingProxyType(
    {Band.CRITICAL: 3.0, Band.NORMAL: 1.0, Band.BACKGROUND: 1 / 3}
)
"""How many seconds of others a second of an internal item is worth, by the band it waits in."""


def interruptible(state: State, entry: Entry) -> bool:
    """May this running entry be stopped and put back without its caller noticing?"""
    return _may_yield(state, entry) and (not entry.forwarded or resumable(state, entry))


def resumable(state: State, entry: Entry) -> bool:
    """Could a stream of this entry go on after an interruption?"""
    finishing = state.settings.scheduling.started_streams == "finish"
    return not finishing and bool(entry.item.ways) and not entry.unresumable


def protected(state: State, entry: Entry) -> bool:
    """Interrupted, or kept from starting on what was loaded for it, so often that it finishes
    now.
    """
    most = state.settings.queue.max_interrupt_count
    if not state.priced:
        return entry.interrupts + entry.lost_loads >= most
    return entry.interrupts >= most and not continues(state, entry)


def continues(state: State, entry: Entry) -> bool:
    """Does its stream go on where it was interrupted, so that an interruption loses next to
    nothing?
    """
    return "continued" in entry.item.ways and resumable(state, entry)


def yield_slots(
    state: State, waiter: Entry, residents: Iterable[Resident], band: Band, now: float
) -> list[Action]:
    """Free a slot for each internal waiter of this model (None: any) up to `band`, counting those
    that are about to be free anyway.

    A slot that is about to be free on a model with waiters of its own is theirs before it is
    anybody's who would take any model.
    """
    if waiter.external or not state.active:
        return []
    wanted, victims, rest = (
        state.waiting.up_to(band, waiter.item.model),
        list[Entry](),
        list[Entry](),
    )
    for resident in residents:
        staying = [entry for entry in resident.running.values() if not _leaving(state, entry, now)]
        spoken_for = state.waiting.up_to(band, resident.model) if waiter.item.model is None else 0
        wanted -= max(0, len(resident.running) - len(staying) - spoken_for)
        for entry in staying:
            (victims if _yields_to(state, entry, waiter, now) else rest).append(entry)
    victims.sort(key=lambda entry: (entry.dispatched_at, entry.item.sequence), reverse=True)
    stopped = [_stop(state, entry) for entry in victims[: max(0, wanted)]]
    return [*stopped, *(_holds(state, rest) if wanted > len(victims) else ())]


def yield_memory(state: State, waiter: Entry, running: list[Entry], now: float) -> list[Action]:
    """Stop everything that keeps models from being evicted for an internal waiter; nothing, if one
    of them has to finish anyway.
    """
    if waiter.external or not state.active:
        return []
    staying = [entry for entry in running if not _leaving(state, entry, now)]
    yielding = [entry for entry in staying if _yields_to(state, entry, waiter, now)]
    if len(yielding) == len(staying):
        return [_stop(state, entry) for entry in staying]
    return _holds(state, [entry for entry in staying if entry not in yielding])


def _holds(state: State, staying: Iterable[Entry]) -> list[Action]:
    """Of what keeps more urgent work waiting, the streams that would have to yield if they could go
    on; each once.
    """
    held = [
        entry
        for entry in staying
        if not entry.held and _may_yield(state, entry) and not interruptible(state, entry)
    ]
    for entry in held:
        entry.held = True
    return [Hold(sequence=entry.item.sequence) for entry in held]


def _may_yield(state: State, entry: Entry) -> bool:
    return entry.external and entry.place == "running" and not protected(state, entry)


def _yields_to(state: State, entry: Entry, waiter: Entry, now: float) -> bool:
    """Does this running entry have to go for this waiter now? Asks to be woken when it will."""
    if not _may_yield(state, entry):
        return False
    scheduling = state.settings.scheduling
    if interruptible(state, entry):
        bound_s = 0.0 if _pays(state, entry, waiter, now) else scheduling.preempt_restart_bound_s
    else:
        at_once = (
            scheduling.unreplayable_streams == "error" and scheduling.started_streams != "finish"
        )
        bound_s = 0.0 if at_once else scheduling.preempt_finish_bound_s
    until = waiter.item.arrived_at + bound_s
    if now < until:
        state.wake_at(until)
    return now >= until


def _pays(state: State, entry: Entry, waiter: Entry, now: float) -> bool:
    """Is what stopping this entry loses no more than what the waiter is spared? A stream that is
    continued loses next to nothing.

    Lost is what was done so far and, where nobody else brings the model back, the swap back to it.
    """
    if not state.priced or continues(state, entry):
        return True
    lost_s, model, wanted = now - entry.dispatched_at, entry.model or "", waiter.item.model
    if wanted not in {None, model} and not state.waiting.wants(model):
        lost_s += state.estimates.swap_s(wanted or "", model)
    return lost_s <= WEIGHTS[waiter.band] * (entry.expected_end_at - now)


def _leaving(state: State, entry: Entry, now: float) -> bool:
    """It is stopping, or will end by itself very soon."""
    if entry.place == "stopping":
        return True
    remaining_s = entry.expected_end_at - now
    if 0 < remaining_s <= state.settings.scheduling.preempt_min_remaining_s:
        state.wake_at(entry.expected_end_at)
        return True
    return False


def _stop(state: State, entry: Entry) -> Action:
    entry.cut = not interruptible(state, entry)
    entry.place = "stopping"
    return Stop(
        sequence=entry.item.sequence, attempt=entry.attempts, how="cut" if entry.cut else "preempt"
    )
