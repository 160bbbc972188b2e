"""`submit_task`: one door for background tasks, after Peregrine's LLM queue optimizer."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from hearth.errors import BadRequest, ModelNotFound, QueueFull, ShuttingDown
from hearth.events import InternalFault, ItemEnded, JobStarted
from hearth.jobs.service import Submitted
from hearth.types import Lane, Priority
from tests.jobs.house import Disk, JobHouse, in_house, with_jobs
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S
from tests.support.virtual_time import in_virtual_time
from tests.worker.house import settle

LLM = with_jobs(task_types=("letter", "research"), max_in_queue=2)
LETTER = {"model": "a:latest", "prompt": "x", "fake": {"service_s": 1.0}}
RESEARCH = {"model": "b:latest", "prompt": "x", "fake": {"service_s": 1.0}}


@in_house(settings=LLM)
async def test_a_listed_type_goes_through_the_durable_queue_in_the_lane_of_the_house(house):
    submitted = await house.door.submit_task("letter", "7", request=LETTER)
    assert submitted.is_new
    assert await house.door.submit_task("letter", "7", request=LETTER) == replace(submitted, is_new=False)
    assert (await house.door.submit_task("letter", "8", request=LETTER)).is_new
    await house.ended(submitted.task_id)
    item = house.events.of(ItemEnded)[0]
    assert (item.lane, item.task_type, item.request_id) == (Lane.INTERNAL, "letter", submitted.task_id)
    assert (await house.record(submitted.task_id)).priority is Priority.BACKGROUND


@in_virtual_time
async def test_band_and_route_of_a_task_are_those_of_its_type_and_its_body_unless_it_names_others():
    settings = LLM.replace(priority_map={"letter": Priority.NORMAL})
    chat = {"model": "a:latest", "messages": [{"role": "user", "content": "x"}]}
    async with JobHouse("a", resident=("a",), settings=settings) as house:
        tasks = [
            await house.door.submit_task("letter", request=LETTER),
            await house.door.submit_task("letter", request=LETTER, priority=Priority.CRITICAL),
            await house.door.submit_task("research", request=chat, endpoint="/v1/chat/completions"),
        ]
        records = [await house.record(task.task_id) for task in tasks]
        assert [(record.priority, record.path) for record in records] == [
            (Priority.NORMAL, "/api/generate"),
            (Priority.CRITICAL, "/api/generate"),
            (Priority.BACKGROUND, "/v1/chat/completions"),
        ]
        await house.ended(*(task.task_id for task in tasks))


@in_virtual_time
async def test_letters_and_research_are_done_in_batches_each_in_its_order():
    """Peregrine: N letters and M research tasks, and room for one model: one swap, not one per task."""
    async with JobHouse("a", "b", resident=("a",), settings=LLM) as house:
        names: dict[str, list[str]] = {"letter": [], "research": []}
        for n in range(12):
            kind = ("letter", "research")[n % 2]
            asked = LETTER if kind == "letter" else RESEARCH
            names[kind].append((await house.door.submit_task(kind, str(n), request=asked)).task_id)
        await house.ended(*names["letter"], *names["research"])
        for kind, expected in names.items():
            assert [event.job_id for event in house.events.of(JobStarted) if event.task_type == kind] == expected
        assert len([record for record in house.ollama.control if record.kind == "load"]) <= 2


@in_house(settings=with_jobs(task_types=("letter",), max_queued=1, max_in_queue=1))
async def test_a_task_too_many_is_refused_with_a_clear_error(house):
    first = await house.door.submit_task("letter", request=LETTER)
    await settle()
    second = await house.door.submit_task("letter", request=LETTER)
    with pytest.raises(QueueFull, match=r"jobs\.max_queued"):
        await house.door.submit_task("letter", request=LETTER)
    await house.ended(first.task_id, second.task_id)


@for_each(
    ("task_type", "request_", "error"),
    [
        ("letter", None, BadRequest),
        ("letter", {"model": "a"}, BadRequest),
        ("letter", {"model": "nowhere", "prompt": "x"}, ModelNotFound),
        ("discovery", None, BadRequest),
    ],
)
def test_a_task_that_cannot_be_done_is_refused(task_type, request_, error):
    @in_virtual_time
    async def scenario() -> None:
        async with JobHouse("a", settings=LLM) as house:
            with pytest.raises(error):
                await house.door.submit_task(task_type, request=request_)

    scenario()


class Work:
    """Something to do on a thread that waits until the test lets it end."""

    def __init__(self) -> None:
        self.begun, self.let_end = threading.Event(), threading.Event()
        self.thread: threading.Thread

    def __call__(self) -> None:
        self.thread = threading.current_thread()
        self.begun.set()
        assert self.let_end.wait(30)


async def test_any_other_type_runs_at_once_on_a_thread_beside_the_queue():
    disk = Disk()
    house = JobHouse("a", disk=disk, settings=with_jobs(task_types=("letter",), max_queued=2))
    work, other = Work(), Work()
    first = await house.door.submit_task("discovery", "1", run=work)
    assert first.is_new
    assert work.begun.wait(30)
    assert work.thread.name.startswith("hearth-task")
    assert await house.door.submit_task("discovery", "1", run=work) == Submitted(task_id=first.task_id, is_new=False)
    assert (await house.door.submit_task("discovery", "2", run=other)).is_new
    with pytest.raises(QueueFull, match=r"jobs\.max_queued"):
        await house.door.submit_task("scrape", run=other)
    assert disk.rows("SELECT COUNT(*) FROM jobs") == [(0,)]
    work.let_end.set()
    other.let_end.set()


async def test_a_task_that_breaks_is_reported_and_the_next_one_of_its_type_and_key_runs():
    house = JobHouse("a", settings=LLM)

    def broken() -> None:
        raise RuntimeError("the prompt was: secret")

    await house.door.submit_task("scrape", "1", run=broken)
    async with asyncio.timeout(WITHIN_S):
        await house.events.until(lambda: bool(house.events.of(InternalFault)))
    (fault,) = house.events.of(InternalFault)
    assert (fault.where, fault.detail) == ("task scrape", "RuntimeError")
    done = threading.Event()
    assert (await house.door.submit_task("scrape", "1", run=done.set)).is_new
    assert done.wait(30)


async def test_after_the_end_no_task_starts_not_even_one_that_was_taken():
    house = JobHouse("a", settings=with_jobs(pool_workers=1))
    running, work, late = asyncio.ensure_future(house.door.run()), Work(), threading.Event()
    await house.door.submit_task("scrape", run=work)
    await house.door.submit_task("scrape", run=late.set)
    assert await asyncio.to_thread(work.begun.wait, 30)
    running.cancel()
    await asyncio.wait([running])
    with pytest.raises(ShuttingDown):
        await house.door.submit_task("scrape", run=late.set)
    work.let_end.set()
    await asyncio.to_thread(work.thread.join, 30)
    assert not late.is_set()
