"""Which job is next: as seen from outside, and against the same rules written down as plainly as
they can be.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

from hearth.config.choices import PolicyName
from hearth.config.settings import ModelSettings
from hearth.events import ItemDispatched, JobStarted, SwapCompleted
from hearth.job_types import Job, StoreLimits
from hearth.jobs.queue import BATCH_LIMIT, next_job
from hearth.types import Lane, Priority
from tests.jobs.house import JobHouse, in_house, job, with_jobs
from tests.storage.memory import Disk
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.house import settings_with
from tests.support.stopped_clock import StoppedClock
from tests.support.virtual_time import in_virtual_time

LIMITS = StoreLimits(max_queued=1000, max_bytes=1 << 30)
EXTERNAL: Fields = {"lane": Lane.EXTERNAL}
CRITICAL: Fields = {"priority": Priority.CRITICAL}
LETTER: Fields = {"task_type": "letter"}
RESEARCH: Fields = {"task_type": "research"}


def jobs(*wanted: tuple[str, Fields]) -> list[Job]:
    return [
        job(f"job_{number}", model, **changed) for number, (model, changed) in enumerate(wanted, 1)
    ]


async def order(first: list[Job], *, suspects: tuple[int, ...] = (), at_once: int = 1) -> list[int]:
    """The numbers of jobs that an earlier process left, in the order of their starts; `suspects`
    were running when it died.
    """
    left = JobHouse("a", "b")
    for each in first:
        await left.accept(each)
    for number in suspects:
        await left.table.claim(number)
    async with JobHouse(
        "a", "b", resident="a", disk=left.disk, settings=with_jobs(max_in_queue=at_once)
    ) as house:
        await house.ended(*(each.job_id for each in first))
        return [int(event.job_id.removeprefix("job_")) for event in house.events.of(JobStarted)]


@pytest.mark.parametrize(
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
    wanted: list[tuple[str, Fields]] = [
        ("a", {}),
        ("b", {}),
        *[("a", {})] * (BATCH_LIMIT + 5),
    ]
    assert (await order(jobs(*wanted))).index(2) == 1 + BATCH_LIMIT


@in_house("a", "b", resident="a", settings=with_jobs(max_in_queue=4))
async def test_jobs_of_a_type_share_one_model_and_follow_each_other_on_several(house):
    for each in jobs(("a", LETTER), ("a", LETTER), ("b", LETTER)):
        await house.accept(each)
    await house.events.until(lambda: len(house.events.of(JobStarted)) == 2)
    assert house.jobs.status() == {"waiting": 1, "running": 2}
    await house.ended("job_1", "job_2", "job_3")


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("at_once", [1, 2, 3, 4, 16])
@in_virtual_time
async def test_all_of_one_type_go_before_the_other_though_they_came_by_turns(policy, at_once):
    settings = settings_with(jobs={"max_in_queue": at_once}, scheduling={"policy": policy})
    wanted = [("a", LETTER), ("b", RESEARCH)] * 3 + [("a", LETTER)] * 2
    async with JobHouse("a", "b", settings=settings) as house:
        for number, (model, changed) in enumerate(wanted, 1):
            await house.accept(job(f"job_{number}", model, service_s=5.0, **changed))
        await house.ended(*(f"job_{number}" for number in range(1, 9)))
        served = [event.model for event in house.events.of(ItemDispatched)]
        assert served == ["a:latest"] * 5 + ["b:latest"] * 3
        assert len(house.events.of(SwapCompleted)) == 2


@in_virtual_time
async def test_jobs_of_models_that_fit_into_memory_together_run_beside_each_other():
    settings = settings_with(jobs={"max_in_queue": 4}, gpu={"vram_gb": 24.0})
    settings = settings.replace(
        models={name: ModelSettings(vram_gb=8.0) for name in ("a:latest", "b:latest")}
    )
    async with JobHouse("a", "b", settings=settings, capacity_mib=24 * 1024.0) as house:
        for each in jobs(("a", LETTER), ("b", RESEARCH), ("a", LETTER)):
            await house.accept(
                replace(each, request=job(each.job_id, each.model, service_s=60.0).request)
            )
        await house.events.until(lambda: len(house.gateway.worker.scheduler.gateway.running) == 2)
        assert {entry.item.model for entry in house.gateway.worker.scheduler.gateway.running} == {
            "a:latest",
            "b:latest",
        }
        await house.ended("job_1", "job_2", "job_3")


@in_virtual_time
async def test_a_more_urgent_job_of_another_model_waits_for_no_batch():
    async with JobHouse("a", "b", resident="a", settings=with_jobs(max_in_queue=4)) as house:
        for each in jobs(("a", {}), ("a", {}), ("b", CRITICAL)):
            await house.accept(each)
        ended = await house.ended("job_1", "job_2", "job_3")
        assert [end.job_id for end in ended].index("job_3") == 1


class PlainQueue:
    """The same questions, answered by sorting everything."""

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self.suspects: set[int] = set()

    def take(
        self,
        wall_s: float,
        models: set[str],
        running: list[Job],
        *,
        off_peak: bool,
        paused: bool,
        fits: bool,
    ) -> Job | None:
        due = [
            job
            for job in self.jobs.values()
            if (job.not_before_wall_s or 0.0) <= wall_s and (off_peak or not job.off_peak)
        ]
        due = sorted((job for job in due if not (paused and job.lane is Lane.EXTERNAL)), key=place)
        suspects = [job for job in due if job.number in self.suspects]
        if suspects:
            first = suspects[0]
            beside = [
                job
                for job in due
                if job.number not in self.suspects
                and job.task_type
                and job.task_type == first.task_type
            ]
            return None if running else min([first, *beside], key=place)
        ready = [
            job
            for index, job in enumerate(due)
            if leads(job, due[:index]) and follows(job, running)
        ]
        same = [
            job for job in ready if job.model in models and place(job)[:2] == place(ready[0])[:2]
        ]
        chosen = next(iter([*same, *ready]), None)
        return chosen if chosen is None or fits or joins(chosen, running) else None

    def position(self, number: int) -> int:
        return sum(place(other) < place(self.jobs[number]) for other in self.jobs.values())

    def next_due(self, wall_s: float) -> float | None:
        return min(
            (at for job in self.jobs.values() if (at := job.not_before_wall_s or 0.0) > wall_s),
            default=None,
        )


def place(job: Job) -> tuple[bool, int, int]:
    external = job.lane is Lane.EXTERNAL
    return (external, 0 if external else int(job.priority), job.number)


def leads(job: Job, earlier: list[Job]) -> bool:
    return job.task_type is None or all(other.task_type != job.task_type for other in earlier)


def follows(job: Job, running: list[Job]) -> bool:
    return job.task_type is None or all(
        other.task_type != job.task_type or other.model == job.model for other in running
    )


def joins(job: Job, running: list[Job]) -> bool:
    batch = [other.model for other in running if place(other)[:2] <= place(job)[:2]]
    return not batch or job.model in batch


def has_room(_: Job) -> bool:
    return True


def has_no_room(_: Job) -> bool:
    return False


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
    chance = random.Random(seed)
    disk = Disk()
    clock = StoppedClock()
    plain = PlainQueue()
    table = disk.tables(clock).jobs
    running: list[Job] = []
    for step in range(40):
        clock.wall_s += chance.choice([0.0, 1.0, 2.0, -1.5])
        accepted = await table.accept(some_job(chance, step, clock.wall()), LIMITS)
        plain.jobs[accepted.number] = accepted
        assert accepted.position == plain.position(accepted.number)
        if chance.random() < 0.1:
            plain.suspects.add(accepted.number)
        if chance.random() < 0.2:
            gone = plain.jobs.pop(chance.choice(list(plain.jobs)))
            assert await table.cancel(gone.job_id, inf)
        off_peak = chance.random() < 0.5
        paused = chance.random() < 0.2
        models: set[str] = chance.choice(
            [{"a:latest"}, {"b:latest"}, {"a:latest", "b:latest"}, set()]
        )
        fits = chance.random() < 0.5
        numbers = {each.number for each in running}
        conditions: dict[str, bool] = {
            "off_peak": off_peak,
            "batches_off_peak": False,
            "paused": paused,
            "emulated": False,
        }
        heads, suspects, due = await table.startable(
            running=numbers,
            suspects=plain.suspects - numbers,
            paused_callers=(),
            **conditions,
        )
        taken = next_job(heads, suspects, running, models, has_room if fits else has_no_room)
        expected = plain.take(
            clock.wall(), models, running, off_peak=off_peak, paused=paused, fits=fits
        )
        assert (taken and taken.number) == (expected and expected.number)
        assert due == plain.next_due(clock.wall())
        if taken is not None:
            assert await table.claim(taken.number) is not None
            running.append(plain.jobs.pop(taken.number))
        elif running:
            back = running.pop(0)
            plain.suspects.discard(back.number)
            due = None if chance.random() < 0.5 else clock.wall() + 3
            assert await table.put_back(back.number, counted=True, not_before_wall_s=due)
            plain.jobs[back.number] = back if due is None else replace(back, not_before_wall_s=due)
        listed = await table.list_jobs(state=None, unended=True, limit=100, positions=True)
        assert {each.number: each.position for each in listed if each.position is not None} == {
            n: plain.position(n) for n in plain.jobs
        }
        assert table.queued == len(plain.jobs)
        for caller in (None, "me"):
            line = sorted(
                (each for each in plain.jobs.values() if caller in (None, each.caller)), key=place
            )
            count, _, first = await table.waiting(caller, 3)
            assert ([each.number for each in first], count) == (
                [each.number for each in line[:3]],
                len(line),
            )
