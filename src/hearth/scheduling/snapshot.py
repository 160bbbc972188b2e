"""Reading the scheduler without touching it: what status routes show. Values only, so that nothing outside can change an order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry, Place
from hearth.types import Band, Lane, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    """One accepted item as it is now. `model` is what it runs on, or needs; `interrupts` counts its interruptions."""

    sequence: Sequence
    place: Place
    band: Band
    model: str | None
    attempts: int
    interrupts: int
    dispatched_at: float | None
    first_byte_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentView:
    """One model in memory or on its way. `reserved_mib` is None where its need is unknown."""

    model: str
    phase: str
    running: int
    waiting: int
    parallel: int
    reserved_mib: float | None
    loaded_at: float


def view(entry: Entry) -> EntryView:
    """A copy of an entry."""
    running = entry.place is not Place.WAITING
    return EntryView(
        sequence=entry.item.sequence,
        place=entry.place,
        band=entry.band,
        model=entry.model or entry.item.model,
        attempts=entry.attempts,
        interrupts=entry.interrupts,
        dispatched_at=entry.dispatched_at if running else None,
        first_byte_at=entry.first_byte_at,
    )


def running(state: State) -> list[EntryView]:
    """What runs, the longest running first."""
    found = [entry for resident in state.residency.residents.values() for entry in resident.running.values()]
    return [view(entry) for entry in sorted(found, key=lambda entry: (entry.dispatched_at, entry.item.sequence))]


def waiting(state: State, lane: Lane, limit: int) -> list[EntryView]:
    """The first `limit` waiting items of a lane in the order of bands and keys (affinity may let a later one go first)."""
    found = (entry for entry in state.waiting.all_entries() if entry.item.lane is lane)
    return [view(entry) for entry in heapq.nsmallest(limit, found, key=lambda entry: (entry.band, entry.key))]


def residents(state: State) -> list[ResidentView]:
    """The models in memory, the latest loaded first."""
    found = sorted(state.residency.residents.values(), key=lambda resident: (-resident.loaded_at, resident.model))
    return [
        ResidentView(
            model=resident.model,
            phase=resident.phase.value,
            running=len(resident.running),
            waiting=state.waiting.wants(resident.model),
            parallel=state.settings.parallel(resident.model),
            reserved_mib=resident.reserved_mib,
            loaded_at=resident.loaded_at,
        )
        for resident in found
    ]
