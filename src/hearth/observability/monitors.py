"""What is looked at on a beat for the owner: the event loop, and the free space of the disk."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from hearth.clock import Clock
from hearth.config.settings import AlertSettings
from hearth.events import DiskRanLow, DiskSpaceReturned, LoopLagged
from hearth.ports import EventSink
from hearth.types import MIB

BEAT_S = 0.2
"""Between two looks; a hold-up is measured short by this at most."""


class LoopLagMonitor:
    """Says when the loop was held up.

    Args:
        settings: asked at each beat; from `loop_lag_warning_s` on, an event is emitted.
        note: told of every beat by how much it was late, in seconds.
    """

    def __init__(self, *, clock: Clock, events: EventSink, settings: Callable[[], AlertSettings], note: Callable[[float], None]) -> None:
        self._clock = clock
        self._events = events
        self._settings = settings
        self._note = note

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            began_at = self._clock.monotonic()
            await asyncio.sleep(BEAT_S)
            now = self._clock.monotonic()
            lag_s = now - began_at - BEAT_S
            self._note(lag_s)
            if lag_s >= self._settings().loop_lag_warning_s:
                self._events.emit(LoopLagged(at=now, lag_s=lag_s))


CHECK_EVERY_S = 60.0
RECOVERED_FACTOR = 1.2
"""Space has returned when there is this many times the limit, so that a disk at the limit is not reported again and again."""

FreeSpace = Callable[[Path], float]


def free_mib(directory: Path) -> float:
    """What an ordinary user may still write there, in MiB. Blocks. Raises OSError."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize / MIB


class DiskSpaceMonitor:
    """Says when space runs low and when it has returned.

    Args:
        settings: asked at each look for `disk_free_warning_mib`; 0 never warns.
        measure: in place of the file system.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock,
        events: EventSink,
        settings: Callable[[], AlertSettings],
        measure: FreeSpace = free_mib,
    ) -> None:
        self._directory = directory
        self._clock = clock
        self._events = events
        self._settings = settings
        self._measure = measure
        self._low = False

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(CHECK_EVERY_S)

    async def look(self) -> None:
        """Look once. A disk that cannot be asked is the store's to report."""
        try:
            free = await asyncio.to_thread(self._measure, self._directory)
        except OSError:
            return
        now, limit = self._clock.monotonic(), self._settings().disk_free_warning_mib
        if not self._low and free < limit:
            self._low = True
            self._events.emit(DiskRanLow(at=now, free_mib=free, limit_mib=limit))
        elif self._low and free >= limit * RECOVERED_FACTOR:
            self._low = False
            self._events.emit(DiskSpaceReturned(at=now, free_mib=free))
