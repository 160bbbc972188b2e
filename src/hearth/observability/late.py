"""Delivers events a moment after they happened, many together, to sinks that only keep records of them.

What keeps records is two fifths of what a small request costs, most of it for code that has left the processor's caches since the last
event. Together, one sink after the other, the same events cost a third less. Whoever reads a record flushes first, so that nobody can see
the delay. Used by `records` and for the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from hearth.events import Event
from hearth.observability.fanout import EventFanout
from hearth.ports import EventSink

GATHER_S = 0.02
AT_ONCE = 256
"""Events that wait at most; their delivery takes about 10 ms."""


class LateFanout(EventFanout):
    """An `EventFanout` whose sinks hear of events within `GATHER_S`, in their order; at once where no event loop runs.

    A sink hears of several before the next one hears of the first of them.
    """

    def __init__(self, sinks: Iterable[EventSink] = ()) -> None:
        super().__init__(sinks)
        self._late: deque[Event] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def emit(self, event: Event) -> None:
        """Deliver `event` soon; never raises for a defect of a sink."""
        self._late.append(event)
        if len(self._late) >= AT_ONCE:
            self.flush()
        elif self._timer is None:
            self._flush_soon()

    def flush(self) -> None:
        """Deliver what has waited so far; within a delivery, when that is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._late:
                events, self._late = self._late, deque()
                self._deliver_together(events)
        finally:
            self._delivering = False

    def _deliver_together(self, events: Iterable[Event]) -> None:
        for sink, handlers in self._sinks:
            for event in events:
                take = handlers[type(event)]
                try:
                    if take is not None:
                        take(event)
                except Exception as error:  # noqa: BLE001 - supervision point, as in `EventFanout`
                    self._report(sink, event, error)

    def _flush_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # nobody would come back to it
            self.flush()
        else:
            self._timer = loop.call_later(GATHER_S, self.flush)
