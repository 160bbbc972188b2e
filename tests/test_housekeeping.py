"""Full garbage collections wait for an idle moment, but not for ever."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from hearth.housekeeping import AT_LEAST_EVERY_S, LOOK_EVERY_S, collect_when_idle, housekeeping
from tests.support.virtual_time import run_virtual


def collections(busy_until_s: float, watched_s: float, busy_again_at_s: float = float("inf")) -> list[float]:
    """The instants of full collections in a house that is busy from the start, and once more for an instant."""

    async def scenario() -> list[float]:
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        found: list[float] = []

        def busy() -> bool:
            age_s = loop.time() - began_at
            return age_s < busy_until_s or busy_again_at_s <= age_s < busy_again_at_s + LOOK_EVERY_S

        watching = asyncio.create_task(collect_when_idle(busy, lambda: found.append(round(loop.time() - began_at))))
        await asyncio.sleep(watched_s)
        watching.cancel()
        return found

    return run_virtual(scenario)


def test_a_busy_house_collects_in_its_first_idle_moment_and_then_leaves_it_at_that() -> None:
    assert collections(busy_until_s=95.0, watched_s=2000.0) == [100]


def test_new_work_is_followed_by_a_new_collection() -> None:
    assert collections(busy_until_s=5.0, watched_s=500.0, busy_again_at_s=300.0) == [10, 310]


def test_a_house_that_is_never_idle_collects_once_an_hour() -> None:
    assert collections(busy_until_s=1e9, watched_s=2 * AT_LEAST_EVERY_S + 5.0) == [AT_LEAST_EVERY_S, 2 * AT_LEAST_EVERY_S]


@pytest.fixture
def thawed() -> Iterator[None]:
    """Without what the suite itself has frozen (`tests/conftest.py`)."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("thawed")
async def test_python_collects_the_old_generation_no_more_by_itself_and_does_again_afterwards() -> None:
    before = gc.get_threshold()
    async with housekeeping(lambda: True):
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 1_000_000
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("failing", [True, False])
async def test_the_task_ends_with_the_block(failing: bool) -> None:
    tasks = asyncio.all_tasks()
    with pytest.raises(LookupError) if failing else nullcontext():
        async with housekeeping(lambda: False):
            assert len(asyncio.all_tasks()) == len(tasks) + 1
            if failing:
                raise LookupError
    assert asyncio.all_tasks() == tasks
