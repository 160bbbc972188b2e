"""A stop that begins while a job is being accepted: either it is promised and on the disk, or it is refused and is not."""

from __future__ import annotations

import asyncio

from hearth.errors import ShuttingDown
from hearth.job_types import Acceptance
from tests.jobs.house import Disk, JobHouse, job
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time, sleep_until

COMMIT_S = 0.5


@for_each(
    ("stopped_at", "promised"),
    [(0.9, False), (1.0, False), (1.001, True), (1.25, True), (1.499, True), (1.5, True), (1.501, True), (2.0, True)],
)
@in_virtual_time
async def test_a_job_that_is_being_accepted_during_a_stop_is_durable_or_refused(stopped_at: float, promised: bool):
    disk = Disk()
    disk.latency_s = COMMIT_S
    async with JobHouse("a", resident=("a",), disk=disk) as house:
        stops: list[asyncio.Future[None]] = []
        asyncio.get_running_loop().call_at(stopped_at, lambda: stops.append(asyncio.ensure_future(house.gateway.stop(0.0))))
        await sleep_until(1.0)
        (accepted,) = await asyncio.gather(house.accept(job()), return_exceptions=True)
        assert isinstance(accepted, Acceptance if promised else ShuttingDown)
        await sleep_until(10.0)
        await asyncio.gather(*stops)
        assert len(disk.rows("SELECT id FROM jobs")) == promised
