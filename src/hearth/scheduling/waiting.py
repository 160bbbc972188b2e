"""Who waits, in which order: one line per band and model, so that a decision looks at heads and never at the whole queue.

Every order is an explicit key that ends in the sequence number. Reading never changes an order. A head costs O(1) amortised at any
depth: lines are heaps whose removed entries are dropped when they surface.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from hearth.types import Band, Lane, QueueItem, Sequence

Key = tuple[int, int]
"""(rank, sequence). Rank is 0, or minus the interruption's number: the most recently interrupted item is first in its line."""


class Place(Enum):
    """Where an accepted item is; it is in exactly one place until it leaves."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    """Running still, but a `Preempt` or `Abort` is out."""


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted item and what has happened to it. Owned and changed by the scheduler alone.

    Attributes:
        band: the band it waits in, or waited in last.
        attempts: dispatches so far; the number of the current attempt while it runs.
        resends: attempts that a backend fault undid before anything was forwarded.
        forwarded: its caller has seen bytes of the current attempt.
        outgrown: more has been sent to its caller than is kept, so that no replay can be verified.
        cut: it ends when its attempt has stopped, because its caller cannot be resumed.
        expected_end_at: estimate made at dispatch.
        cancelled: its caller is gone; it leaves as soon as its attempt has stopped.
    """

    item: QueueItem
    band: Band
    rank: int = 0
    place: Place = Place.WAITING
    attempts: int = 0
    interrupts: int = 0
    resends: int = 0
    model: str | None = None
    dispatched_at: float = 0.0
    expected_end_at: float = 0.0
    first_byte_at: float | None = None
    forwarded: bool = False
    outgrown: bool = False
    cut: bool = False
    cancelled: bool = False

    @property
    def key(self) -> Key:
        """Its place in the line of its band."""
        return (self.rank, self.item.sequence)

    @property
    def external(self) -> bool:
        """It may be interrupted for the house's own work."""
        return self.item.lane is Lane.EXTERNAL


@dataclass(slots=True, eq=False)
class Line:
    """The waiting entries of one band and model."""

    heap: list[Key] = field(default_factory=list)
    alive: dict[Sequence, Entry] = field(default_factory=dict)

    def head(self) -> Entry | None:
        """The first entry, dropping what has left."""
        while self.heap:
            key = self.heap[0]
            entry = self.alive.get(Sequence(key[1]))
            if entry is not None and entry.key == key:
                return entry
            heapq.heappop(self.heap)
        return None


class WaitingRoom:
    """All waiting entries."""

    def __init__(self) -> None:
        self._bands: tuple[dict[str | None, Line], ...] = tuple({} for _ in Band)
        self._by_model: dict[str | None, int] = {}
        self._by_lane: dict[Lane, int] = dict.fromkeys(Lane, 0)

    def __len__(self) -> int:
        return sum(self._by_lane.values())

    def count(self, lane: Lane) -> int:
        """Waiting entries of a lane."""
        return self._by_lane[lane]

    def add(self, entry: Entry) -> None:
        """Put an entry into the line of its band and model."""
        lines = self._bands[entry.band]
        model = entry.item.model
        line = lines.get(model)
        if line is None:
            line = lines[model] = Line()
        line.alive[entry.item.sequence] = entry
        heapq.heappush(line.heap, entry.key)
        self._by_model[model] = self._by_model.get(model, 0) + 1
        self._by_lane[entry.item.lane] += 1
        entry.place = Place.WAITING

    def remove(self, entry: Entry) -> None:
        """Take an entry out, wherever in its line it stands."""
        lines = self._bands[entry.band]
        model = entry.item.model
        line = lines[model]
        del line.alive[entry.item.sequence]
        if not line.alive:
            del lines[model]
        self._by_model[model] -= 1
        if not self._by_model[model]:
            del self._by_model[model]
        self._by_lane[entry.item.lane] -= 1

    def any_in(self, band: Band) -> bool:
        """Does anything wait in this band?"""
        return bool(self._bands[band])

    def up_to(self, band: Band, model: str | None) -> int:
        """How many entries wait for exactly this model in this band or a more urgent one."""
        return sum(len(line.alive) for lines in self._bands[: band + 1] if (line := lines.get(model)) is not None)

    def ahead_of(self, band: Band) -> int:
        """How many entries wait in this band or a more urgent one: those before a newcomer to it."""
        return sum(len(line.alive) for lines in self._bands[: band + 1] for line in lines.values())

    def heads(self, band: Band) -> list[Entry]:
        """The first entry of each line of a band, in no particular order."""
        return [entry for line in self._bands[band].values() if (entry := line.head()) is not None]

    def head(self, band: Band, model: str | None) -> Entry | None:
        """The first entry of one line."""
        line = self._bands[band].get(model)
        return None if line is None else line.head()

    def wants(self, model: str | None) -> int:
        """How many entries wait for exactly this model, in any band."""
        return self._by_model.get(model, 0)

    def models(self) -> tuple[str | None, ...]:
        """The models that anything waits for."""
        return tuple(self._by_model)

    def best_band(self, model: str) -> Band | None:
        """The most urgent band in which an entry waits for this model."""
        if model not in self._by_model:
            return None
        return next((band for band in Band if model in self._bands[band]), None)

    def entries(self, model: str | None) -> list[Entry]:
        """All entries that wait for a model, most urgent first."""
        found = [entry for lines in self._bands if (line := lines.get(model)) is not None for entry in line.alive.values()]
        return sorted(found, key=lambda entry: (entry.band, entry.key))

    def first(self, limit: int) -> list[Entry]:
        """The first entries of all, most urgent band first, by key within a band."""
        found: list[Entry] = []
        for lines in self._bands:
            entries = (entry for line in lines.values() for entry in line.alive.values())
            found += heapq.nsmallest(limit - len(found), entries, key=lambda entry: entry.key)
            if len(found) >= limit:
                break
        return found

    def in_order(self, band: Band) -> Iterator[Entry]:
        """The entries of a band by key, all models together; sorts a copy."""
        entries = [entry for line in self._bands[band].values() for entry in line.alive.values()]
        entries.sort(key=lambda entry: entry.key)
        return iter(entries)

    def all_entries(self) -> Iterator[Entry]:
        """Every waiting entry, in no particular order."""
        for lines in self._bands:
            for line in lines.values():
                yield from line.alive.values()
