"""What nobody waits for is gathered; what somebody waits for is not. Gathering here takes longer than any test may."""

from __future__ import annotations

import asyncio
from time import monotonic

from hearth.storage.backlog import Backlog, Job

GATHER_S = 60.0
NOT_GATHERED_S = 30.0


def quiet() -> Job:
    return Job(run=lambda _: None, future=None)


def awaited() -> Job:
    return Job(run=lambda _: None, future=asyncio.get_running_loop().create_future())


async def test_jobs_that_nobody_waits_for_are_taken_together_once_there_is_no_room_for_more():
    backlog = Backlog(10, gather_s=GATHER_S)
    backlog.add(awaited())
    assert len(backlog.take(50, 5.0) or ()) == 1
    began_at = monotonic()
    taking = asyncio.ensure_future(asyncio.to_thread(backlog.take, 50, 5.0))
    for _ in range(10):
        assert backlog.add(quiet())
        await asyncio.sleep(0)
    assert len(await taking or ()) == 10
    assert monotonic() - began_at < NOT_GATHERED_S


def test_a_backlog_without_room_takes_no_more_and_is_emptied_at_once():
    backlog = Backlog(10, gather_s=GATHER_S)
    began_at = monotonic()
    assert [backlog.add(quiet()) for _ in range(11)] == [True] * 10 + [False]
    assert len(backlog.take(50, 5.0) or ()) == 10
    assert monotonic() - began_at < NOT_GATHERED_S


async def test_a_job_that_somebody_waits_for_takes_the_others_along_at_once():
    backlog = Backlog(100, gather_s=GATHER_S)
    backlog.add(quiet())
    backlog.add(awaited())
    began_at = monotonic()
    assert len(backlog.take(50, 5.0) or ()) == 2
    assert monotonic() - began_at < NOT_GATHERED_S


def test_jobs_that_could_not_be_done_are_tried_again_when_the_time_is_up_without_gathering():
    backlog = Backlog(100, gather_s=GATHER_S)
    assert backlog.put_back([quiet()]) == []
    began_at = monotonic()
    assert len(backlog.take(50, 0.0) or ()) == 1
    assert monotonic() - began_at < NOT_GATHERED_S


async def test_who_waited_when_a_failed_attempt_began_shares_its_fate_and_who_came_later_is_next():
    backlog = Backlog(100, gather_s=GATHER_S)
    jobs = [awaited(), quiet(), awaited(), quiet(), awaited()]
    for job in jobs[:4]:
        backlog.add(job)
    assert backlog.take(2, 5.0) == jobs[:2]
    backlog.add(jobs[4])
    assert backlog.put_back(jobs[:2]) == [jobs[0], jobs[2]]
    began_at = monotonic()
    assert backlog.take(50, 5.0) == [jobs[1], jobs[3], jobs[4]]
    assert monotonic() - began_at < NOT_GATHERED_S


async def test_an_attempt_that_fails_after_all_was_given_up_finds_nobody_behind_it():
    backlog = Backlog(100, gather_s=GATHER_S)
    jobs = [awaited(), awaited()]
    for job in jobs:
        backlog.add(job)
    assert backlog.take(1, 5.0) == jobs[:1]
    assert backlog.clear() == jobs[1:]
    assert backlog.put_back(jobs[:1]) == jobs[:1]


async def test_closing_ends_the_gathering():
    backlog = Backlog(100, gather_s=GATHER_S)
    backlog.add(quiet())
    backlog.close()
    began_at = monotonic()
    assert len(backlog.take(50, 5.0) or ()) == 1
    assert backlog.take(50, 5.0) is None
    assert monotonic() - began_at < NOT_GATHERED_S
