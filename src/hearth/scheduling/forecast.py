"""When will what waits be started? The real scheduler, run forward on a copy with the learned
estimates.

So an estimate knows everything that the decisions know: bands, affinity, swaps, preemption, drains.
Only what nobody can know is left out: future arrivals, callers who leave, and how long this very
answer will get. Reads a state, never changes it.
"""

from __future__ import annotations

import heapq
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import count, islice
from math import inf

from hearth.scheduling import inputs
from hearth.scheduling.actions import Action, Cut, Dispatch, Load, Stop, Unload, WakeAt
from hearth.scheduling.aliases import Binding
from hearth.scheduling.core import Scheduler
from hearth.scheduling.estimates import Estimates, remaining_s
from hearth.scheduling.inputs import Input
from hearth.scheduling.residency import Resident
from hearth.scheduling.rounds import budget_tokens
from hearth.scheduling.state import DeviceState, GatewayState
from hearth.scheduling.swaps import Swap
from hearth.scheduling.waiting import Entry, WaitingRoom
from hearth.types import Lane, QueueItem, Sequence, Usage

# so many waiting items are run forward (2 to 5 ms); what stands behind them is reckoned from their
# mean pace
HORIZON_ITEMS = 100
MAX_DECISIONS = 108
"""A policy that swaps for each item needs more decisions than this for so many: then fewer are run
forward.
"""
MAX_WORK = 4_000
"""The same where each decision has many models to choose from, in candidates that are compared (a
thousand take 1 to 2 ms).
"""
DECISION_WORK = 20  # what a decision costs beside its candidates


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was found, and at what cost."""

    # seconds until each of the first waiting items is started, and the newcomer, by sequence; empty
    # while nothing answers or starts
    starts: dict[Sequence, float] = field(default_factory=dict)
    decisions: int = 0
    work: int = 0  # candidates compared, `DECISION_WORK` for each decision included


class ForecastView:
    """What may be asked of a scheduler about time to come. Reads its state, and changes nothing but
    what is known of waits.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._device = scheduler.device
        self._gateway = scheduler.gateway
        # questions that a part of the state answers
        self.ahead_of = scheduler.gateway.waiting.ahead_of
        self.is_shared = scheduler.gateway.waiting.is_shared
        self.prompt_s = scheduler.estimates.prompt_s
        self.limit_s = scheduler.estimates.limit_s
        self.longest_load_s = scheduler.estimates.longest_s_to
        self.learn_wait = scheduler.estimates.learn_wait

    def usual_tokens_per_s(self, model: str) -> float | None:
        """As of `Estimates`."""
        return self._device.estimates.usual_tokens_per_s(model)

    def forecast(self, now: float, newcomer: QueueItem | None = None) -> Forecast:
        """Run the scheduler forward from `now`; `newcomer`: an item that it has not seen yet."""
        if self._device.starts_nothing:
            return Forecast()
        waiting = self._gateway.waiting
        shadow = _Shadow(self._device, self._first(HORIZON_ITEMS), now)
        if newcomer is None or not self.answers_for(newcomer):
            return shadow.run()
        ahead = waiting.ahead_of(newcomer.band) - self._device.beyond_reach(newcomer.band)
        if waiting.is_shared(newcomer.band):
            ahead -= len(waiting.behind(newcomer))
        if ahead < HORIZON_ITEMS:
            shadow.report(inputs.Arrived(item=newcomer), now)
        found = shadow.run()
        # beyond what was run forward, at the pace of that
        longest_s = max(found.starts.values(), default=0.0)
        times = max(1.0, ahead / max(1, len(found.starts)))
        found.starts.setdefault(newcomer.sequence, longest_s * times)
        return found

    def _first(self, limit: int) -> list[Entry]:
        """The first entries of those that may start."""
        waiting = self._gateway.waiting
        if self._device.is_plain:
            return waiting.first(limit)
        able = (each for each in waiting.in_order() if self._may_start(each.wanted_model, inf))
        return list(islice(able, limit))

    def _may_start(self, model: str | None, by: float) -> bool:
        """Its engine answers, and no lease that is not known to end by then keeps it out."""
        device = self._device
        if device.can_serve(model):
            return True
        until = device.leases.until
        return until is not None and until < by and device.is_barred_to_all(model)

    def wait_bound_s(self, item: QueueItem, expected_s: float, now: float) -> float:
        """Seconds within which 90 % of such items start, 0 where it is expected to start at once.

        Never less than what a load or a run before it has taken already that takes longer than
        expected.
        """
        if expected_s <= 0:
            return 0.0
        bound_s = self._device.estimates.wait_bound_s(item.band, expected_s)
        return max(bound_s, self._overdue_s(item, now))

    def _overdue_s(self, item: QueueItem, now: float) -> float:
        """How long the longest has taken of what the item waits for and should have ended."""
        device = self._device
        residency = device.residency
        own = residency.ready(self._model_of(item))
        runs = (
            now - entry.dispatched_at
            for resident in (residency.residents.values() if own is None else (own,))
            for entry in resident.running.values()
            if entry.expected_end_at < now
        )
        overdue_s = max(runs, default=0.0)
        swap = residency.swap
        if own is None and swap is not None and residency.loading is not None:
            loads_for_s = now - swap.started_at
            if loads_for_s > _load_s(device.estimates, swap, residency.loading):
                overdue_s = max(overdue_s, loads_for_s)
        return overdue_s

    def answers_for(self, item: QueueItem) -> bool:
        """Does a model server answer that could serve this item, and has it the memory in time?"""
        device = self._device
        if device.down_since is not None:
            return False
        given_up_at = item.arrived_at + self._gateway.settings.gpu.yielding.hold_s
        return device.is_plain or self._may_start(self.waits_for(item), given_up_at)

    def is_paused(self, lane: Lane, caller: str = "") -> bool:
        """Does the work of this lane, or this caller, wait until the owner resumes it?"""
        if caller in self._gateway.settings.queue.paused_callers:
            return True
        return self._gateway.paused and lane is Lane.EXTERNAL

    def is_rough(self, newcomer: str | None = None) -> bool:
        """Do estimated waits rest on guesses: on a model that was hardly ever run, or on a load
        that was never measured?

        Such estimates are about twice as far off as others. `newcomer` is the model of an item that
        the scheduler has not seen yet.
        """
        residents = self._device.residency.residents
        estimates = self._device.estimates
        busy = [resident.model for resident in residents.values() if resident.running]
        waited_for = list(filter(self._device.can_serve, self._gateway.waiting.models()))
        if not all(model is None or estimates.knows_runs(model) for model in (*waited_for, *busy)):
            return True
        return not all(
            model is None or model in residents or estimates.knows_load(model)
            for model in (*waited_for, newcomer)
            if self._device.can_serve(model)
        )

    def starts_at_once(self, item: QueueItem) -> bool:
        """Would this item be started now, with nobody before it?"""
        gateway = self._gateway
        model = self.waits_for(item)
        if len(gateway.waiting) or model is None or self._device.starts_nothing:
            return False
        if item.lane is Lane.EXTERNAL and any(gateway.near_tasks(item.arrived_at)):
            return False
        resident = self._device.residency.ready(model)
        if resident is None or self.is_paused(item.lane, item.caller):
            return False
        in_rounds = budget_tokens(gateway.settings.scheduling.packing) is not None
        return resident.free_slots > 0 and not (resident.running and in_rounds)

    def service_s(self, item: QueueItem) -> float:
        """Expected seconds from the start of an item to its end."""
        model = self._model_of(item)
        cached_tokens = self._device.residency.caches.cached_tokens(item, model)
        return self._device.estimates.service_s(item, model, cached_tokens=cached_tokens)

    def pace_s(self, item: QueueItem) -> float:
        """After how many seconds the next of several such items is expected to end."""
        parallel = self._gateway.settings.parallel(self._model_of(item))
        return self.service_s(item) / parallel

    def waits_for(self, item: QueueItem) -> str | None:
        """The model that an item waits for which is just being accepted; None for any."""
        if not item.choices:
            return item.model
        entry = Entry(item, item.band, (0, item.arrived_at, item.sequence), None, item.choices)
        return Binding(self._device, item.arrived_at).model_for(entry)

    def _model_of(self, item: QueueItem) -> str:
        """The model that it is likely to run on, "" where nobody knows."""
        return self.waits_for(item) or self._device.home or ""

    def lane_of(self, sequence: Sequence) -> Lane | None:
        entry = self._gateway.entries.get(sequence)
        return None if entry is None else entry.item.lane


def _load_s(estimates: Estimates, swap: Swap, model: str) -> float:
    """Expected seconds of the load that a swap ends with, at least half the swap whatever the
    unload took.
    """
    swap_s = estimates.load_s(swap.origin, model, swap.level)
    return max(swap_s - swap.before.unload_s, swap_s / 2)


def _copied_gateway(gateway: GatewayState) -> GatewayState:
    """The same without its items: the forecast puts copies of the first of them into it."""
    arrivals = copy(gateway.arrivals)
    arrivals.learns = False  # nothing, from what is made up
    return replace(
        gateway,
        arrivals=arrivals,
        waiting=WaitingRoom(),
        set_aside=WaitingRoom(),
        entries={},
        expiries=[],
        aging=[],
        ordered=dict(gateway.ordered),
        looked_at=0,
    )


def _copied_device(device: DeviceState, gateway: GatewayState) -> DeviceState:
    """The same memory and what was learned of it; an idle time or a hold of the policy begins anew
    in the forecast.
    """
    estimates = device.estimates.unlearning()
    return replace(
        device,
        gateway=gateway,
        estimates=estimates,
        residency=device.residency.copied(estimates, gateway.waiting),
        failures={},
        not_before=dict(device.not_before),
        left_alone=dict(device.left_alone),
        avoided=dict(device.avoided),
        rounds=dict(device.rounds),
        turn=None if device.turn is None else replace(device.turn),
        held_until=None,
        idle_since=None,
        idle_with=None,
        home_failures=0,
        preloaded_at=None,
    )


class _Shadow:
    """A second scheduler in the same situation, and a world in which everything takes as long as
    expected.
    """

    def __init__(self, device: DeviceState, waiting: list[Entry], now: float) -> None:
        self._began_at = now
        self._order = count()
        self._decisions = 0
        self._due: list[tuple[float, int, Input]] = []
        self._starts: dict[Sequence, float] = {}
        self._open = {entry.item.sequence for entry in waiting}
        self._gateway = _copied_gateway(device.gateway)
        self._device = _copied_device(device, self._gateway)
        self._brain = Scheduler.on(self._device)
        shares = device.gateway.waiting.shares
        self._gateway.waiting.shares = None if shares is None else shares.copied()
        for resident in self._device.residency.residents.values():
            self._expect_ends(resident)
        for entry in waiting:
            twin = replace(entry)
            self._gateway.entries[entry.item.sequence] = twin
            self._gateway.waiting.add(twin)
            self._gateway.expect_promotion(twin)
        self._expect_swap()
        for lease in device.leases.taken.values():
            if lease.until is not None:
                self._at(max(now, lease.until), inputs.LeaseEnded(id=lease.id))
        self.report(inputs.TimerFired(), now)

    def _expect_ends(self, resident: Resident) -> None:
        """What runs is under way in the copy, too, and ends when that can be expected."""
        now = self._began_at
        for sequence, entry in resident.running.items():
            self._gateway.entries[sequence] = entry
            if entry.place == "stopping":
                self._at(now, inputs.Stopped(sequence=sequence, attempt=entry.attempts))
            else:
                expected_s = entry.expected_end_at - entry.dispatched_at
                self._at_end(entry, now + remaining_s(entry.dispatched_at, expected_s, now))

    def _expect_swap(self) -> None:
        residency = self._device.residency
        now = self._began_at
        if residency.swap is None:
            return
        # An unload ends at once here. What it really takes is not lost: `_load_s` puts whatever has
        # not been cleared yet of the expected swap on the load behind it.
        for leaving in residency.unloading:
            self._at(now, residency.likely_left(leaving))
        if residency.cutting is not None:
            self._at(now, inputs.LoadAborted(model=residency.cutting))
        if residency.loading is not None:
            load_s = _load_s(self._device.estimates, residency.swap, residency.loading)
            loaded_at = now + remaining_s(residency.swap.started_at, load_s, now)
            self._at(loaded_at, inputs.Loaded(model=residency.loading))

    def report(self, fact: Input, at: float) -> None:
        """Have the copy take a decision, and expect what it orders to come true in due time."""
        self._decisions += 1
        if isinstance(fact, inputs.Arrived):
            self._open.add(fact.item.sequence)
        for action in self._brain.handle(fact, at):
            self._expect(action, at)

    def run(self) -> Forecast:
        """Go on until all has started, or as far as the work allows."""
        while (
            self._open and self._due and self._decisions < MAX_DECISIONS and self._work < MAX_WORK
        ):
            at, _, fact = heapq.heappop(self._due)
            self.report(fact, at)
        return Forecast(self._starts, self._decisions, self._work)

    @property
    def _work(self) -> int:
        return DECISION_WORK * self._decisions + self._gateway.looked_at

    def _expect(self, action: Action, now: float) -> None:
        match action:
            case Dispatch(sequence=sequence):
                self._starts.setdefault(sequence, now - self._began_at)
                self._open.discard(sequence)
                entry = self._gateway.entries[sequence]
                self._at_end(entry, entry.expected_end_at)
            case Stop(sequence=sequence, attempt=attempt):
                self._at(now, inputs.Stopped(sequence=sequence, attempt=attempt))
            case Load(model=model) if self._device.residency.swap is not None:
                load_s = _load_s(self._device.estimates, self._device.residency.swap, model)
                self._at(now + load_s, inputs.Loaded(model=model))
            case Unload(model=model):
                self._at(now, self._device.residency.likely_left(model))
            case Cut(model=model):
                self._at(now, inputs.LoadAborted(model=model))
            case WakeAt(at=at) if at is not None:
                self._at(at, inputs.TimerFired())
            case _:
                pass

    def _at_end(self, entry: Entry, at: float) -> None:
        self._at(
            at, inputs.Finished(sequence=entry.item.sequence, attempt=entry.attempts, usage=Usage())
        )

    def _at(self, at: float, fact: Input) -> None:
        heapq.heappush(self._due, (at, next(self._order), fact))
