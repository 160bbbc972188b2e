"""Durable jobs whose memory another program has: they wait, and no attempt is counted."""

from __future__ import annotations

from hearth.config.settings import ModelSettings
from hearth.events import JobEnded, JobRequeued, JobStarted
from tests.jobs.house import JobHouse, job
from tests.support.house import settings_with
from tests.support.virtual_time import in_virtual_time, sleep_until


@in_virtual_time
async def test_jobs_wait_for_the_end_of_a_lease_and_no_attempt_is_burnt():
    async with JobHouse("a", resident="a") as house:
        await house.jobs.accept(job("job_1", service_s=30.0))
        await sleep_until(5.0)
        house.gateway.leases.take(reason="game", source="api", lease_id="game")
        await sleep_until(20.0)
        await house.jobs.accept(job("job_2"))
        await sleep_until(3600.0)
        assert house.events.of(JobEnded) == []
        again = [(event.job_id, event.reason) for event in house.events.of(JobRequeued)]
        assert again == [("job_1", "card_taken")]
        assert house.gateway.worker.runtime.view.residents == {}
        house.gateway.leases.end("game", "released")
        ends = await house.ended("job_1", "job_2")
        assert [(end.state, end.attempts) for end in ends] == [("completed", 1)] * 2


@in_virtual_time
async def test_jobs_that_have_the_room_are_not_held_up_by_those_that_have_not():
    sizes = {"large:latest": 20.0, "small:latest": 6.0}
    settings = settings_with(jobs={"max_in_queue": 1}, gpu={"vram_gb": 24.0}).replace(
        models={name: ModelSettings(vram_gb=size) for name, size in sizes.items()}
    )
    async with JobHouse("large", "small", settings=settings) as house:
        house.gateway.leases.take(reason="game", source="api", lease_id="game", mib=8192.0)
        for number, model in enumerate(("large", "large", "small")):
            await house.jobs.accept(job(f"job_{number}", model))
        await house.ended("job_2")
        await sleep_until(600.0)
        assert {event.job_id for event in house.events.of(JobStarted)} == {"job_2"}
        house.gateway.leases.end("game", "released")
        await house.ended("job_0", "job_1")
