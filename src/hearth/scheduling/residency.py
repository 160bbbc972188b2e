"""What the GPU holds: resident models with a VRAM reservation and slots each, and the one swap that may be under way.

A model is loaded beside others only while all reservations are known and fit the capacity; anything unknown means one model at a time;
a machine without a GPU has no limit (the admission rule of Peregrine's LLM queue optimizer). A reservation exists exactly as long as its
resident does, so it cannot leak or go negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations, islice
from math import exp, inf
from typing import TYPE_CHECKING

from hearth.config.choices import MIB_PER_GB
from hearth.scheduling.actions import SwapReason
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.waiting import Entry

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

MAX_SETS = 256
"""So many sets of the fewest models that can make room are looked at for the one that is missed least; a home has fewer."""

USE_MEMORY_S = 1800.0
"""A use so long ago counts 1/e of one now."""
MAX_USED = 1000
"""Models whose uses are remembered; the one that was not used for longest goes first."""


class Phase(Enum):
    """Life of a resident."""

    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"


@dataclass(slots=True, eq=False)
class Resident:
    """One model in memory or on its way in or out.

    Attributes:
        parallel: its slots.
        loaded_at: when it became ready; what it has served since then is measured from here.
        waiting_at_load: how many waited for it when it became ready.
        settled: a waiter has been dispatched since the load, one that named the model if such waited; it is not swapped away before that.
        task_type: the task that it was loaded for, whose VRAM budget may stand in for the model's own.
        embeds: it was asked for embeddings or seems to be made for them, and has written nothing since: it may be unable to answer a
            prompt for any model.
        suspect: it stopped answering; nothing more is sent to it, and it is unloaded once idle.
    """

    model: str
    phase: Phase
    reserved_mib: float | None
    parallel: int
    loaded_at: float = 0.0
    last_used_at: float = 0.0
    waiting_at_load: int = 0
    settled: bool = True
    suspect: bool = False
    task_type: str | None = None
    embeds: bool = False
    running: dict[int, Entry] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Swap:
    """The swap under way: first every model in `pending` goes, then `target` comes.

    Attributes:
        target: None while memory is being cleared; what comes is decided anew when it is clear.
        replaced: what has been unloaded since the last load, by name: which of several went first is chance.
        cleared_s: how long that unloading took.
    """

    why: SwapReason
    started_at: float
    target: str | None = None
    pending: set[str] = field(default_factory=set)
    replaced: tuple[str, ...] = ()
    cleared_s: float = 0.0


class Residency:
    """The set of residents. Owned and changed by the scheduler alone.

    Attributes:
        capacity_mib: VRAM to share out: configured, else sampled, else None for unknown; infinite without a GPU.
        room_mib: VRAM that reservations have to fit: the capacity without what other programs hold of it now; None for unknown.
    """

    def __init__(self, settings: SchedulerSettings, estimates: Estimates | None = None) -> None:
        self._estimates = estimates or Estimates(swap_prior_s=settings.gpu.swap_cost_prior_s)
        self._uses: dict[str, tuple[float, float]] = {}
        self.residents: dict[str, Resident] = {}
        self.swap: Swap | None = None
        self.swaps_begun = 0
        self._vacated: tuple[str, ...] = ()
        self._cleared_s = 0.0
        self._settings = settings
        self._learned_mib: dict[str, float] = {}
        self._needs_mib: dict[str, float] = {}
        self._alone: set[str] = set()
        self._sampled_mib: float | None = None
        self._foreign_mib = 0.0
        self.capacity_mib: float | None = None
        self.room_mib: float | None = None
        self._measure()

    def copied(self, estimates: Estimates) -> Residency:
        """The same memory for a forecast, whose residents its owner copies."""
        twin = copy(self)
        twin.__dict__.update(_estimates=estimates, _uses=dict(self._uses))
        return twin

    def configure(self, settings: SchedulerSettings) -> None:
        """Apply new settings; reservations and slots of residents follow them."""
        self._settings = settings
        self._measure()
        for resident in self.residents.values():
            resident.reserved_mib = self.need_mib(resident.model, resident.task_type)
            resident.parallel = settings.parallel(resident.model)

    def sample(self, capacity_mib: float | None, foreign_mib: float = 0.0) -> None:
        """Remember what the GPU says of its size, and what others hold of it."""
        self._sampled_mib = capacity_mib
        self._foreign_mib = max(0.0, foreign_mib)
        self._measure()

    def _measure(self) -> None:
        """Reckon anew what there is and what each model needs, from the settings and what was seen."""
        configured, capacity = self._settings.gpu.vram_gb, self._sampled_mib
        if configured is not None:
            capacity = inf if configured == 0 else configured * MIB_PER_GB
        chosen = self._settings.models.items()
        configured_mib = {name: model.vram_gb * MIB_PER_GB for name, model in chosen if model.vram_gb is not None}
        self._needs_mib = self._learned_mib | configured_mib
        self.capacity_mib = capacity
        self.room_mib = None if capacity is None else max(0.0, capacity - self._foreign_mib)

    def need_mib(self, model: str, task_type: str | None = None) -> float | None:
        """VRAM to reserve for a model: the task's budget, else as configured, else as learned from the backend, else None for unknown.

        Unknown as well for what has to be alone.
        """
        if model in self._alone:
            return None
        budget_gb = self._settings.gpu.task_vram_gb.get(task_type) if task_type is not None else None
        if budget_gb is not None:
            return budget_gb * MIB_PER_GB
        return self._needs_mib.get(model)

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
        return resident if resident is not None and resident.phase is Phase.READY and not resident.suspect else None

    def serves(self, model: str | None) -> bool:
        """Can work for this model (None: for any) be sent somewhere, as soon as there is a slot?"""
        names = tuple(self.residents) if model is None else (model,)
        return any(self.ready(name) is not None for name in names)

    def free_slots(self, resident: Resident) -> int:
        """Requests that could be added now."""
        return resident.parallel - len(resident.running)

    def saturated(self, wanted: Iterable[str | None]) -> bool:
        """Is every slot taken, so that none of the wanted models can be served, evict a resident, or come beside it?"""
        residents = self.residents.values()
        known, used_mib = self.room_mib is not None, 0.0
        for resident in residents:
            if not resident.running or len(resident.running) < resident.parallel:
                return False
            known = known and resident.reserved_mib is not None
            used_mib += resident.reserved_mib or 0.0
        if not residents or self.room_mib == inf:
            return False
        if self.room_mib is None or not known:
            return True
        free_mib = self.room_mib - used_mib
        for model in wanted:
            if model is not None and model not in self.residents:
                need = self._least_mib(model)
                if need is not None and need <= free_mib:
                    return False
        return True

    def _least_mib(self, model: str) -> float | None:
        """What it may get by with, if it is loaded for the most modest task."""
        need, budgets_gb = self.need_mib(model), self._settings.gpu.task_vram_gb
        if not budgets_gb:
            return need
        modest = min(budgets_gb.values()) * MIB_PER_GB
        return modest if need is None or modest < need else need

    def eviction_for(self, model: str, keep: Iterable[str], task_type: str | None = None) -> tuple[str, ...] | None:
        """The smallest set of residents that must go so that `model` can come.

        Returns:
            Names, possibly none; None when only evicting something in `keep` would help.
        """
        capacity, need = self.room_mib, self.need_mib(model, task_type)
        if capacity == inf and self._alone.isdisjoint((model, *self.residents)):
            return ()
        others = [resident for resident in self.residents.values() if resident.model != model]
        kept = set(keep)
        if capacity is None or need is None or need > capacity or any(resident.reserved_mib is None for resident in others):
            return None if any(resident.model in kept for resident in others) else tuple(sorted(r.model for r in others))
        free = capacity - sum(resident.reserved_mib or 0.0 for resident in others)
        candidates = [resident for resident in others if resident.model not in kept]
        if need <= free or len(candidates) < 2:
            return _smallest(candidates, need - free, {})
        latest = max(resident.last_used_at for resident in candidates)
        return _smallest(candidates, need - free, {resident.model: self.missed_s(resident.model, latest) for resident in candidates})

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
        self.swap = Swap(why=why, started_at=now, target=model, replaced=replaced, cleared_s=self._cleared_s)
        self.residents[model] = Resident(
            model=model,
            phase=Phase.LOADING,
            reserved_mib=self.need_mib(model, task_type),
            parallel=self._settings.parallel(model),
            task_type=task_type,
        )
        self._vacated, self._cleared_s = (), 0.0
        return replaced

    def begin_unload(self, models: tuple[str, ...], now: float, why: SwapReason) -> None:
        """Mark models unloading."""
        self.swaps_begun += 1
        self.swap = Swap(why=why, started_at=now, pending=set(models))
        for model in models:
            self.residents[model].phase = Phase.UNLOADING

    def loaded(self, model: str, now: float, vram_mib: float | None, *, embeds: bool = False) -> Swap | None:
        """The model is ready. Returns the swap that this completes, None where nobody asked for it."""
        if vram_mib:
            self._learned_mib[model] = vram_mib
            self._measure()
        swap = self.swap if self.swap is not None and self.swap.target == model else None
        known = self.residents.get(model)
        if swap is None and known is not None:
            known.reserved_mib = self.need_mib(model, known.task_type)
            return None
        task_type = None if known is None else known.task_type
        self.residents[model] = Resident(
            model=model,
            phase=Phase.READY,
            reserved_mib=self.need_mib(model, task_type),
            parallel=self._settings.parallel(model),
            task_type=task_type,
            loaded_at=now,
            last_used_at=now,
            settled=swap is None,
            embeds=embeds,
        )
        self.used(self.residents[model], now)
        if len(self._uses) > MAX_USED:
            del self._uses[min(self._uses, key=lambda name: self._uses[name])]
        if swap is not None:
            self.swap = None
        return swap

    def load_failed(self, model: str) -> Swap | None:
        """The model did not come. Returns the swap that ends with it."""
        swap = self.swap if self.swap is not None and self.swap.target == model else None
        if swap is not None:
            self.residents.pop(model, None)
            self.swap = None
        return swap

    def keep_alone(self, model: str) -> None:
        """From now on load this model beside no other, if others are in memory now, which it may have been taken for.

        Ollama runs models that were made from the same weights as one, under the name of the first (`schedulerModelKey` in its `sched.go`).
        """
        if self.residents:
            self._alone.add(model)

    def unloaded(self, model: str, now: float) -> None:
        """The model is gone; with the last pending one the memory is ready for the next decision."""
        resident = self.residents.get(model)
        if resident is None or (resident.phase is not Phase.UNLOADING and resident.running) or resident.phase is Phase.LOADING:
            return
        del self.residents[model]
        if self.swap is not None and model in self.swap.pending:
            self._vacated = tuple(sorted((*self._vacated, model)))
            self._settle_pending(model, now)

    def unload_failed(self, model: str, now: float) -> None:
        """The model would not go: it counts as resident and is not trusted with work, so that it is unloaded again."""
        resident = self.residents.get(model)
        if resident is not None and resident.phase is Phase.UNLOADING:
            resident.phase = Phase.READY
            resident.suspect = True
        if self.swap is not None and model in self.swap.pending:
            self._settle_pending(model, now)

    def _settle_pending(self, model: str, now: float) -> None:
        if self.swap is not None:
            self.swap.pending.discard(model)
            if not self.swap.pending:
                self._cleared_s += now - self.swap.started_at
                self.swap = None


def _smallest(candidates: list[Resident], needed_mib: float, missed_s: Mapping[str, float]) -> tuple[str, ...] | None:
    """The set with the fewest members that frees enough; among equals idle ones, then the least missed, then the least recently used."""
    if needed_mib <= 0:
        return ()
    if len(candidates) == 1 and _freed_mib(candidates) >= needed_mib:
        return (candidates[0].model,)

    def missed(chosen: Iterable[Resident]) -> tuple[int, float]:
        return sum(bool(r.running) for r in chosen), sum(missed_s.get(r.model, 0.0) for r in chosen)

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
