"""Who gets every event, and what is kept of them in memory: counts of a day, requests, the timeline
of the dashboard, metrics.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from hearth.events import Event, ItemEnded, ItemInterrupted, RequestRejected
from hearth.observability.metrics import Metrics
from hearth.observability.requests import RECALLED_ROWS, SPAN_S, RequestTracker, Timeline
from hearth.ports import EventSink, HandlingSink, InvocationHistory
from hearth.types import DAY_S, EndedCount, Lane, Outcome

_LOGGER = logging.getLogger(__name__)
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
            ItemEnded: lambda event: self._count(f"{event.lane}_{event.outcome}", event.at),
            ItemInterrupted: lambda event: self._count(f"{event.lane.value}_interrupted", event.at),
            RequestRejected: lambda event: self._count("rejected", event.at),
        }

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
        self.stats, self.timeline, self.metrics = Stats24h(), Timeline(), Metrics()
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
        swaps = await history.swaps(
            since_wall_s=wall_s - SPAN_S, until_wall_s=None, limit=RECALLED_ROWS
        )
        items = await history.find(limit=RECALLED_ROWS)
        self.timeline.recall(swaps, items, now=now, wall_s=wall_s)
        self.requests.recall(items, now=now, wall_s=wall_s)


class EventFanout:
    """An `EventSink` in front of any number of others. Every sink sees the events in the same
    order, also those that a sink emits while it is handling another. A sink that raises misses that
    event only; its first failure is logged by type and place, without the error's text, which may
    quote anything.
    """

    def __init__(self, sinks: Iterable[EventSink] = ()) -> None:
        self._sinks = tuple(sinks)
        self._takers: dict[type[Event], tuple[tuple[EventSink, Callable[[Any], None]], ...]] = {}
        self._reported: set[int] = set()
        """By identity: sinks may be equal without being the same, or not hashable at all."""
        self._pending: deque[Event] = deque()
        self._delivering = False

    def subscribe(self, sink: EventSink) -> None:
        """Deliver to `sink` too, from the next event on; a second subscription of the same sink is
        ignored.
        """
        if not any(known is sink for known in self._sinks):
            self._sinks = (*self._sinks, sink)
            self._takers.clear()

    def emit(self, event: Event) -> None:
        """Deliver `event`; never raises for a defect of a sink."""
        self._pending.append(event)
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._pending:
                self._deliver(self._pending.popleft())
        finally:
            self._delivering = False

    def _deliver(self, event: Event) -> None:
        kind = type(event)
        takers = self._takers.get(kind)
        if takers is None:
            known = (
                (sink, sink.handler_of(kind) if hasattr(sink, "handler_of") else sink.emit)
                for sink in self._sinks
            )
            takers = self._takers[kind] = tuple(
                (sink, take) for sink, take in known if take is not None
            )
        for sink, take in takers:
            try:
                take(event)
            except Exception as error:  # noqa: BLE001 - supervision point: a port says "must not raise", and one defect must stay one
                self._report(sink, event, error)

    def _report(self, sink: EventSink, event: Event, error: Exception) -> None:
        if id(sink) not in self._reported:
            self._reported.add(id(sink))
            *_, (frame, line) = traceback.walk_tb(error.__traceback__)
            words = (
                type(sink).__name__,
                type(error).__name__,
                f"{frame.f_globals.get('__name__', '?')}:{line}",
                event.NAME,
            )
            _LOGGER.error(
                "event sink %s raised %s at %s on %s; its further failures are not reported", *words
            )
