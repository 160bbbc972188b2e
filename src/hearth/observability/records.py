"""What is kept in memory of what happened, for whoever looks: the counts of a day, the timeline of the dashboard, the metrics.

Others who only keep records subscribe too.
"""

from __future__ import annotations

from collections import Counter, deque

from hearth.events import ItemEnded, ItemInterrupted, RequestRejected
from hearth.observability.metrics.counters import Metrics
from hearth.observability.sinks import EventFanout, HandlingSink
from hearth.observability.timeline import RECALLED_ROWS, SPAN_S, Timeline
from hearth.ports import InvocationHistory
from hearth.types import EndedCount, InvocationFilter, Lane, Outcome

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


class EventRecords(EventFanout):
    """The `EventSink` in front of them all; see `Stats24h`, `Timeline` and `Metrics` for what each can say."""

    def __init__(self) -> None:
        self.stats, self.timeline, self.metrics = Stats24h(), Timeline(), Metrics()
        super().__init__((self.stats, self.timeline, self.metrics))

    async def recall(self, history: InvocationHistory, *, now: float, wall_s: float) -> None:
        """Begin with what earlier processes saw in the last hour and day; whatever is later than now by the calendar happened now.

        Raises:
            StorageUnavailable: the log cannot be read.
        """
        for count in await history.counts_since(wall_s - DAY_S):
            self.stats.preload(count, now - max(0.0, wall_s - count.first_wall_s))
        swaps = await history.swaps(since_wall_s=wall_s - SPAN_S, until_wall_s=None, limit=RECALLED_ROWS)
        self.timeline.recall(swaps, await history.find(InvocationFilter(limit=RECALLED_ROWS)), now=now, wall_s=wall_s)
