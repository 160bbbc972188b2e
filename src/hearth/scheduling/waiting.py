"""Who waits, in which order, and what waiting does for the rank of internal work.

One line per band and model, so that a decision looks at heads and never at the whole queue. Every order is an explicit key that ends in the
sequence number. Reading never changes an order. The instant of arrival comes before the number, since an item may have taken the place of
an earlier one (`KeptPlaces`). A line knows its first entry; finding the next costs O(1) amortised at any depth, since lines are
heaps whose removed entries are dropped when they surface.

Aging: after `aging.promote_after_s` an internal item rises by one band, and again after as long, up to `aging.ceiling`. Source: Macaw's
scheduling page, which promotes a batch request to realtime. Here the ceiling is NORMAL unless the owner says otherwise, so that nothing
becomes critical by waiting. Age never crosses the lanes: external work is in order of arrival anyway, and must not pass internal work; what
keeps it from starving is that it cannot be interrupted for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from hearth.types import Band, Lane, QueueItem, Sequence

if TYPE_CHECKING:
    from hearth.config.settings import AgingSettings


Key = tuple[int, float, Sequence]
"""(rank, arrived_at, sequence). Rank is 0, or minus the interruption's number: the most recently interrupted item is first in its line."""
NOWHERE: Key = (0, 0.0, Sequence(0))
"""The key of an entry that has not waited yet."""

BANDS = tuple(Band)
"""Most urgent first; a tuple, since going through an enumeration takes ten times as long."""
SPARE_KEYS = 64
"""A line is tidied up when more keys than this have left it, and more than have not: O(1) amortised."""


class Place(Enum):
    """Where an accepted item is; it is in exactly one place until it leaves."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    """Running still, but a `Preempt` or `Abort` is out."""


_WAITING, _EXTERNAL = Place.WAITING, Lane.EXTERNAL
"""Members of an enumeration, looked up once: in Python 3.11 that takes as long as calling a function."""


@dataclass(slots=True, eq=False)
class Entry:
    """One accepted item and what has happened to it. Owned and changed by the scheduler alone.

    Attributes:
        band: the band it waits in, or waited in last.
        attempts: dispatches so far; the number of the current attempt while it runs.
        lost_loads: times that its model was loaded and had to go again for others before it had served anybody.
        resends: attempts that a backend fault undid before anything was forwarded.
        forwarded: its caller has seen bytes of the current attempt.
        unresumable: its stream could not go on after an interruption, though its request is one of which that could be expected.
        kept_tokens: of its answer that its caller has, which the next attempt only reads.
        held: more urgent work has waited for its stream to end.
        cut: it ends when its attempt has stopped, because its caller cannot be resumed.
        expected_end_at: estimate made at dispatch.
        cancelled: its caller is gone; it leaves as soon as its attempt has stopped.
        key: its place in the line that it waits in, or waited in last.
        rises_at: when waiting raises it by a band, if it still waits then; None for never.
    """

    item: QueueItem
    band: Band
    rank: int = 0
    place: Place = Place.WAITING
    attempts: int = 0
    interrupts: int = 0
    lost_loads: int = 0
    resends: int = 0
    model: str | None = None
    dispatched_at: float = 0.0
    expected_end_at: float = 0.0
    first_byte_at: float | None = None
    forwarded: bool = False
    unresumable: bool = False
    kept_tokens: int = 0
    held: bool = False
    cut: bool = False
    cancelled: bool = False
    rises_at: float | None = None
    key: Key = NOWHERE

    @property
    def external(self) -> bool:
        """It may be interrupted for the house's own work."""
        return self.item.lane is _EXTERNAL


@dataclass(slots=True, eq=False)
class Line:
    """The waiting entries of one band and model. `head` is the first of them, None where there is none."""

    heap: list[Key] = field(default_factory=list)
    alive: dict[Sequence, Entry] = field(default_factory=dict)
    head: Entry | None = None

    def add(self, entry: Entry) -> None:
        """Put an entry where its key puts it."""
        key = entry.key = (entry.rank, entry.item.arrived_at, entry.item.sequence)
        self.alive[entry.item.sequence] = entry
        heapq.heappush(self.heap, key)
        if self.head is None or key < self.head.key:
            self.head = entry

    def _next(self) -> Entry | None:
        """The first of those that are still here, dropping the keys of what has left."""
        while self.heap:
            key = self.heap[0]
            entry = self.alive.get(key[-1])
            if entry is not None and entry.rank == key[0]:
                return entry
            heapq.heappop(self.heap)
        return None

    def front(self, limit: int) -> list[Entry]:
        """The first entries in order: a walk down the heap that looks at what is asked for, and at what has left in between."""
        found: list[Entry] = []
        ahead = [(self.heap[0], 0)] if self.heap else []
        while ahead and len(found) < limit:
            key, index = heapq.heappop(ahead)
            entry = self.alive.get(key[-1])
            if entry is not None and entry.key == key and (not found or found[-1] is not entry):
                found.append(entry)
            for child in range(2 * index + 1, min(2 * index + 3, len(self.heap))):
                heapq.heappush(ahead, (self.heap[child], child))
        return found

    def discard(self, entry: Entry) -> None:
        """Take an entry out; the keys of what has left are kept below those of what has not, so that no walk is long."""
        del self.alive[entry.item.sequence]
        if len(self.heap) > 2 * len(self.alive) + SPARE_KEYS:
            self.heap = [other.key for other in self.alive.values()]
            heapq.heapify(self.heap)
        if entry is self.head:
            self.head = self._next()


class WaitingRoom:
    """All waiting entries.

    Attributes, for reading only:
        lines: those of each band by model, none of them empty.
        lines_of: how many lines there are for each model that is waited for.
    """

    def __init__(self) -> None:
        self.lines: tuple[dict[str | None, Line], ...] = tuple({} for _ in Band)
        self.lines_of: dict[str | None, int] = {}
        self._by_lane: dict[Lane, int] = dict.fromkeys(Lane, 0)

    def __len__(self) -> int:
        return sum(self._by_lane.values())

    def count(self, lane: Lane) -> int:
        """Waiting entries of a lane."""
        return self._by_lane[lane]

    def add(self, entry: Entry) -> None:
        """Put an entry into the line of its band and model."""
        lines = self.lines[entry.band]
        model = entry.item.model
        line = lines.get(model)
        if line is None:
            line = lines[model] = Line()
            self.lines_of[model] = self.lines_of.get(model, 0) + 1
        line.add(entry)
        self._by_lane[entry.item.lane] += 1
        entry.place = _WAITING

    def remove(self, entry: Entry) -> None:
        """Take an entry out, wherever in its line it stands."""
        lines = self.lines[entry.band]
        model = entry.item.model
        line = lines[model]
        line.discard(entry)
        if not line.alive:
            del lines[model]
            self.lines_of[model] -= 1
            if not self.lines_of[model]:
                del self.lines_of[model]
        self._by_lane[entry.item.lane] -= 1

    def move(self, entry: Entry, band: Band) -> None:
        """Put a waiting entry into its line of another band."""
        self.remove(entry)
        entry.band = band
        self.add(entry)

    def up_to(self, band: Band, model: str | None) -> int:
        """How many entries wait for exactly this model in this band or a more urgent one."""
        return sum(len(line.alive) for lines in self.lines[: band + 1] if (line := lines.get(model)) is not None)

    def ahead_of(self, band: Band) -> int:
        """How many entries wait in this band or a more urgent one: those before a newcomer to it."""
        return 0 if not self.lines_of else sum(len(line.alive) for lines in self.lines[: band + 1] for line in lines.values())

    def behind(self, item: QueueItem) -> list[Entry]:
        """The waiting entries that an item goes before which takes an earlier one's place, in order."""
        return [entry for entry in self.in_order(item.band) if entry.key > (0, item.arrived_at, item.sequence)]

    def heads(self, band: Band) -> list[Entry]:
        """The first entry of each line of a band, in no particular order."""
        return [line.head for line in self.lines[band].values() if line.head is not None]

    def front(self, band: Band, model: str | None, limit: int) -> list[Entry]:
        """The first entries of one line, in order."""
        line = self.lines[band].get(model)
        return [] if line is None else line.front(limit)

    def wants(self, model: str | None) -> int:
        """How many entries wait for exactly this model, in any band."""
        return self.up_to(BANDS[-1], model) if model in self.lines_of else 0

    def models(self) -> tuple[str | None, ...]:
        """The models that anything waits for."""
        return tuple(self.lines_of)

    def best_band(self, model: str) -> Band | None:
        """The most urgent band in which an entry waits for this model."""
        if model not in self.lines_of:
            return None
        return next((band for band, lines in zip(BANDS, self.lines, strict=True) if model in lines), None)

    def entries(self, model: str | None) -> list[Entry]:
        """All entries that wait for a model, most urgent first."""
        found = [entry for lines in self.lines if (line := lines.get(model)) is not None for entry in line.alive.values()]
        return sorted(found, key=lambda entry: (entry.band, entry.key))

    def first(self, limit: int) -> list[Entry]:
        """The first entries of all, most urgent band first, by key within a band."""
        found: list[Entry] = []
        for lines in self.lines:
            entries = (entry for line in lines.values() for entry in line.alive.values())
            found += heapq.nsmallest(limit - len(found), entries, key=lambda entry: entry.key)
            if len(found) >= limit:
                break
        return found

    def in_order(self, band: Band) -> Iterator[Entry]:
        """The entries of a band by key, all models together; sorts a copy."""
        entries = [entry for line in self.lines[band].values() for entry in line.alive.values()]
        entries.sort(key=lambda entry: entry.key)
        return iter(entries)

    def all_entries(self) -> Iterator[Entry]:
        """Every waiting entry, in no particular order."""
        for lines in self.lines:
            for line in lines.values():
                yield from line.alive.values()


_INTERNAL = Lane.INTERNAL
"""Looked up once: in Python 3.11 that takes as long as calling a function."""


def rises_at(entry: Entry, settings: AgingSettings) -> float | None:
    """When an entry rises from the band that it is in; None for never."""
    item = entry.item
    if item.lane is not _INTERNAL or entry.band <= settings.ceiling or settings.promote_after_s <= 0:
        return None
    return item.arrived_at + (item.band - entry.band + 1) * settings.promote_after_s


class Aging:
    """Who rises next. O(log n) per item and promotion; an item that leaves earlier is dropped when its time comes up.

    `due` is a heap, for reading only: after `next_due` has said that nobody rises now, its first instant is when somebody will.
    """

    def __init__(self, settings: AgingSettings) -> None:
        self.promotions = 0
        self._settings = settings
        self.due: list[tuple[float, Sequence]] = []

    def configure(self, settings: AgingSettings, waiting: Iterable[Entry]) -> None:
        """Apply new settings to what waits; nobody falls back to a lower band."""
        self._settings = settings
        self.due.clear()
        for entry in waiting:
            self.expect(entry)

    def expect(self, entry: Entry) -> None:
        """The entry waits (again, or in another band)."""
        entry.rises_at = rises_at(entry, self._settings)
        if entry.rises_at is not None:
            heapq.heappush(self.due, (entry.rises_at, entry.item.sequence))

    def next_due(self, entries: Mapping[Sequence, Entry], now: float) -> Entry | None:
        """An entry whose time has come, None where there is none (left). It is not named again until it is expected again."""
        while self.due:
            at, sequence = self.due[0]
            entry = entries.get(sequence)
            if entry is not None and entry.place is Place.WAITING and entry.rises_at == at:
                if at > now:
                    return None
                heapq.heappop(self.due)
                return entry
            heapq.heappop(self.due)
        return None
