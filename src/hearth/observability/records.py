"""What is kept of events in memory: counts of a day, requests, the timeline of the dashboard,
metrics.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace

from hearth.events import ItemEnded, ItemInterrupted, RequestRejected
from hearth.events.handling import HandlingSink
from hearth.observability.fanout import EventFanout
from hearth.observability.metrics import Metrics
from hearth.observability.requests import (
    ENDED_KEPT,
    RECALLED_ROWS,
    SPAN_S,
    RequestTracker,
    Timeline,
)
from hearth.ports import InvocationHistory
from hearth.types import DAY_S, EndedCount, Lane, Outcome, ProcessRun

BUCKET_S = 60.0
_KEYS = (
    *(f"{lane.value}_{word}" for lane in Lane for word in (*Outcome, "interrupted")),
    "rejected",
)


class Stats24h(HandlingSink):
    """An `EventSink` that counts endings, interruptions and rejections of the last 24 hours. A
    bucket takes the events of 60 s from its first one on, and leaves as a whole when that one is 24
    h old: nothing older is ever counted, and nothing leaves more than a minute early. At most 1441
    buckets exist.
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, Counter[str]]] = deque()
        self._handlers = {
            ItemEnded: self._on_ended,
            ItemInterrupted: self._on_interrupted,
            RequestRejected: self._on_rejected,
        }

    def _on_ended(self, event: ItemEnded) -> None:
        self._count(f"{event.lane}_{event.outcome}", event.at)

    def _on_interrupted(self, event: ItemInterrupted) -> None:
        self._count(f"{event.lane}_interrupted", event.at)

    def _on_rejected(self, event: RequestRejected) -> None:
        self._count("rejected", event.at)

    def preload(self, count: EndedCount, at: float) -> None:
        """Count items that an earlier process saw end, from the monotonic instant `at` on; oldest
        first, before the first event.
        """
        self._count(f"{count.lane.value}_{count.outcome.value}", at, count.items)
        self._count(f"{count.lane.value}_interrupted", at, count.interruptions)

    def snapshot(self, now: float) -> dict[str, int]:
        """Counts in (now - 24 h, now]:
        `{internal,external}_{completed,failed,cancelled,expired,interrupted}` and `rejected`.
        """
        self._forget(now)
        return {key: sum(counts[key] for _, counts in self._buckets) for key in _KEYS}

    def _count(self, key: str, at: float, times: int = 1) -> None:
        if not self._buckets or at >= self._buckets[-1][0] + BUCKET_S:
            self._forget(at)
            self._buckets.append((at, Counter()))
        self._buckets[-1][1][key] += times

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] + DAY_S <= now:
            self._buckets.popleft()


class EventRecords:
    """The sinks that keep something in memory; see each for what it can say."""

    def __init__(self) -> None:
        self.stats = Stats24h()
        self.timeline = Timeline()
        self.metrics = Metrics()
        self.requests = RequestTracker(self.timeline)

    def subscribe_to(self, events: EventFanout) -> None:
        """Hear of everything from now on."""
        for sink in (self.stats, self.timeline, self.metrics, self.requests):
            events.subscribe(sink)

    async def recall(self, history: InvocationHistory, *, now: float, wall_s: float) -> None:
        """Begin with what earlier processes saw in the last hour and day; what is later happened
        now. Raises StorageUnavailable.
        """
        for count in await history.counts_since(wall_s - DAY_S):
            self.stats.preload(count, now - max(0.0, wall_s - count.first_wall_s))
        since = wall_s - SPAN_S
        swaps = await history.swaps(since_wall_s=since, until_wall_s=None, limit=RECALLED_ROWS)
        items = await history.find(since_wall_s=since, limit=RECALLED_ROWS)
        runs = await history.runs_since(since)
        if len(items) == RECALLED_ROWS:
            runs = _since(items[-1].ended_wall_s, runs)
        if len(items) < ENDED_KEPT:
            items = await history.find(limit=ENDED_KEPT)
        self.timeline.recall(swaps, items, runs, now=now, wall_s=wall_s)
        self.requests.recall(items, now=now, wall_s=wall_s)


def _since(wall_s: float, runs: Iterable[ProcessRun]) -> tuple[ProcessRun, ...]:
    """Of these the part after an instant: of what was before, not all was read."""
    return tuple(
        replace(run, started_wall_s=max(wall_s, run.started_wall_s))
        for run in runs
        if run.seen_wall_s >= wall_s
    )
