"""Waiting raises internal work: after `aging.promote_after_s` by one band, and again after as long, up to `aging.ceiling`.

Source: Macaw's scheduling page, which promotes a batch request to realtime. Here the ceiling is NORMAL unless the owner says otherwise, so
that nothing becomes critical by waiting. Age never crosses the lanes: external work is in order of arrival anyway, and must not pass
what the house itself wants; what keeps it from starving is that it cannot be interrupted for ever.

The band follows from the instant alone, `item.band - (now - arrived_at) // promote_after_s` within the ceiling, so it does not matter how
often anybody looks. In its new band an item stands where its number puts it: before all that came later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hearth.scheduling.waiting import Entry, Place
from hearth.types import Lane, Sequence

if TYPE_CHECKING:
    from hearth.config.settings import AgingSettings

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
