"""What it takes to wake a model, by the level at which it sleeps."""

from __future__ import annotations

from collections.abc import Iterable

from hearth.types import SleepLevel

ALPHA = 0.3  # as for every average of the scheduler
CAP_S = 60.0  # so that one that was started anew does not spoil the average
SHARE_OF_LOAD: dict[SleepLevel, float] = {"offload": 2.6 / 55.0, "discard": 9.0 / 55.0}
"""Until it was measured, of what a load takes: the wakes and the start of llmux's switching
efficiency report.
"""
MOST_S = 1e9


class Wakes:
    """Learned by origin, target and level of the target. Changed by `Estimates` alone."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str, SleepLevel], float] = {}
        self._target_s: dict[tuple[str, SleepLevel], float] = {}
        self._longest_s: dict[tuple[str, SleepLevel], float] = {}

    def learn(self, origin: str, target: str, level: SleepLevel, seconds: float) -> None:
        """Fold in one measured swap that woke its target."""
        seen_s = min(seconds, CAP_S)
        old_s = self._seconds.get((origin, target, level), seen_s)
        self._seconds[origin, target, level] = old_s + ALPHA * (seen_s - old_s)
        old_s = self._target_s.get((target, level), seen_s)
        self._target_s[target, level] = old_s + ALPHA * (seen_s - old_s)
        longest_s = self._longest_s.get((target, level), 0.0)
        self._longest_s[target, level] = max(seen_s, longest_s + ALPHA * (seen_s - longest_s))

    def seconds(self, origin: str, target: str, level: SleepLevel, load_s: float) -> float:
        """Expected seconds of a swap that wakes its target: this direction, else from anywhere,
        else a part of what its load takes.
        """
        known_s = self._seconds.get((origin, target, level))
        if known_s is None:
            known_s = self._target_s.get((target, level))
        return SHARE_OF_LOAD[level] * load_s if known_s is None else known_s

    def longest_s(self, target: str, level: SleepLevel) -> float:
        """Seconds of the longest of the last ones, 0 where none was measured."""
        return self._longest_s.get((target, level), 0.0)

    def knows(self, target: str) -> bool:
        return any(model == target for model, _ in self._target_s)

    def forget(self) -> None:
        self._seconds.clear()
        self._target_s.clear()
        self._longest_s.clear()

    def export(self) -> list[list[object]]:
        """As values that JSON can hold."""
        return [[*key, seconds] for key, seconds in self._seconds.items()]

    def restore(self, rows: Iterable[tuple[str, str, SleepLevel, float]]) -> None:
        """Take over what was exported. Raises TypeError or ValueError for anything else."""
        found = [(origin, target, level, float(seconds)) for origin, target, level, seconds in rows]
        for origin, target, level, seconds in found:
            if level in SHARE_OF_LOAD and 0 < seconds <= MOST_S:
                self.learn(str(origin), str(target), level, seconds)
