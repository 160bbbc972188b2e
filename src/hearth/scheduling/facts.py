"""Folding one reported fact into the state: the first step of every decision.

Each handler changes the state and returns what must be said at once (giving an item up, stopping an attempt). It starts nothing: who
runs next is decided afterwards, from the whole state. Facts about items or attempts that are over are ignored.

`FOLDS` has the handler of each kind of fact. A handler returns None where the fact makes nothing possible, and nothing due, that was not
so before: then there is nothing to decide. That is so for most facts of a busy day.

An order of the owner never goes before work: a load waits until nothing runs or waits, unless there is room beside what is in memory, and
an unload is void as soon as somebody asks for the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hearth.scheduling import inputs
from hearth.scheduling.actions import Abort, Action, Fail, Preempt, Refusal, Requeue, SwapReason
from hearth.scheduling.arrivals import Arrivals
from hearth.scheduling.home import MAX_RESTORES, idle_ended
from hearth.scheduling.inputs import Fault, Input
from hearth.scheduling.packing import first_byte_may_open
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.preemption import interruptible, protected, resumable
from hearth.scheduling.state import State
from hearth.scheduling.waiting import BANDS, Entry, Place
from hearth.types import Band, Lane, QueueItem, Sequence, WorkKind


def _paused(state: State, fact: inputs.ExternalPaused, _now: float) -> list[Action]:
    state.orders.paused = fact.paused
    return []


def _pinned(state: State, fact: inputs.ModelPinned, _now: float) -> list[Action]:
    """Pinning asks for the model, too; unpinning takes that back."""
    orders, model = state.orders, fact.model
    if orders.pinned is not None and orders.pinned != model:
        orders.settle(orders.pinned)
    orders.pinned = model
    state.home_failures = 0
    if model is not None:
        _want(state, model)
    return []


def _load_ordered(state: State, fact: inputs.LoadOrdered, _now: float) -> list[Action]:
    _want(state, fact.model)
    return []


def _want(state: State, model: str) -> None:
    if state.is_there(model):
        state.orders.settle(model)
    else:
        state.orders.want(model)


def _unload_ordered(state: State, fact: inputs.UnloadOrdered, _now: float) -> list[Action]:
    """The model to come back to is then left alone until something was loaded: else it would be back in a moment."""
    state.orders.unwant(fact.model)
    if fact.model == state.comes_back:
        state.home_failures = MAX_RESTORES
    return []


ORDER_FOLDS: Mapping[type[Input], Callable[[State, Any, float], list[Action] | None]] = MappingProxyType(
    {
        inputs.ExternalPaused: _paused,
        inputs.ModelPinned: _pinned,
        inputs.LoadOrdered: _load_ordered,
        inputs.UnloadOrdered: _unload_ordered,
    }
)
"""As `facts.FOLDS`, of which they are a part."""


RESENDS = 1
"""Attempts that a backend fault may undo before the item is given up."""
LOAD_RETRY_S = 2.0
UNLOAD_RETRY_S = 5.0
SAME_S = 1.0
"""Announcements of one task type that are nearer to each other are one and the same."""
_RUNNING, _WAITING, _EXTERNAL_BAND, _EXTERNAL_LANE = Place.RUNNING, Place.WAITING, Band.EXTERNAL, Lane.EXTERNAL
"""Members of an enumeration, looked up once: in Python 3.11 that takes as long as calling a function."""


def _attempt(state: State, sequence: Sequence, attempt: int) -> Entry | None:
    """The entry if this very attempt of it is under way."""
    entry = state.entries.get(sequence)
    if entry is None or entry.place is _WAITING or entry.attempts != attempt:
        return None
    return entry


def _arrived(state: State, fact: inputs.Arrived, now: float) -> list[Action] | None:
    """Nothing to decide for an external item that comes to stand behind another of its own line."""
    item = fact.item
    if item.model is not None and state.residency.never_fits(item.model, item.task_type):
        return [Fail(sequence=item.sequence, why=Refusal.NEVER_FITS)]
    if state.installed is not None and _is_gone(state, item):
        return [Fail(sequence=item.sequence, why=Refusal.NOT_INSTALLED)]
    if state.idle_since is not None:
        idle_ended(state, item, now)
    if state.arrivals.learns:
        state.arrivals.arrived(item.caller, item.model, now)
        if item.model is not None and state.is_idle(item.model):
            state.arrivals.came_back(item.caller, item.model, now)
    entry = state.entries[item.sequence] = Entry(item, item.band)
    state.enqueue(entry)
    line = state.waiting.lines[_EXTERNAL_BAND].get(item.model)
    behind = item.expires_at is None and item.lane is _EXTERNAL_LANE and line is not None and line.head is not entry
    if item.expires_at is not None:
        heapq.heappush(state.expiries, (item.expires_at, item.sequence))
    return None if behind and state.held_until is None and state.down_since is None and not state.draining else []


def _started(state: State, fact: inputs.Started, now: float) -> list[Action] | None:
    """Nothing to decide for a start at the instant of its dispatch, which is what was expected then."""
    entry = state.entries.get(fact.sequence)
    if entry is None or now <= entry.dispatched_at:
        return None
    if entry.place is not _WAITING and entry.attempts == fact.attempt and entry.model is not None:
        entry.expected_end_at = now + state.estimates.service_s(entry.item, entry.model, entry.kept_tokens)
    return []


def _first_byte(state: State, fact: inputs.FirstByte, now: float) -> list[Action] | None:
    """Bytes that reached the caller while a `Preempt` was on its way win: the shell lets such an attempt go on.

    Nothing to decide where the attempt was not told to stop and no round ends that somebody waits for: it only takes options away.
    """
    entry = state.entries.get(fact.sequence)
    if entry is None:
        return None
    is_idle_news = entry.place is _RUNNING and not first_byte_may_open(state)
    if entry.place is not _WAITING and entry.attempts == fact.attempt:
        entry.first_byte_at = now
        entry.forwarded = fact.forwarded
        if entry.place is not _RUNNING and fact.forwarded and not resumable(state, entry):
            _go_on(entry)
    return None if is_idle_news else []


def _unresumable(state: State, fact: inputs.Unresumable, _now: float) -> list[Action]:
    """A `Preempt` on its way comes too late, as after a first byte."""
    entry = _attempt(state, fact.sequence, fact.attempt)
    if entry is not None:
        entry.unresumable = True
        _go_on(entry)
    return []


def _reconfigured(state: State, fact: inputs.PolicyChanged, _now: float) -> list[Action]:
    """What waits and could never be loaded under the new settings is told so, as it would be on arrival; what was ordered is void."""
    settings = state.settings = fact.settings
    state.residency.configure(settings)
    state.estimates.swap_prior_s = settings.gpu.swap_cost_prior_s
    state.aging.configure(settings.scheduling.aging, state.waiting.all_entries())
    state.home_failures = 0
    for model in state.orders.wanted:
        if state.residency.never_fits(model):
            state.orders.settle(model)
    learns = POLICIES[settings.scheduling.policy].learns
    if learns is not state.arrivals.learns:
        state.arrivals = Arrivals(learns=learns, open_callers=[entry.item.caller for entry in state.entries.values()])
    waiting = sorted(state.waiting.all_entries(), key=lambda entry: entry.item.sequence)
    return [_give_up(state, entry, Refusal.NEVER_FITS) for entry in waiting if _never_fits(state, entry.item)]


def _listed(state: State, fact: inputs.ModelsListed, _now: float) -> list[Action]:
    """What waits for a model that was deleted is told so before anything is unloaded for it."""
    state.installed = fact.names
    state.home_failures = 0
    for model in state.orders.wanted:
        if not state.has(model):
            state.orders.settle(model)
    waiting = sorted(state.waiting.all_entries(), key=lambda entry: entry.item.sequence)
    return [_give_up(state, entry, Refusal.NOT_INSTALLED) for entry in waiting if _is_gone(state, entry.item)]


def _is_gone(state: State, item: QueueItem) -> bool:
    """Its model is neither installed nor in memory."""
    return item.model is not None and not state.has(item.model) and item.model not in state.residency.residents


def _never_fits(state: State, item: QueueItem) -> bool:
    return item.model is not None and state.residency.never_fits(item.model, item.task_type)


def _go_on(entry: Entry) -> None:
    if entry.place is Place.STOPPING and not entry.cancelled and not entry.cut:
        entry.place = Place.RUNNING


def _finished(state: State, fact: inputs.Finished, now: float) -> list[Action]:
    entry = _attempt(state, fact.sequence, fact.attempt)
    if entry is not None and entry.model is not None:
        state.estimates.learn_item(entry.item, entry.model, fact.usage, now - entry.dispatched_at)
        resident = state.residency.residents.get(entry.model)
        if resident is not None and resident.embeds and entry.item.kind is WorkKind.GENERATE and fact.usage.output_tokens:
            resident.embeds = False
        state.release(entry, now)
        state.leave(entry)
        if state.arrivals.learns:
            state.arrivals.ended(entry.item.caller, entry.model, now)
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
    return [Requeue(sequence=fact.sequence)]


def _stopped(state: State, fact: inputs.Stopped, now: float) -> list[Action]:
    entry = _attempt(state, fact.sequence, fact.attempt)
    if entry is None:
        return []
    state.release(entry, now)
    if entry.cancelled or entry.cut:
        state.leave(entry)
        return [] if entry.cancelled else [Fail(sequence=fact.sequence, why=Refusal.INTERRUPTED)]
    entry.interrupts += 1
    entry.kept_tokens = fact.kept_tokens
    state.interruptions += 1
    entry.band, entry.rank = Band.INTERRUPTED, -state.interruptions
    state.enqueue(entry)
    return [Requeue(sequence=fact.sequence, interrupts=entry.interrupts, protected=protected(state, entry))]


def _cancelled(state: State, fact: inputs.Cancelled, _now: float) -> list[Action]:
    return [action for sequence in fact.sequences for action in _drop(state, sequence)]


def _drop(state: State, sequence: Sequence) -> list[Action]:
    entry = state.entries.get(sequence)
    if entry is None or entry.cancelled:
        return []
    if entry.place is Place.WAITING:
        state.give_up(entry)
        return []
    entry.cancelled = True
    was_running = entry.place is Place.RUNNING
    entry.place = Place.STOPPING
    return [Abort(sequence=sequence, attempt=entry.attempts)] if was_running else []


def _loaded(state: State, fact: inputs.Loaded, now: float) -> list[Action]:
    model = fact.model
    swap = state.residency.loaded(model, now, fact.vram_mib, embeds=fact.embeds)
    if swap is not None:
        state.residency.residents[model].waiting_at_load = state.waiting.up_to(BANDS[-1], model)
        origin = swap.replaced[0] if swap.replaced else ""
        state.estimates.learn_swap(origin, model, now - swap.started_at + swap.cleared_s)
        state.failures.pop(model, None)
        if model not in state.orders.unwanted:
            state.home_failures = 0
            state.orders.settle(model)
        if swap.why is SwapReason.OWNER:
            state.idle_since, state.idle_with = now, None
    return []


def _load_failed(state: State, fact: inputs.LoadFailed, now: float) -> list[Action]:
    model, permanent = fact.model, fact.permanent
    swap = state.residency.load_failed(model)
    if swap is None:
        return []
    if fact.unlisted:
        state.residency.keep_alone(model)
    if swap.why is SwapReason.HOME:
        state.home_failures += 1
    if state.down_since is not None and not permanent:
        return []
    state.failures[model] = state.failures.get(model, 0) + 1
    if not permanent and state.failures[model] < 2:
        state.not_before[model] = now + LOAD_RETRY_S
        return []
    state.failures.pop(model)
    state.orders.settle(model)
    stranded = state.waiting.entries(model)
    if model == state.home and not state.residency.residents:
        stranded += state.waiting.entries(None)
    return [_give_up(state, entry, Refusal.LOAD_FAILED) for entry in stranded]


def _unloaded(state: State, fact: inputs.Unloaded, now: float) -> list[Action]:
    state.residency.unloaded(fact.model, now)
    state.failures.pop(fact.model, None)
    return []


def _unload_failed(state: State, fact: inputs.UnloadFailed, now: float) -> list[Action]:
    model = fact.model
    state.residency.unload_failed(model, now)
    state.not_before[model] = now + UNLOAD_RETRY_S
    state.failures[model] = state.failures.get(model, 0) + 1
    if state.failures[model] < 2:
        return []
    stranded = [entry for entry in state.waiting.all_entries() if not state.residency.serves(entry.item.model)]
    return [_give_up(state, entry, Refusal.LOAD_FAILED) for entry in sorted(stranded, key=lambda entry: entry.item.sequence)]


def _drifted(state: State, fact: inputs.Drifted, now: float) -> list[Action]:
    gone = [action for each in fact.vanished for action in _unloaded(state, each, now)]
    return gone + [action for each in fact.appeared for action in _loaded(state, each, now)]


def _gpu_sampled(state: State, fact: inputs.GpuSampled, _now: float) -> list[Action]:
    state.residency.sample(fact.capacity_mib, fact.foreign_mib)
    return []


def _backend_down(state: State, _fact: inputs.BackendDown, now: float) -> list[Action]:
    state.down_since = now if state.down_since is None else state.down_since
    return []


def _backend_up(state: State, _fact: inputs.BackendUp, _now: float) -> list[Action]:
    state.down_since = None
    state.not_before.clear()
    state.failures.clear()
    return []


def _scheduled(state: State, fact: inputs.Scheduled, now: float) -> list[Action]:
    """The same task may be announced again: by a wall clock and a monotonic one, its instant never comes out quite the same."""
    others = (each for each in state.announced if each[0] > now and not (each[1] == fact.task_type and abs(each[0] - fact.due_at) < SAME_S))
    state.announced = tuple(sorted((*others, (fact.due_at, fact.task_type)) if fact.comes else others))
    return []


def _clock_stepped(state: State, fact: inputs.ClockStepped, now: float) -> list[Action]:
    """What was announced is due by the calendar; what has become past by that is due no more."""
    moved = ((due_at - fact.ahead_s, task_type) for due_at, task_type in state.announced)
    state.announced = tuple(each for each in moved if each[0] > now)
    return []


def _mode_changed(state: State, fact: inputs.ModeChanged, _now: float) -> list[Action]:
    state.active = fact.active
    return []


def _drain_requested(state: State, _fact: inputs.DrainRequested, _now: float) -> list[Action]:
    state.draining = True
    return []


def _timer_fired(_state: State, _fact: inputs.TimerFired, _now: float) -> list[Action]:
    return []


def _stop_all(state: State, _fact: inputs.PreemptRequested, _now: float) -> list[Action]:
    actions: list[Action] = []
    for entry in state.running:
        if interruptible(state, entry):
            entry.place = Place.STOPPING
            actions.append(Preempt(sequence=entry.item.sequence, attempt=entry.attempts))
    return actions


def _give_up(state: State, entry: Entry, why: Refusal) -> Action:
    state.give_up(entry)
    return Fail(sequence=entry.item.sequence, why=why)


FOLDS: Mapping[type[Input], Callable[[State, Any, float], list[Action] | None]] = MappingProxyType(
    {
        inputs.Arrived: _arrived,
        inputs.Started: _started,
        inputs.FirstByte: _first_byte,
        inputs.Unresumable: _unresumable,
        inputs.Finished: _finished,
        inputs.Failed: _failed,
        inputs.Stopped: _stopped,
        inputs.Cancelled: _cancelled,
        inputs.Loaded: _loaded,
        inputs.LoadFailed: _load_failed,
        inputs.Unloaded: _unloaded,
        inputs.UnloadFailed: _unload_failed,
        inputs.Drifted: _drifted,
        inputs.GpuSampled: _gpu_sampled,
        inputs.BackendDown: _backend_down,
        inputs.BackendUp: _backend_up,
        inputs.Scheduled: _scheduled,
        inputs.ClockStepped: _clock_stepped,
        inputs.ModeChanged: _mode_changed,
        inputs.PreemptRequested: _stop_all,
        inputs.ModelsListed: _listed,
        inputs.PolicyChanged: _reconfigured,
        inputs.DrainRequested: _drain_requested,
        inputs.TimerFired: _timer_fired,
        **ORDER_FOLDS,
    }
)
