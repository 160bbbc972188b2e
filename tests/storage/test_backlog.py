"""What nobody waits for is gathered; what somebody waits for is not. Gathering here takes longer than any test may."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from hearth.storage.writer import Backlog, Write
from tests.support.cases import for_each

GATHER_S = 60.0
NOT_GATHERED_S = 30.0


def quiet() -> Write:
    return Write(run=lambda _: None, future=None)


def awaited() -> Write:
    return Write(run=lambda _: None, future=asyncio.get_running_loop().create_future())


@for_each("somebody", [[False] * 10, [False, True]])
async def test_what_nobody_waits_for_is_gathered_until_there_is_no_room_or_somebody_waits(somebody):
    backlog, began_at = Backlog(10, gather_s=GATHER_S), monotonic()
    taking = asyncio.ensure_future(asyncio.to_thread(backlog.take, 50, 5.0))
    for waits in somebody:
        assert backlog.add(awaited() if waits else quiet())
    assert len(await taking or ()) == len(somebody)
    assert monotonic() - began_at < NOT_GATHERED_S


async def test_closing_ends_the_gathering():
    backlog, began_at = Backlog(100, gather_s=GATHER_S), monotonic()
    backlog.add(quiet())
    backlog.close()
    assert len(backlog.take(50, 5.0) or ()) == 1
    assert backlog.take(50, 5.0) is None
    assert monotonic() - began_at < NOT_GATHERED_S


async def test_an_attempt_that_fails_after_all_was_given_up_finds_nobody_behind_it():
    backlog = Backlog(100, gather_s=GATHER_S)
    jobs = [awaited(), awaited()]
    for job in jobs:
        backlog.add(job)
    assert backlog.take(1, 5.0) == jobs[:1]
    assert backlog.clear() == jobs[1:]
    assert backlog.put_back(jobs[:1]) == jobs[:1]


COMING = st.lists(st.booleans(), max_size=4)
"""Jobs that come: whether somebody waits for each."""


@given(st.lists(st.tuples(COMING, st.integers(1, 4), COMING, st.booleans()), max_size=12))
def test_whatever_comes_before_and_during_attempts_that_fail_or_not_is_tried_in_order_and_heard_of_once(
    rounds: list[tuple[list[bool], int, list[bool], bool]],
):
    backlog, waiting = Backlog(8, gather_s=0.0), list[Write]()

    def come(somebody: list[bool]) -> list[Write]:
        came = [Write(run=lambda _: None, future=cast("asyncio.Future[object]", object()) if waits else None) for waits in somebody]
        there = len(backlog)
        assert [backlog.add(job) for job in came] == [there + n < 8 for n in range(len(came))]
        return came[: max(0, 8 - there)]

    for before, limit, meanwhile, fails in rounds:
        came = come(before)
        waiting = [*waiting, *came]
        taken = backlog.take(limit, 0.0)
        assert taken == waiting[:limit]
        came = come(meanwhile)
        tried, waiting, fresh = waiting, [*waiting[limit:], *came], bool(waiting[limit:] or came)
        if fails:
            assert backlog.put_back(taken) == [job for job in tried if job.future is not None]
            waiting = [*(job for job in tried if job.future is None), *came]
            fresh = any(job.future is not None for job in came)
        assert (backlog._awaited, backlog._fresh) == (sum(job.future is not None for job in waiting), fresh)
    assert backlog.clear() == waiting
