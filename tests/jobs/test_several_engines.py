"""Durable jobs for the models of two engines, of which one is down."""

from __future__ import annotations

import pytest

from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from hearth.events import JobEnded, JobStarted
from tests.jobs.house import JobHouse, job
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.house import settings_with
from tests.support.virtual_time import in_virtual_time, sleep_until


@pytest.mark.parametrize("first_down_at", [0.0, 5.0], ids=["never answered", "went down"])
@in_virtual_time
async def test_jobs_of_an_engine_that_is_down_hold_up_no_others(first_down_at: float):
    second = FakeOllama(FakeModel(name="b:latest"))

    def both(ollama: Engine) -> EngineTable:
        return EngineTable([Row(name="one", engine=ollama), Row(name="two", engine=second)])

    if not first_down_at:
        second.go_down()
    settings = settings_with(
        jobs={"max_in_queue": 1},
        backend={"wait_when_down_s": 30.0, "check_interval_s": 1.0},
    )
    async with JobHouse("a", "c", resident="a", settings=settings, table=both) as house:
        await sleep_until(first_down_at)
        second.go_down()
        await sleep_until(10.0)
        for number, model in enumerate(("b", "b", "b", "a", "c")):
            await house.jobs.accept(job(f"job_{number}", model))
        await sleep_until(100.0)
        ended = [event.job_id for event in house.events.of(JobEnded)]
        assert sorted(ended) == ["job_3", "job_4"]
        assert len(house.events.of(JobStarted)) == 2
        second.come_up()
        await sleep_until(120.0)
        states = {event.job_id: event.state for event in house.events.of(JobEnded)}
        assert states == {f"job_{number}": "completed" for number in range(5)}
