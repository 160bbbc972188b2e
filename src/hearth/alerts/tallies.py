"""What several events together mean: a caller that is refused again and again, a queue that is long. Pure counting."""

from __future__ import annotations

from collections import deque

from hearth.events import ItemEvent, ItemInterrupted, ItemQueued, ItemResent
from hearth.types import Lane, Sequence

WINDOW_S = 300.0
MAX_CALLERS = 1000
_WAITS = (ItemQueued, ItemInterrupted, ItemResent)
"""With these an item waits; with `ItemDispatched` and `ItemEnded`, the others that are noted, it does not any more."""


class Refusals:
    """The recent refusals of each caller, no more of them than matter."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}

    def add(self, caller: str, at: float, threshold: int) -> bool:
        """Note a refusal; whether it is the `threshold`-th within 5 minutes, or one beyond."""
        recent = deque((*self._recent.pop(caller, ()), at), maxlen=threshold)
        self._recent[caller] = recent
        if len(self._recent) > MAX_CALLERS:
            del self._recent[next(iter(self._recent))]
        return len(recent) == threshold and recent[0] > at - WINDOW_S


class WaitingItems:
    """The external items that wait, as the events of items tell it."""

    def __init__(self) -> None:
        self._waiting: set[Sequence] = set()

    @property
    def depth(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def note(self, event: ItemEvent) -> int:
        """An item waits from now on, or no longer; internal ones change nothing. Returns by how much the depth has changed."""
        waits = isinstance(event, _WAITS)
        if event.lane is not Lane.EXTERNAL or waits is (event.sequence in self._waiting):
            return 0
        if waits:
            self._waiting.add(event.sequence)
            return 1
        self._waiting.discard(event.sequence)
        return -1
