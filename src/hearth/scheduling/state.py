"""Everything the scheduler remembers, in one object that only its own package changes, the owner's orders among it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hearth.scheduling.actions import SwapReason
from hearth.scheduling.arrivals import Arrivals
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.residency import Phase, Residency
from hearth.scheduling.waiting import BANDS, Aging, Entry, Place, WaitingRoom
from hearth.types import Band, Lane, Sequence

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings


@dataclass(slots=True, eq=False)
class Orders:
    """The orders in force. Owned and changed by the scheduler alone.

    Attributes:
        paused: external work waits, whatever is free.
        pinned: the model to come back to; no external item's swap may evict it.
        wanted: models to bring in as soon as nothing more urgent needs the room, the first ordered first.
        unwanted: models to unload as soon as no swap is under way; an arrival for one makes its order void.
    """

    paused: bool = False
    pinned: str | None = None
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def want(self, model: str) -> None:
        """Bring it in; the latest order for a model counts."""
        self.unwanted = _without(self.unwanted, model)
        if model not in self.wanted:
            self.wanted = (*self.wanted, model)

    def unwant(self, model: str) -> None:
        """Unload it; the latest order for a model counts."""
        self.wanted = _without(self.wanted, model)
        if model not in self.unwanted:
            self.unwanted = (*self.unwanted, model)

    def settle(self, model: str) -> None:
        """Whatever was ordered for this model is done, void or in vain."""
        self.wanted, self.unwanted = _without(self.wanted, model), _without(self.unwanted, model)


def _without(models: tuple[str, ...], model: str) -> tuple[str, ...]:
    return tuple(other for other in models if other != model)


@dataclass(slots=True, eq=False)
class State:
    """The scheduler's memory.

    Attributes:
        entries: every accepted item that has not left, by sequence.
        active: within active hours, when internal work may interrupt.
        down_since: the backend has not answered since then; None while it does.
        orders: what the owner has ordered.
        announced: (instant, task type) of announced internal tasks, the soonest first.
        interruptions: numbers the interruptions, so that the latest goes first.
        failures: consecutive load or unload failures by model.
        not_before: models that are left alone until an instant, after a failure.
        idle_since: since when nothing waits or runs; None while something does.
        idle_with: what was in memory then, by name; None where the owner has loaded something since, to which no habit applies.
        home_failures: restores of the home model that failed in a row.
        rounds: rounds of admission so far, by model and band.
        preloaded_at: `idle_since` of the idle time in which a model was loaded beforehand, so that it happens once in each.
        cleared_for: the model for whose waiters memory is being cleared, and why; None once it is loaded, or nobody waits for it.
        held_until: the policy holds the resident model until then, in the hope of more work for it; None while it does not.
        installed: what the model server has listed, in lower case; None before its first list.
        next_wake_at: the first instant that this decision has asked to be woken at.
    """

    settings: SchedulerSettings
    waiting: WaitingRoom
    residency: Residency
    estimates: Estimates
    aging: Aging
    arrivals: Arrivals = field(default_factory=Arrivals)
    entries: dict[Sequence, Entry] = field(default_factory=dict)
    expiries: list[tuple[float, Sequence]] = field(default_factory=list)
    active: bool = True
    draining: bool = False
    down_since: float | None = None
    orders: Orders = field(default_factory=Orders)
    announced: tuple[tuple[float, str], ...] = ()
    interruptions: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)
    idle_since: float | None = None
    idle_with: tuple[str, ...] | None = None
    home_failures: int = 0
    preloaded_at: float | None = None
    cleared_for: tuple[str, SwapReason] | None = None
    held_until: float | None = None
    installed: frozenset[str] | None = None
    rounds: dict[tuple[str, Band], int] = field(default_factory=dict)
    next_wake_at: float | None = None

    @classmethod
    def new(cls, settings: SchedulerSettings, *, learns: bool = True) -> State:
        """An empty queue and an empty GPU. `learns`: the policy reads what `arrivals` learns."""
        estimates = Estimates(swap_prior_s=settings.gpu.swap_cost_prior_s)
        return cls(
            settings=settings,
            waiting=WaitingRoom(),
            residency=Residency(settings, estimates),
            estimates=estimates,
            aging=Aging(settings.scheduling.aging),
            arrivals=Arrivals(learns=learns),
        )

    @property
    def running(self) -> list[Entry]:
        """Entries with an attempt under way, stopping ones included."""
        return [entry for entry in self.entries.values() if entry.place is not Place.WAITING]

    @property
    def home(self) -> str | None:
        """The home model, None where there is none or it is not installed."""
        home = self.settings.gpu.home_model
        return home if home and self.has(home) else None

    @property
    def pinned(self) -> str | None:
        """The model that the owner has pinned, None where there is none or it is not installed."""
        pinned = self.orders.pinned
        return pinned if pinned is not None and self.has(pinned) else None

    def has(self, model: str) -> bool:
        """Whether the model server may have this model: it lists it, or has listed nothing yet."""
        return self.installed is None or model.lower() in self.installed

    def home_for(self, entry: Entry) -> str | None:
        """The home model, None where there is none or it could never be loaded for this item."""
        home = self.home
        return None if home is None or self.residency.never_fits(home, entry.item.task_type) else home

    @property
    def comes_back(self) -> str | None:
        """The model that is loaded when there is nothing else to do: the pinned one, else the home model."""
        return self.pinned or self.home

    @property
    def at_rest(self) -> bool:
        """Nothing runs, and nothing waits that may start."""
        return len(self.entries) == (self.waiting.count(Lane.EXTERNAL) if self.orders.paused else 0)

    def is_there(self, model: str) -> bool:
        """Is this model in memory, and not on its way out?"""
        resident = self.residency.residents.get(model)
        return resident is not None and resident.phase is Phase.READY

    def waits_for(self, model: str) -> int:
        """How many wait for exactly this model that may start."""
        return self.waiting.up_to(Band.BACKGROUND if self.orders.paused else BANDS[-1], model)

    def is_asked_for(self, model: str) -> bool:
        """Does anything run on this model, or wait for exactly it that may start?"""
        resident = self.residency.residents.get(model)
        return self.waits_for(model) > 0 or (resident is not None and bool(resident.running))

    def is_idle(self, model: str) -> bool:
        """Does nothing wait for exactly this model, and nothing run on it?"""
        resident = self.residency.residents.get(model)
        return not self.waiting.wants(model) and (resident is None or not resident.running)

    def task_is_near(self, now: float) -> bool:
        """Is an announced internal task so near that external work that would still run then is held back?"""
        window_s = self.settings.scheduling.schedule_drain_minutes * 60
        return any(due_at - window_s <= now < due_at for due_at, _ in self.announced)

    def wake_at(self, at: float) -> None:
        """Something may change at this instant without any other input."""
        if self.next_wake_at is None or at < self.next_wake_at:
            self.next_wake_at = at

    def enqueue(self, entry: Entry) -> None:
        """Let an entry wait (again)."""
        entry.model = None
        entry.forwarded = False
        entry.first_byte_at = None
        self.waiting.add(entry)
        self.aging.expect(entry)

    def release(self, entry: Entry, now: float) -> None:
        """The entry's attempt is over: free its slot."""
        resident = self.residency.residents.get(entry.model or "")
        if resident is not None:
            resident.running.pop(entry.item.sequence, None)
            resident.last_used_at = now

    def give_up(self, entry: Entry) -> None:
        """The entry waits no more and is done with."""
        self.waiting.remove(entry)
        self.leave(entry)

    def leave(self, entry: Entry) -> None:
        """The entry is done with; it may not be waiting any more."""
        del self.entries[entry.item.sequence]
        if self.arrivals.learns:
            self.arrivals.left(entry.item.caller)
