"""Tells the house when the disk fails and when it is well again. Changes nothing and writes nothing. `bootstrap` puts it behind a store."""

from __future__ import annotations

from hearth.clock import Clock
from hearth.errors import StorageFault
from hearth.events import InternalFault, StorageFailed, StorageRecovered
from hearth.ports import EventSink
from hearth.storage.writer import StorageHealth


class StorageReporter:
    """The listener of a store: one `StorageFailed` per kind of trouble, one `StorageRecovered` when all of it has passed.

    A function that fails by its own doing is a defect of ours; the first one is reported as such.
    """

    def __init__(self, *, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._fault: StorageFault | None = None
        self._dropped = 0
        self._defective = False

    def hear(self, health: StorageHealth) -> None:
        """Take note of how the store is doing."""
        if health.fault is None:
            self._recovered(health)
        elif health.fault is not self._fault and not (self._fault and health.fault is StorageFault.OVERLOADED):
            self._fault = health.fault
            self._events.emit(StorageFailed(at=self._clock.monotonic(), reason=health.fault.value, detail=health.detail))
        if health.failed and not self._defective:
            self._defective = True
            self._events.emit(InternalFault(at=self._clock.monotonic(), where="storage", detail="a row could not be written"))

    def lost(self) -> None:
        """Say that the end came before everything was written."""
        detail = "Hearth stopped before everything was written"
        self._events.emit(StorageFailed(at=self._clock.monotonic(), reason=StorageFault.CLOSED.value, detail=detail))

    def _recovered(self, health: StorageHealth) -> None:
        if self._fault is not None:
            self._fault = None
            dropped, self._dropped = health.dropped - self._dropped, health.dropped
            self._events.emit(StorageRecovered(at=self._clock.monotonic(), dropped=dropped))
