"""The plain numbers behind the counters: no names, no locks, a few dozen nanoseconds each. Used by `tallies` alone."""

from __future__ import annotations

from bisect import bisect_left

from hearth.observability.latency import Phase
from hearth.observability.metrics.families import Distribution

PHASE_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
INPUT_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
LAG_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Histogram:
    """Counts by size; `bounds` are inclusive upper limits, ascending."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...] = PHASE_BOUNDS_S) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        """As it is now."""
        return Distribution(bounds=self._bounds, counts=tuple(self._counts), total=self._total)


class ModelTally:
    """What the requests of one lane on one model came to."""

    __slots__ = ("completed", "other_ends", "output_tokens", "phases", "prompt_tokens")

    def __init__(self) -> None:
        self.completed = 0
        self.other_ends: dict[str, int] = {}
        self.phases = tuple(Histogram() for _ in Phase)
        self.prompt_tokens = 0
        self.output_tokens = 0


class CallerTally:
    """What one caller's requests in one lane came to."""

    __slots__ = ("accepted", "completed", "cost_usd", "other_ends", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.accepted = 0
        self.completed = 0
        self.other_ends: dict[str, int] = {}
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cost_usd = 0.0
