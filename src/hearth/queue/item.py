"""Whether new requests are accepted, and the places that are kept for those who gave up waiting."""

from __future__ import annotations

from collections import deque

from hearth.errors import Draining, ShuttingDown
from hearth.execution.request import ActiveRequest, Submission
from hearth.types import Lane, Priority, QueueItem

DRAIN_RETRY_S = 30.0
"""Nobody can tell when a drain ends."""
KEPT_S = 60.0
"""How long a place is kept for a caller who has left it."""
_PlaceKey = tuple[str, Lane, Priority, str | None, bytes]


class AdmissionState:
    """Whether new work may come in."""

    draining = False
    """The owner wants no new work."""
    back_in_s: float | None = None
    """The gateway ends, and may be back after so many seconds; None while it goes on."""

    def check(self, *, accepted: bool = False) -> None:
        """Raises ShuttingDown or, for what was not `accepted` before, Draining."""
        if self.back_in_s is not None:
            raise ShuttingDown(retry_after_s=self.back_in_s)
        if self.draining and not accepted:
            raise Draining(retry_after_s=DRAIN_RETRY_S)


class KeptPlaces:
    """Where requests waited whose callers have left: who sends the same again within `KEPT_S` gets the old place.

    Many clients give up after some minutes and ask anew; from the end of the queue they would never be served.
    """

    def __init__(self) -> None:
        self._left: deque[tuple[float, _PlaceKey, float]] = deque()

    def keep(self, work: ActiveRequest, now: float, *, most: int) -> None:
        """Remember where a request waited, and of all places the latest `most`."""
        self._left.append((now, _key(work.item, work.new.digest), work.item.arrived_at))
        while len(self._left) > most:
            self._left.popleft()

    def take(self, new: Submission, now: float) -> float | None:
        """When the request arrived whose place is free for this one, None where there is none. A place is taken once."""
        while self._left and self._left[0][0] < now - KEPT_S:
            self._left.popleft()
        key = _key(new.item, new.digest)
        for index, (_, other, arrived_at) in enumerate(self._left):
            if other == key:
                del self._left[index]
                return arrived_at
        return None


def _key(item: QueueItem, digest: bytes) -> _PlaceKey:
    return item.caller, item.lane, item.priority, item.model, digest
