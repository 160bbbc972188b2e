"""How many items ended in the last 24 hours: the `stats_24h` of the status page.

Counts and forgets; keeps no item and reads no clock. Fed by the fanout, read by status. One thread only.
"""

from __future__ import annotations

from collections import Counter, deque

from hearth.events import ItemEnded, ItemInterrupted, RequestRejected
from hearth.observability.handling import HandlingSink
from hearth.types import EndedCount, Lane, Outcome

DAY_S = 86_400.0
BUCKET_S = 60.0

_KEYS = (*(f"{lane.value}_{word}" for lane in Lane for word in (*(outcome.value for outcome in Outcome), "interrupted")), "rejected")

_ENDED = {(lane, outcome): f"{lane.value}_{outcome.value}" for lane in Lane for outcome in Outcome}


class _Bucket:
    """Counts of the events in the minute that began with its first event."""

    __slots__ = ("counts", "opened_at")

    def __init__(self, opened_at: float) -> None:
        self.opened_at = opened_at
        self.counts: Counter[str] = Counter()


class Stats24h(HandlingSink):
    """An `EventSink` that counts endings, interruptions and rejections over a window that really slides.

    A bucket opens with its first event and takes those of the next 60 s; it leaves as a whole when that first event is 24 h old. So
    nothing older than 24 h is ever counted, an event that stands alone leaves exactly at 24 h, and none leaves more than a minute
    early. At most 1441 buckets exist.
    """

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque()
        self._handlers = {
            ItemEnded: lambda ended: self._count(_ENDED[ended.lane, ended.outcome], ended.at),
            ItemInterrupted: lambda interrupted: self._count(f"{interrupted.lane.value}_interrupted", interrupted.at),
            RequestRejected: lambda rejected: self._count("rejected", rejected.at),
        }

    def preload(self, count: EndedCount, at: float) -> None:
        """Count items that an earlier process saw end, from the monotonic instant `at` on (which may lie before the machine's start).

        To be called oldest first, before the first event. Rejections are in no log, so those of earlier processes are not counted.
        """
        counts = self._bucket_for(at).counts
        counts[f"{count.lane.value}_{count.outcome.value}"] += count.items
        counts[f"{count.lane.value}_interrupted"] += count.interruptions

    def snapshot(self, now: float) -> dict[str, int]:
        """Counts in (now - 24 h, now]: `{internal,external}_{completed,failed,cancelled,expired,interrupted}` and `rejected`."""
        self._forget(now)
        total: Counter[str] = Counter()
        for bucket in self._buckets:
            total.update(bucket.counts)
        return {key: total[key] for key in _KEYS}

    def _count(self, key: str, at: float) -> None:
        self._bucket_for(at).counts[key] += 1

    def _bucket_for(self, at: float) -> _Bucket:
        if not self._buckets or at >= self._buckets[-1].opened_at + BUCKET_S:
            self._forget(at)
            self._buckets.append(_Bucket(at))
        return self._buckets[-1]

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0].opened_at + DAY_S <= now:
            self._buckets.popleft()
