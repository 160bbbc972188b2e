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
from itertools import count

from hearth.scheduling import inputs
from hearth.scheduling.actions import Action, Cut, Dispatch, Load, Stop, Unload, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.inputs import Input
from hearth.scheduling.placement import budget_tokens
from hearth.scheduling.residency import Residency, Resident, Swap
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry
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


def forecast(state: State, now: float, newcomer: QueueItem | None = None) -> Forecast:
    """Run the scheduler forward from `now`; `newcomer`: an item that the state has not seen yet."""
    if state.starts_nothing:
        return Forecast()
    shadow = _Shadow(state, state.waiting.first(HORIZON_ITEMS), now)
    ahead = 0 if newcomer is None else state.waiting.ahead_of(newcomer.band)
    if newcomer is not None and ahead < HORIZON_ITEMS:
        shadow.report(inputs.Arrived(item=newcomer), now)
    found = shadow.run()
    if newcomer is not None:
        starts = found.starts
        starts.setdefault(
            newcomer.sequence,
            max(starts.values(), default=0.0) * max(1.0, ahead / max(1, len(starts))),
        )
    return found


def remaining_s(began_at: float, expected_s: float, now: float) -> float:
    """Seconds that something can be expected to take yet which was to take `expected_s` in all.

    What has outlived its estimate takes as much again as it is late, and at least half the estimate
    (the median of what is left of answers of exponential length is 0.7 times the mean).
    """
    left_s = began_at + expected_s - now
    return left_s if left_s > 0 else max(-left_s, expected_s / 2)


def _load_s(estimates: Estimates, swap: Swap, model: str) -> float:
    """Expected seconds of the load that a swap ends with, at least half the swap whatever the
    unload took.
    """
    swap_s = estimates.swap_s(swap.origin, model)
    return max(swap_s - swap.cleared_s, swap_s / 2)


_AS_THEY_ARE = (
    "active",
    "announced",
    "cleared_for",
    "cut_failures",
    "cuts_loads",
    "external_run_s",
    "external_running",
    "external_runs_since",
    "hold",
    "installed",
    "interruptions",
    "paused",
    "pinned_name",
    "turn_ended",
)


class _Shadow:
    """A second scheduler in the same situation, and a world in which everything takes as long as
    expected.
    """

    def __init__(self, state: State, waiting: list[Entry], now: float) -> None:
        self._brain = Scheduler(state.settings)
        self._began_at = now
        self._order = count()
        self._decisions = 0
        self._due: list[tuple[float, int, Input]] = []
        self._starts: dict[Sequence, float] = {}
        self._open = {entry.item.sequence for entry in waiting}
        mine = self._brain.state
        for name in _AS_THEY_ARE:
            setattr(mine, name, getattr(state, name))
        mine.turn = None if state.turn is None else replace(state.turn)
        mine.ordered, mine.not_before, mine.rounds = (
            dict(state.ordered),
            dict(state.not_before),
            dict(state.rounds),
        )
        mine.estimates, mine.arrivals = state.estimates.unlearning(), copy(state.arrivals)
        mine.arrivals.learns = False  # nothing, from what is made up
        mine.residency = state.residency.copied(mine.estimates)
        mine.residency.residents = {
            model: self._copied(resident) for model, resident in state.residency.residents.items()
        }
        for entry in waiting:
            twin = mine.entries[entry.item.sequence] = replace(entry)
            mine.waiting.add(twin)
            mine.expect_rise(twin)
        if state.residency.swap is not None:
            self._expect_swap(mine.residency, state.residency.swap)
        self.report(inputs.TimerFired(), now)

    def _copied(self, resident: Resident) -> Resident:
        now, running = (
            self._began_at,
            {sequence: replace(entry) for sequence, entry in resident.running.items()},
        )
        for entry in running.values():
            self._brain.state.entries[entry.item.sequence] = entry
            if entry.place == "stopping":
                self._at(now, inputs.Stopped(sequence=entry.item.sequence, attempt=entry.attempts))
            else:
                expected_s = entry.expected_end_at - entry.dispatched_at
                self._at_end(entry, now + remaining_s(entry.dispatched_at, expected_s, now))
        return replace(resident, running=running)

    def _expect_swap(self, residency: Residency, swap: Swap) -> None:
        residency.swap, now, model = replace(swap), self._began_at, residency.loading
        for leaving in residency.unloading:
            self._at(now, inputs.Unloaded(model=leaving))
        if residency.cutting is not None:
            self._at(now, inputs.LoadCut(model=residency.cutting))
        if model is not None:
            load_s = _load_s(self._brain.state.estimates, swap, model)
            self._at(now + remaining_s(swap.started_at, load_s, now), inputs.Loaded(model=model))

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
        return DECISION_WORK * self._decisions + self._brain.state.looked_at

    def _expect(self, action: Action, now: float) -> None:
        state = self._brain.state
        match action:
            case Dispatch(sequence=sequence):
                self._starts.setdefault(sequence, now - self._began_at)
                self._open.discard(sequence)
                self._at_end(state.entries[sequence], state.entries[sequence].expected_end_at)
            case Stop(sequence=sequence, attempt=attempt):
                self._at(now, inputs.Stopped(sequence=sequence, attempt=attempt))
            case Load(model=model) if state.residency.swap is not None:
                load_s = _load_s(state.estimates, state.residency.swap, model)
                self._at(now + load_s, inputs.Loaded(model=model))
            case Unload(model=model):
                self._at(now, inputs.Unloaded(model=model))
            case Cut(model=model):
                self._at(now, inputs.LoadCut(model=model))
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


def is_rough(state: State, newcomer: str | None = None) -> bool:
    """Do estimated waits rest on guesses: on a model that was hardly ever run, or on a load that
    was never measured?

    Such estimates are about twice as far off as others. `newcomer` is the model of an item that the
    state has not seen yet.
    """
    residents, estimates = state.residency.residents, state.estimates
    waited_for = state.waiting.models()
    busy = [resident.model for resident in residents.values() if resident.running]
    if not all(model is None or estimates.knows_runs(model) for model in (*waited_for, *busy)):
        return True
    return not all(
        model is None or model in residents or estimates.knows_load(model)
        for model in (*waited_for, newcomer)
    )


def is_paused(state: State, lane: Lane) -> bool:
    """Does the work of this lane wait until the owner says otherwise?"""
    return state.paused and lane is Lane.EXTERNAL


def slot_is_free(state: State, item: QueueItem) -> bool:
    """Would this item be started at once, with nobody before it?"""
    if (
        len(state.waiting)
        or item.model is None
        or state.starts_nothing
        or is_paused(state, item.lane)
    ):
        return False
    if item.lane is Lane.EXTERNAL and any(state.near_tasks(item.arrived_at)):
        return False
    resident = state.residency.ready(item.model)
    if resident is None or (
        resident.running and budget_tokens(state.settings.scheduling.packing) is not None
    ):
        return False
    return resident.free_slots > 0
