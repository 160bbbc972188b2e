"""A house with durable jobs in virtual time: the real service and runner over a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hearth.config.settings import Settings
from hearth.engines.ollama.traits import canonical_model
from hearth.events import JobEnded, JobQueued, JobStarted
from hearth.job_types import Job
from hearth.jobs.queue import body_of
from hearth.jobs.service import Jobs
from hearth.jobs.tasks import Tasks
from hearth.types import Lane, Priority
from tests.storage.memory import Disk
from tests.support.fake_ollama import FakeModel
from tests.support.house import House, Test, settings_with, within
from tests.support.virtual_time import LoopClock


def job(
    job_id: str = "job_1",
    model: str = "a",
    *,
    caller: str = "test",
    lane: Lane = Lane.INTERNAL,
    priority: Priority = Priority.BACKGROUND,
    service_s: float = 1.0,
    **changed: Any,
) -> Job:
    """A job that takes the fake model server `service_s`."""
    request = {"model": canonical_model(model), "prompt": job_id, "fake": {"service_s": service_s}}
    new = Job(
        job_id=job_id,
        caller=caller,
        lane=lane,
        priority=priority,
        path="/api/generate",
        model=canonical_model(model),
        request=body_of("/api/generate", request),
    )
    return replace(new, **changed)


class JobHouse(House):
    """A gateway with jobs, for the time of the block: one process's life with the disk."""

    def __init__(
        self,
        *models: str | FakeModel,
        disk: Disk | None = None,
        settings: Settings | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*models, settings=settings or settings_with(), **more)
        self.disk = disk or Disk()
        self.tables = self.disk.tables(LoopClock())
        self.table = self.tables.jobs
        self.jobs = Jobs(store=self.table, worker=self.gateway.worker)
        self.tasks = Tasks(self.jobs, self.gateway.worker)
        self.gateway.jobs = self.jobs
        self.gateway.events.subscribe(self.jobs)
        self.gateway.accompany("jobs", self.jobs.runner.run)

    async def accept(self, new: Job) -> Job:
        return await self.jobs.accept(new)

    async def record(self, job_id: str) -> Job:
        found = await self.table.find(job_id)
        assert found is not None
        return found

    async def ended(self, *job_ids: str) -> list[JobEnded]:
        """The ends of these jobs, once all of them have ended; each exactly once."""
        await self.events.until(
            lambda: set(job_ids) <= {event.job_id for event in self.events.of(JobEnded)}
        )
        found = [event for event in self.events.of(JobEnded) if event.job_id in job_ids]
        assert len(found) == len(job_ids)
        return found

    async def end_of_job(self, job_id: str = "job_1") -> JobEnded:
        """The end of one job."""
        return (await self.ended(job_id))[0]

    async def run(self, new: Job) -> JobEnded:
        """Accept it, and say how it ended."""
        await self.accept(new)
        return await self.end_of_job(new.job_id)

    def judge(self) -> None:
        """Beside the rules of every house: nobody is told twice of an end, and the disk agrees with
        what was said.
        """
        super().judge()
        said = [event.job_id for event in self.events.of(JobEnded)]
        assert len(said) == len(set(said))
        states = dict(self.disk.rows("SELECT id, state FROM jobs"))
        assert {
            event.job_id: event.state for event in self.events.of(JobEnded)
        }.items() <= states.items()
        assert {event.job_id for event in self.events.of(JobQueued)} <= set(states)


def started(house: House) -> list[str]:
    """The jobs that were started, in order."""
    return [event.job_id for event in house.events.of(JobStarted)]


def with_jobs(**keys: Any) -> Settings:
    """Settings of a small house; `jobs` keys changed."""
    return settings_with(jobs=keys)


def in_house(
    *models: str | FakeModel, kind: type[JobHouse] = JobHouse, **how: Any
) -> Callable[[Test], Callable[..., None]]:
    """Run a test in virtual time within a house, its first argument."""
    return within(lambda: kind(*models, **how))
