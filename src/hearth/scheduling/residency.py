"""What the GPU holds: resident models with a VRAM reservation and slots each, and the one swap that may be under way.

A model is loaded beside others only while all reservations are known and fit the capacity; anything unknown means one model at a time;
a machine without a GPU has no limit (the admission rule of Peregrine's LLM queue optimizer). A reservation exists exactly as long as its
resident does, so it cannot leak or go negative.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations
from math import inf

from hearth.config.settings import MIB_PER_GB, SchedulerSettings
from hearth.scheduling.actions import SwapReason
from hearth.scheduling.waiting import Entry

EXHAUSTIVE_LIMIT = 8
"""Up to this many candidates the smallest eviction set is searched exhaustively (at most 2^8 sets); a home has fewer."""


class Phase(Enum):
    """Life of a resident."""

    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"


@dataclass(slots=True, eq=False)
class Resident:
    """One model in memory or on its way in or out.

    Attributes:
        loaded_at: when it became ready; what it has served since then is measured from here.
        settled: a waiter has been dispatched since the load (nothing may swap it away before that).
        embeds: it was last asked for embeddings, so it may not be able to answer a prompt that any model would do for.
        suspect: it stopped answering; nothing more is sent to it, and it is unloaded once idle.
    """

    model: str
    phase: Phase
    reserved_mib: float | None
    loaded_at: float = 0.0
    last_used_at: float = 0.0
    settled: bool = True
    suspect: bool = False
    embeds: bool = False
    running: dict[int, Entry] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Swap:
    """The swap under way: first every model in `pending` goes, then `target` comes.

    Attributes:
        target: None while memory is being cleared; what comes is decided anew when it is clear.
        replaced: what has been unloaded since the last load.
        cleared_s: how long that unloading took.
    """

    why: SwapReason
    started_at: float
    target: str | None = None
    pending: set[str] = field(default_factory=set)
    replaced: tuple[str, ...] = ()
    cleared_s: float = 0.0


class Residency:
    """The set of residents. Owned and changed by the scheduler alone."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.residents: dict[str, Resident] = {}
        self.swap: Swap | None = None
        self.swaps_begun = 0
        self._vacated: tuple[str, ...] = ()
        self._cleared_s = 0.0
        self._settings = settings
        self._learned_mib: dict[str, float] = {}
        self._sampled_mib: float | None = None

    def configure(self, settings: SchedulerSettings) -> None:
        """Apply new settings; reservations of residents follow them."""
        self._settings = settings
        for resident in self.residents.values():
            resident.reserved_mib = self.need_mib(resident.model)

    def sample(self, capacity_mib: float | None) -> None:
        """Remember what the GPU says of its size."""
        self._sampled_mib = capacity_mib

    @property
    def capacity_mib(self) -> float | None:
        """VRAM to share out: configured, else sampled, else None for unknown; infinite without a GPU."""
        configured = self._settings.gpu.vram_gb
        if configured is None:
            return self._sampled_mib
        return inf if configured == 0 else configured * MIB_PER_GB

    def need_mib(self, model: str) -> float | None:
        """VRAM that a model needs: configured, else learned from the backend, else None for unknown."""
        chosen = self._settings.models.get(model)
        if chosen is not None and chosen.vram_gb is not None:
            return chosen.vram_gb * MIB_PER_GB
        return self._learned_mib.get(model)

    def never_fits(self, model: str) -> bool:
        """It needs more than there is, so that no eviction can help."""
        need, capacity = self.need_mib(model), self.capacity_mib
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
        return self._settings.parallel(resident.model) - len(resident.running)

    def saturated(self, wanted: Iterable[str | None]) -> bool:
        """Is every slot taken, so that none of the wanted models can be served, evict a resident, or come beside it?"""
        residents, used_mib = self.residents.values(), 0.0
        for resident in residents:
            if not resident.running or self.free_slots(resident) > 0:
                return False
            used_mib += resident.reserved_mib or 0.0
        capacity = self.capacity_mib
        if not residents or capacity == inf:
            return False
        if capacity is None or any(resident.reserved_mib is None for resident in residents):
            return True
        needs = (self.need_mib(model) for model in wanted if model is not None and model not in self.residents)
        return all(need is None or used_mib + need > capacity for need in needs)

    def eviction_for(self, model: str, keep: Iterable[str]) -> tuple[str, ...] | None:
        """The smallest set of residents that must go so that `model` can come.

        Returns:
            Names, possibly none; None when only evicting something in `keep` would help.
        """
        capacity, need = self.capacity_mib, self.need_mib(model)
        if capacity == inf:
            return ()
        others = [resident for resident in self.residents.values() if resident.model != model]
        kept = set(keep)
        if capacity is None or need is None or need > capacity or any(resident.reserved_mib is None for resident in others):
            return None if any(resident.model in kept for resident in others) else tuple(sorted(r.model for r in others))
        free = capacity - sum(resident.reserved_mib or 0.0 for resident in others)
        return _smallest([r for r in others if r.model not in kept], need - free)

    def begin_load(self, model: str, now: float, why: SwapReason) -> tuple[str, ...]:
        """Reserve for `model` and mark it loading. Returns what was unloaded for it."""
        self.swaps_begun += 1
        replaced = self._vacated
        self.swap = Swap(why=why, started_at=now, target=model, replaced=replaced, cleared_s=self._cleared_s)
        self.residents[model] = Resident(model=model, phase=Phase.LOADING, reserved_mib=self.need_mib(model))
        self._vacated, self._cleared_s = (), 0.0
        return replaced

    def begin_unload(self, models: tuple[str, ...], now: float, why: SwapReason) -> None:
        """Mark models unloading."""
        self.swaps_begun += 1
        self.swap = Swap(why=why, started_at=now, pending=set(models))
        for model in models:
            self.residents[model].phase = Phase.UNLOADING

    def loaded(self, model: str, now: float, vram_mib: float | None) -> Swap | None:
        """The model is ready. Returns the swap that this completes, None where nobody asked for it."""
        if vram_mib:
            self._learned_mib[model] = vram_mib
        swap = self.swap if self.swap is not None and self.swap.target == model else None
        known = self.residents.get(model)
        if swap is None and known is not None:
            known.reserved_mib = self.need_mib(model)
            return None
        self.residents[model] = Resident(
            model=model, phase=Phase.READY, reserved_mib=self.need_mib(model), loaded_at=now, last_used_at=now, settled=swap is None
        )
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

    def unloaded(self, model: str, now: float) -> None:
        """The model is gone; with the last pending one the memory is ready for the next decision."""
        resident = self.residents.get(model)
        if resident is None or (resident.phase is not Phase.UNLOADING and resident.running) or resident.phase is Phase.LOADING:
            return
        del self.residents[model]
        if self.swap is not None and model in self.swap.pending:
            self._vacated = (*self._vacated, model)
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


def _smallest(candidates: list[Resident], needed_mib: float) -> tuple[str, ...] | None:
    """The set with the fewest members that frees enough; among equals idle ones, then the least recently used, then the smallest."""
    if needed_mib <= 0:
        return ()
    order = sorted(candidates, key=lambda r: (bool(r.running), r.last_used_at, r.model))
    if len(order) > EXHAUSTIVE_LIMIT:
        return _first_enough(order, needed_mib)
    for size in range(1, len(order) + 1):
        for chosen in combinations(order, size):
            if sum(r.reserved_mib or 0.0 for r in chosen) >= needed_mib:
                return tuple(r.model for r in chosen)
    return None


def _first_enough(order: list[Resident], needed_mib: float) -> tuple[str, ...] | None:
    freed, chosen = 0.0, []
    for resident in order:
        chosen.append(resident.model)
        freed += resident.reserved_mib or 0.0
        if freed >= needed_mib:
            return tuple(chosen)
    return None
