"""What nobody waits for is gathered; what somebody waits for is not."""

from __future__ import annotations

import asyncio
from time import monotonic

from hearth.storage.backlog import GATHER_S, Backlog, Job


def quiet() -> Job:
    return Job(run=lambda _: None, future=None)


async def test_jobs_that_nobody_waits_for_are_taken_together():
    backlog = Backlog(100)
    taking = asyncio.ensure_future(asyncio.to_thread(backlog.take, 50, 5.0))
    for _ in range(10):
        backlog.add(quiet())
        await asyncio.sleep(0)
    assert len(await taking or ()) == 10


async def test_a_job_that_somebody_waits_for_takes_the_others_along_at_once():
    backlog = Backlog(100)
    backlog.add(quiet())
    backlog.add(Job(run=lambda _: None, future=asyncio.get_running_loop().create_future()))
    began_at = monotonic()
    assert len(backlog.take(50, 5.0) or ()) == 2
    assert monotonic() - began_at < GATHER_S / 2


async def test_closing_ends_the_gathering():
    backlog = Backlog(100)
    backlog.add(quiet())
    backlog.close()
    began_at = monotonic()
    assert len(backlog.take(50, 5.0) or ()) == 1
    assert backlog.take(50, 5.0) is None
    assert monotonic() - began_at < GATHER_S / 2


async def test_a_full_backlog_is_not_gathered_any_longer():
    backlog = Backlog(3)
    assert [backlog.add(quiet()) for _ in range(4)] == [True, True, True, False]
    began_at = monotonic()
    assert len(backlog.take(50, 5.0) or ()) == 3
    assert monotonic() - began_at < GATHER_S / 2
