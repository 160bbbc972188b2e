"""What the GPU holds: resident models with a VRAM reservation and slots each, and the one swap that
may be under way.

A model is loaded beside others only while all reservations are known and fit the capacity; anything
unknown means one model at a time; a machine without a GPU has no limit (the admission rule of
Peregrine's LLM queue optimizer). A reservation exists exactly as long as its resident does, so it
cannot leak or go negative.

That holds among the models that are loaded on request. One that stays in memory takes the room that
it is known to need from all of them, and nothing where that is unknown; one that is not on the card
takes none. Neither is ever among what has to go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import field, replace
from math import exp, inf
from typing import TYPE_CHECKING, Literal

from hearth.config.choices import MIB_PER_GB
from hearth.scheduling.actions import SwapReason
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.evictions import Evictions, any_unknown, freed_mib
from hearth.scheduling.inputs import GpuSampled, LeaseTaken, Loaded, Unloaded
from hearth.scheduling.leases import Leases
from hearth.scheduling.listing import Listing
from hearth.scheduling.sleeping import Becomes, Sleepers
from hearth.scheduling.swaps import NOTHING_BEFORE, Swap
from hearth.scheduling.waiting import Entry, WaitingRoom
from hearth.scheduling.warm import PromptCaches
from hearth.types import Sequence, SleepLevel, entity

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

USE_MEMORY_S = 1800.0  # a use so long ago counts 1/e of one now
# models whose uses are remembered; the one that was not used for longest goes first
MAX_USED = 1000


@entity
class Resident:
    """One model in memory or on its way in or out."""

    model: str
    reserved_mib: float | None  # None where its need is unknown
    parallel: int  # its slots; fewer once its engine has taken no more
    # the task that it was loaded for, whose VRAM budget may stand in for the model's own
    task_type: str | None = None
    # cutting: its load is being ended
    phase: Literal["loading", "cutting", "ready", "unloading"] = "loading"
    # when it became ready; what it has served since then is measured from here
    loaded_at: float = 0.0
    last_used_at: float = 0.0
    started_at: float = 0.0  # when the last item started on it
    waiting_at_load: int = 0  # how many waited for it when it became ready
    # a waiter has been dispatched since the load, one that named the model if such waited; it is
    # not swapped away before that
    settled: bool = True
    # it stopped answering; nothing more is sent to it, and it is unloaded once idle
    suspect: bool = False
    # it was asked for embeddings or seems to be made for them, and has written nothing since: it
    # may be unable to answer a prompt for any model
    embeds: bool = False
    is_away: bool = False  # its engine does not answer: nothing is sent to it, or asked of it
    may_go: bool = True  # for others: that frees memory of the card, and its engine would do it
    # requests that have ended since slots were taken away, or the last one was given back
    taken: int = 0
    # what it is on its way to become, while it is unloading; None: stopped
    becomes: SleepLevel | None = None
    # until when what runs on it may go on, where it has to go for a lease; else None
    yields_at: float | None = None
    # the first time that its engine took no more since it last answered; None where it takes more
    refused_at: float | None = None
    running: dict[Sequence, Entry] = field(default_factory=dict)

    @property
    def free_slots(self) -> int:
        return self.parallel - len(self.running)

    def copied(self) -> Resident:
        running = {sequence: replace(entry) for sequence, entry in self.running.items()}
        return replace(self, running=running)

    @property
    def is_leaving(self) -> bool:
        """It is on its way out, or will be."""
        must_go = self.suspect or self.is_away or self.yields_at is not None
        return must_go or self.phase in {"cutting", "unloading"}

    @property
    def serves(self) -> bool:
        """It can be sent work."""
        must_go = self.suspect or self.is_away or self.yields_at is not None
        return self.phase == "ready" and not must_go


class Residency:
    """The set of residents. Owned and changed by the scheduler alone."""

    def __init__(
        self,
        settings: SchedulerSettings,
        estimates: Estimates,
        waiting: WaitingRoom,
        listing: Listing,
    ) -> None:
        self.residents: dict[str, Resident] = {}
        self.listing = listing
        self.leases = Leases()
        self.sleepers = Sleepers(settings, listing)
        self.caches = PromptCaches(
            self.residents,
            estimates,
            waiting,
            listing,
            enabled=settings.scheduling.warm_conversations,
        )
        self.swap: Swap | None = None
        self.swaps_begun = 0
        self.moved_at = 0.0  # when the last load or unload ended
        self._settings = settings
        self._estimates = estimates
        self._uses: dict[str, tuple[float, float]] = {}
        self._vacated: tuple[str, ...] = ()
        self._before = NOTHING_BEFORE
        self._learned_mib: dict[str, float] = {}
        self._whole_mib: dict[str, float] = {}  # the same with what is not on the card
        self._alone: set[str] = set()
        self._sampled_mib: float | None = None
        # of the card and of what others held, when that was last known
        self._last_mib: float | None = None
        self._last_foreign_mib = 0.0
        self._foreign_mib = 0.0
        self._unified = False
        self.tell_levels(estimates)

    def tell_levels(self, estimates: Estimates) -> None:
        """Have estimates go by the levels of what sleeps, or would."""
        estimates.level_of = lambda model: self.sleepers.level_of(model, self.residents)

    def copied(self, estimates: Estimates, waiting: WaitingRoom) -> Residency:
        """The same memory for a forecast, down to what runs."""
        twin = copy(self)
        twin._estimates = estimates  # noqa: SLF001 - of its own class
        twin._uses = dict(self._uses)  # noqa: SLF001 - of its own class
        twin.leases = self.leases.copied()
        twin.swap = None if self.swap is None else replace(self.swap)
        twin.residents = {model: each.copied() for model, each in self.residents.items()}
        twin.caches = self.caches.copied(twin.residents, estimates, waiting)
        twin.sleepers = self.sleepers.copied()
        twin.tell_levels(estimates)
        return twin

    def configure(self, settings: SchedulerSettings) -> None:
        """Apply new settings; reservations and slots of residents follow them."""
        self._settings = settings
        self.caches.switch(on=settings.scheduling.warm_conversations)
        self.sleepers.configure(settings)
        for resident in self.residents.values():
            resident.reserved_mib = self.need_mib(resident.model, resident.task_type)
            resident.parallel = settings.parallel(resident.model)

    def mark(self) -> None:
        """Have the residents follow what the engines say of their models by now."""
        listing = self.listing
        self._alone = {
            each for each in self._alone if not (listing.stays(each) or listing.is_off_card(each))
        }
        for resident in self.residents.values():
            resident.reserved_mib = self.need_mib(resident.model, resident.task_type)
            self._mark(resident)
        self.sleepers.mark()

    def _mark(self, resident: Resident) -> None:
        listing = self.listing
        resident.is_away = listing.is_away(resident.model)
        # an unload or a load that is under way ends as it would
        is_moving = resident.phase != "ready"
        resident.may_go = not (
            listing.stays(resident.model)
            or listing.is_off_card(resident.model)
            or (resident.is_away and not is_moving)
        )
        if listing.stays(resident.model):
            resident.suspect = False

    def forget(self) -> None:
        """Another model server has come, whose memory is empty until it reports otherwise."""
        self.residents.clear()
        self.caches.forget()
        self.sleepers.forget()
        self.swap = None
        self._uses.clear()
        self._learned_mib.clear()
        self._whole_mib.clear()
        self._alone.clear()
        self._vacated = ()
        self._before = NOTHING_BEFORE

    def sample(self, fact: GpuSampled) -> None:
        """Remember what the GPU reports of its size, what others hold of it, whether it is main
        memory, and what of that is free.
        """
        self.sleepers.sample(fact.host_free_mib, unified=fact.unified)
        self._sampled_mib = fact.capacity_mib
        self._foreign_mib = max(0.0, fact.foreign_mib)
        if fact.capacity_mib is not None:
            self._last_mib = fact.capacity_mib
            self._last_foreign_mib = self._foreign_mib
            self.leases.base_mib = min(self.leases.base_mib, self._foreign_mib)
        if fact.unified is not self._unified:
            self._unified = fact.unified
            self.mark()

    def take_lease(self, lease: LeaseTaken) -> None:
        self.leases.take(lease, self._held_by_others_mib)

    @property
    def _held_by_others_mib(self) -> float:
        """Where there are leases, a card that cannot be read for a while keeps what it had."""
        is_lost = self._sampled_mib is None
        return max(self._foreign_mib, self._last_foreign_mib if is_lost else 0.0)

    @property
    def capacity_mib(self) -> float | None:
        """VRAM to share out: configured, else sampled, else None for unknown; infinite without a
        GPU. Unified memory is never more than sampled.
        """
        configured_gb = self._settings.gpu.vram_gb
        if configured_gb is None:
            return self._sampled_mib
        if configured_gb == 0:
            return inf
        configured_mib = configured_gb * MIB_PER_GB
        if not self._unified or self._sampled_mib is None:
            return configured_mib
        return min(configured_mib, self._sampled_mib)

    @property
    def left_mib(self) -> float | None:
        """The capacity without what other programs hold of it now or are to have; None for
        unknown.
        """
        capacity = self.capacity_mib
        others_mib = self._foreign_mib
        if self.leases.taken:
            # It keeps its size as well. Where that was never known, nothing can be reckoned, and
            # nothing stays.
            capacity = self._last_mib if capacity is None else capacity
            others_mib = max(self._held_by_others_mib, self.leases.others_mib)
            if capacity is None or others_mib == inf:
                return 0.0
        if capacity is None:
            return None
        if self._unified and self._sampled_mib is not None and capacity < self._sampled_mib:
            # what the owner keeps from models is there for others
            others_mib = max(0.0, others_mib - (self._sampled_mib - capacity))
        return max(0.0, capacity - others_mib)

    @property
    def room_mib(self) -> float | None:
        """VRAM that the reservations of what may go have to fit: what is left without what stays;
        None for unknown.
        """
        left = self.left_mib
        if left is None or self.listing.is_plain:
            return left
        return max(0.0, left - self.held_mib())

    @property
    def keeps_out(self) -> bool:
        """What has no room may not come, not even alone: others are to have the memory, or it would
        go into swap.
        """
        return self._unified or bool(self.leases.taken)

    def has_no_room(self, model: str, need_mib: float | None) -> bool:
        """Is a model of this need (None: unknown) kept out, whatever else goes?"""
        if not self.keeps_out:
            return False
        room = self.room_mib
        if room is None or room == inf:
            return False
        if need_mib is None and not self.leases.taken:
            need_mib = self.listing.file_mib.get(model.lower(), 0.0)
        return need_mib is None or need_mib > room

    def held_mib(self) -> float:
        """Reserved for what may not go."""
        held = [
            each
            for each in self.residents.values()
            if not each.may_go and (each.running or not each.is_away)
        ]
        return freed_mib(held)

    def need_mib(self, model: str, task_type: str | None = None) -> float | None:
        """VRAM to reserve for a model: the task's budget, else as configured, else as learned from
        the backend, else None for unknown.

        Unknown as well for what has to be alone. Nothing for what is not on the card, and for what
        stays there and is unknown: its memory is among what other programs hold.
        """
        listing = self.listing
        if listing.off_card and listing.is_off_card(model):
            return 0.0
        if model in self._alone:
            return None
        gb = self._settings.gpu.task_vram_gb.get(task_type) if task_type is not None else None
        if gb is None and model in self._settings.models:
            gb = self._settings.models[model].vram_gb
        learned = self._whole_mib if self._unified else self._learned_mib
        known = learned.get(model) if gb is None else gb * MIB_PER_GB
        return 0.0 if known is None and listing.staying and listing.stays(model) else known

    def least_need_mib(self, model: str, task_type: str | None = None) -> float | None:
        """What it needs, or at least: of one whose need is unknown, what its weights take; None
        where that is unknown, too.
        """
        need = self.need_mib(model, task_type)
        return self.listing.file_mib.get(model.lower()) if need is None else need

    def never_fits(self, model: str, task_type: str | None = None) -> bool:
        """It needs more than the owner has configured, less what stays, so that no eviction can
        help.

        What a GPU reports of its own memory refuses nobody: where that falls short, now or ever,
        the model is loaded alone and split. In unified memory it would go into swap.
        """
        if self._settings.gpu.vram_gb is None and not self._unified:
            return False
        find_need = self.least_need_mib if self._unified else self.need_mib
        need = find_need(model, task_type)
        capacity = self.capacity_mib
        if need is None or capacity is None:
            return False
        if not self.listing.is_plain:
            capacity -= self.held_mib()
        return need > capacity

    def ready(self, model: str) -> Resident | None:
        """The resident if it can be sent work."""
        resident = self.residents.get(model)
        return resident if resident is not None and resident.serves else None

    def least_mib(self, wanted: Iterable[str | None]) -> float:
        """The least that one of these may get by with that can be loaded, if it is loaded for the
        most modest task; -inf where nothing on the card is in its way.
        """
        residents = self.residents
        absent = [model for model in wanted if model is not None and model not in residents]
        if not self.listing.is_plain:
            absent = [model for model in absent if self.listing.loads(model)]
            if any(map(self.listing.is_off_card, absent)):
                return -inf
        if not absent:
            return inf
        needs = [need for need in map(self.need_mib, absent) if need is not None]
        return min(
            [*needs, *[gb * MIB_PER_GB for gb in self._settings.gpu.task_vram_gb.values()]],
            default=inf,
        )

    def could_come(self, least_mib: float, keep: Collection[str]) -> bool:
        """Could something that is not in memory and needs at least so much come at all while these
        stay?
        """
        room = self.room_mib
        if not keep or room == inf or least_mib == -inf:
            return True
        going = [each for each in self.residents.values() if each.may_go]
        staying = [each for each in going if each.model in keep]
        if not staying:
            return True
        if room is None or any_unknown(going):
            return False
        return least_mib <= room - freed_mib(staying)

    def eviction_for(
        self, model: str, keep: Iterable[str], task_type: str | None = None
    ) -> tuple[str, ...] | None:
        """The smallest set of residents that must go so that `model` can come; None when only
        evicting something in `keep` would help.
        """
        return Evictions(self, keep).find(model, task_type)

    def is_alone(self, model: str) -> bool:
        """Must it be loaded beside no other?"""
        return model in self._alone

    def used(self, resident: Resident, now: float) -> None:
        """A model is loaded or given an item: it was used now, and is used more often than was
        known.
        """
        at, uses = self._uses.get(resident.model, (now, 0.0))
        self._uses[resident.model] = (now, 1.0 + uses * exp((at - now) / USE_MEMORY_S))
        resident.last_used_at = now
        resident.started_at = now

    def missed_s(self, model: str, now: float) -> float:
        """What it would cost to be without a model: the seconds of its return, and of reading
        again what is warm on it, times how often it is used.
        """
        at, uses = self._uses.get(model, (now, 0.0))
        back_s = self._estimates.swap_s("", model) + self.reread_s(model, now)
        return back_s * uses * exp((at - now) / USE_MEMORY_S)

    def reread_s(self, model: str, now: float) -> float:
        """Expected seconds of reading again what goes with a model."""
        return self.caches.reread_s(model, now)

    def begin_load(
        self, model: str, now: float, why: SwapReason, task_type: str | None = None
    ) -> tuple[str, ...]:
        """Reserve for `model`, or for the task that it is loaded for, and mark it loading.

        Returns what was unloaded for it.
        """
        self.swaps_begun += 1
        replaced = self._vacated
        self.swap = Swap(why, now, replaced, self._before, self.sleepers.wake(model))
        self._add(model, task_type)
        self._vacated = ()
        self._before = NOTHING_BEFORE
        return replaced

    def swap_due(self, since: float, evict: tuple[str, ...], now: float) -> None:
        """A swap is about to begin for what has waited since then."""
        going = [self.residents[model] for model in evict]
        self._before = self._before.waited(
            max(since, self.moved_at),
            max((each.started_at for each in going), default=now),
            max((each.last_used_at for each in going), default=now),
            now,
        )

    def _add(self, model: str, task_type: str | None = None) -> Resident:
        resident = Resident(
            model, self.need_mib(model, task_type), self._settings.parallel(model), task_type
        )
        self._mark(resident)
        self.residents[model] = resident
        return resident

    @property
    def origin(self) -> str:
        """The model that a swap is likely to begin with, "" for none."""
        return next((each.model for each in self.residents.values() if each.may_go), "")

    def becoming(
        self,
        target: str | None,
        evict: Collection[str],
        now: float,
        *,
        task_type: str | None = None,
        stuck: Collection[str] = (),
    ) -> Becomes:
        """What sleepers have to become first so that a model can come, or else what `evict` become;
        None as target: another program. `stuck`: sleepers that are left alone.
        """
        if not (self.sleepers.is_on or self.sleepers.asleep):
            return dict.fromkeys(evict)
        going = [self.residents[model] for model in evict]
        room = self._rest_mib(target, task_type, evict)
        return self.sleepers.plan(target, room, going, stuck, now)

    def _rest_mib(
        self, target: str | None, task_type: str | None, evict: Collection[str]
    ) -> float | None:
        """What is left of the card beside a model and all that stays; None for unknown."""
        room = self.room_mib
        need = 0.0 if target is None else self.need_mib(target, task_type)
        staying = [
            each
            for each in self.residents.values()
            if each.may_go and each.model not in evict and each.model != target
        ]
        if room is None or need is None or any_unknown(staying):
            return None
        return room - need - freed_mib(staying)

    def begin_unload(self, becomes: Becomes, now: float, why: SwapReason) -> None:
        """These are on their way out, or to sleep; sleepers to give up more."""
        self.swaps_begun += 1
        self.swap = Swap(why, now)
        for model, level in becomes.items():
            if model in self.residents:
                self.residents[model].phase = "unloading"
                self.residents[model].becomes = level
            else:
                self.sleepers.begin(model, level)

    def likely_left(self, model: str) -> Unloaded:
        """How the end of an unload that is under way is likely to be reported."""
        resident = self.residents.get(model)
        if resident is not None:
            return self.sleepers.likely(model, resident.becomes, resident.reserved_mib)
        return self.sleepers.likely(model, self.sleepers.asleep[model].becomes, None)

    def refused(self, model: str, now: float) -> None:
        """An engine has taken no more than it has now."""
        resident = self.residents.get(model)
        if resident is not None:
            resident.parallel = max(1, len(resident.running))
            resident.taken = 0
            if resident.refused_at is None:
                resident.refused_at = now

    def took(self, model: str) -> None:
        """An engine has answered. Once it has answered all that it takes, it may take one more."""
        resident = self.residents.get(model)
        if resident is None:
            return
        resident.refused_at = None
        if resident.parallel >= self._settings.parallel(model):
            return
        resident.taken += 1
        if resident.taken >= resident.parallel:
            resident.taken = 0
            resident.parallel += 1

    @property
    def latest_first(self) -> list[Resident]:
        return sorted(
            self.residents.values(), key=lambda resident: (-resident.loaded_at, resident.model)
        )

    @property
    def loading(self) -> str | None:
        """The model that the swap under way brings in; None while it makes room."""
        return next(iter(self._in_phase("loading")), None)

    @property
    def cutting(self) -> str | None:
        """The model whose load is being ended; None where no load is."""
        return next(iter(self._in_phase("cutting")), None)

    @property
    def unloading(self) -> list[str]:
        """The models that the swap under way removes, sleepers that give up more included."""
        return [*self._in_phase("unloading"), *self.sleepers.moving]

    def _in_phase(self, phase: str) -> list[str]:
        return [each.model for each in self.residents.values() if each.phase == phase]

    def loaded(self, fact: Loaded, now: float) -> Swap | None:
        """The model is ready.

        Returns the swap that this completes, None where nobody asked for it.
        """
        model = fact.model
        if fact.vram_mib:
            self._learned_mib[model] = fact.vram_mib
        if whole_mib := fact.size_mib or fact.vram_mib:
            self._whole_mib[model] = whole_mib
        if fact.failed_level is not None:
            self.sleepers.strike(model, fact.failed_level)
        swap = self.swap if self.loading == model else None
        known = self.residents.get(model)
        if known is not None:
            known.reserved_mib = self.need_mib(model, known.task_type)
            if swap is None:
                return None
        resident = known or self._add(model)
        resident.phase = "ready"
        self._mark(resident)
        resident.loaded_at = now
        resident.settled = swap is None
        resident.embeds = fact.embeds
        self.caches.loaded(model)
        self.used(resident, now)
        if len(self._uses) > MAX_USED:
            del self._uses[min(self._uses, key=lambda name: self._uses[name])]
        self.sleepers.wake(model)
        if swap is not None:
            self.swap = None
            self.moved_at = now
        return swap

    def begin_cut(self, model: str, now: float) -> None:
        """The load under way is being ended: from now on its model is on its way out."""
        self.residents[model].phase = "cutting"
        if self.swap is not None:
            self.swap.started_at = now

    def load_cut(self, model: str, now: float) -> None:
        """Nothing is left of the load that was cut; the memory is ready for the next decision."""
        resident = self.residents.get(model)
        if resident is not None and resident.phase == "cutting":
            del self.residents[model]
            self._cleared(now)

    def load_failed(self, model: str, now: float, *, begun: bool = True) -> Swap | None:
        """The model did not come. Returns the swap that ends with it."""
        if self.loading != model:
            return None
        del self.residents[model]
        swap = self.swap
        if swap is not None and swap.wakes is not None:
            if begun:
                self.sleepers.strike(model, swap.wakes.level)
            else:
                self.sleepers.add(swap.wakes)
        self.swap = None
        self.moved_at = now
        return swap

    def keep_alone(self, model: str) -> None:
        """From now on load this model beside no other, if others are in memory now, which it may
        have been taken for.

        A model server may run models of the same weights as one, under the name of the first.
        """
        if any(each.may_go for each in self.residents.values()):
            self._alone.add(model)

    def unloaded(self, model: str, now: float, fact: Unloaded | None = None) -> None:
        """The model is gone, but for what a fact says is left of it; with the last one that had to
        go the memory is ready for the next decision.
        """
        fact = fact or Unloaded(model=model)
        resident = self.residents.get(model)
        if resident is None:
            sleeper = self.sleepers.asleep.get(model)
            was_moving = self.sleepers.stay(model)
            stays = was_moving and sleeper is not None and sleeper.becomes != fact.level
            self.sleepers.take(fact, now, now, stays=stays)
            if was_moving:
                self._cleared(now)
            return
        is_coming = resident.phase in {"loading", "cutting"}
        if is_coming or (resident.phase == "ready" and resident.running):
            return
        stays = resident.phase == "unloading" and resident.becomes != fact.level
        self.sleepers.take(fact, resident.last_used_at, now, stays=stays)
        if resident.phase == "unloading":
            self.caches.save(model)
        del self.residents[model]
        self.caches.unloaded(model)
        if resident.phase == "unloading":
            self._vacated = tuple(sorted((*self._vacated, model)))
            self._cleared(now)

    def found_asleep(self, model: str, level: SleepLevel, now: float) -> None:
        """Nobody here knows since when."""
        if model not in self.residents and model not in self.sleepers.asleep:
            self.sleepers.find(model, level, self.need_mib(model), now)

    def unload_failed(self, model: str, now: float, *, works: bool = False) -> None:
        """The model would not go: it counts as resident and is not trusted with work, so that it is
        unloaded again, but where it `works`.
        """
        resident = self.residents.get(model)
        if resident is None and self.sleepers.stay(model):
            self._cleared(now)
        if resident is not None and resident.phase in {"unloading", "cutting"}:
            resident.phase = "ready"
            resident.suspect = not works
            self._mark(resident)
            self._cleared(now)

    def _cleared(self, now: float) -> None:
        """The swap has made room once nothing is unloading any more."""
        if self.swap is not None and not self.unloading:
            self._before = self._before.cleared(now - self.swap.started_at)
            if self.swap.why == "lease":  # no load comes in the place of what went
                self._vacated = ()
                self._before = NOTHING_BEFORE
            self.swap = None
            self.moved_at = now
