"""What may come into the queue: whether its door is open, whose share of the places is used up, and who comes back to a place."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from hearth.errors import Draining, ShuttingDown
from hearth.execution.request import ActiveRequest, Submission
from hearth.types import Lane, Priority, QueueItem

DRAIN_RETRY_S = 30.0
"""Nobody can tell when a drain ends."""


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


RECENTLY_S = 600.0
"""A caller who has asked within so long is likely to ask again."""


class RecentCallers:
    """Who has asked for a place in the external queue of late, whether there was one or not."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, float] = OrderedDict()

    def note(self, caller: str, now: float) -> None:
        self._asked[caller] = now
        self._asked.move_to_end(caller)
        while now - next(iter(self._asked.values())) > RECENTLY_S:
            self._asked.popitem(last=False)

    def others(self, caller: str) -> bool:
        """Whether anybody else has asked lately, as of the last note."""
        return len(self._asked) > (caller in self._asked)


KEPT_S = 60.0
"""How long a place is kept for a caller who has left it."""
_PlaceKey = tuple[str, Lane, Priority, str | None, bytes]


@dataclass(slots=True, kw_only=True)
class _Place:
    key: _PlaceKey
    arrived_at: float
    left_at: float
    waited_s: float
    """How long its caller had waited in it when they left."""


class KeptPlaces:
    """Where requests waited whose callers have left: who sends the same again within `KEPT_S` gets the old place.

    Many clients give up after some minutes and ask anew; from the end of the queue they would never be
    served. Nobody gains by leaving: what its caller is away for longer than it had waited, a place
    loses in age.
    """

    def __init__(self) -> None:
        self._left: deque[_Place] = deque()

    def keep(self, work: ActiveRequest, now: float, *, most: int) -> None:
        """Remember where a request waited, and of the places of its caller the latest `most`."""
        own = [place for place in self._left if place.key[0] == work.item.caller]
        for place in own[: max(0, len(own) + 1 - most)]:
            self._left.remove(place)
        self._left.append(
            _Place(
                key=_key(work.item, work.new.digest),
                arrived_at=work.item.arrived_at,
                left_at=now,
                waited_s=now - work.accepted_at,
            )
        )

    def take(self, new: Submission, now: float) -> float | None:
        """When the request arrived whose place is free for this one, None where there is none. A place is taken once."""
        while self._left and self._left[0].left_at < now - KEPT_S:
            self._left.popleft()
        key = _key(new.item, new.digest)
        for index, place in enumerate(self._left):
            if place.key == key:
                del self._left[index]
                away_s = now - place.left_at
                return place.arrived_at + max(0.0, away_s - place.waited_s)
        return None


def _key(item: QueueItem, digest: bytes) -> _PlaceKey:
    return item.caller, item.lane, item.priority, item.model, digest
