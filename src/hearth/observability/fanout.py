"""Every event to every sink, in one order."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from hearth.events import Event
from hearth.ports import EventSink

_LOGGER = logging.getLogger(__name__)


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
            takers = tuple((sink, take) for sink, take in known if take is not None)
            self._takers[kind] = takers
        for sink, take in takers:
            try:
                take(event)
            except Exception as error:  # noqa: BLE001
                # Supervision point: a port says "must not raise", and one defect must stay one.
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
