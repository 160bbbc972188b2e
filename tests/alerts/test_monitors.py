"""The loop's lag and the disk's free space, measured and reported."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path

import pytest

from hearth.alerts.alerter import BEAT_S, DISK_CHECK_EVERY_S, free_mib, watch_disk, watch_loop_lag
from hearth.config.settings import AlertSettings
from hearth.events import DiskRanLow, DiskSpaceReturned, LoopLagged
from tests.support.recorder import Recorder
from tests.support.virtual_time import LoopClock, hold_up, in_virtual_time


async def watch_for(
    watch: Coroutine[None, None, None], seconds: float, *, held_s: float = 0.0
) -> None:
    """Let a watch run for so long, then hold the loop up and let it run once more."""
    task = asyncio.ensure_future(watch)
    await asyncio.sleep(seconds)
    hold_up(held_s)
    await asyncio.sleep(held_s)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("held_s", "limit_s", "lags"), [(0.9, 1.0, 0), (1.3, 1.0, 1), (5.0, 1.0, 1), (5.0, 6.0, 0)]
)
@in_virtual_time
async def test_a_hold_up_of_the_loop_is_told_once_with_its_length(held_s, limit_s, lags):
    events = Recorder()
    noted = list[float]()
    settings = AlertSettings(loop_lag_warning_s=limit_s)
    watch = watch_loop_lag(
        clock=LoopClock(), events=events, settings=lambda: settings, note=noted.append
    )
    await watch_for(watch, 10.05, held_s=held_s)
    assert [round(lag_s, 3) for lag_s in noted[:50]] == [0.0] * 50, "every beat is measured"
    seen = events.of(LoopLagged)
    assert len(seen) == lags
    assert all(held_s - BEAT_S <= each.lag_s <= held_s for each in seen)


FREE = [1000.0, 499.0, 400.0, 510.0, None, 599.0, 600.0, 5000.0, 499.0]


@pytest.mark.parametrize(
    ("limit_mib", "told"),
    [(500, [(DiskRanLow, 499.0), (DiskSpaceReturned, 600.0), (DiskRanLow, 499.0)]), (0, [])],
)
@in_virtual_time
async def test_a_disk_that_fills_up_is_told_once_and_once_when_there_is_space_again(
    limit_mib, told
):
    events = Recorder()
    left = iter(FREE)
    settings = AlertSettings(disk_free_warning_mib=limit_mib)

    def measure(_: Path) -> float:
        found = next(left)
        if found is None:
            raise OSError(errno.EIO, "gone")
        return found

    watch = watch_disk(
        Path("/"), clock=LoopClock(), events=events, settings=lambda: settings, measure=measure
    )
    await watch_for(watch, 8 * DISK_CHECK_EVERY_S + 1)
    assert [*left] == [], "a look at once, and one a minute"
    assert [(type(each), getattr(each, "free_mib", None)) for each in events.all] == told


def test_the_file_system_is_asked(tmp_path):
    assert 0 < free_mib(tmp_path) < 1e9
    with pytest.raises(OSError, match="No such file"):
        free_mib(tmp_path / "missing")
