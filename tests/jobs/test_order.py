"""Which job is next: as seen from outside, and against the same rules written down as plainly as they can be."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf
from typing import Any

from hearth.events import JobStarted
from hearth.job_types import Job, StoreLimits
from hearth.jobs.queue import BATCH_LIMIT, next_job
from hearth.types import Lane, Priority
from tests.jobs.house import Disk, JobHouse, in_house, job, with_jobs
from tests.storage.house import StoppedClock
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.virtual_time import in_virtual_time

LIMITS = StoreLimits(max_queued=1000, max_bytes=1 << 30)
EXTERNAL: dict[str, Any] = {"lane": Lane.EXTERNAL}
CRITICAL: dict[str, Any] = {"priority": Priority.CRITICAL}
LETTER: dict[str, Any] = {"task_type": "letter"}


def jobs(*wanted: tuple[str, dict[str, Any]]) -> list[Job]:
    return [job(f"job_{number}", model, **changed) for number, (model, changed) in enumerate(wanted, 1)]


async def order(first: list[Job], *, suspects: tuple[int, ...] = (), at_once: int = 1) -> list[int]:
    """The numbers of jobs that an earlier process left, in the order of their starts; `suspects` were running when it died."""
    left = JobHouse("a", "b")
    for each in first:
        await left.accept(each)
    for number in suspects:
        await left.table.start(number)
    async with JobHouse("a", "b", resident=("a",), disk=left.disk, settings=with_jobs(max_in_queue=at_once)) as house:
        await house.ended(*(each.job_id for each in first))
        return [int(event.job_id.removeprefix("job_")) for event in house.events.of(JobStarted)]


@for_each(
    ("wanted", "suspects", "expected"),
    [
        ([("a", {}), ("a", {}), ("a", {})], (), [1, 2, 3]),
        ([("a", {}), ("a", CRITICAL), ("a", CRITICAL)], (), [2, 3, 1]),
        ([("a", EXTERNAL), ("a", {})], (), [2, 1]),
        ([("a", EXTERNAL | CRITICAL), ("a", {})], (), [2, 1]),
        ([("a", EXTERNAL), ("a", EXTERNAL | CRITICAL)], (), [1, 2]),
        ([("a", {}), ("b", {}), ("a", {}), ("b", {})], (), [1, 3, 2, 4]),
        ([("b", {}), ("a", {}), ("b", {}), ("a", {})], (), [2, 4, 1, 3]),
        ([("a", {}), ("b", CRITICAL), ("a", {})], (), [2, 1, 3]),
        ([("a", LETTER), ("b", LETTER), ("a", LETTER)], (), [1, 2, 3]),
        ([("a", {}), ("a", {}), ("a", {})], (3,), [3, 1, 2]),
        ([("a", {}), ("a", LETTER), ("a", LETTER)], (3,), [2, 3, 1]),
    ],
)
@in_virtual_time
async def test_jobs_start_in_their_order(wanted, suspects, expected):
    assert await order(jobs(*wanted), suspects=suspects) == expected


@in_virtual_time
async def test_a_batch_does_not_go_on_for_ever():
    wanted: list[tuple[str, dict[str, Any]]] = [("a", {}), ("b", {}), *[("a", {})] * (BATCH_LIMIT + 5)]
    assert (await order(jobs(*wanted))).index(2) == BATCH_LIMIT


@in_house("a", "b", resident=("a",), settings=with_jobs(max_in_queue=4))
async def test_jobs_of_a_type_run_beside_each_other_on_one_model_and_after_each_other_on_several(house):
    for each in jobs(("a", LETTER), ("a", LETTER), ("b", LETTER)):
        await house.accept(each)
    await house.events.until(lambda: len(house.events.of(JobStarted)) == 2)
    assert house.jobs.status() == {"waiting": 1, "running": 2}
    await house.ended("job_1", "job_2", "job_3")


class PlainQueue:
    """The same questions, answered by sorting everything."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.suspects: set[int] = set()

    def take(self, wall_s: float, model: str | None, running: list[Job], *, off_peak: bool, paused: bool) -> Job | None:
        due = [job for job in self.jobs.values() if (job.not_before_wall_s or 0.0) <= wall_s and (off_peak or not job.off_peak)]
        due = sorted((job for job in due if not (paused and job.lane is Lane.EXTERNAL)), key=place)
        suspects = [job for job in due if job.number in self.suspects]
        if suspects:
            first = suspects[0]
            beside = [job for job in due if job.number not in self.suspects and job.task_type and job.task_type == first.task_type]
            return None if running else min([first, *beside], key=place)
        ready = [job for index, job in enumerate(due) if leads(job, due[:index]) and follows(job, running)]
        same = [job for job in ready if job.model == model and place(job)[:2] == place(ready[0])[:2]]
        return next(iter([*same, *ready]), None)

    def position(self, number: int) -> int:
        return sum(place(other) < place(self.jobs[number]) for other in self.jobs.values())

    def next_due(self, wall_s: float) -> float | None:
        return min((at for job in self.jobs.values() if (at := job.not_before_wall_s or 0.0) > wall_s), default=None)


def place(job: Job) -> tuple[bool, int, int]:
    external = job.lane is Lane.EXTERNAL
    return (external, 0 if external else int(job.priority), job.number)


def leads(job: Job, earlier: list[Job]) -> bool:
    return job.task_type is None or all(other.task_type != job.task_type for other in earlier)


def follows(job: Job, running: list[Job]) -> bool:
    return job.task_type is None or all(other.task_type != job.task_type or other.model == job.model for other in running)


def some_job(chance: random.Random, number: int, wall_s: float) -> Job:
    return job(
        f"job_{number}",
        chance.choice("ab"),
        caller=chance.choice(["me", "you"]),
        lane=chance.choice(list(Lane)),
        priority=chance.choice(list(Priority)),
        task_type=chance.choice([None, None, "t", "u"]),
        off_peak=chance.random() < 0.2,
        not_before_wall_s=chance.choice([None, None, wall_s + chance.randrange(20)]),
    )


@for_each("seed", range(25 * EXAMPLES))
@in_virtual_time
async def test_the_store_and_the_plain_rules_agree_on_every_step(seed):
    chance, disk, clock, plain = random.Random(seed), Disk(), StoppedClock(), PlainQueue()
    table = disk.table(clock)
    running: list[Job] = []
    for step in range(40):
        clock.wall_s += chance.choice([0.0, 1.0, 2.0, -1.5])
        accepted = await table.add(some_job(chance, step, clock.wall()), LIMITS)
        plain.jobs[accepted.number] = accepted
        assert accepted.position == plain.position(accepted.number)
        if chance.random() < 0.1:
            plain.suspects.add(accepted.number)
        if chance.random() < 0.2:
            gone = plain.jobs.pop(chance.choice(list(plain.jobs)))
            assert await table.cancel(gone.job_id, inf)
        off_peak, paused = chance.random() < 0.5, chance.random() < 0.2
        model = chance.choice(["a:latest", "b:latest", None])
        numbers = {each.number for each in running}
        conditions: dict[str, bool] = {"off_peak": off_peak, "batches_off_peak": False, "paused": paused}
        heads, suspects, due = await table.startable(running=numbers, suspects=plain.suspects - numbers, **conditions)
        taken = next_job(heads, suspects, running, model)
        expected = plain.take(clock.wall(), model, running, off_peak=off_peak, paused=paused)
        assert (taken and taken.number) == (expected and expected.number)
        assert due == plain.next_due(clock.wall())
        if taken is not None:
            assert await table.start(taken.number) is not None
            running.append(plain.jobs.pop(taken.number))
        elif running:
            back = running.pop(0)
            plain.suspects.discard(back.number)
            due = None if chance.random() < 0.5 else clock.wall() + 3
            assert await table.put_back(back.number, counted=True, not_before_wall_s=due)
            plain.jobs[back.number] = back if due is None else replace(back, not_before_wall_s=due)
        listed = await table.list_jobs(state=None, unended=True, limit=100, positions=True)
        assert {each.number: each.position for each in listed if each.position is not None} == {n: plain.position(n) for n in plain.jobs}
        assert table.queued == len(plain.jobs)
        for caller in (None, "me"):
            line = sorted((each for each in plain.jobs.values() if caller in (None, each.caller)), key=place)
            count, _, first = await table.waiting(caller, 3)
            assert ([each.number for each in first], count) == ([each.number for each in line[:3]], len(line))
