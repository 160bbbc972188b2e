"""What is kept in memory of what happened, for whoever looks: the counts of a day, the timeline of the dashboard, the metrics.

Others who only keep records subscribe too. Owned by the gateway.
"""

from __future__ import annotations

from hearth.observability.fanout import EventFanout
from hearth.observability.metrics.counters import Metrics
from hearth.observability.timeline import RECALLED_ROWS, SPAN_S, Timeline
from hearth.observability.windows import DAY_S, Stats24h
from hearth.ports import InvocationHistory
from hearth.types import InvocationFilter


class Records(EventFanout):
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
