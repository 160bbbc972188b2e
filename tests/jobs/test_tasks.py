"""`submit_task`: one way in for background tasks, after Peregrine's LLM queue optimizer."""

from __future__ import annotations

import asyncio
import threading

import pytest

from hearth.errors import BadRequest, ModelNotFound, QueueFull, ShuttingDown
from hearth.events import InternalFault, ItemEnded, JobStarted
from hearth.jobs.tasks import Submitted
from hearth.types import Lane, Priority
from tests.jobs.house import JobHouse, in_house, with_jobs
from tests.support.patience import within_limit

LLM = with_jobs(task_types=("letter", "research"), max_in_queue=2)
LETTER = {"model": "a:latest", "prompt": "x", "fake": {"service_s": 1.0}}
CHAT = {"model": "a:latest", "messages": [{"role": "user", "content": "x"}]}


@in_house(settings=LLM.replace(priority_map={"letter": Priority.NORMAL}))
async def test_a_listed_type_goes_through_the_durable_queue_with_its_band(house):
    submitted = await house.tasks.submit_task("letter", "7", request=LETTER)
    task_id, is_new = await house.tasks.submit_task("letter", "7", request=LETTER)
    assert (task_id, is_new) == (submitted.task_id, False)
    tasks = [
        submitted,
        await house.tasks.submit_task("letter", "8", request=LETTER, priority=Priority.CRITICAL),
        await house.tasks.submit_task("research", request=CHAT, endpoint="/v1/chat/completions"),
    ]
    assert all(task.is_new for task in tasks)
    records = [await house.record(task.task_id) for task in tasks]
    assert [(record.priority, record.path) for record in records] == [
        (Priority.NORMAL, "/api/generate"),
        (Priority.CRITICAL, "/api/generate"),
        (Priority.BACKGROUND, "/v1/chat/completions"),
    ]
    await house.ended(*(task.task_id for task in tasks))
    item = next(
        event for event in house.events.of(ItemEnded) if event.request_id == submitted.task_id
    )
    assert (item.lane, item.task_type) == (Lane.INTERNAL, "letter")


@in_house("a", "b", resident="a", settings=LLM)
async def test_letters_and_research_are_done_in_batches_each_in_its_order(house):
    """Peregrine: N letters and M research tasks, and room for one model: one swap, not one per
    task.
    """
    names: dict[str, list[str]] = {"letter": [], "research": []}
    for n in range(12):
        kind, model = (("letter", "a"), ("research", "b"))[n % 2]
        names[kind].append(
            (
                await house.tasks.submit_task(
                    kind, str(n), request=LETTER | {"model": f"{model}:latest"}
                )
            ).task_id
        )
    await house.ended(*names["letter"], *names["research"])
    for kind, expected in names.items():
        assert [
            event.job_id for event in house.events.of(JobStarted) if event.task_type == kind
        ] == expected
    assert len([record for record in house.ollama.control if record.kind == "load"]) <= 2


@in_house(settings=LLM)
async def test_a_task_that_cannot_be_done_is_refused(house):
    for task_type, request, error in (
        ("letter", None, BadRequest),
        ("letter", {"model": "a"}, BadRequest),
        ("letter", {"model": "nowhere", "prompt": "x"}, ModelNotFound),
        ("discovery", None, BadRequest),
    ):
        with pytest.raises(error):
            await house.tasks.submit_task(task_type, request=request)


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
    house = JobHouse("a", settings=with_jobs(task_types=("letter",), max_queued=2))
    work = Work()
    first = await house.tasks.submit_task("discovery", "1", run=work)
    assert first.is_new
    assert work.begun.wait(30)
    assert work.thread.name.startswith("hearth-task")
    assert await house.tasks.submit_task("discovery", "1", run=work) == Submitted(
        task_id=first.task_id, is_new=False
    )
    assert (await house.tasks.submit_task("discovery", "2", run=work)).is_new
    with pytest.raises(QueueFull, match=r"jobs\.max_queued"):
        await house.tasks.submit_task("scrape", run=work)
    assert house.disk.rows("SELECT COUNT(*) FROM jobs") == [(0,)]
    work.let_end.set()


async def test_a_task_that_breaks_is_reported_and_the_next_one_runs():
    house = JobHouse("a", settings=LLM)

    def broken() -> None:
        raise RuntimeError("the prompt was: secret")

    await house.tasks.submit_task("scrape", "1", run=broken)
    fault = await within_limit(house.events.first(InternalFault))
    assert (fault.where, fault.detail) == ("task scrape", "RuntimeError")
    done = threading.Event()
    assert (await house.tasks.submit_task("scrape", "1", run=done.set)).is_new
    assert done.wait(30)


async def test_after_the_end_no_task_starts_not_even_one_that_was_taken():
    house = JobHouse("a", settings=with_jobs(pool_workers=1))
    running = asyncio.ensure_future(house.tasks.run())
    work = Work()
    late = threading.Event()
    await house.tasks.submit_task("scrape", run=work)
    await house.tasks.submit_task("scrape", run=late.set)
    assert await asyncio.to_thread(work.begun.wait, 30)
    running.cancel()
    await asyncio.wait([running])
    with pytest.raises(ShuttingDown):
        await house.tasks.submit_task("scrape", run=late.set)
    work.let_end.set()
    await asyncio.to_thread(work.thread.join, 30)
    assert not late.is_set()
