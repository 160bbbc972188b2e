"""Watches the free space of the disk that the log file is on. Emits `DiskRanLow` and `DiskSpaceReturned`; changes nothing.

One companion task of the gateway. The file system is asked in a thread: one that hangs must not hold up the loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from hearth.clock import Clock
from hearth.config.settings import AlertSettings
from hearth.events import DiskRanLow, DiskSpaceReturned
from hearth.ports import EventSink
from hearth.types import MIB

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
