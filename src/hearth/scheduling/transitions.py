"""Taking one reported fact into the state: the first step of every decision.

Each fact changes the state and may call for something at once (giving an item up, stopping an
attempt). Nothing is started here: who runs next is decided afterwards, from the whole state. An
order of the owner never goes before work: a load waits until nothing runs or waits, unless there is
room beside what is in memory, and an unload is void as soon as somebody asks for the model.
"""

from __future__ import annotations

import heapq

from hearth.scheduling import clearing, inputs, warm
from hearth.scheduling.actions import Action, Fail, Refusal, Requeue, Stop
from hearth.scheduling.aliases import AVOIDED_S, Binding
from hearth.scheduling.home import MAX_RESTORES, idle_ended
from hearth.scheduling.inputs import Input
from hearth.scheduling.preemption import has_way_on, interruptible, protected, resumable
from hearth.scheduling.reconfiguring import listed, reconfigured, replaced
from hearth.scheduling.refusals import hopeless
from hearth.scheduling.rounds import budget_tokens
from hearth.scheduling.shares import arrange
from hearth.scheduling.state import DeviceState, GatewayState
from hearth.scheduling.waiting import Entry
from hearth.types import Band, Lane, QueueItem, Sequence

RESENDS = 1  # attempts that a backend fault may undo before the item is given up
BREAKS = 2  # attempts that a backend fault may end within a stream before the item is given up
REFUSED_S = 600.0  # an item whose engine took no more for so long is given up
MIN_PAUSE_S = 0.5  # before an engine is asked again that took no more
MAX_PAUSE_S = 16.0  # the same for one that does not say when it may: 1, 2, 4 ... seconds
LOAD_RETRY_S = 2.0
UNLOAD_RETRY_S = 5.0
SHORT_RETRY_S = 5.0  # in which the memory is read again, and others may have given theirs back
SAME_S = 1.0  # announcements of one task type that are nearer to each other are one and the same
_EXTERNAL_LANE = Lane.EXTERNAL
"""A member of an enumeration, looked up once: in Python 3.11 that costs as much as a call."""


def take_in(device: DeviceState, fact: Input, now: float) -> list[Action] | None:  # noqa: PLR0911
    """What a fact changes, and what is to be done at once.

    Returns:
        None where it makes nothing possible, and nothing due, that was not so before: then there is
        nothing to decide. That is so for most facts of a busy day.
    """
    gateway = device.gateway
    match fact:
        case inputs.OfAttempt(sequence=sequence, attempt=attempt):
            entry = gateway.entries.get(sequence)
            if entry is None or entry.place == "waiting" or entry.attempts != attempt:
                return None  # that attempt is over
            return _of_attempt(device, entry, fact, now)
        case inputs.OfDevice(device=device_id):
            return _of_device(device, fact, now) if device_id == device.id else None
        case inputs.Arrived(item=item):
            return _arrived(device, item, now)
        case inputs.Cancelled(sequences=sequences):
            return [action for sequence in sequences for action in _drop(gateway, sequence)]
        case inputs.PreemptRequested():
            return _preempted(gateway)
        case inputs.PolicyChanged(settings=settings):
            return reconfigured(device, settings, now)
        case _:
            _note_wish(device, fact, now)
            return []


def _of_device(  # noqa: C901, PLR0912 - a closed set
    device: DeviceState, fact: inputs.OfDevice, now: float
) -> list[Action]:
    """What a model server and its card report."""
    match fact:
        case inputs.Loaded():
            _loaded(device, fact, now)
        case inputs.ModelDoubted(model=model):
            _doubt(device, model)
        case inputs.LoadFailed():
            return _load_failed(device, fact, now)
        case inputs.Unloaded():
            _unloaded(device, fact, now)
        case inputs.LoadAborted():
            return _load_aborted(device, fact, now)
        case inputs.UnloadFailed(model=model, works=works):
            return _unload_failed(device, model, now, works=works)
        case inputs.Drifted(appeared=appeared, vanished=vanished, asleep=asleep):
            for gone in vanished:
                _unloaded(device, gone, now)
            for come in appeared:
                _loaded(device, come, now)
            for model, level in asleep:
                device.residency.found_asleep(model, level, now)
        case inputs.GpuSampled():
            device.residency.sample(fact)
        case inputs.LeaseTaken():
            _leased(device, fact)
        case inputs.LeaseEnded(id=lease_id):
            device.leases.end(lease_id)
            clearing.mark(device, now)
        case inputs.BackendState(up=up):
            _answers(device, now, up=up)
        case inputs.ModelsListed():
            return listed(device, fact)
        case inputs.ModelsAway(models=models):
            _away(device, models, now)
        case inputs.ServerReplaced(learned=learned):
            replaced(device, learned, now)
    return []


def _leased(device: DeviceState, lease: inputs.LeaseTaken) -> None:
    device.residency.take_lease(lease)
    device.idle_with = None  # no habit applies to an idle time in which models have to go


def _note_wish(device: DeviceState, fact: Input, now: float) -> None:  # noqa: C901
    """What the owner wants, and what the clock shows: nothing to be done at once."""
    gateway = device.gateway
    match fact:
        case inputs.Switched(what="active", on=on):
            gateway.active = on
        case inputs.Switched(what="paused", on=on):
            gateway.paused = on
        case inputs.Switched(what="draining", on=on):
            gateway.draining = on
        case inputs.Switched(what="handing_over", on=on):
            gateway.handing_over = on
        case inputs.ModelPinned(model=model):
            _pinned(device, model)
        case inputs.ModelOrdered(model=model, comes=True):
            _want(device, model)
        case inputs.ModelOrdered(model=model):
            gateway.order(model, comes=False)
            # left alone until something was loaded: else it would be back in a moment
            if model == device.comes_back:
                device.home_failures = MAX_RESTORES
        case inputs.Scheduled():
            _announced(gateway, fact, now)
        case inputs.ClockStepped(ahead_s=ahead_s):
            moved = ((due_at - ahead_s, task_type) for due_at, task_type in gateway.announced)
            gateway.announced = tuple(each for each in moved if each[0] > now)


def _preempted(gateway: GatewayState) -> list[Action]:
    """The owner wants the memory: whoever can go on later unnoticed, yields."""
    yielding = [entry for entry in gateway.running if interruptible(gateway, entry)]
    for entry in yielding:
        entry.place = "stopping"
    return [
        Stop(sequence=entry.item.sequence, attempt=entry.attempts, how="preempt")
        for entry in yielding
    ]


def _answers(device: DeviceState, now: float, *, up: bool) -> None:
    if not up:
        device.down_since = now if device.down_since is None else device.down_since
        device.residency.sleepers.lose_all()
        return
    device.down_since = None
    device.cut_failures = 0
    device.not_before.clear()
    device.left_alone.clear()
    device.avoided.clear()
    device.failures.clear()


def _away(device: DeviceState, models: frozenset[str], now: float) -> None:
    """The engines of these models do not answer, though others do; those of all others do again."""
    since = now if device.down_since is None else device.down_since
    back = device.listing.mark_away(models, since)
    device.residency.mark()
    gone = [
        each.model
        for each in device.residency.residents.values()
        if each.is_away and each.phase == "ready" and not each.running
    ]
    for model in gone:
        device.residency.unloaded(model, now)
    if not back:
        return
    device.cut_failures = 0
    for known in (device.not_before, device.left_alone, device.avoided, device.failures):
        for model in [each for each in known if each.lower() in back]:
            del known[model]


def _pinned(device: DeviceState, model: str | None) -> None:
    gateway = device.gateway
    if gateway.pinned_name is not None and gateway.pinned_name != model:
        gateway.settle(gateway.pinned_name)
    gateway.pinned_name = model
    device.home_failures = 0
    if model is not None:  # pinning asks for the model, too; unpinning takes that back
        _want(device, model)


def _announced(gateway: GatewayState, fact: inputs.Scheduled, now: float) -> None:
    """By a wall clock and a monotonic one, the instant of a task that is announced again never
    comes out quite the same.
    """
    task = (fact.due_at, fact.task_type)
    others = [
        (due_at, task_type)
        for due_at, task_type in gateway.announced
        if due_at > now and not (task_type == fact.task_type and abs(due_at - fact.due_at) < SAME_S)
    ]
    gateway.announced = tuple(sorted((*others, task) if fact.comes else others))


def _want(device: DeviceState, model: str) -> None:
    if device.is_there(model) or device.listing.stays(model):
        device.gateway.settle(model)
    else:
        device.gateway.order(model, comes=True)


def _arrived(device: DeviceState, item: QueueItem, now: float) -> list[Action] | None:
    """Nothing to decide for an external item that comes to stand behind another of its own line."""
    gateway = device.gateway
    key = (0, item.arrived_at, item.sequence)
    entry = Entry(
        item, item.band, key, item.model, choices=item.choices, waits_since=gateway.since(now)
    )
    refusal = hopeless(device, entry, now)
    if refusal is not None:
        return [Fail(sequence=item.sequence, why=refusal)]
    if item.choices:
        entry.wanted_model = Binding(device, now).model_for(entry)
    if device.idle_since is not None and not gateway.is_paused(entry):
        idle_ended(device, entry, now)
    if item.conversation:
        warm.came(device, entry, now)
    if gateway.arrivals.learns:
        _learn_arrival(device, entry, now)
    gateway.accept(entry)
    arrange(device)
    if item.expires_at is not None:
        heapq.heappush(gateway.expiries, (item.expires_at, item.sequence))
        return []
    if item.lane is not _EXTERNAL_LANE or item.choices:
        return []
    return None if _changes_nothing(device, entry, now) else []


def _changes_nothing(device: DeviceState, entry: Entry, now: float) -> bool:
    """Behind another of its line a newcomer changes nothing that was decided, unless a hold weighs
    how many wait, an announced task lets short items pass long ones, leases small ones, or nothing
    starts and each has its own time to give up.
    """
    gateway = device.gateway
    if entry.is_set_aside:
        return True
    if gateway.waiting.lines[entry.band][entry.wanted_model][0] is entry:
        return False
    heads_are_all = device.held_until is None and not device.starts_nothing
    if not heads_are_all or gateway.announced:
        return False
    is_kept_out = device.residency.keeps_out and device.is_barred_to(entry)
    is_plain = not (device.leases.taken or is_kept_out)
    return is_plain or clearing.waits_as_known(device, entry, now)


def _learn_arrival(device: DeviceState, entry: Entry, now: float) -> None:
    arrivals = device.gateway.arrivals
    caller = entry.item.caller
    model = entry.wanted_model
    arrivals.arrived(caller, None if entry.choices else model, now)
    if model is None or device.runs_on(model):
        return
    if not device.gateway.waiting.wants(model):
        arrivals.came_back(caller, model, now)


def _of_attempt(
    device: DeviceState, entry: Entry, fact: inputs.OfAttempt, now: float
) -> list[Action] | None:
    """What the shell reports of an attempt that is under way."""
    match fact:
        case inputs.Started():
            if now <= entry.dispatched_at:  # at the instant of its dispatch, as was expected then
                return None
            entry.expected_end_at = now + device.service_s(entry, entry.model or "")
        case inputs.FirstByte(forwarded=forwarded):
            return _first_byte(device, entry, now, forwarded=forwarded)
        case inputs.Unresumable():
            entry.unresumable = True
            _go_on(entry)
        case inputs.Finished():
            _finished(device, entry, fact, now)
        case inputs.Failed():
            return _failed(device, entry, fact, now)
        case inputs.Stopped(kept_tokens=kept_tokens):
            return _stopped(device, entry, kept_tokens, now)
        case _:
            pass
    return []


def _first_byte(
    device: DeviceState, entry: Entry, now: float, *, forwarded: bool
) -> list[Action] | None:
    gateway = device.gateway
    entry.first_byte_at = now
    entry.forwarded = forwarded
    entry.refusals = 0
    if entry.item.conversation:
        warm.was_read(device, entry, now)
    has_rounds = budget_tokens(gateway.settings.scheduling.packing) is not None
    ends_round = has_rounds and len(gateway.waiting) > 0
    if entry.place == "running" and not ends_round:  # it only takes options away
        return None
    goes_on_later = has_way_on(entry) if entry.for_lease else resumable(gateway, entry)
    if forwarded and not goes_on_later:
        _go_on(entry)
    return []


def _go_on(entry: Entry) -> None:
    """Bytes that reached the caller while a `Stop` was on its way win: the shell lets such an
    attempt go on.
    """
    if entry.place == "stopping" and not entry.cancelled and not entry.cut:
        entry.place = "running"
        entry.for_lease = False


def _finished(device: DeviceState, entry: Entry, fact: inputs.Finished, now: float) -> None:
    item = entry.item
    usage = fact.usage
    model = entry.model or ""
    run_s = now - entry.dispatched_at
    expected_s = entry.expected_end_at - entry.dispatched_at
    prompt = warm.prompt_of(entry, usage)
    if fact.teaches:
        device.estimates.learn_item(item, model, usage, run_s, expected_s, prompt)
    resident = device.residency.residents.get(model)
    if resident is not None and resident.embeds and item.kind == "generate" and usage.output_tokens:
        resident.embeds = False
    device.release(entry, now)
    device.residency.took(model)
    device.gateway.leave(entry)
    if device.gateway.arrivals.learns:
        device.gateway.arrivals.ended(item.caller, model, now, item.band, item.choices)
    if item.conversation or (item.kind == "generate" and device.residency.caches.tables.get(model)):
        warm.went_on(device, entry, prompt, now)


def _doubt(device: DeviceState, model: str) -> None:
    """Have a model loaded anew, where it is loaded on request."""
    resident = device.residency.residents.get(model)
    if resident is not None and device.loads(model):
        resident.suspect = True


def _failed(device: DeviceState, entry: Entry, fact: inputs.Failed, now: float) -> list[Action]:
    # while the server is down, an attempt that fails is no fault of the item
    is_down = not _answers_for(device, entry.model or "")
    fault = fact.fault
    if fault == "refused" and not (entry.cancelled or entry.cut):
        return _held_off(device, entry, fact.retry_after_s, now)
    may_go_on = entry.breaks < BREAKS and not (entry.cancelled or entry.cut)
    goes_on = may_go_on and fact.kept_tokens is not None
    is_suspect = fault in {"first_byte_timeout", "model_gone"} or (
        fault == "runner_died" and goes_on
    )
    # what could not be loaded anew is asked again as it is
    if is_suspect:
        _doubt(device, entry.model or "")
    if fault in {"runner_died", "model_gone"}:
        device.residency.caches.unloaded(entry.model or "")
    device.release(entry, now)
    if goes_on:
        entry.breaks += 1
        _put_first(device.gateway, entry, fact.kept_tokens or 0, now)
        return [Requeue(sequence=entry.item.sequence, broke_off=True)]
    # Not once more: nobody wants it, it would fail again, its caller has a part that cannot go on,
    # or it has had its second attempt.
    if (
        entry.cancelled
        or fault == "fatal"
        or entry.forwarded
        or (entry.resends >= RESENDS and not is_down)
    ):
        return _left(device.gateway, entry, "attempts_exhausted")
    if not is_down:
        entry.resends += 1
    if device.gateway.waiting.shares is not None:
        device.gateway.waiting.shares.undone(entry)
    device.gateway.enqueue(entry)
    return [Requeue(sequence=entry.item.sequence)]


def _answers_for(device: DeviceState, model: str) -> bool:
    return device.down_since is None and not device.listing.is_away(model)


def _held_off(
    device: DeviceState, entry: Entry, retry_after_s: float | None, now: float
) -> list[Action]:
    """Its engine takes no more at the moment: nothing is sent to the model for a while, then no
    more than it had taken, and the item waits where it was.
    """
    gateway = device.gateway
    model = entry.model or ""
    device.release(entry, now)
    device.residency.refused(model, now)
    if not entry.refusals:
        entry.refused_at = now
    entry.refusals += 1
    if now - _refused_since(device, entry, model) > REFUSED_S:
        return _left(gateway, entry, "attempts_exhausted")
    if retry_after_s is None:
        retry_after_s = min(2.0 ** (entry.refusals - 1), MAX_PAUSE_S)
    until = now + max(retry_after_s, MIN_PAUSE_S)
    device.not_before[model] = max(device.not_before.get(model, until), until)
    if gateway.waiting.shares is not None:
        gateway.waiting.shares.undone(entry)
    gateway.enqueue(entry)
    return [Requeue(sequence=entry.item.sequence)]


def _refused_since(device: DeviceState, entry: Entry, model: str) -> float:
    """Since when an entry has waited for an engine that takes no more. Of many that wait only the
    first is sent, so the others have waited as long without a refusal of their own.
    """
    resident = device.residency.residents.get(model)
    if resident is None or resident.refused_at is None or len(entry.choices) > 1:
        return entry.refused_at
    waits_at = max(entry.waits_since.at, entry.item.arrived_at)
    return min(entry.refused_at, max(resident.refused_at, waits_at))


def _stopped(device: DeviceState, entry: Entry, kept_tokens: int, now: float) -> list[Action]:
    gateway = device.gateway
    if entry.item.conversation:
        warm.was_stopped(device, entry, kept_tokens, now)
    device.release(entry, now)
    for_lease = entry.for_lease
    if entry.cancelled or entry.cut:
        return _left(gateway, entry, "card_taken" if for_lease else "interrupted")
    if for_lease:
        if entry.forwarded and entry.wanted_model is None:  # no other model goes on with its answer
            entry.wanted_model = entry.model
    else:
        entry.interrupts += 1
    _put_first(gateway, entry, kept_tokens, now)
    requeue = Requeue(
        sequence=entry.item.sequence,
        interrupts=entry.interrupts,
        for_lease=for_lease,
        protected=not for_lease and protected(gateway, entry),
    )
    return [requeue]


def _left(gateway: GatewayState, entry: Entry, why: Refusal) -> list[Action]:
    """Its last attempt is over; nothing is reported to who is gone already."""
    gateway.leave(entry)
    return [] if entry.cancelled else [Fail(sequence=entry.item.sequence, why=why)]


def _put_first(gateway: GatewayState, entry: Entry, kept_tokens: int, now: float) -> None:
    """Let it wait before all others of its lane or, where it is internal or background, of its
    band.
    """
    if gateway.waiting.shares is not None and not kept_tokens:
        gateway.waiting.shares.undone(entry)
    gateway.interruptions += 1
    entry.kept_tokens = kept_tokens
    entry.waits_since = gateway.since(now)
    if entry.external and not entry.background:
        entry.band = Band.INTERRUPTED
    # negative and falling: before all that have kept the order of arrival (0), the latest first
    entry.key = (-gateway.interruptions, *entry.key[1:])
    gateway.enqueue(entry)


def _drop(gateway: GatewayState, sequence: Sequence) -> list[Action]:
    """The caller of an item is gone."""
    entry = gateway.entries.get(sequence)
    if entry is None or entry.cancelled:
        return []
    if entry.place == "waiting":
        gateway.leave_queue(entry)
        return []
    entry.cancelled = True
    if entry.place == "stopping":
        return []
    entry.place = "stopping"
    return [Stop(sequence=sequence, attempt=entry.attempts, how="abort")]


def _loaded(device: DeviceState, fact: inputs.Loaded, now: float) -> None:
    model = fact.model
    swap = device.residency.loaded(fact, now)
    if swap is None:
        return
    device.residency.residents[model].waiting_at_load = device.gateway.waiting.wants(model)
    swap_s = now - swap.started_at + swap.before.unload_s
    if fact.failed_level is None:  # else it was a wake in vain and a start
        device.estimates.learn_swap(swap.origin, model, swap_s, swap.level)
    _load_ended(device, swap_s)
    device.failures.pop(model, None)
    device.left_alone.pop(model, None)
    device.avoided.pop(model, None)
    must_go = device.residency.residents[model].yields_at is not None  # it has to come once more
    if device.gateway.ordered.get(model) is not False and not must_go:  # an order to unload stands
        device.home_failures = 0
        device.gateway.settle(model)
    if swap.why == "owner":
        device.idle_since = now
        device.idle_with = None


def _load_failed(device: DeviceState, fact: inputs.LoadFailed, now: float) -> list[Action]:
    model = fact.model
    gateway = device.gateway
    swap = device.residency.load_failed(model, now, begun=not fact.short)
    if swap is None:
        return []
    _load_ended(device, 0.0)
    if fact.short:
        device.not_before[model] = now + SHORT_RETRY_S
        return []
    if fact.unlisted:
        device.residency.keep_alone(model)
    if swap.why == "home":
        device.home_failures += 1
    if not fact.permanent and not _answers_for(device, model):
        return []
    device.failures[model] = device.failures.get(model, 0) + 1
    if not fact.permanent and device.failures[model] < 2:
        device.not_before[model] = now + LOAD_RETRY_S
        return []
    device.failures.pop(model)
    device.avoided[model] = now + max(AVOIDED_S, fact.left_alone_s)
    if fact.left_alone_s:
        device.left_alone[model] = device.not_before[model] = now + fact.left_alone_s
    gateway.settle(model)
    binding = Binding(device, now)
    waiting = gateway.waiting.entries(model)
    stranded = [entry for entry in waiting if not binding.has_another(entry)]
    if model == device.home and not device.residency.residents:
        stranded += gateway.waiting.entries(None)
    return gateway.give_up(stranded, "load_failed")


def _load_ended(device: DeviceState, took_s: float) -> None:
    """Who shares pays for what a load took; for one that served nobody, nothing."""
    shares = device.gateway.waiting.shares
    if shares is not None:
        shares.load_ended(took_s)


def _unloaded(device: DeviceState, fact: inputs.Unloaded, now: float) -> None:
    device.residency.unloaded(fact.model, now, fact)
    device.failures.pop(fact.model, None)


def _load_aborted(device: DeviceState, fact: inputs.LoadAborted, now: float) -> list[Action]:
    device.cut_failures = 0 if fact.clean else device.cut_failures + 1
    _load_ended(device, 0.0)
    if not (fact.gone or device.listing.is_away(fact.model)):
        return _unload_failed(device, fact.model, now)
    device.residency.load_cut(fact.model, now)
    return []


def _unload_failed(
    device: DeviceState, model: str, now: float, *, works: bool = False
) -> list[Action]:
    if device.listing.is_away(model):  # it has gone with its model server
        _unloaded(device, inputs.Unloaded(model=model), now)
        return []
    device.residency.unload_failed(model, now, works=works)
    device.not_before[model] = now + UNLOAD_RETRY_S
    if model in device.residency.sleepers.asleep:  # what waits does without its memory
        return []
    device.failures[model] = device.failures.get(model, 0) + 1
    if device.failures[model] < 2:
        return []
    serving = {
        resident.model for resident in device.residency.residents.values() if resident.serves
    }
    # what does not go keeps everything else out: only those that it or another serves can wait on,
    # and streams that began before other programs were given the memory
    waiting = device.gateway.waiting.all_entries()
    is_leased = bool(device.leases.taken)
    stranded = [
        entry
        for entry in waiting
        if not (is_leased and entry.has_begun)
        and (not serving or entry.wanted_model not in {None, *serving})
        and device.can_serve(entry.wanted_model)
    ]
    return device.gateway.give_up(stranded, "load_failed")
