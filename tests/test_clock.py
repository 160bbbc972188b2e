"""Names that nobody can guess and that never come twice, and time in which the loop runs."""

from __future__ import annotations

import asyncio
import re

import pytest

from hearth.clock import STOOD_STILL_S, new_id, wait_running
from tests.support.virtual_time import hold_up, in_virtual_time, loop_s


def test_ids_never_repeat():
    drawn = [new_id("req_") for _ in range(300)]
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in drawn)
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize(
    ("held_at", "held_s", "ended_at"),
    [
        (0.5, 0.0, 10.0),
        (0.5, STOOD_STILL_S - 1.0, 10.0),
        (0.5, STOOD_STILL_S + 1.0, 16.0),
        (9.5, 3600.0, 3610.0),
        (3.3, 90.0, 100.0),
    ],
)
@in_virtual_time
async def test_a_wait_counts_the_time_in_which_the_loop_ran(held_at, held_s, ended_at):
    never = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_at(held_at, hold_up, held_s)
    assert await wait_running((never,), 10.0) == pytest.approx(10.0)
    assert ended_at <= loop_s() + 1e-6 <= ended_at + 1.0


@in_virtual_time
async def test_a_wait_ends_with_the_first_of_those_that_are_awaited():
    loop = asyncio.get_running_loop()
    first, never = loop.create_future(), loop.create_future()
    loop.call_at(2.5, first.set_result, None)
    assert await wait_running((never, first), 10.0) == 2.5
