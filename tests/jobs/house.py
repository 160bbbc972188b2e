"""A house with durable jobs in virtual time: the real desk, feeder and SQL, over a store without
threads.

`SteadyStore` runs the real `JobTable` on a database in memory through the real group commit; only
the writer's thread is missing. The tests of the table run on it and on the real store alike.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any, Self, TypeVar, cast
from weakref import finalize

from hearth.clock import Clock
from hearth.config.settings import Settings
from hearth.errors import StorageUnavailable
from hearth.events import JobEnded, JobQueued
from hearth.job_types import Job
from hearth.jobs.queue import body_of
from hearth.jobs.service import Jobs
from hearth.jobs.tasks import Tasks
from hearth.storage.jobs import JobTable
from hearth.storage.opening import shipped_migrations
from hearth.storage.table import Reader
from hearth.storage.writer import Writer, commit_together
from hearth.types import Lane, Priority, canonical_model
from tests.storage.house import believed
from tests.support.fake_ollama import FakeModel
from tests.support.house import House, settings_with
from tests.support.virtual_time import LoopClock, in_virtual_time

T = TypeVar("T")


class Disk:
    """A database in memory that lives through several processes, for as long as anybody holds it.

    Attributes:
        broken: every access fails; broken_writes: whatever is to be written; silent: a commit is
        made, and reported as failed. latency_s: how long every commit takes.
    """

    def __init__(self, content: bytes | None = None) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.connection.row_factory = sqlite3.Row
        # on whichever thread lets go of the last of its users
        finalize(self, self.connection.close)
        self.connection.deserialize(content or _migrated())
        self.connection.execute("PRAGMA foreign_keys = ON")
        self.broken = self.broken_writes = self.silent = False
        self.latency_s = 0.0
        self.epochs = 0

    def table(self, clock: Clock) -> JobTable:
        """The table as the next process sees it."""
        self.epochs += 1
        writer, reader = cast("Writer", SteadyWriter(self)), cast("Reader", SteadyReader(self))
        return JobTable(writer=writer, reader=reader, clock=clock, calendar=believed(clock))

    def copy(self) -> Self:
        """What a process that dies at this instant leaves behind."""
        other = type(self)(self.connection.serialize())
        other.epochs = self.epochs
        return other

    def rows(self, question: str) -> list[tuple[Any, ...]]:
        """For a look at what is on the disk."""
        return list(map(tuple, self.connection.execute(question)))


@functools.cache
def _migrated() -> bytes:
    """An empty database of the newest version; a copy takes a tenth of the time."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for _, sql in shipped_migrations():
            connection.executescript(sql)
        return connection.serialize()


class SteadyWriter:
    """`submit` and `write` of the real writer, done by the time the delay is over; what is posted
    is done with what is submitted next.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.epoch = disk.epochs
        self._posted: list[Callable[[sqlite3.Connection], object]] = []

    def post(self, run: Callable[[sqlite3.Connection], object]) -> None:
        self._posted.append(run)

    async def write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        del name
        return await self.submit(run)

    async def submit(self, run: Callable[[sqlite3.Connection], T]) -> T:
        if self._disk.broken:
            raise StorageUnavailable("io_error")
        await asyncio.sleep(self._disk.latency_s)
        if self._disk.broken_writes:
            raise StorageUnavailable("locked")
        *_, result = commit_together(self._disk.connection, [*self._posted, run])
        if self._disk.silent:
            raise StorageUnavailable("io_error")
        self._posted.clear()
        if isinstance(result, Exception):
            raise result
        return cast("T", result)


class SteadyReader:
    """`read` of the real reader."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def read(self, ask: Callable[[sqlite3.Connection], T]) -> T:
        if self._disk.broken:
            raise StorageUnavailable("io_error")
        return ask(self._disk.connection)


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
        self.table = self.disk.table(LoopClock())
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


def with_jobs(**keys: Any) -> Settings:
    """Settings of a small house; `jobs` keys changed."""
    return settings_with(jobs=keys)


def in_house(
    *models: str | FakeModel, kind: type[JobHouse] = JobHouse, **how: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Run a test in virtual time within a house, its first argument; with one model, `a`, which is
    in memory, unless others are named.
    """

    def of(test: Callable[..., Any]) -> Any:
        @functools.wraps(test)
        async def scenario(*args: Any, **others: Any) -> None:
            async with kind(
                *(models or ("a",)), **({} if models else {"resident": ("a",)}) | how
            ) as house:
                await test(house, *args, **others)

        run: Any = in_virtual_time(scenario)
        _, *parameters = inspect.signature(test).parameters.values()
        run.__signature__ = inspect.Signature(parameters)  # what pytest reads
        return run

    return of
