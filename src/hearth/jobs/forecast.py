"""When a job that waits will start, as far as those that have run tell. Pure."""

from __future__ import annotations

ALPHA = 0.3


class Forecast:
    """A moving average of the time that the house takes for one job."""

    def __init__(self) -> None:
        self._each_s: float | None = None

    def note(self, ran_s: float, at_once: int) -> None:
        """A job took `ran_s` while `at_once` were on their way, itself included."""
        share_s = ran_s / max(1, at_once)
        self._each_s = share_s if self._each_s is None else self._each_s + ALPHA * (share_s - self._each_s)

    def start_s(self, ahead: int, earliest_s: float) -> float | None:
        """Seconds until a job with so many ahead starts, not before `earliest_s`; None before the first job has run."""
        if ahead == 0:
            return max(0.0, earliest_s)
        return None if self._each_s is None else max(earliest_s, ahead * self._each_s)
