"""What the page is sent of durable jobs: the right ones, to the right caller, at once, and nothing
while nothing happens.
"""

from __future__ import annotations

import asyncio

import pytest

from hearth.api.dashboard.feed import FAILURES_SHOWN, LOOK_EVERY_S, MIN_INTERVAL_S
from hearth.api.dashboard.view import JOBS_SHOWN
from hearth.config.settings import SchedulingSettings, Window
from hearth.jobs.queue import body_of
from tests.api.dashboard.listening import watching
from tests.jobs.house import JobHouse, job, with_jobs
from tests.support.virtual_time import WALL_AT_START, in_virtual_time

HOUR_S = 3600.0
SOON_S = MIN_INTERVAL_S + 0.05
FROM_MIDNIGHT_TO_ONE = SchedulingSettings(
    active_hours=(Window(start_minute=0, end_minute=60),), time_zone="UTC"
)
NO_JOBS = {"queued": 0, "running": 0, "completed": 0, "failed": 0, "cancelled": 0}


@in_virtual_time
async def test_jobs_are_shown_in_the_order_in_which_they_wait_with_their_numbers():
    async with (
        JobHouse("a", settings=with_jobs(max_in_queue=1)) as house,
        watching(house.gateway) as page,
    ):
        for number in range(JOBS_SHOWN + 3):
            await house.accept(
                job(f"job_{number}", service_s=20.0, caller="n8n", task_type="letter")
            )
        await asyncio.sleep(1)
        jobs = page.state["jobs"]
        assert jobs["counts"] == NO_JOBS | {"queued": JOBS_SHOWN + 2, "running": 1}
        assert list(jobs["running"]) == ["job_0"]
        assert [(name, row["ahead"]) for name, row in jobs["waiting"].items()] == [
            (f"job_{n + 1}", n) for n in range(JOBS_SHOWN)
        ]
        about = {
            "caller": "n8n",
            "task_type": "letter",
            "model": "a:latest",
            "accepted": WALL_AT_START,
        }
        assert jobs["waiting"]["job_1"] | {"start": 0} == {**about, "ahead": 0, "start": 0}
        assert jobs["oldest"] == WALL_AT_START
        await asyncio.sleep(300)


@in_virtual_time
async def test_a_job_outside_the_queue_is_shown_at_once_and_one_at_night_is_free():
    settings = with_jobs().replace(scheduling=FROM_MIDNIGHT_TO_ONE)
    async with JobHouse("a", settings=settings) as house, watching(house.gateway) as page:
        await asyncio.sleep(30.1)
        await house.accept(job("later", not_before_wall_s=WALL_AT_START + 9 * HOUR_S))
        await asyncio.sleep(SOON_S)
        assert page.state["jobs"]["waiting"]["later"]["not_before"] == WALL_AT_START + 9 * HOUR_S
        await house.jobs.cancel(await house.record("later"))
        await asyncio.sleep(SOON_S)
        assert (page.state["jobs"]["waiting"], page.state["jobs"]["counts"]["cancelled"]) == ({}, 1)
        await house.accept(job("night", off_peak=True))
        await asyncio.sleep(60)
        before = len(page.frames)
        assert page.state["jobs"]["off_peak"] == {"now": False, "changes": WALL_AT_START + HOUR_S}
        assert page.state["house"]["hours"] == {
            "windows": ["00:00-01:00"],
            "changes": WALL_AT_START + HOUR_S,
        }
        assert page.state["jobs"]["waiting"]["night"]["start"] == WALL_AT_START + HOUR_S
        await asyncio.sleep(600)
        assert set(page.kinds[before:]) == {"heartbeat"}
        await asyncio.sleep(HOUR_S)
        assert page.state["jobs"]["off_peak"] == {
            "now": True,
            "changes": WALL_AT_START + 24 * HOUR_S,
        }
        assert page.state["house"]["hours"]["changes"] == WALL_AT_START + 24 * HOUR_S
        assert page.state["jobs"]["counts"]["completed"] == 1


@in_virtual_time
async def test_a_caller_sees_its_own_jobs_and_what_failed_last_with_its_reason():
    async with (
        JobHouse("a", settings=with_jobs(max_in_queue=1)) as house,
        watching(house.gateway) as owner,
        watching(house.gateway, "friend", admin=False) as mine,
        watching(house.gateway, "stranger", admin=False) as theirs,
    ):
        for number in range(3):
            await house.accept(job(f"theirs_{number}", caller="stranger", service_s=5.0))
        await house.accept(job("mine", caller="friend", service_s=5.0))
        await asyncio.sleep(1)
        assert {name: row["ahead"] for name, row in mine.state["jobs"]["waiting"].items()} == {
            "mine": 2
        }
        assert mine.state["jobs"]["counts"] == NO_JOBS | {"queued": 1}
        assert "mine" not in theirs.state["jobs"]["waiting"]
        for number in range(FAILURES_SHOWN + 1):
            await house.accept(job(f"failed_{number}", model="gone", caller="stranger"))
        await asyncio.sleep(60)
        assert [page.state["jobs"]["counts"]["completed"] for page in (mine, theirs)] == [1, 3]
        failed = owner.state["jobs"]["failed"]
        assert sorted(failed) == [f"failed_{number}" for number in range(1, FAILURES_SHOWN + 1)]
        assert failed["failed_1"]["reason"] == (await house.record("failed_1")).reason != ""
        assert [page.state["jobs"]["counts"]["failed"] for page in (owner, theirs, mine)] == [
            FAILURES_SHOWN + 1
        ] * 2 + [0]
        assert mine.state["jobs"]["failed"] == {}


@in_virtual_time
async def test_a_store_that_does_not_answer_takes_nothing_else_from_the_page():
    async with JobHouse("a") as house:
        await house.accept(job("bad", model="gone"))
        await house.ended("bad")
        await house.accept(job("later", not_before_wall_s=WALL_AT_START + HOUR_S))
        house.disk.broken = True
        async with watching(house.gateway) as page:
            await asyncio.sleep(10)
            assert (page.state["jobs"]["counts"]["queued"], page.state["jobs"]["failed"]) == (1, {})
            house.disk.broken = False
            await asyncio.sleep(10)
            assert (list(page.state["jobs"]["failed"]), list(page.state["jobs"]["waiting"])) == (
                ["bad"],
                ["later"],
            )


@in_virtual_time
async def test_a_view_that_took_long_once_does_not_stop_the_page():
    """A starved machine, or a slow disk."""
    async with JobHouse("a") as house, watching(house.gateway) as page:
        house.disk.read_latency_s = 20.0
        await house.accept(job("job_1", not_before_wall_s=WALL_AT_START + HOUR_S))
        await asyncio.sleep(60)
        house.disk.read_latency_s = 0.0
        await house.accept(job("job_2", not_before_wall_s=WALL_AT_START + HOUR_S))
        await asyncio.sleep(2 * LOOK_EVERY_S)
        assert list(page.state["jobs"]["waiting"]) == ["job_1", "job_2"]


@pytest.mark.parametrize("caller", ["owner", "n8n"])
@in_virtual_time
async def test_no_prompt_and_no_result_of_a_job_is_ever_sent(caller):
    async with (
        JobHouse("a") as house,
        watching(house.gateway, caller, admin=caller == "owner") as page,
    ):
        request = body_of(
            "/api/generate",
            {"model": "a:latest", "prompt": "the canary", "fake": {"service_s": 2.0}},
        )
        for number, model in enumerate(("a:latest", "a:latest", "gone")):
            await house.accept(job(f"job_{number}", model=model, caller="n8n", request=request))
        await house.ended("job_0", "job_1", "job_2")
        await asyncio.sleep(5)
        sent = b"".join(page.frames)
        assert all(f'"job_{number}"'.encode() in sent for number in range(3))
        assert (b"alpha beta" in sent, b"canary" in sent) == (False, False)
