"""Estimated waits for callers and status at a bounded cost.

The scheduler is run forward at most a few times a second. Between two runs a newcomer's wait is
that of the last one of its band and model, less the time since, plus what serving those takes that
arrived in between. All runs together may cost so much a second (`WORK_PER_S`): where hundreds of
models are waited for at once, a band and model that was never looked at gets the mean pace of the
queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass

from hearth.execution.request import PromisedWait
from hearth.scheduling.forecast import ForecastView
from hearth.scheduling.waiting import Entry
from hearth.types import Band, Lane, QueueItem, Sequence

FRESH_S = 0.25
# as `Forecast.work`: about a tenth of a processor. As much may be spent at once
WORK_PER_S = 60_000.0
MAX_READINGS = 1000  # the one that was made first goes first
PAUSED_RETRY_S = 30.0
"""Nobody can tell when a pause ends: advice for those who find the queue full meanwhile."""


_ReadingKey = tuple[Band, str | None, str, str]
"""Band and model; caller and user where these are served by their shares."""


@dataclass(slots=True)
class _WaitReading:
    at: float
    wait_s: float
    pace_s: float
    since: int = 0  # how many were accepted behind it, the one that it was made for included


class Forecaster:
    """Asks the scheduler as seldom as that does; owned by the queue worker."""

    def __init__(self, view: ForecastView) -> None:
        self._view = view
        self._readings: dict[_ReadingKey, _WaitReading] = {}
        self._starts: Mapping[Sequence, float] = {}
        self._starts_at = float("-inf")
        # expected seconds for each item ahead, as of the last newcomer that was looked at
        self._pace_s = 0.0
        self._work_left = WORK_PER_S
        self._refilled_at = 0.0

    def wait_s(
        self, item: QueueItem, arriving: int, now: float, behind: Several[Entry] = ()
    ) -> float | None:
        """Expected seconds until an item that is being accepted starts, None where nothing answers
        or its lane or caller is paused.

        `arriving` others are not decided upon yet; it goes before those `behind` it, and so starts
        when the next of its line was to.
        """
        if not self._view.answers_for(item) or self._view.is_paused(item.lane, item.caller):
            return None
        if not arriving and self._view.starts_at_once(item):
            return 0.0
        asked = item.alias or item.model
        following = next(
            (entry for entry in behind if (entry.item.alias or entry.item.model) == asked), None
        )
        if following is not None:
            starts_s = self.starts(now).get(following.item.sequence)
            if starts_s is not None:
                return starts_s
        reading = self._readings.get(self._key(item))
        if (reading is None or now - reading.at >= FRESH_S) and self._may_look(now):
            return self._look(item, arriving, now)
        age_s = 0.0 if reading is None else now - reading.at
        if reading is None or FRESH_S <= age_s >= reading.wait_s:
            return self._pace_s * max(1, self._view.ahead_of(item.band) + arriving)
        return max(0.0, reading.wait_s - age_s) + reading.pace_s * reading.since

    def promised(self, item: QueueItem, wait_s: float | None, now: float) -> PromisedWait | None:
        """What the caller of an item is told that is being accepted."""
        if wait_s is None:
            return None
        return PromisedWait(wait_s, self._view.wait_bound_s(item, wait_s, now))

    def accepted(self, item: QueueItem) -> None:
        """Count an item whose wait was asked for, and that waits now."""
        reading = self._readings.get(self._key(item))
        if reading is not None:
            reading.since += 1

    def _key(self, item: QueueItem) -> _ReadingKey:
        if self._view.is_shared(item.band):
            return item.band, item.alias or item.model, item.caller, item.user
        return item.band, item.alias or item.model, "", ""

    def _look(self, item: QueueItem, arriving: int, now: float) -> float:
        """Run the scheduler forward with this item in its line."""
        view = self._view
        wait_s = self._run(now, item).get(item.sequence, 0.0) + arriving * view.service_s(item)
        reading = _WaitReading(at=now, wait_s=wait_s, pace_s=view.pace_s(item))
        key = self._key(item)
        self._readings.pop(key, None)
        self._readings[key] = reading
        if len(self._readings) > MAX_READINGS:
            del self._readings[next(iter(self._readings))]
        self._pace_s = wait_s / max(1, view.ahead_of(item.band) + arriving)
        return wait_s

    def _may_look(self, now: float) -> bool:
        """Is any of the work left that a second has?"""
        self._work_left = min(WORK_PER_S, self._work_left + (now - self._refilled_at) * WORK_PER_S)
        self._refilled_at = now
        return self._work_left > 0

    def _run(self, now: float, newcomer: QueueItem | None = None) -> Mapping[Sequence, float]:
        found = self._view.forecast(now, newcomer)
        self._work_left -= found.work
        return found.starts

    def starts(self, now: float) -> Mapping[Sequence, float]:
        """Expected seconds until the start of each waiting item; up to `FRESH_S` old.

        Where no more work may be spent it is what was known before, less the time since, and
        whoever came after that is missing.
        """
        age_s = now - self._starts_at
        if age_s < FRESH_S:
            return self._starts
        if not self._may_look(now):
            return {sequence: max(0.0, wait_s - age_s) for sequence, wait_s in self._starts.items()}
        self._starts = self._run(now)
        self._starts_at = now
        return self._starts

    def first_start_s(self, lane: Lane, now: float) -> float:
        """Expected seconds until the first waiting item of a lane starts, which is when a place in
        the queue comes free.
        """
        if self._view.is_paused(lane):
            return PAUSED_RETRY_S
        lane_of = self._view.lane_of
        waits = [
            wait_s for sequence, wait_s in self.starts(now).items() if lane_of(sequence) is lane
        ]
        return max(1.0, min(waits, default=self._pace_s))
