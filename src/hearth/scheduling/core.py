"""The scheduler: one object, one method, no side effects.

`handle` takes one decision, always in this order, which both shells rely on:

1. take the fact into the state (a late report about an attempt that is over is ignored; a fact that
   cannot change what was decided before ends the decision here);
2. give up what has waited too long, raise what has waited long;
3. bind what several models may serve (`aliases`), free what other programs are to have
   (`clearing`), stop what must yield, start the best item per free slot, swap where that is due
   (`placement`);
4. go home when there is nothing else to do (`home`);
5. re-arm the one timer. Each decision does, so a lost or early one cannot leave an item behind.

`now` is the caller's instant on the monotonic clock and must not go back; a timer may run a hair
early, so a shell reports `TimerFired` with `now = max(clock, due)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop
from typing import TYPE_CHECKING

from hearth.scheduling import clearing
from hearth.scheduling.actions import Action, Promote, Refusal, WakeAt
from hearth.scheduling.aliases import bind_waiting
from hearth.scheduling.estimates import Arrivals, Estimates
from hearth.scheduling.home import preload, restore
from hearth.scheduling.inputs import Arrived, Input, TimerFired
from hearth.scheduling.listing import Listing
from hearth.scheduling.placement import Placement
from hearth.scheduling.policies import learns_of_callers
from hearth.scheduling.residency import Residency
from hearth.scheduling.shares import arrange, share_anew
from hearth.scheduling.state import Deadlines, DeviceState, GatewayState
from hearth.scheduling.transitions import take_in
from hearth.scheduling.waited import Waited
from hearth.scheduling.waiting import Entry
from hearth.types import ONLY_DEVICE, Lane

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings


class Scheduler:
    """Decides; see the module docstring.

    `notes_waits`: count what each item has waited for (`waited`).

    `device` and its `gateway` are for this package and for tests; the shells read them through
    `scheduling.views` and `scheduling.forecast`.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        *,
        cuts_loads: bool = True,
        swaps: bool = True,
        notes_waits: bool = False,
    ) -> None:
        estimates = Estimates(swap_prior_s=settings.gpu.swap_cost_prior_s)
        listing = Listing()
        arrivals = Arrivals(learns=learns_of_callers(settings))
        self.gateway = GatewayState(settings, arrivals)
        self.device = DeviceState(
            ONLY_DEVICE,
            self.gateway,
            estimates,
            Residency(settings, estimates, self.gateway.waiting, listing),
            listing,
            cuts_loads=cuts_loads,
            swaps=swaps,
        )
        if notes_waits:
            self.gateway.note_waits(Waited())
        share_anew(self.device, 0.0)
        self._armed_at: float | None = None
        self._stranded_check_at: float | None = None

    @classmethod
    def on(cls, device: DeviceState) -> Scheduler:
        """One that goes on from this state."""
        scheduler = cls(device.gateway.settings)
        scheduler.gateway = device.gateway
        scheduler.device = device
        return scheduler

    def successor(self) -> Scheduler:
        """A new one that knows all that this one has learned, of callers as well."""
        scheduler = Scheduler(self.gateway.settings)
        scheduler.device.estimates = self.device.estimates
        scheduler.device.residency.tell_levels(self.device.estimates)
        scheduler.gateway.arrivals = self.gateway.arrivals
        return scheduler

    @property
    def estimates(self) -> Estimates:
        """What was learned, for those who carry it over a restart."""
        return self.device.estimates

    def handle(self, fact: Input, now: float) -> list[Action]:
        """Take one decision.

        Returns:
            What to do, in the order in which it was decided. At most one `WakeAt`, at the end,
            where the timer changes.
        """
        gateway = self.gateway
        device = self.device
        kind = type(fact)
        self._begin(now)
        actions = take_in(device, fact, now)
        if actions is None:
            return []
        gateway.next_wake_at = None
        if device.leases.taken:
            clearing.mark(device, now)
        if kind is TimerFired:
            self._armed_at = None
        is_unanswered = device.down_since is not None or bool(device.listing.away)
        if kind is not Arrived or not is_unanswered:
            self._stranded_check_at = None
        if gateway.expiries:
            actions += self._expired(now)
        if is_unanswered:
            actions += self._stranded(now)
        if gateway.aging:
            actions += self._promoted(now)
        arrange(device)
        if device.starts_nothing:
            device.idle_since = None
        else:
            actions += [] if device.has_near or device.leases.taken else self._homeless()
            actions += self._placed(now)
        arrange(device)
        if gateway.waiting.waited is not None:
            gateway.waiting.waited.read(device, now)
        return self._armed(actions, now)

    def _begin(self, now: float) -> None:
        """What is counted by the clock knows the instant of this decision."""
        waiting = self.gateway.waiting
        if waiting.shares is not None:
            waiting.shares.now = now
        if waiting.waited is not None:
            waiting.waited.begin(now)

    def _placed(self, now: float) -> list[Action]:
        """What starts, stops and is swapped; where everything is at rest, what may be loaded
        meanwhile.
        """
        device = self.device
        if self.gateway.waiting.unbound:
            bind_waiting(device, now)
            arrange(device)
        actions = clearing.given_up(device, now) if device.residency.keeps_out else []
        placement = Placement(device, now)
        placement.clear_for_leases()
        if device.at_rest:
            restore(device, placement, now)
            preload(device, placement, now)
        else:
            device.idle_since = None
        return actions + placement.run()

    def _due(
        self, heap: Deadlines, applies: Callable[[Entry, float], bool], now: float
    ) -> Iterator[Entry]:
        """The entries whose instant has come and still applies, in order; asks to be woken at the
        next.
        """
        while heap:
            at, sequence = heap[0]
            entry = self.gateway.entries.get(sequence)
            if entry is None or not applies(entry, at):
                heappop(heap)
            elif at > now:
                self.gateway.wake_at(at)
                return
            else:
                heappop(heap)
                yield entry

    def _promoted(self, now: float) -> list[Action]:
        """Internal items that have waited long enough for the next band, in the order in which
        their time came.
        """
        gateway = self.gateway
        actions = list[Action]()

        def applies(entry: Entry, at: float) -> bool:
            return entry.place == "waiting" and gateway.promoted_at(entry) == at

        for entry in self._due(gateway.aging, applies, now):
            gateway.rise(entry)
            gateway.expect_promotion(entry)
            gateway.promotions += 1
            actions.append(Promote(sequence=entry.item.sequence, band=entry.band))
        return actions

    def _expired(self, now: float) -> list[Action]:
        """Items that have waited for their first start as long as they may; what was started once
        is not given up for its age.
        """
        gateway = self.gateway
        actions = list[Action]()
        for entry in self._due(gateway.expiries, lambda entry, _: not entry.attempts, now):
            actions += gateway.give_up([entry], "expired")
        return actions

    def _stranded(self, now: float) -> list[Action]:
        """Items that have waited for a backend that is down for as long as they may.

        One pass over those that wait for one; the next is due when the first of those that stay
        runs out of patience (an arrival has more).
        """
        gateway = self.gateway
        actions = list[Action]()
        if self._stranded_check_at is None or self._stranded_check_at <= now:
            wait_s = gateway.settings.wait_when_down_s
            unanswered = [
                (entry, self.device.unanswered_since(entry)) for entry in self._may_be_stranded()
            ]
            until = {
                entry: max(since, entry.item.arrived_at) + wait_s
                for entry, since in unanswered
                if since is not None
            }
            stranded = [entry for entry, at in until.items() if at <= now]
            actions = gateway.give_up(stranded, "backend_down")
            self._stranded_check_at = min((at for at in until.values() if at > now), default=None)
        if not len(gateway.waiting):
            self._stranded_check_at = None
        if self._stranded_check_at is not None:
            gateway.wake_at(self._stranded_check_at)
        return actions

    def _may_be_stranded(self) -> list[Entry]:
        """In the order of arrival."""
        waiting = self.gateway.waiting
        if self.device.down_since is not None:
            return waiting.all_entries()
        is_away = self.device.listing.is_away
        lines = [model for model in waiting.models() if model is None or is_away(model)]
        found = [entry for model in lines for entry in waiting.entries(model)]
        return sorted(found, key=lambda entry: entry.item.sequence)

    def _homeless(self) -> list[Action]:
        """Items for any model, where there is none any more and nothing would bring one.

        What is paused brings none, and waits on; so does what an engine may have that is away.
        """
        gateway = self.gateway
        device = self.device
        paused = gateway.paused
        entries = [
            entry for entry in gateway.waiting.entries(None) if not (paused and entry.external)
        ]
        able = gateway.waiting.count(Lane.INTERNAL) if paused else len(gateway.waiting)
        if gateway.wanted or len(entries) < able or device.near_away:
            return []
        why: Refusal = "no_model" if device.home is None else "never_fits"
        homeless = [entry for entry in entries if device.home_for(entry) is None]
        return gateway.give_up(homeless, why)

    def _armed(self, actions: list[Action], now: float) -> list[Action]:
        """The actions, with the timer set to what was asked for during this decision."""
        at = self.gateway.next_wake_at
        if at is not None and at < now:
            at = now
        if at != self._armed_at:
            self._armed_at = at
            actions.append(WakeAt(at=at))
        return actions
