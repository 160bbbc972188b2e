"""What the rest of Hearth reads of the scheduler: its state is its own.

`StatusView` has what runs, what waits and what is in memory at the moment of asking; `ForecastView`
(`scheduling.forecast`) is about time to come. The entries, residents and swaps that a view hands
out are for reading.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from hearth.scheduling.clearing import barred, to_go
from hearth.scheduling.core import Scheduler
from hearth.scheduling.home import MAX_RESTORES
from hearth.scheduling.preemption import interruptible
from hearth.scheduling.reasons import Reason, reason_of
from hearth.scheduling.residency import Resident
from hearth.scheduling.shares import Account, Sharer
from hearth.scheduling.sleeping import Sleeper
from hearth.scheduling.state import ModelHold, Turn
from hearth.scheduling.swaps import Swap
from hearth.scheduling.waiting import BANDS, Entry, WaitingRoom
from hearth.scheduling.warm import Warmth
from hearth.types import Band, Lane, QueueItem, Sequence

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

LANE_OF: Mapping[Band, Lane] = {
    band: Lane.INTERNAL if band <= Band.BACKGROUND else Lane.EXTERNAL for band in BANDS
}


class StatusView:
    """The scheduler as it is at the moment of asking."""

    def __init__(self, scheduler: Scheduler) -> None:
        device = scheduler.device
        self._device = device
        gateway = scheduler.gateway
        self._gateway = gateway
        # questions that a part of the state answers
        self.entry = gateway.entries.get
        self.ahead_of = gateway.waiting.ahead_of
        self.behind = gateway.waiting.behind
        self.is_shared = gateway.waiting.is_shared
        self.may_start_on = gateway.waits_for
        self.is_there = device.is_there
        self.loads = device.loads
        self.need_mib = device.residency.need_mib
        self.least_need_mib = device.residency.least_need_mib
        self.held_mib = device.residency.held_mib
        self.never_fits = device.never_fits
        self.expected_swap_s = device.estimates.swap_s
        self.measured = device.estimates.measured
        self.residents: Mapping[str, Resident] = device.residency.residents
        self.asleep: Collection[str] = device.residency.sleepers.asleep

    @property
    def settings(self) -> SchedulerSettings:
        return self._gateway.settings

    @property
    def has_near(self) -> bool:
        """A model is in memory that may serve those who name none."""
        return self._device.has_near

    # Who waits, those whose callers are paused among them, and who runs.

    @property
    def waiting(self) -> int:
        return len(self._gateway.waiting) + len(self._gateway.set_aside)

    @property
    def _rooms(self) -> tuple[WaitingRoom, WaitingRoom]:
        return self._gateway.waiting, self._gateway.set_aside

    def pending(self, lane: Lane) -> int:
        """How many wait in a lane."""
        return sum(room.count(lane) for room in self._rooms)

    def depth(self, band: Band) -> int:
        """How many wait in a band."""
        return sum(room.depth(band) for room in self._rooms)

    def external_of(self, caller: str) -> int:
        """How many external requests of a caller wait."""
        return sum(room.external_of(caller) for room in self._rooms)

    def wants(self, model: str | None) -> int:
        """How many wait for exactly this model."""
        return sum(room.wants(model) for room in self._rooms)

    def first(self, limit: int) -> list[Entry]:
        """The first that wait, most urgent band first; then those whose callers are paused."""
        found = self._gateway.waiting.first(limit)
        return found + self._gateway.set_aside.first(limit - len(found))

    @property
    def paused_callers(self) -> Collection[str]:
        return self._gateway.settings.queue.paused_callers

    @property
    def running(self) -> list[Entry]:
        """Entries with an attempt under way, stopping ones included."""
        return self._gateway.running

    @property
    def wanted_models(self) -> Mapping[str | None, int]:
        models = [model for room in self._rooms for model in room.models()]
        return {model: self.wants(model) for model in models}

    def in_line(self, lane: Lane) -> Iterator[Entry]:
        """The waiting entries of a lane in order, then those whose callers are paused."""
        bands = [band for band in BANDS if LANE_OF[band] is lane]
        return chain.from_iterable(room.in_order(*bands) for room in self._rooms)

    def stranded(self, lane: Lane) -> list[QueueItem]:
        """What waits in a lane for a model whose engine does not answer while others do, or for
        the owner to let its caller go on.
        """
        found = list(self._gateway.set_aside.in_order()) if len(self._gateway.set_aside) else []
        listing = self._device.listing
        if listing.away:
            waiting = self._gateway.waiting
            models = [model for model in waiting.models() if model and listing.is_away(model)]
            found += [entry for model in models for entry in waiting.entries(model)]
        return [entry.item for entry in found if entry.item.lane is lane]

    def waiting_of(self, lane: Lane, caller: str, user: str) -> int:
        """How many requests of a caller, or of one of its users, wait in a lane."""
        return sum(
            entry.item.caller == caller and entry.item.user == user for entry in self.in_line(lane)
        )

    def shares(self) -> Mapping[Sharer, Account]:
        """What those were given who are served by their shares, and have work or had some of
        late.
        """
        shares = self._gateway.waiting.shares
        return {} if shares is None else shares.accounts()

    def reason_of(self, entry: Entry, now: float) -> Reason:
        return reason_of(self._device, entry, now)

    def waited_for(self, sequence: Sequence, now: float) -> Mapping[str, float]:
        """Seconds that an item of the queue has waited, by the kinds of `reasons`; until the
        decision after the one in which it has left.
        """
        waited = self._gateway.waiting.waited
        return {} if waited is None else waited.of(sequence, now)

    @property
    def interruptible(self) -> int:
        """How many of what runs could be stopped without their callers noticing."""
        return sum(interruptible(self._gateway, entry) for entry in self._gateway.running)

    def oldest_age_s(self, band: Band, now: float) -> float:
        """How long the oldest entry of a band has been known; 0 where none waits."""
        # the head of a line is its oldest, except where the latest interrupted or shares go first
        is_by_age = band is not Band.INTERRUPTED and not self.is_shared(band)
        oldest = [
            entry
            for room in self._rooms
            for entry in (room.heads(band) if is_by_age else room.in_order(band))
        ]
        return max((now - entry.item.arrived_at for entry in oldest), default=0.0)

    @property
    def rounds(self) -> Mapping[tuple[str, Band], int]:
        """Rounds of admission so far, by model and band."""
        return self._device.rounds

    # What was ordered.

    @property
    def active(self) -> bool:
        return self._gateway.active

    @property
    def paused(self) -> bool:
        return self._gateway.paused

    @property
    def draining(self) -> bool:
        return self._gateway.draining

    @property
    def pinned(self) -> str | None:
        """The model that the owner wants to come back to, installed or not."""
        return self._gateway.pinned_name

    @property
    def promotions(self) -> int:
        return self._gateway.promotions

    @property
    def announced(self) -> tuple[tuple[float, str], ...]:
        """(instant, task type) of announced internal tasks, the soonest first."""
        return self._gateway.announced

    @property
    def ordered(self) -> Mapping[str, bool]:
        """The owner's orders that are not done yet: is the model to come into memory, or to go?"""
        return self._gateway.ordered

    # What is in memory.

    @property
    def down_since(self) -> float | None:
        return self._device.down_since

    @property
    def away(self) -> Mapping[str, float]:
        """Models whose engine does not answer while others do, in lower case, and since when."""
        return self._device.listing.away

    @property
    def home(self) -> str | None:
        """The home model, None where there is none or it is not installed."""
        return self._device.home

    @property
    def stays_out(self) -> str | None:
        """The model to come back to, where it is left out of memory until another was loaded: it
        was ordered out, or could not be loaded.
        """
        return self._device.comes_back if self._device.home_failures >= MAX_RESTORES else None

    @property
    def latest_first(self) -> list[Resident]:
        return self._device.residency.latest_first

    @property
    def sleepers(self) -> list[Sleeper]:
        """The models that sleep, the one used last first."""
        return self._device.residency.sleepers.oldest_first()[::-1]

    @property
    def on_card(self) -> list[Resident]:
        """Those that take, or may take, memory of the card."""
        residency = self._device.residency
        residents = residency.residents.values()
        return [each for each in residents if not residency.listing.is_off_card(each.model)]

    def is_kept(self, model: str) -> bool:
        """Is it this model that a swap waits for, since somebody is likely to return to it?"""
        hold = self._device.hold
        if hold is not None:
            return hold.model == model
        # A policy gives only the time until which it holds: it holds a model that somebody used
        # last.
        is_held = self._device.held_until is not None
        return is_held and bool(self._gateway.arrivals.habits(model))

    def warmth(self, model: str, now: float) -> Warmth:
        """What is warm in the prompt cache of a model."""
        return self._device.residency.caches.warmth(model, now)

    def saved_conversations(self) -> dict[str, int]:
        """By model that is not in memory, how many of its conversations outlive that."""
        saved = self._device.residency.caches.saved
        return {model: len(conversations) for model, conversations in saved.items()}

    @property
    def reread(self) -> Iterator[tuple[str, float, float]]:
        """Tokens and seconds of what was read again although it had been read before, by model."""
        caches = self._device.residency.caches
        for model, tokens in caches.reread_tokens.items():
            yield model, tokens, caches.reread_s_by_model[model]

    @property
    def swap(self) -> Swap | None:
        return self._device.residency.swap

    @property
    def swaps_begun(self) -> int:
        return self._device.residency.swaps_begun

    @property
    def loading(self) -> str | None:
        return self._device.residency.loading

    @property
    def cutting(self) -> str | None:
        return self._device.residency.cutting

    @property
    def unloading(self) -> list[str]:
        return self._device.residency.unloading

    @property
    def cut_failures(self) -> int:
        """Loads in a row that were not gone in time after they were cut."""
        return self._device.cut_failures

    @property
    def hold(self) -> ModelHold | None:
        """The model that external work waits for, since an internal caller is likely to return."""
        return self._device.hold

    @property
    def turn(self) -> Turn | None:
        return self._device.turn

    @property
    def capacity_mib(self) -> float | None:
        return self._device.residency.capacity_mib

    @property
    def left_mib(self) -> float | None:
        """The capacity without what other programs hold or are to have; None for unknown."""
        return self._device.residency.left_mib

    @property
    def room_mib(self) -> float | None:
        """The same without what stays in memory."""
        return self._device.residency.room_mib

    @property
    def held_before_leases_mib(self) -> float:
        """What others held of the card before those with leases took theirs."""
        return self._device.residency.leases.base_mib

    @property
    def leased_until(self) -> float | None:
        """When the last of the leases ends, None where one ends with its holder, or there is
        none.
        """
        return self._device.leases.until

    @property
    def in_leased_room(self) -> tuple[str, ...]:
        """The models that are still, or may still be, in memory that leases are to have."""
        return tuple(sorted([each.model for each in to_go(self._device)]))

    @property
    def has_leases(self) -> bool:
        """Other programs have memory of the card, or are to have it."""
        return bool(self._device.leases.taken)

    def is_barred(self, models: Iterable[str | None]) -> bool:
        """Do leases keep out every one of these models (None: any)?"""
        return all(map(self._device.is_barred_to_all, models))

    @property
    def waiting_for_leases(self) -> int:
        """How many wait for memory that other programs have."""
        return len(barred(self._device))

    def fits_beside(self, model: str, keep: Iterable[str], task_type: str | None = None) -> bool:
        """Can it be loaded while these stay, whatever else has to go?"""
        return self._device.residency.eviction_for(model, keep, task_type) is not None
