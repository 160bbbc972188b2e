"""What the GPU draws, added up from its readings."""

from __future__ import annotations

from hearth.clock import Clock
from hearth.events import EnergyMeasured
from hearth.ports import EventSink
from hearth.types import HOUR_S

REPORT_S = 300.0
"""How often the sum is emitted: each time is a write to the disk."""
LONGEST_S = 60.0
"""Between two readings that are further apart, and two intervals, nobody knows what was drawn."""


class EnergyMeter:
    """Adds up what is drawn between two readings, as the mean of both; emitted every few minutes,
    and before the first reading of an hour, so that each sum belongs to one.
    """

    def __init__(self, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._last: tuple[float, float] | None = None  # when, watts
        self._hour = 0
        self._began_at = 0.0
        self._energy_j = 0.0
        self._measured_s = 0.0

    def read(self, power_w: float | None, interval_s: float = 0.0) -> None:
        """Take in what a reading says; None: it does not, or there was none. `interval_s`: to the
        next one, as configured.
        """
        now = self._clock.monotonic()
        hour = int(self._clock.wall() // HOUR_S)
        if hour != self._hour or now - self._began_at >= REPORT_S:
            self.report()
            self._hour, self._began_at = hour, now
        if power_w is not None and self._last is not None:
            at, before_w = self._last
            if now - at <= max(LONGEST_S, 2 * interval_s):
                self._energy_j += (now - at) * (before_w + power_w) / 2
                self._measured_s += now - at
        self._last = None if power_w is None else (now, power_w)

    def report(self) -> None:
        """Emit what was added up since the last time, if anything was."""
        if self._measured_s:
            event = EnergyMeasured(
                at=self._clock.monotonic(),
                hour=self._hour,
                energy_j=self._energy_j,
                measured_s=self._measured_s,
            )
            self._events.emit(event)
        self._energy_j = self._measured_s = 0.0
