"""A clock that the test sets."""

from __future__ import annotations

WALL = 1_767_571_200.0
"""Monday, 2026-01-05 00:00:00 UTC."""


class StoppedClock:
    """Its time moves only when a test moves it.

    `cpu_step_s` is what a thread computes from one reading to the next.
    """

    def __init__(self, *, monotonic_s: float = 1000.0, wall_s: float = WALL) -> None:
        self.monotonic_s = monotonic_s
        self.wall_s = wall_s
        self.cpu_s = self.cpu_step_s = 0.0

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return self.wall_s

    def thread_cpu(self) -> float:
        self.cpu_s += self.cpu_step_s
        return self.cpu_s

    def asleep(self) -> float:
        return 0.0

    def advance(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds
