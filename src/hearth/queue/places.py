"""Places in line that outlive their request for a while."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from hearth.execution.request import ActiveRequest, Submission
from hearth.types import Lane, Priority, QueueItem

KEPT_S = 60.0
"""How long a place is kept for a caller who has left it."""
_PlaceKey = tuple[str, str, Lane, Priority, str | None, bytes]


@dataclass(slots=True, kw_only=True)
class _KeptPlace:
    key: _PlaceKey
    arrived_at: float
    left_at: float
    waited_s: float
    """How long its caller had waited in it when they left."""


class KeptPlaces:
    """Where requests waited whose callers have left: who sends the same again within `KEPT_S` gets
    the old place.

    Many clients give up after some minutes and ask anew; from the end of the queue they would never
    be served. Nobody gains by leaving: what its caller is away for longer than it had waited, a
    place loses in age.
    """

    def __init__(self) -> None:
        self._left: OrderedDict[int, _KeptPlace] = OrderedDict()
        self._same: dict[_PlaceKey, deque[int]] = {}
        self._of: dict[str, OrderedDict[int, None]] = {}
        self._kept = 0
        """Numbers the places; those of one request, of one caller and of all are in the order of
        their numbers.
        """

    def keep(self, work: ActiveRequest, now: float, *, most: int) -> None:
        """Remember where a request waited, and of the places of its caller the latest `most`."""
        place = _KeptPlace(
            key=_key(work.item, work.new.digest),
            arrived_at=work.item.arrived_at,
            left_at=now,
            waited_s=now - work.accepted_at,
        )
        self._kept += 1
        self._left[self._kept] = place
        self._same.setdefault(place.key, deque()).append(self._kept)
        own = self._of.setdefault(work.item.caller, OrderedDict())
        own[self._kept] = None
        if len(own) > most:
            self._drop(next(iter(own)))

    def take(self, new: Submission, now: float) -> float | None:
        """When the request arrived whose place is free for this one, None where there is none.

        A place is taken once.
        """
        while self._left and next(iter(self._left.values())).left_at < now - KEPT_S:
            self._drop(next(iter(self._left)))
        same = self._same.get(_key(new.item, new.digest))
        if not same:
            return None
        place = self._drop(same[0])
        away_s = now - place.left_at
        return place.arrived_at + max(0.0, away_s - place.waited_s)

    def _drop(self, number: int) -> _KeptPlace:
        """Forget a place, of those of its request the oldest."""
        place = self._left.pop(number)
        same = self._same[place.key]
        own = self._of[place.key[0]]
        same.popleft()
        del own[number]
        if not same:
            del self._same[place.key]
        if not own:
            del self._of[place.key[0]]
        return place


def _key(item: QueueItem, digest: bytes) -> _PlaceKey:
    return item.caller, item.user, item.lane, item.priority, item.model, digest
