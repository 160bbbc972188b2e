"""For how long each item waited for what: the seconds by the kinds of `reasons`.

The items of a line wait for the same, for what its first one waits for. So the seconds are counted
by line, after each decision, and an item has what its line has counted between its coming and its
going: no decision goes through the queue.
"""

from __future__ import annotations

from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING

from hearth.scheduling.reasons import CALLER_PAUSED, reason_of
from hearth.types import Band, Sequence, entity

if TYPE_CHECKING:
    from hearth.scheduling.state import DeviceState
    from hearth.scheduling.waiting import Entry

LINES_READ = 16
"""After one decision; of more lines these are read in turn, some decisions later."""

Seconds = dict[str, float]
LineKey = tuple[bool, Band, str | None]
"""Whether its items are set aside, and what the line is for."""


@entity
class _Line:
    """What a line waits for (empty until that is read), since when, and what it has counted."""

    since: float
    kind: str = ""
    seconds: Seconds = field(default_factory=dict)

    def count(self, now: float) -> Seconds:
        """The seconds until now."""
        if now > self.since:
            if self.kind:
                self.seconds[self.kind] = self.seconds.get(self.kind, 0.0) + now - self.since
            self.since = now
        return self.seconds


class Waited:
    """Set `now` at the beginning of each decision, and `read` at its end."""

    def __init__(self) -> None:
        self.now = 0.0
        self._lines: dict[LineKey, _Line] = {}
        self._joined: dict[Sequence, tuple[_Line, Seconds]] = {}
        """Who waits: in which line, and what that had counted before."""
        self._known: dict[Sequence, Seconds] = {}
        self._over: list[Sequence] = []
        self._turn = 0

    def begin(self, now: float) -> None:
        """A decision begins: who left in the one before is forgotten."""
        self.now = now
        for sequence in self._over:
            self._known.pop(sequence, None)
        self._over.clear()

    def joined(self, entry: Entry) -> None:
        """The entry waits from now on."""
        key = _key(entry)
        line = self._lines.get(key)
        if line is None:
            # nothing is decided upon an arrival that is set aside
            kind = CALLER_PAUSED if entry.is_set_aside else ""
            line = self._lines[key] = _Line(self.now, kind)
        self._joined[entry.item.sequence] = line, line.count(self.now).copy()

    def left(self, entry: Entry, *, last: bool) -> None:
        """The entry does not wait any more; `last`: nobody is left in its line."""
        line, before = self._joined.pop(entry.item.sequence)
        if last:
            del self._lines[_key(entry)]
        _add(self._known, entry.item.sequence, line.count(self.now), before)

    def over(self, sequence: Sequence) -> None:
        """The item has left; what is known of it is kept until the next decision."""
        self._over.append(sequence)

    def of(self, sequence: Sequence, now: float) -> Seconds:
        """What it has waited for so far, by kind, in seconds."""
        known = dict(self._known.get(sequence, {}))
        joined = self._joined.get(sequence)
        if joined is not None:
            line, before = joined
            _add({sequence: known}, sequence, line.count(now), before)
        return known

    def read(self, device: DeviceState, now: float) -> None:
        """Note for what each line waits after a decision."""
        if not self._lines:
            return
        gateway = device.gateway
        for (is_set_aside, band, model), line in self._to_read():
            room = gateway.set_aside if is_set_aside else gateway.waiting
            kind = str(reason_of(device, room.lines[band][model][0], now)["kind"])
            if kind != line.kind:
                line.count(now)
                line.kind = kind

    def _to_read(self) -> list[tuple[LineKey, _Line]]:
        if len(self._lines) <= LINES_READ:
            return list(self._lines.items())
        begin = self._turn if self._turn < len(self._lines) else 0
        self._turn = begin + LINES_READ
        return list(islice(self._lines.items(), begin, self._turn))


def _key(entry: Entry) -> LineKey:
    return entry.is_set_aside, entry.band, entry.wanted_model


def _add(known: dict[Sequence, Seconds], sequence: Sequence, now: Seconds, before: Seconds) -> None:
    """Add what a line has counted since `before`."""
    for kind, total_s in now.items():
        waited_s = total_s - before.get(kind, 0.0)
        if waited_s > 0:
            of_item = known.setdefault(sequence, {})
            of_item[kind] = of_item.get(kind, 0.0) + waited_s
