"""Folding one reported fact into the state: the first step of every decision.

Each handler changes the state and returns what must be said at once (giving an item up, stopping an attempt). It starts nothing: who
runs next is decided afterwards, from the whole state.
"""

from __future__ import annotations

import heapq

from hearth.config.settings import SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.actions import Abort, Action, Fail, Preempt, Refusal, SwapReason
from hearth.scheduling.inputs import Fault, Input
from hearth.scheduling.preemption import interruptible, resumable
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry, Place
from hearth.types import Band, Sequence

RESENDS = 1
"""Attempts that a backend fault may undo before the item is given up."""
LOAD_RETRY_S = 2.0
UNLOAD_RETRY_S = 5.0


def fold(state: State, fact: Input, now: float) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - a closed set, one line each
    """Apply one fact. Facts about items or attempts that are over are ignored."""
    match fact:
        case inputs.Arrived():
            return _arrived(state, fact)
        case inputs.Started(sequence=sequence, attempt=attempt):
            return _started(state, sequence, attempt, now)
        case inputs.FirstByte():
            return _first_byte(state, fact, now)
        case inputs.Outgrown(sequence=sequence, attempt=attempt):
            return _outgrown(state, sequence, attempt)
        case inputs.Finished():
            return _finished(state, fact, now)
        case inputs.Failed():
            return _failed(state, fact, now)
        case inputs.Stopped(sequence=sequence, attempt=attempt):
            return _stopped(state, sequence, attempt, now)
        case inputs.Cancelled(sequence=sequence):
            return _cancelled(state, sequence)
        case inputs.Loaded(model=model, vram_mib=vram_mib):
            return _loaded(state, model, vram_mib, now)
        case inputs.LoadFailed(model=model, permanent=permanent):
            return _load_failed(state, model, now, permanent=permanent)
        case inputs.Unloaded(model=model):
            state.residency.unloaded(model, now)
            state.failures.pop(model, None)
        case inputs.UnloadFailed(model=model):
            return _unload_failed(state, model, now)
        case inputs.GpuSampled(capacity_mib=capacity_mib):
            state.residency.sample(capacity_mib)
        case inputs.BackendDown():
            state.down_since = now if state.down_since is None else state.down_since
        case inputs.BackendUp():
            state.down_since = None
            state.not_before.clear()
            state.failures.clear()
        case inputs.Scheduled(task_type=task_type, due_at=due_at):
            state.announced = {other: at for other, at in state.announced.items() if at > now} | {task_type: due_at}
        case inputs.ModeChanged(active=active):
            state.active = active
        case inputs.PreemptRequested():
            return _stop_all(state)
        case inputs.PolicyChanged(settings=settings):
            _reconfigure(state, settings)
        case inputs.DrainRequested():
            state.draining = True
        case inputs.TimerFired():
            pass
    return []


def is_idle_news(state: State, fact: Input, now: float) -> bool:
    """Can this fact make nothing possible, and nothing due, that was not so before?

    True for a first byte of an attempt that is not told to stop (it only takes options away), a start at the instant of its dispatch
    (expected then), and an external item that comes to stand behind another of its own line: together most facts of a busy day.
    """
    match fact:
        case inputs.FirstByte(sequence=sequence):
            entry = state.entries.get(sequence)
            return entry is None or entry.place is Place.RUNNING
        case inputs.Started(sequence=sequence):
            entry = state.entries.get(sequence)
            return entry is None or now <= entry.dispatched_at
        case inputs.Arrived(item=item):
            behind = item.expires_at is None and item.band is Band.EXTERNAL and state.waiting.head(Band.EXTERNAL, item.model) is not None
            return behind and state.down_since is None and not state.draining
        case _:
            return False


def _attempt(state: State, sequence: Sequence, attempt: int) -> Entry | None:
    """The entry if this very attempt of it is under way."""
    entry = state.entries.get(sequence)
    if entry is None or entry.place is Place.WAITING or entry.attempts != attempt:
        return None
    return entry


def _arrived(state: State, fact: inputs.Arrived) -> list[Action]:
    item = fact.item
    if item.model is not None and state.residency.never_fits(item.model):
        return [Fail(sequence=item.sequence, why=Refusal.NEVER_FITS)]
    entry = Entry(item=item, band=item.band)
    state.entries[item.sequence] = entry
    state.enqueue(entry)
    if item.expires_at is not None:
        heapq.heappush(state.expiries, (item.expires_at, item.sequence))
    return []


def _started(state: State, sequence: Sequence, attempt: int, now: float) -> list[Action]:
    entry = _attempt(state, sequence, attempt)
    if entry is not None and entry.model is not None and now > entry.dispatched_at:
        entry.expected_end_at = now + state.estimates.service_s(entry.item, entry.model)
    return []


def _first_byte(state: State, fact: inputs.FirstByte, now: float) -> list[Action]:
    """Bytes that reached the caller while a `Preempt` was on its way win: the shell lets such an attempt go on."""
    entry = _attempt(state, fact.sequence, fact.attempt)
    if entry is not None:
        entry.first_byte_at = now
        entry.forwarded = fact.forwarded
        if fact.forwarded and not resumable(state, entry):
            _go_on(entry)
    return []


def _outgrown(state: State, sequence: Sequence, attempt: int) -> list[Action]:
    """A `Preempt` on its way comes too late, as after a first byte."""
    entry = _attempt(state, sequence, attempt)
    if entry is not None:
        entry.outgrown = True
        _go_on(entry)
    return []


def _reconfigure(state: State, settings: SchedulerSettings) -> None:
    state.settings = settings
    state.residency.configure(settings)
    state.estimates.swap_prior_s = settings.gpu.swap_cost_prior_s
    state.home_failures = 0


def _go_on(entry: Entry) -> None:
    if entry.place is Place.STOPPING and not entry.cancelled and not entry.cut:
        entry.place = Place.RUNNING


def _finished(state: State, fact: inputs.Finished, now: float) -> list[Action]:
    entry = _attempt(state, fact.sequence, fact.attempt)
    if entry is not None and entry.model is not None:
        state.estimates.learn_item(entry.item, entry.model, fact.usage, now - entry.dispatched_at)
        state.release(entry, now)
        state.leave(entry)
    return []


def _failed(state: State, fact: inputs.Failed, now: float) -> list[Action]:
    entry = _attempt(state, fact.sequence, fact.attempt)
    if entry is None:
        return []
    resident = state.residency.residents.get(entry.model or "")
    if fact.fault is Fault.FIRST_BYTE_TIMEOUT and resident is not None:
        resident.suspect = True
    state.release(entry, now)
    if entry.cancelled:
        state.leave(entry)
        return []
    is_down = state.down_since is not None
    if fact.fault is Fault.FATAL or entry.forwarded or (entry.resends >= RESENDS and not is_down):
        state.leave(entry)
        return [Fail(sequence=entry.item.sequence, why=Refusal.ATTEMPTS_EXHAUSTED)]
    entry.resends += not is_down
    state.enqueue(entry)
    return []


def _stopped(state: State, sequence: Sequence, attempt: int, now: float) -> list[Action]:
    entry = _attempt(state, sequence, attempt)
    if entry is None:
        return []
    state.release(entry, now)
    if entry.cancelled or entry.cut:
        state.leave(entry)
        return [] if entry.cancelled else [Fail(sequence=sequence, why=Refusal.INTERRUPTED)]
    entry.interrupts += 1
    state.interruptions += 1
    entry.band, entry.rank = Band.INTERRUPTED, -state.interruptions
    state.enqueue(entry)
    return []


def _cancelled(state: State, sequence: Sequence) -> list[Action]:
    entry = state.entries.get(sequence)
    if entry is None or entry.cancelled:
        return []
    if entry.place is Place.WAITING:
        state.waiting.remove(entry)
        state.leave(entry)
        return []
    entry.cancelled = True
    was_running = entry.place is Place.RUNNING
    entry.place = Place.STOPPING
    return [Abort(sequence=sequence, attempt=entry.attempts)] if was_running else []


def _loaded(state: State, model: str, vram_mib: float | None, now: float) -> list[Action]:
    swap = state.residency.loaded(model, now, vram_mib)
    if swap is not None:
        origin = swap.replaced[0] if swap.replaced else ""
        state.estimates.learn_swap(origin, model, now - swap.started_at + swap.cleared_s)
        state.failures.pop(model, None)
        state.home_failures = 0
    return []


def _load_failed(state: State, model: str, now: float, *, permanent: bool) -> list[Action]:
    swap = state.residency.load_failed(model)
    if swap is None:
        return []
    if swap.why is SwapReason.HOME:
        state.home_failures += 1
    if state.down_since is not None and not permanent:
        return []
    state.failures[model] = state.failures.get(model, 0) + 1
    if not permanent and state.failures[model] < 2:
        state.not_before[model] = now + LOAD_RETRY_S
        return []
    state.failures.pop(model)
    stranded = state.waiting.entries(model)
    if model == state.home and not state.residency.residents:
        stranded += state.waiting.entries(None)
    return [_give_up(state, entry, Refusal.LOAD_FAILED) for entry in stranded]


def _unload_failed(state: State, model: str, now: float) -> list[Action]:
    state.residency.unload_failed(model, now)
    state.not_before[model] = now + UNLOAD_RETRY_S
    state.failures[model] = state.failures.get(model, 0) + 1
    if state.failures[model] < 2:
        return []
    stranded = [entry for entry in state.waiting.all_entries() if not state.residency.serves(entry.item.model)]
    return [_give_up(state, entry, Refusal.LOAD_FAILED) for entry in sorted(stranded, key=lambda entry: entry.item.sequence)]


def _stop_all(state: State) -> list[Action]:
    actions: list[Action] = []
    for entry in state.running:
        if interruptible(state, entry):
            entry.place = Place.STOPPING
            actions.append(Preempt(sequence=entry.item.sequence, attempt=entry.attempts))
    return actions


def _give_up(state: State, entry: Entry, why: Refusal) -> Action:
    state.waiting.remove(entry)
    state.leave(entry)
    return Fail(sequence=entry.item.sequence, why=why)
