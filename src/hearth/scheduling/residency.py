"""What the GPU holds: resident models with a VRAM reservation and slots each, and the one swap that may be under way.

A model is loaded beside others only while all reservations are known and fit the capacity; anything unknown means one model at a time;
a machine without a GPU has no limit (the admission rule of Peregrine's LLM queue optimizer). A reservation exists exactly as long as its
resident does, so it cannot leak or go negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from itertools import combinations, islice
from math import exp, inf
from typing import TYPE_CHECKING, Literal

from hearth.config import MIB_PER_GB
from hearth.scheduling.actions import SwapReason
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.waiting import Entry

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

MAX_SETS = 256  # so many sets of the fewest models that can make room are looked at for the one that is missed least; a home has fewer
USE_MEMORY_S = 1800.0  # a use so long ago counts 1/e of one now
MAX_USED = 1000  # models whose uses are remembered; the one that was not used for longest goes first


@dataclass(slots=True, eq=False)
class Resident:
    """One model in memory or on its way in or out."""

    model: str
    reserved_mib: float | None  # None where its need is unknown
    parallel: int  # its slots
    task_type: str | None = None  # the task that it was loaded for, whose VRAM budget may stand in for the model's own
    phase: Literal["loading", "ready", "unloading"] = "loading"
    loaded_at: float = 0.0  # when it became ready; what it has served since then is measured from here
    last_used_at: float = 0.0
    waiting_at_load: int = 0  # how many waited for it when it became ready
    # a waiter has been dispatched since the load, one that named the model if such waited; it is not swapped away before that
    settled: bool = True
    suspect: bool = False  # it stopped answering; nothing more is sent to it, and it is unloaded once idle
    # it was asked for embeddings or seems to be made for them, and has written nothing since: it may be unable to answer a prompt for any
    # model
    embeds: bool = False
    running: dict[int, Entry] = field(default_factory=dict)

    @property
    def free_slots(self) -> int:
        return self.parallel - len(self.running)

    @property
    def is_leaving(self) -> bool:
        """It is on its way out, or will be."""
        return self.suspect or self.phase == "unloading"

    @property
    def serves(self) -> bool:
        """It can be sent work."""
        return self.phase == "ready" and not self.suspect


@dataclass(slots=True, eq=False)
class Swap:
    """The swap under way: residents that are unloading go; what comes is decided anew when they are gone, and is loading then."""

    why: SwapReason
    started_at: float
    replaced: tuple[str, ...] = ()  # what has been unloaded since the last load, by name: which of several went first is chance
    cleared_s: float = 0.0  # how long that unloading took

    @property
    def origin(self) -> str:
        """The model that it is counted from, "" for an empty GPU."""
        return self.replaced[0] if self.replaced else ""


class Residency:
    """The set of residents. Owned and changed by the scheduler alone."""

    def __init__(self, settings: SchedulerSettings, estimates: Estimates) -> None:
        self.residents: dict[str, Resident] = {}
        self.swap: Swap | None = None
        self.swaps_begun = 0
        self._settings = settings
        self._estimates = estimates
        self._uses: dict[str, tuple[float, float]] = {}
        self._vacated: tuple[str, ...] = ()
        self._cleared_s = 0.0
        self._learned_mib: dict[str, float] = {}
        self._alone: set[str] = set()
        self._sampled_mib: float | None = None
        self._foreign_mib = 0.0

    def copied(self, estimates: Estimates) -> Residency:
        """The same memory for a forecast, whose residents its owner copies."""
        twin = copy(self)
        twin.__dict__.update(_estimates=estimates, _uses=dict(self._uses))
        return twin

    def configure(self, settings: SchedulerSettings) -> None:
        """Apply new settings; reservations and slots of residents follow them."""
        self._settings = settings
        for resident in self.residents.values():
            resident.reserved_mib = self.need_mib(resident.model, resident.task_type)
            resident.parallel = settings.parallel(resident.model)

    def sample(self, capacity_mib: float | None, foreign_mib: float = 0.0) -> None:
        """Remember what the GPU says of its size, and what others hold of it."""
        self._sampled_mib, self._foreign_mib = capacity_mib, max(0.0, foreign_mib)

    @property
    def capacity_mib(self) -> float | None:
        """VRAM to share out: configured, else sampled, else None for unknown; infinite without a GPU."""
        configured_gb = self._settings.gpu.vram_gb
        if configured_gb is None:
            return self._sampled_mib
        return inf if configured_gb == 0 else configured_gb * MIB_PER_GB

    @property
    def room_mib(self) -> float | None:
        """VRAM that reservations have to fit: the capacity without what other programs hold of it now; None for unknown."""
        capacity = self.capacity_mib
        return None if capacity is None else max(0.0, capacity - self._foreign_mib)

    def need_mib(self, model: str, task_type: str | None = None) -> float | None:
        """VRAM to reserve for a model: the task's budget, else as configured, else as learned from the backend, else None for unknown.

        Unknown as well for what has to be alone.
        """
        if model in self._alone:
            return None
        gb = self._settings.gpu.task_vram_gb.get(task_type) if task_type is not None else None
        if gb is None and model in self._settings.models:
            gb = self._settings.models[model].vram_gb
        return self._learned_mib.get(model) if gb is None else gb * MIB_PER_GB

    def never_fits(self, model: str, task_type: str | None = None) -> bool:
        """It needs more than the owner says there is, so that no eviction can help.

        What a GPU says of itself refuses nobody: where its memory falls short, now or ever, the model is loaded alone and split.
        """
        if self._settings.gpu.vram_gb is None:
            return False
        need, capacity = self.need_mib(model, task_type), self.capacity_mib
        return need is not None and capacity is not None and need > capacity

    def ready(self, model: str) -> Resident | None:
        """The resident if it can be sent work."""
        resident = self.residents.get(model)
        return resident if resident is not None and resident.serves else None

    def saturated(self, wanted: Iterable[str | None]) -> bool:
        """Is every slot taken, so that none of the wanted models can be served, evict a resident, or come beside it?"""
        residents = self.residents.values()
        for resident in residents:
            if not resident.running or len(resident.running) < resident.parallel:
                return False
        room = self.room_mib
        if not residents or room == inf:
            return False
        if room is None or any(resident.reserved_mib is None for resident in residents):
            return True
        free_mib = room - sum([resident.reserved_mib or 0.0 for resident in residents])
        absent = [model for model in wanted if model is not None and model not in self.residents]
        return not any(self._least_mib(model) <= free_mib for model in absent)

    def _least_mib(self, model: str) -> float:
        """What it may get by with, if it is loaded for the most modest task; infinite where that is unknown."""
        need, budgets_gb = self.need_mib(model), self._settings.gpu.task_vram_gb.values()
        return min([inf if need is None else need, *[gb * MIB_PER_GB for gb in budgets_gb]])

    def eviction_for(self, model: str, keep: Iterable[str], task_type: str | None = None) -> tuple[str, ...] | None:
        """The smallest set of residents that must go so that `model` can come; None when only evicting something in `keep` would help."""
        room, need = self.room_mib, self.need_mib(model, task_type)
        if room == inf and self._alone.isdisjoint((model, *self.residents)):
            return ()
        others = [resident for resident in self.residents.values() if resident.model != model]
        kept = set(keep)
        if room is None or need is None or need > room or any(resident.reserved_mib is None for resident in others):
            return None if any(resident.model in kept for resident in others) else tuple(sorted(r.model for r in others))
        needed = need - (room - sum(resident.reserved_mib or 0.0 for resident in others))
        if needed <= 0:
            return ()
        candidates = [resident for resident in others if resident.model not in kept]
        if len(candidates) < 2:
            return (candidates[0].model,) if _freed_mib(candidates) >= needed else None
        latest = max(resident.last_used_at for resident in candidates)
        return _fewest(candidates, needed, {resident.model: self.missed_s(resident.model, latest) for resident in candidates})

    def used(self, resident: Resident, now: float) -> None:
        """A model is loaded or given an item: it was used now, and is used more often than was known."""
        at, uses = self._uses.get(resident.model, (now, 0.0))
        self._uses[resident.model] = (now, 1.0 + uses * exp((at - now) / USE_MEMORY_S))
        resident.last_used_at = now

    def missed_s(self, model: str, now: float) -> float:
        """What it would cost to be without a model: the seconds of its return, times how often it is used."""
        at, uses = self._uses.get(model, (now, 0.0))
        return self._estimates.swap_s("", model) * uses * exp((at - now) / USE_MEMORY_S)

    def begin_load(self, model: str, now: float, why: SwapReason, task_type: str | None = None) -> tuple[str, ...]:
        """Reserve for `model`, or for the task that it is loaded for, and mark it loading. Returns what was unloaded for it."""
        self.swaps_begun += 1
        replaced = self._vacated
        self.swap = Swap(why, now, replaced, self._cleared_s)
        self._add(model, task_type)
        self._vacated, self._cleared_s = (), 0.0
        return replaced

    def _add(self, model: str, task_type: str | None = None) -> Resident:
        resident = Resident(model, self.need_mib(model, task_type), self._settings.parallel(model), task_type)
        self.residents[model] = resident
        return resident

    def begin_unload(self, models: tuple[str, ...], now: float, why: SwapReason) -> None:
        self.swaps_begun += 1
        self.swap = Swap(why, now)
        for model in models:
            self.residents[model].phase = "unloading"

    @property
    def latest_first(self) -> list[Resident]:
        return sorted(self.residents.values(), key=lambda resident: (-resident.loaded_at, resident.model))

    @property
    def loading(self) -> str | None:
        """The model that the swap under way brings in; None while it makes room."""
        return next((resident.model for resident in self.residents.values() if resident.phase == "loading"), None)

    @property
    def unloading(self) -> list[str]:
        """The models that the swap under way removes."""
        return [resident.model for resident in self.residents.values() if resident.phase == "unloading"]

    def loaded(self, model: str, now: float, vram_mib: float | None, *, embeds: bool = False) -> Swap | None:
        """The model is ready. Returns the swap that this completes, None where nobody asked for it."""
        if vram_mib:
            self._learned_mib[model] = vram_mib
        swap, known = (self.swap if self.loading == model else None), self.residents.get(model)
        if known is not None:
            known.reserved_mib = self.need_mib(model, known.task_type)
            if swap is None:
                return None
        resident = known or self._add(model)
        resident.phase, resident.loaded_at, resident.settled, resident.embeds = "ready", now, swap is None, embeds
        self.used(resident, now)
        if len(self._uses) > MAX_USED:
            del self._uses[min(self._uses, key=lambda name: self._uses[name])]
        if swap is not None:
            self.swap = None
        return swap

    def load_failed(self, model: str) -> Swap | None:
        """The model did not come. Returns the swap that ends with it."""
        if self.loading != model:
            return None
        del self.residents[model]
        swap, self.swap = self.swap, None
        return swap

    def keep_alone(self, model: str) -> None:
        """From now on load this model beside no other, if others are in memory now, which it may have been taken for.

        Ollama runs models of the same weights as one, under the name of the first (`schedulerModelKey` in its `sched.go`).
        """
        if self.residents:
            self._alone.add(model)

    def unloaded(self, model: str, now: float) -> None:
        """The model is gone; with the last one that had to go the memory is ready for the next decision."""
        resident = self.residents.get(model)
        if resident is None or resident.phase == "loading" or (resident.phase == "ready" and resident.running):
            return
        del self.residents[model]
        if resident.phase == "unloading":
            self._vacated = tuple(sorted((*self._vacated, model)))
            self._cleared(now)

    def unload_failed(self, model: str, now: float) -> None:
        """The model would not go: it counts as resident and is not trusted with work, so that it is unloaded again."""
        resident = self.residents.get(model)
        if resident is not None and resident.phase == "unloading":
            resident.phase, resident.suspect = "ready", True
            self._cleared(now)

    def _cleared(self, now: float) -> None:
        """The swap has made room once nothing is unloading any more."""
        if self.swap is not None and not self.unloading:
            self._cleared_s += now - self.swap.started_at
            self.swap = None


def _fewest(candidates: list[Resident], needed_mib: float, missed_s: Mapping[str, float]) -> tuple[str, ...] | None:
    """The set with the fewest members that frees enough; among equals idle ones, then the least missed, then the least recently used."""

    def missed(chosen: Iterable[Resident]) -> tuple[int, float]:
        return sum(bool(r.running) for r in chosen), sum(missed_s[r.model] for r in chosen)

    largest = sorted(candidates, key=lambda r: (-(r.reserved_mib or 0.0), *missed((r,)), r.last_used_at, r.model))
    enough = next((size for size in range(1, len(largest) + 1) if _freed_mib(largest[:size]) >= needed_mib), None)
    if enough is None:
        return None
    order = sorted(candidates, key=lambda r: (*missed((r,)), r.last_used_at, r.model))
    tried = islice(combinations(order, enough), MAX_SETS)
    best = min((chosen for chosen in tried if _freed_mib(chosen) >= needed_mib), key=missed, default=largest[:enough])
    return tuple(resident.model for resident in best)


def _freed_mib(residents: Iterable[Resident]) -> float:
    return sum(resident.reserved_mib or 0.0 for resident in residents)
