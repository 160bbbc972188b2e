"""The scheduler: one object, one method, no side effects.

`handle` takes one decision, always in this order, which both shells rely on:

1. fold the fact into the state (a late report about an attempt that is over is ignored; a fact that cannot change what was decided
   before ends the decision here);
2. give up what has waited too long, raise what has waited long;
3. stop what must yield, start the best item per free slot, swap where that is due (`placement`);
4. go home when there is nothing else to do (`home`);
5. re-arm the one timer.

Time. `now` is the caller's instant on the monotonic clock and must not go back. A timer may run a hair before its deadline, so a shell
reports `TimerFired` with `now = max(clock, due)`; the timer is one value, re-armed by each decision, so a lost or early one cannot
leave an item behind.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from hearth.scheduling.actions import Action, Expire, Fail, Promote, Refusal, WakeAt
from hearth.scheduling.facts import FOLDS
from hearth.scheduling.home import preload, restore
from hearth.scheduling.inputs import Arrived, Input, TimerFired
from hearth.scheduling.placement import Placement
from hearth.scheduling.policies import POLICIES
from hearth.scheduling.state import State
from hearth.types import Band, Lane

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings


class Scheduler:
    """Decides; see the module docstring. `state` is for reading (snapshots, invariants), never for changing from outside."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.state = State.new(settings, learns=POLICIES[settings.scheduling.policy].learns)
        self._armed_at: float | None = None
        self._stranded_check_at: float | None = None

    def handle(self, fact: Input, now: float) -> list[Action]:
        """Take one decision.

        Returns:
            What to do, in the order in which it was decided. At most one `WakeAt`, at the end, where the timer changes.
        """
        state, kind = self.state, type(fact)
        actions = FOLDS[kind](state, fact, now)
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
            actions += self._stranded(now)
        if state.aging.due:
            actions += self._raise(now)
        if state.down_since is None and not state.draining:
            if not state.residency.residents and state.waiting.wants(None):
                actions += self._homeless()
            actions += self._place(now)
        else:
            state.idle_since = None
        return self._armed(actions, now)

    def _place(self, now: float) -> list[Action]:
        """What starts, stops and is swapped; where the house is at rest, what may be loaded meanwhile."""
        state, placement = self.state, Placement(self.state, now)
        if state.at_rest:
            restore(state, placement, now)
            preload(state, placement, now)
        else:
            state.idle_since = None
        return placement.run()

    def _raise(self, now: float) -> list[Action]:
        """Internal items that have waited long enough for the next band, in the order in which their time came."""
        state, actions = self.state, list[Action]()
        while (entry := state.aging.next_due(state.entries, now)) is not None:
            state.waiting.move(entry, Band(entry.band - 1))
            state.aging.promotions += 1
            state.aging.expect(entry)
            actions.append(Promote(sequence=entry.item.sequence, band=entry.band))
        if state.aging.due:
            state.wake_at(state.aging.due[0][0])
        return actions

    def _expired(self, now: float) -> list[Action]:
        """Items that have waited for their first start as long as they may; what was started once is not given up for its age."""
        state, actions = self.state, list[Action]()
        while state.expiries:
            at, sequence = state.expiries[0]
            entry = state.entries.get(sequence)
            if entry is not None and not entry.attempts:
                if at > now:
                    state.wake_at(at)
                    break
                state.give_up(entry)
                actions.append(Expire(sequence=sequence))
            heapq.heappop(state.expiries)
        return actions

    def _stranded(self, now: float) -> list[Action]:
        """Items that have waited for a backend that is down for as long as they may."""
        state, actions = self.state, list[Action]()
        if state.down_since is None or not len(state.waiting):
            self._stranded_check_at = None
            return actions
        if self._stranded_check_at is None or self._stranded_check_at <= now:
            actions = self._strand(state.down_since, now)
        if self._stranded_check_at is not None:
            state.wake_at(self._stranded_check_at)
        return actions

    def _strand(self, down_since: float, now: float) -> list[Action]:
        """One pass over the queue; the next is due when the first of those that stay runs out of patience (an arrival has more)."""
        state, actions = self.state, list[Action]()
        self._stranded_check_at = None
        for entry in sorted(state.waiting.all_entries(), key=lambda entry: entry.item.sequence):
            until = max(down_since, entry.item.arrived_at) + state.settings.wait_when_down_s
            if until <= now:
                state.give_up(entry)
                actions.append(Fail(sequence=entry.item.sequence, why=Refusal.BACKEND_DOWN))
            else:
                self._stranded_check_at = min(until, self._stranded_check_at or until)
        return actions

    def _homeless(self) -> list[Action]:
        """Items for any model, where there is none any more and nothing would bring one. What is paused brings none, and waits on."""
        state = self.state
        paused = state.orders.paused
        able = state.waiting.count(Lane.INTERNAL) if paused else len(state.waiting)
        entries = [entry for entry in state.waiting.entries(None) if not (paused and entry.external)]
        if state.orders.wanted or len(entries) < able:
            return []
        homeless = [entry for entry in entries if state.home_for(entry) is None]
        for entry in homeless:
            state.give_up(entry)
        why = Refusal.NO_MODEL if state.home is None else Refusal.NEVER_FITS
        return [Fail(sequence=entry.item.sequence, why=why) for entry in homeless]

    def _armed(self, actions: list[Action], now: float) -> list[Action]:
        """The actions, with the timer set to what was asked for during this decision."""
        at = self.state.next_wake_at
        if at is not None and at < now:
            at = now
        if at != self._armed_at:
            self._armed_at = at
            actions.append(WakeAt(at=at))
        return actions
