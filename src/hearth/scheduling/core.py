"""The scheduler: one object, one method, no side effects.

`handle` takes one decision, always in this order, which both shells rely on:

1. take the fact into the state (a late report about an attempt that is over is ignored; a fact that
   cannot change what was decided before ends the decision here);
2. give up what has waited too long, raise what has waited long;
3. stop what must yield, start the best item per free slot, swap where that is due (`placement`);
4. go home when there is nothing else to do (`home`);
5. re-arm the one timer. Each decision does, so a lost or early one cannot leave an item behind.

`now` is the caller's instant on the monotonic clock and must not go back; a timer may run a hair
early, so a shell reports `TimerFired` with `now = max(clock, due)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop
from typing import TYPE_CHECKING

from hearth.scheduling.actions import Action, Promote, Refusal, WakeAt
from hearth.scheduling.estimates import Arrivals, Estimates
from hearth.scheduling.home import preload, restore
from hearth.scheduling.inputs import Arrived, Input, TimerFired
from hearth.scheduling.placement import Placement
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.residency import Residency
from hearth.scheduling.state import Deadlines, State
from hearth.scheduling.transitions import take_in
from hearth.scheduling.waiting import Entry
from hearth.types import Band, Lane

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings


class Scheduler:
    """Decides; see the module docstring.

    `state` is for reading (status, invariants), never for changing from outside.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        estimates = Estimates(swap_prior_s=settings.gpu.swap_cost_prior_s)
        arrivals = Arrivals(learns=POLICIES[settings.scheduling.policy].learns)
        self.state = State(settings, estimates, Residency(settings, estimates), arrivals)
        self._armed_at: float | None = None
        self._stranded_check_at: float | None = None

    def handle(self, fact: Input, now: float) -> list[Action]:
        """Take one decision.

        Returns:
            What to do, in the order in which it was decided. At most one `WakeAt`, at the end,
            where the timer changes.
        """
        state, kind = self.state, type(fact)
        actions = take_in(state, fact, now)
        if actions is None:
            return []
        state.next_wake_at = None
        if kind is TimerFired:
            self._armed_at = None
        if kind is not Arrived or state.down_since is None:
            self._stranded_check_at = None
        if state.expiries:
            actions += self._expired(now)
        if state.down_since is not None:
            actions += self._stranded(state.down_since, now)
        if state.rising:
            actions += self._raised(now)
        if state.starts_nothing:
            state.idle_since = None
        else:
            actions += self._homeless() if not state.residency.residents else []
            actions += self._placed(now)
        return self._armed(actions, now)

    def _placed(self, now: float) -> list[Action]:
        """What starts, stops and is swapped; where everything is at rest, what may be loaded
        meanwhile.
        """
        state, placement = self.state, Placement(self.state, now)
        if state.at_rest:
            restore(state, placement, now)
            preload(state, placement, now)
        else:
            state.idle_since = None
        return placement.run()

    def _due(
        self, heap: Deadlines, applies: Callable[[Entry, float], bool], now: float
    ) -> Iterator[Entry]:
        """The entries whose instant has come and still applies, in order; asks to be woken at the
        next.
        """
        while heap:
            at, sequence = heap[0]
            entry = self.state.entries.get(sequence)
            still = entry is not None and applies(entry, at)
            if still and at > now:
                self.state.wake_at(at)
                return
            heappop(heap)
            if still and entry is not None:
                yield entry

    def _raised(self, now: float) -> list[Action]:
        """Internal items that have waited long enough for the next band, in the order in which
        their time came.
        """
        state, actions = self.state, list[Action]()
        for entry in self._due(
            state.rising,
            lambda entry, at: entry.place == "waiting" and state.rises_at(entry) == at,
            now,
        ):
            state.waiting.remove(entry)
            entry.band = Band(entry.band - 1)
            state.waiting.add(entry)
            state.expect_rise(entry)
            state.promotions += 1
            actions.append(Promote(sequence=entry.item.sequence, band=entry.band))
        return actions

    def _expired(self, now: float) -> list[Action]:
        """Items that have waited for their first start as long as they may; what was started once
        is not given up for its age.
        """
        state, actions = self.state, list[Action]()
        for entry in self._due(state.expiries, lambda entry, _: not entry.attempts, now):
            actions += state.give_up([entry], "expired")
        return actions

    def _stranded(self, down_since: float, now: float) -> list[Action]:
        """Items that have waited for a backend that is down for as long as they may.

        One pass over the queue; the next is due when the first of those that stay runs out of
        patience (an arrival has more).
        """
        state, actions, due_at = self.state, list[Action](), self._stranded_check_at
        if due_at is None or due_at <= now:
            wait_s, waiting = state.settings.wait_when_down_s, state.waiting.all_entries()
            until = {entry: max(down_since, entry.item.arrived_at) + wait_s for entry in waiting}
            actions = state.give_up(
                [entry for entry, at in until.items() if at <= now], "backend_down"
            )
            self._stranded_check_at = min((at for at in until.values() if at > now), default=None)
        if not len(state.waiting):
            self._stranded_check_at = None
        if self._stranded_check_at is not None:
            state.wake_at(self._stranded_check_at)
        return actions

    def _homeless(self) -> list[Action]:
        """Items for any model, where there is none any more and nothing would bring one.

        What is paused brings none, and waits on.
        """
        state, paused = self.state, self.state.paused
        entries = [
            entry for entry in state.waiting.entries(None) if not (paused and entry.external)
        ]
        able = state.waiting.count(Lane.INTERNAL) if paused else len(state.waiting)
        if state.wanted or len(entries) < able:
            return []
        why: Refusal = "no_model" if state.home is None else "never_fits"
        return state.give_up([entry for entry in entries if state.home_for(entry) is None], why)

    def _armed(self, actions: list[Action], now: float) -> list[Action]:
        """The actions, with the timer set to what was asked for during this decision."""
        at = self.state.next_wake_at
        if at is not None and at < now:
            at = now
        if at != self._armed_at:
            self._armed_at = at
            actions.append(WakeAt(at=at))
        return actions
