"""A stop that begins while a job is being accepted: either it is promised and on the disk, or it is refused and is not."""

from __future__ import annotations

import asyncio

import pytest

from hearth.errors import HearthError
from tests.jobs.house import Disk, JobHouse, job
from tests.support.virtual_time import in_virtual_time, sleep_until

COMMIT_S = 0.5


@pytest.mark.parametrize("stopped_at", [0.9, 1.0, 1.001, 1.25, 1.499, 1.5, 1.501, 2.0])
@in_virtual_time
async def test_a_job_that_is_being_accepted_during_a_stop_is_durable_or_refused(stopped_at: float):
    disk = Disk()
    disk.latency_s = COMMIT_S
    async with JobHouse("a", resident=("a",), disk=disk) as house:
        stopping = asyncio.get_running_loop().call_at(stopped_at, lambda: stops.append(asyncio.ensure_future(house.gateway.stop(0.0))))
        stops: list[asyncio.Future[None]] = []
        await sleep_until(1.0)
        (accepted,) = await asyncio.gather(house.accept(job()), return_exceptions=True)
        if isinstance(accepted, BaseException):
            assert isinstance(accepted, HearthError)
            assert accepted.status == 503
        await sleep_until(10.0)
        stopping.cancel()
        await asyncio.gather(*stops)
        assert len(disk.rows("SELECT id FROM jobs")) == (not isinstance(accepted, BaseException))
