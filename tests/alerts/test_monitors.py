"""The loop's lag and the disk's free space, measured and reported."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path

import pytest

from hearth.config.settings import AlertSettings
from hearth.events import DiskRanLow, DiskSpaceReturned, Event, LoopLagged
from hearth.observability.monitors import BEAT_S, DiskSpaceMonitor, LoopLagMonitor, free_mib
from tests.support.cases import for_each
from tests.support.virtual_time import LoopClock, hold_up, in_virtual_time
from tests.worker.house import Recorder


@for_each(("held_s", "limit_s", "lags"), [(0.9, 1.0, 0), (1.3, 1.0, 1), (5.0, 1.0, 1), (5.0, 6.0, 0)])
def test_a_hold_up_of_the_loop_is_told_once_with_its_length(held_s, limit_s, lags):
    @in_virtual_time
    async def scenario() -> None:
        events = Recorder()
        settings = AlertSettings(loop_lag_warning_s=limit_s)
        lag = LoopLagMonitor(clock=LoopClock(), events=events, settings=lambda: settings, note=lambda _: None)
        monitor = asyncio.ensure_future(lag.run())
        await asyncio.sleep(10.05)
        hold_up(held_s)
        await asyncio.sleep(10)
        seen = events.of(LoopLagged)
        assert len(seen) == lags
        assert all(held_s - BEAT_S <= each.lag_s <= held_s for each in seen)
        monitor.cancel()
        with suppress(asyncio.CancelledError):
            await monitor

    scenario()


class Disk:
    """A disk whose free space the test sets; None cannot be asked."""

    def __init__(self) -> None:
        self.free: float | None = 1000.0

    def __call__(self, directory: Path) -> float:
        if self.free is None:
            raise OSError(errno.EIO, "gone")
        return self.free


@in_virtual_time
async def test_a_disk_that_fills_up_is_told_once_and_once_when_there_is_space_again():
    disk, events = Disk(), Recorder()
    monitor = DiskSpaceMonitor(
        Path("/"), clock=LoopClock(), events=events, settings=lambda: AlertSettings(disk_free_warning_mib=500), measure=disk
    )
    for disk.free in (1000.0, 499.0, 400.0, 510.0, None, 599.0, 600.0, 5000.0, 499.0):
        await monitor.look()
    told: list[Event] = events.all
    assert [(type(each), getattr(each, "free_mib", None)) for each in told] == [
        (DiskRanLow, 499.0),
        (DiskSpaceReturned, 600.0),
        (DiskRanLow, 499.0),
    ]


@in_virtual_time
async def test_a_limit_of_zero_never_warns_and_looks_come_once_a_minute():
    disk, events, looks = Disk(), Recorder(), []
    disk.free = 0.0

    def measure(directory: Path) -> float:
        looks.append(directory)
        return disk(directory)

    monitor = DiskSpaceMonitor(
        Path("/"), clock=LoopClock(), events=events, settings=lambda: AlertSettings(disk_free_warning_mib=0), measure=measure
    )
    task = asyncio.ensure_future(monitor.run())
    await asyncio.sleep(601)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert len(looks) == 11
    assert events.all == []


def test_the_file_system_is_asked(tmp_path):
    assert 0 < free_mib(tmp_path) < 1e9
    with pytest.raises(OSError, match="No such file"):
        free_mib(tmp_path / "missing")
