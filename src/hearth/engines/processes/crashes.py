"""When a model whose server keeps ending is left alone. Pure."""

from __future__ import annotations

from collections import deque

SEVERAL = 3
"""Exits, or starts that failed, within `WITHIN_S`, after which it is left alone."""
WITHIN_S = 600.0
FIRST_PAUSE_S = 60.0
MOST_PAUSE_S = 1800.0


class Crashes:
    """Of one model; instants in seconds on the monotonic clock."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=SEVERAL)
        self._pauses = 0
        self._until = 0.0

    def happened(self, now: float) -> None:
        """Its server has ended, or could not be started."""
        self._at.append(now)
        if len(self._at) == SEVERAL and now - self._at[0] <= WITHIN_S:
            self._until = now + min(MOST_PAUSE_S, FIRST_PAUSE_S * 2**self._pauses)
            self._pauses += 1

    def served_for(self, seconds: float) -> None:
        """A server was ready for so long: what was before does not count any more."""
        if seconds >= WITHIN_S:
            self._at.clear()
            self._pauses = 0

    def left_alone_s(self, now: float) -> float:
        """How long it is left alone from now on, 0 where it may be started."""
        return max(0.0, self._until - now)
