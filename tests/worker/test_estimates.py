"""What a caller is told about its wait when it comes."""

from __future__ import annotations

import pytest

from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import House, body_of, in_house, settings_with


@in_house("a", resident=("a",))
async def test_whoever_can_start_at_once_waits_for_nothing(house: House):
    assert house.submit("a").estimated_wait_s == 0.0


@in_house("a", "b", resident=("a",))
async def test_a_swap_counts_as_long_as_such_swaps_have_taken(house: House):
    await body_of(house.submit("b"))
    await body_of(house.submit("a"))
    swap_s = house.worker.scheduler.state.estimates.swap_s("a:latest", "b:latest")
    await sleep_until(house.now + 1.0)
    assert house.submit("b").estimated_wait_s == pytest.approx(swap_s)


@in_house("a", "b", resident=("a",))
async def test_what_was_just_told_of_another_model_is_not_told_of_this_one(house: House):
    house.submit("a", max_tokens=40)
    await sleep_until(house.now + 0.01)
    behind_swap_s = house.submit("b", max_tokens=40).estimated_wait_s or 0.0
    behind_one_s = house.submit("a", max_tokens=40).estimated_wait_s or 0.0
    swap_s = house.worker.scheduler.state.estimates.swap_s("a:latest", "b:latest")
    assert behind_swap_s == pytest.approx(1.0 + swap_s, abs=0.1)
    assert behind_one_s == pytest.approx(1.0, abs=0.1)


@in_house("a", "b", resident=("a",), settings=settings_with(queue={"max_external_depth": 9}))
async def test_of_several_that_come_at_once_only_the_first_is_told_of_the_swap(house: House):
    house.submit("a", max_tokens=40)
    house.submit("a", max_tokens=40)
    await sleep_until(house.now + 0.01)
    told = [house.submit("b", max_tokens=40).estimated_wait_s or 0.0 for _ in range(5)]
    assert told[4] - told[0] == pytest.approx(4.0, rel=0.1)


@in_virtual_time
async def test_those_that_come_at_once_share_the_slots_of_their_model():
    settings = settings_with(queue={"max_external_depth": 9}, gpu={"parallel": 4})
    async with House("a", "b", resident=("a",), settings=settings) as house:
        house.submit("a", max_tokens=40)
        told = [house.submit("b", max_tokens=40).estimated_wait_s or 0.0 for _ in range(5)]
        assert told[4] - told[0] == pytest.approx(1.0, rel=0.1)
