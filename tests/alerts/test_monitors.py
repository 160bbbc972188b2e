"""The loop's lag and the disk's free space, measured and reported."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path

import pytest

from hearth.config.settings import AlertSettings
from hearth.events import DiskRanLow, DiskSpaceReturned, LoopLagged
from hearth.observability.monitors import BEAT_S, CHECK_EVERY_S, free_mib, watch_disk, watch_loop_lag
from tests.support.cases import for_each
from tests.support.recorder import Recorder
from tests.support.virtual_time import LoopClock, hold_up, in_virtual_time


@for_each(("held_s", "limit_s", "lags"), [(0.9, 1.0, 0), (1.3, 1.0, 1), (5.0, 1.0, 1), (5.0, 6.0, 0)])
@in_virtual_time
async def test_a_hold_up_of_the_loop_is_told_once_with_its_length(held_s, limit_s, lags):
    events, noted = Recorder(), list[float]()
    settings = AlertSettings(loop_lag_warning_s=limit_s)
    lag = watch_loop_lag(clock=LoopClock(), events=events, settings=lambda: settings, note=noted.append)
    monitor = asyncio.ensure_future(lag)
    await asyncio.sleep(10.05)
    assert [round(lag_s, 3) for lag_s in noted] == [0.0] * 50, "every beat is measured"
    hold_up(held_s)
    await asyncio.sleep(10)
    seen = events.of(LoopLagged)
    assert len(seen) == lags
    assert all(held_s - BEAT_S <= each.lag_s <= held_s for each in seen)
    monitor.cancel()
    with suppress(asyncio.CancelledError):
        await monitor


FILLING = (
    [1000.0, 499.0, 400.0, 510.0, None, 599.0, 600.0, 5000.0, 499.0],
    [(DiskRanLow, 499.0), (DiskSpaceReturned, 600.0), (DiskRanLow, 499.0)],
)


@for_each(("limit_mib", "free", "told"), [(500, *FILLING), (0, [0.0] * 9, [])])
@in_virtual_time
async def test_a_disk_that_fills_up_is_told_once_and_once_when_there_is_space_again(limit_mib, free, told):
    events, left = Recorder(), iter(free)

    def measure(_: Path) -> float:
        found: float | None = next(left)
        if found is None:
            raise OSError(errno.EIO, "gone")
        return found

    settings = AlertSettings(disk_free_warning_mib=limit_mib)
    watch = watch_disk(Path("/"), clock=LoopClock(), events=events, settings=lambda: settings, measure=measure)
    task = asyncio.ensure_future(watch)
    await asyncio.sleep(8 * CHECK_EVERY_S + 1)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert list(left) == [], "a look at once, and one a minute"
    assert [(type(each), getattr(each, "free_mib", None)) for each in events.all] == told


def test_the_file_system_is_asked(tmp_path):
    assert 0 < free_mib(tmp_path) < 1e9
    with pytest.raises(OSError, match="No such file"):
        free_mib(tmp_path / "missing")
