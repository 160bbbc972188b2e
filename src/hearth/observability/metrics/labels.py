"""Bounded labels: whatever callers and owners name things, the number of time series stays small."""

from __future__ import annotations

OTHER = "other"
MODELS = 50
CALLERS = 50
REASONS = 50
DIRECTIONS = 200


class LabelCap:
    """Lets the first `limit` values through; every further one is `other`, also one that is seen again."""

    __slots__ = ("_known", "_limit")

    def __init__(self, limit: int) -> None:
        self._known: set[str] = set()
        self._limit = limit

    def of(self, value: str) -> str:
        """The value to show."""
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value
