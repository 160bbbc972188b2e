"""Taking one reported fact into the state: the first step of every decision.

Each fact changes the state and may say something at once (giving an item up, stopping an attempt).
Nothing is started here: who runs next is decided afterwards, from the whole state. An order of the
owner never goes before work: a load waits until nothing runs or waits, unless there is room beside
what is in memory, and an unload is void as soon as somebody asks for the model.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hearth.scheduling import inputs
from hearth.scheduling.actions import Action, Fail, Requeue, Stop
from hearth.scheduling.estimates import Arrivals
from hearth.scheduling.home import MAX_RESTORES, idle_ended
from hearth.scheduling.inputs import Input
from hearth.scheduling.placement import budget_tokens
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.preemption import interruptible, protected, resumable
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry
from hearth.types import Band, Lane, QueueItem, Sequence, Usage

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

RESENDS = 1  # attempts that a backend fault may undo before the item is given up
BREAKS = 2  # attempts that a backend fault may end within a stream before the item is given up
LOAD_RETRY_S = 2.0
UNLOAD_RETRY_S = 5.0
SAME_S = 1.0  # announcements of one task type that are nearer to each other are one and the same
_EXTERNAL_BAND, _EXTERNAL_LANE = Band.EXTERNAL, Lane.EXTERNAL
"""Members of an enumeration, looked up once: in Python 3.11 that takes as long as calling a
function.
"""


def take_in(state: State, fact: Input, now: float) -> list[Action] | None:
    """What a fact changes, and what is said at once.

    Returns:
        None where it makes nothing possible, and nothing due, that was not so before: then there is
        nothing to decide. That is so for most facts of a busy day.
    """
    match fact:
        case inputs.Arrived(item=item):
            return _arrived(state, item, now)
        case inputs.OfAttempt(sequence=sequence, attempt=attempt):
            entry = state.entries.get(sequence)
            is_over = entry is None or entry.place == "waiting" or entry.attempts != attempt
            return None if entry is None or is_over else _of_attempt(state, entry, fact, now)
        case inputs.Cancelled(sequences=sequences):
            return [action for sequence in sequences for action in _drop(state, sequence)]
        case inputs.PreemptRequested():
            yielding = [entry for entry in state.running if interruptible(state, entry)]
            for entry in yielding:
                entry.place = "stopping"
            return [
                Stop(sequence=entry.item.sequence, attempt=entry.attempts, how="preempt")
                for entry in yielding
            ]
        case _:
            return _of_memory(state, fact, now)


def _of_memory(state: State, fact: Input, now: float) -> list[Action]:  # noqa: C901, PLR0912 - a closed set, one case each
    """What the model server and the GPU report."""
    match fact:
        case inputs.Loaded():
            _loaded(state, fact, now)
        case inputs.LoadFailed():
            return _load_failed(state, fact, now)
        case inputs.Unloaded(model=model):
            _unloaded(state, model, now)
        case inputs.LoadCut(model=model, clean=clean):
            state.cut_failures = 0 if clean else state.cut_failures + 1
            state.residency.load_cut(model, now)
        case inputs.UnloadFailed(model=model):
            return _unload_failed(state, model, now)
        case inputs.Drifted(appeared=appeared, vanished=vanished):
            for gone in vanished:
                _unloaded(state, gone.model, now)
            for come in appeared:
                _loaded(state, come, now)
        case inputs.GpuSampled(capacity_mib=capacity_mib, foreign_mib=foreign_mib):
            state.residency.sample(capacity_mib, foreign_mib)
        case inputs.BackendState(up=False):
            state.down_since = now if state.down_since is None else state.down_since
        case inputs.BackendState():
            state.down_since = None
            state.cut_failures = 0
            state.not_before.clear()
            state.failures.clear()
        case inputs.ModelsListed(names=names):
            return _listed(state, names)
        case inputs.ServerReplaced(learned=learned):
            _replaced(state, learned, now)
        case _:
            return _of_owner(state, fact, now)
    return []


def _of_owner(state: State, fact: Input, now: float) -> list[Action]:  # noqa: C901, PLR0912 - a closed set, one case each
    """What the owner wants, and what the clock says."""
    match fact:
        case inputs.PolicyChanged(settings=settings):
            return _reconfigured(state, settings)
        case inputs.Switched(what="active", on=on):
            state.active = on
        case inputs.Switched(what="paused", on=on):
            state.paused = on
        case inputs.Switched(what="draining", on=on):
            state.draining = on
        case inputs.Switched(on=on):
            state.handing_over = on
        case inputs.ModelPinned(model=model):
            if state.pinned_name is not None and state.pinned_name != model:
                state.settle(state.pinned_name)
            state.pinned_name, state.home_failures = model, 0
            if model is not None:  # pinning asks for the model, too; unpinning takes that back
                _want(state, model)
        case inputs.ModelOrdered(model=model, comes=True):
            _want(state, model)
        case inputs.ModelOrdered(model=model):
            state.order(model, comes=False)
            # left alone until something was loaded: else it would be back in a moment
            if model == state.comes_back:
                state.home_failures = MAX_RESTORES
        case inputs.Scheduled(task_type=task_type, due_at=due_at, comes=comes):
            # by a wall clock and a monotonic one, the instant of a task that is announced again
            # never comes out quite the same
            others = [
                each
                for each in state.announced
                if each[0] > now and not (each[1] == task_type and abs(each[0] - due_at) < SAME_S)
            ]
            state.announced = tuple(sorted((*others, (due_at, task_type)) if comes else others))
        case inputs.ClockStepped(ahead_s=ahead_s):
            moved = ((due_at - ahead_s, task_type) for due_at, task_type in state.announced)
            state.announced = tuple(each for each in moved if each[0] > now)
        case _:
            pass
    return []


def _want(state: State, model: str) -> None:
    if state.is_there(model):
        state.settle(model)
    else:
        state.order(model, comes=True)


def _arrived(state: State, item: QueueItem, now: float) -> list[Action] | None:
    """Nothing to decide for an external item that comes to stand behind another of its own line."""
    if _never_fits(state, item):
        return [Fail(sequence=item.sequence, why="never_fits")]
    if _is_gone(state, item):
        return [Fail(sequence=item.sequence, why="not_installed")]
    if state.idle_since is not None:
        idle_ended(state, item, now)
    if state.arrivals.learns:
        state.arrivals.arrived(item.caller, item.model, now)
        if (
            item.model is not None
            and not state.waiting.wants(item.model)
            and not state.runs_on(item.model)
        ):
            state.arrivals.came_back(item.caller, item.model, now)
    entry = state.entries[item.sequence] = Entry(
        item, item.band, (0, item.arrived_at, item.sequence), waits_since=state.since(now)
    )
    state.enqueue(entry)
    if item.expires_at is not None:
        heapq.heappush(state.expiries, (item.expires_at, item.sequence))
        return []
    behind = (
        item.lane is _EXTERNAL_LANE
        and state.waiting.lines[_EXTERNAL_BAND][item.model][0] is not entry
    )
    heads_are_all = not (state.held_until is not None or state.starts_nothing or state.announced)
    return None if behind and heads_are_all else []


def _is_gone(state: State, item: QueueItem) -> bool:
    """Its model is neither installed nor in memory."""
    return (
        item.model is not None
        and not state.has(item.model)
        and item.model not in state.residency.residents
    )


def _never_fits(state: State, item: QueueItem) -> bool:
    return item.model is not None and state.residency.never_fits(item.model, item.task_type)


def _of_attempt(
    state: State, entry: Entry, fact: inputs.OfAttempt, now: float
) -> list[Action] | None:
    """What the shell reports of an attempt that is under way."""
    match fact:
        case inputs.Started():
            if now <= entry.dispatched_at:  # at the instant of its dispatch, as was expected then
                return None
            entry.expected_end_at = now + state.estimates.service_s(
                entry.item, entry.model or "", entry.kept_tokens
            )
        case inputs.FirstByte(forwarded=forwarded):
            entry.first_byte_at, entry.forwarded = now, forwarded
            ends_no_round = budget_tokens(state.settings.scheduling.packing) is None or not len(
                state.waiting
            )
            if entry.place == "running" and ends_no_round:  # it only takes options away
                return None
            if forwarded and not resumable(state, entry):
                _go_on(entry)
        case inputs.Unresumable():
            entry.unresumable = True
            _go_on(entry)
        case inputs.Finished(usage=usage):
            _finished(state, entry, usage, now)
        case inputs.Failed():
            return _failed(state, entry, fact, now)
        case inputs.Stopped(kept_tokens=kept_tokens):
            return _stopped(state, entry, kept_tokens, now)
        case _:
            pass
    return []


def _go_on(entry: Entry) -> None:
    """Bytes that reached the caller while a `Stop` was on its way win: the shell lets such an
    attempt go on.
    """
    if entry.place == "stopping" and not entry.cancelled and not entry.cut:
        entry.place = "running"


def _finished(state: State, entry: Entry, usage: Usage, now: float) -> None:
    item, model = entry.item, entry.model or ""
    run_s, expected_s = now - entry.dispatched_at, entry.expected_end_at - entry.dispatched_at
    state.estimates.learn_item(item, model, usage, run_s, expected_s)
    resident = state.residency.residents.get(model)
    if resident is not None and resident.embeds and item.kind == "generate" and usage.output_tokens:
        resident.embeds = False
    state.release(entry, now)
    state.leave(entry)
    if state.arrivals.learns:
        state.arrivals.ended(item.caller, model, now, item.band)


def _failed(state: State, entry: Entry, fact: inputs.Failed, now: float) -> list[Action]:
    resident = state.residency.residents.get(entry.model or "")
    is_down = state.down_since is not None
    fault = fact.fault
    may_go_on = entry.breaks < BREAKS and not (entry.cancelled or entry.cut)
    goes_on = may_go_on and fact.kept_tokens is not None
    is_suspect = fault == "first_byte_timeout" or (fault == "runner_died" and goes_on)
    if resident is not None and is_suspect:
        resident.suspect = True
    state.release(entry, now)
    if goes_on:
        entry.breaks += 1
        _put_first(state, entry, fact.kept_tokens or 0, now)
        return [Requeue(sequence=entry.item.sequence, broke_off=True)]
    if (
        entry.cancelled
        or fault == "fatal"
        or entry.forwarded
        or (entry.resends >= RESENDS and not is_down)
    ):
        state.leave(entry)
        return (
            []
            if entry.cancelled
            else [Fail(sequence=entry.item.sequence, why="attempts_exhausted")]
        )
    entry.resends += not is_down
    state.enqueue(entry)
    return [Requeue(sequence=entry.item.sequence)]


def _stopped(state: State, entry: Entry, kept_tokens: int, now: float) -> list[Action]:
    sequence = entry.item.sequence
    state.release(entry, now)
    if entry.cancelled or entry.cut:
        state.leave(entry)
        return [] if entry.cancelled else [Fail(sequence=sequence, why="interrupted")]
    entry.interrupts += 1
    _put_first(state, entry, kept_tokens, now)
    return [
        Requeue(sequence=sequence, interrupts=entry.interrupts, protected=protected(state, entry))
    ]


def _put_first(state: State, entry: Entry, kept_tokens: int, now: float) -> None:
    """Let it wait before all others of its lane or, where it is internal, of its band."""
    state.interruptions += 1
    entry.kept_tokens = kept_tokens
    entry.waits_since = state.since(now)
    entry.band = Band.INTERRUPTED if entry.external else entry.band
    entry.key = (-state.interruptions, *entry.key[1:])
    state.enqueue(entry)


def _drop(state: State, sequence: Sequence) -> list[Action]:
    """The caller of an item is gone."""
    entry = state.entries.get(sequence)
    if entry is None or entry.cancelled:
        return []
    if entry.place == "waiting":
        state.waiting.remove(entry)
        state.leave(entry)
        return []
    was_running, entry.place, entry.cancelled = entry.place == "running", "stopping", True
    return [Stop(sequence=sequence, attempt=entry.attempts, how="abort")] if was_running else []


def _loaded(state: State, fact: inputs.Loaded, now: float) -> None:
    model = fact.model
    swap = state.residency.loaded(model, now, fact.vram_mib, embeds=fact.embeds)
    if swap is None:
        return
    state.residency.residents[model].waiting_at_load = state.waiting.wants(model)
    state.estimates.learn_swap(swap.origin, model, now - swap.started_at + swap.cleared_s)
    state.failures.pop(model, None)
    if model not in state.unwanted:
        state.home_failures = 0
        state.settle(model)
    if swap.why == "owner":
        state.idle_since, state.idle_with = now, None


def _load_failed(state: State, fact: inputs.LoadFailed, now: float) -> list[Action]:
    model, permanent = fact.model, fact.permanent
    swap = state.residency.load_failed(model)
    if swap is None:
        return []
    if fact.unlisted:
        state.residency.keep_alone(model)
    if swap.why == "home":
        state.home_failures += 1
    if state.down_since is not None and not permanent:
        return []
    state.failures[model] = state.failures.get(model, 0) + 1
    if not permanent and state.failures[model] < 2:
        state.not_before[model] = now + LOAD_RETRY_S
        return []
    state.failures.pop(model)
    state.settle(model)
    stranded = state.waiting.entries(model)
    if model == state.home and not state.residency.residents:
        stranded += state.waiting.entries(None)
    return state.give_up(stranded, "load_failed")


def _unloaded(state: State, model: str, now: float) -> None:
    state.residency.unloaded(model, now)
    state.failures.pop(model, None)


def _unload_failed(state: State, model: str, now: float) -> list[Action]:
    state.residency.unload_failed(model, now)
    state.not_before[model] = now + UNLOAD_RETRY_S
    state.failures[model] = state.failures.get(model, 0) + 1
    if state.failures[model] < 2:
        return []
    serving = {resident.model for resident in state.residency.residents.values() if resident.serves}
    able = serving | ({None} if serving else set())
    return state.give_up(
        [entry for entry in state.waiting.all_entries() if entry.item.model not in able],
        "load_failed",
    )


def _replaced(state: State, learned: Mapping[str, Any] | None, now: float) -> None:
    """What was learned of one server says nothing of another, nor does what its memory holds; what
    the owner wants stays.
    """
    state.residency.forget()
    state.estimates.forget()
    if learned is not None:
        state.estimates.restore(learned)
    _learn_arrivals_anew(state)
    state.installed, state.replaced_at = None, now
    state.cleared_for = state.held_until = state.preloaded_at = None
    state.turn = state.hold = None
    state.cut_failures = 0
    state.home_failures = 0
    state.not_before.clear()
    state.failures.clear()
    state.rounds.clear()


def _learn_arrivals_anew(state: State) -> None:
    learns = POLICIES[state.settings.scheduling.policy].learns
    state.arrivals = Arrivals(
        learns=learns, open_callers=[entry.item.caller for entry in state.entries.values()]
    )


def _listed(state: State, names: frozenset[str]) -> list[Action]:
    """What waits for a model that is not there is told so before anything is unloaded for it.

    What the model server before this one accepted did not name a wrong model.
    """
    state.installed = names
    state.home_failures = 0
    for model in state.wanted:
        if not state.has(model):
            state.settle(model)
    gone = [entry for entry in state.waiting.all_entries() if _is_gone(state, entry.item)]
    earlier = [entry for entry in gone if entry.item.arrived_at <= state.replaced_at]
    later = [entry for entry in gone if entry.item.arrived_at > state.replaced_at]
    return state.give_up(earlier, "server_changed") + state.give_up(later, "not_installed")


def _reconfigured(state: State, settings: SchedulerSettings) -> list[Action]:
    """What waits and could never be loaded under the new settings is told so, as it would be on
    arrival; what was ordered is void.
    """
    state.settings, state.home_failures = settings, 0
    state.residency.configure(settings)
    state.estimates.swap_prior_s = settings.gpu.swap_cost_prior_s
    waiting = state.waiting.all_entries()
    state.rising.clear()  # nobody falls back to a lower band
    for entry in waiting:
        state.expect_rise(entry)
    for model in state.wanted:
        if state.residency.never_fits(model):
            state.settle(model)
    if POLICIES[settings.scheduling.policy].learns is not state.arrivals.learns:
        _learn_arrivals_anew(state)
    return state.give_up(
        [entry for entry in waiting if _never_fits(state, entry.item)], "never_fits"
    )
