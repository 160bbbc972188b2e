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
CHECK_EVERY_S = 60.0
RECOVERED_FACTOR = 1.2
"""Space has returned when there is this many times the limit, so that a disk at the limit is not reported again and again."""


async def watch_loop_lag(*, clock: Clock, events: EventSink, settings: Callable[[], AlertSettings], note: Callable[[float], None]) -> None:
    """Emit an event when the loop was held up for `loop_lag_warning_s`, until cancelled; `note` gets the lag of every beat in seconds."""
    while True:
        began_at = clock.monotonic()
        await asyncio.sleep(BEAT_S)
        now = clock.monotonic()
        lag_s = now - began_at - BEAT_S
        note(lag_s)
        if lag_s >= settings().loop_lag_warning_s:
            events.emit(LoopLagged(at=now, lag_s=lag_s))


def free_mib(directory: Path) -> float:
    """What an ordinary user may still write there, in MiB. Blocks. Raises OSError."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize / MIB


async def watch_disk(
    directory: Path,
    *,
    clock: Clock,
    events: EventSink,
    settings: Callable[[], AlertSettings],
    measure: Callable[[Path], float] = free_mib,
) -> None:
    """Emit an event when space runs low and when it has returned. A disk that cannot be asked (`measure`) is the store's to report."""
    is_low = False
    while True:
        try:
            free = await asyncio.to_thread(measure, directory)
        except OSError:
            await asyncio.sleep(CHECK_EVERY_S)
            continue
        now, limit = clock.monotonic(), settings().disk_free_warning_mib
        if not is_low and free < limit:
            is_low = True
            events.emit(DiskRanLow(at=now, free_mib=free, limit_mib=limit))
        elif is_low and free >= limit * RECOVERED_FACTOR:
            is_low = False
            events.emit(DiskSpaceReturned(at=now, free_mib=free))
        await asyncio.sleep(CHECK_EVERY_S)
