"""The table of jobs: every state is left once, and what was accepted is kept. On the real store and on that of the desk's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hearth.config.settings import AuthSettings, JobSettings, KeySettings, Settings, StorageSettings
from hearth.errors import KeyReused, QueueFull
from hearth.job_types import Job, JobEnd, JobState, StoreLimits
from hearth.jobs.service import limits_of
from hearth.storage.jobs import JobTable, insert
from hearth.storage.opening import connect_writer, create, shipped_migrations
from hearth.storage.store import Store
from hearth.types import MIB, Lane
from tests.jobs.house import Disk, job
from tests.storage.house import WALL, StoppedClock
from tests.support.recorder import Recorder

LIMITS = StoreLimits(max_queued=100, max_bytes=1 << 20)
DONE = JobEnd(state=JobState.COMPLETED, status=200, content_type="application/json", result=b'{"x":1}')
DAY_S = 86_400.0

Process = Callable[[], Any]


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture(params=["the real store", "the store of the desk's tests"])
async def process(request: pytest.FixtureRequest, tmp_path: Path, clock: StoppedClock) -> AsyncIterator[Process]:
    """Starts a process on one and the same file; the one before dies."""
    async with AsyncExitStack() as stack:
        disk, open_store = Disk(), list[Store]()

        async def start() -> JobTable:
            if request.param != "the real store":
                return disk.table(clock)
            for store in open_store:
                await store.close(5.0)
            settings = StorageSettings(reserve_mib=0)
            store = await Store.open(tmp_path / "hearth.db", settings, clock=clock, events=Recorder())
            open_store[:] = [store]
            stack.push_async_callback(store.close, 5.0)
            return store.jobs

        yield start


async def recovered(table: JobTable, *, requeue: bool = True, max_attempts: int = 3) -> tuple[frozenset[int], tuple[Job, ...]]:
    return await table.recover(requeue=requeue, max_attempts=max_attempts)


async def waiting(table: JobTable) -> list[tuple[str, int]]:
    """The ids of the jobs that wait, in order, and how often each was started."""
    return [(each.job_id, each.attempts) for each in (await table.waiting(None, 100))[2]]


async def state_of(table: JobTable, job_id: str = "job_1") -> JobState:
    found = await table.find(job_id)
    assert found is not None
    return found.state


async def test_a_job_goes_its_way_and_keeps_its_result_but_not_its_request(process):
    table = await process()
    accepted = await table.add(job(), LIMITS)
    assert accepted.is_new
    assert await state_of(table) is JobState.QUEUED
    started = await table.start(accepted.job.number)
    assert (started.path, started.request, started.attempts) == ("/api/generate", job().request, 1)
    assert await table.start(accepted.job.number) is None
    assert await state_of(table) is JobState.RUNNING
    assert await table.end(accepted.job.number, DONE)
    found = await table.find("job_1")
    assert (found.state, found.status, found.result, found.attempts) == (JobState.COMPLETED, 200, b'{"x":1}', 1)
    rest = StoreLimits(max_queued=100, max_bytes=len(b'{"x":1}') + len(job("job_2").request))
    with pytest.raises(QueueFull):
        await table.add(job("job_2"), replace(rest, max_bytes=rest.max_bytes - 1))
    assert (await table.add(job("job_2"), rest)).is_new


@pytest.mark.parametrize("end", [DONE, JobEnd(state=JobState.FAILED, reason="x", error="y\ud83d"), None])
async def test_a_job_that_has_ended_never_changes_again(process, end):
    table = await process()
    number = (await table.add(job(), LIMITS)).job.number
    await table.start(number)
    assert await (table.cancel("job_1") if end is None else table.end(number, end))
    before = await table.find("job_1")
    assert not await table.end(number, DONE)
    assert not await table.cancel("job_1")
    assert not await table.put_back(number, counted=True, not_before_wall_s=None)
    assert await table.start(number) is None
    assert await table.find("job_1") == before
    table = await process()
    await recovered(table)
    assert table.queued == 0


@pytest.mark.parametrize(("counted", "attempt"), [(True, 2), (False, 1)])
async def test_a_job_that_is_put_back_starts_again_and_counts_what_counts(process, counted, attempt):
    table = await process()
    number = (await table.add(job(), LIMITS)).job.number
    await table.start(number)
    assert await table.put_back(number, counted=counted, not_before_wall_s=WALL + 5)
    assert (await table.find("job_1")).not_before_wall_s == WALL + 5
    assert (await table.start(number)).attempts == attempt


async def test_the_next_process_finds_waiting_jobs_in_order_and_running_ones_as_suspects(process):
    table = await process()
    for n in range(5):
        await table.add(job(f"job_{n}", task_type="t", job_key=str(n), off_peak=n == 4), LIMITS)
    await table.start(2)
    await table.start(3)
    table = await process()
    assert await recovered(table) == (frozenset({2, 3}), ())
    assert table.queued == 5
    assert await waiting(table) == [("job_0", 0), ("job_1", 1), ("job_2", 1), ("job_3", 0), ("job_4", 0)]
    assert (await table.find("job_4")).off_peak


async def test_recovering_again_and_again_burns_no_attempts_and_touches_no_job_of_this_process(process):
    table = await process()
    first = (await table.add(job(), LIMITS)).job.number
    await table.start(first)
    for _ in range(5):
        table = await process()
        await recovered(table)
        assert await waiting(table) == [("job_1", 1)]
    second = (await table.add(job("job_2"), LIMITS)).job.number
    await table.start(second)
    assert (await recovered(table))[0] == frozenset()
    assert await waiting(table) == [("job_1", 1)]
    assert await state_of(table, "job_2") is JobState.RUNNING


async def test_a_job_that_was_running_when_the_process_died_too_often_ends_failed(process):
    table = await process()
    await table.add(job(), LIMITS)
    for attempt in range(1, 4):
        assert (await table.start(1)).attempts == attempt
        table = await process()
        _, failed = await recovered(table)
    assert table.queued == 0
    assert [(record.job_id, record.reason, record.attempts) for record in failed] == [("job_1", "interrupted_by_restart", 3)]
    assert (await recovered(await process()))[1] == ()


async def test_a_job_that_waits_again_counts_as_one_that_has_not_run(process):
    table = await process()
    await table.add(job(), LIMITS)
    await table.start(1)
    table.note_dispatch(1)
    await table.put_back(1, counted=True, not_before_wall_s=None)
    await table.start(1)
    assert (await recovered(await process(), requeue=False))[1] == ()


async def test_a_task_type_and_a_key_are_one_job_until_it_has_ended(process):
    table = await process()
    new = job(task_type="letter", job_key="7")
    await table.add(new, LIMITS)
    assert not (await table.add(replace(new, job_id="job_2"), LIMITS)).is_new
    assert (await table.add(replace(new, job_id="job_3", task_type="research"), LIMITS)).is_new
    await table.start(1)
    assert (await table.add(replace(new, job_id="job_4"), LIMITS)).job.job_id == "job_1"
    await table.end(1, DONE)
    assert (await table.add(replace(new, job_id="job_5"), LIMITS)).is_new


LETTER = job(task_type="letter", job_key="7")


async def answered_with_the_letter(process: Callable[[], Awaitable[JobTable]]) -> JobTable:
    """A letter with a key of its own, and two other keys that it was the answer to; it has ended, and its process died."""
    table = await process()
    for name in ("own", "second", "third"):
        accepted = await table.add(replace(LETTER, job_id=f"job_{name}", idempotency_key=name, digest="d1"), LIMITS)
        assert (accepted.job.job_id, accepted.is_new) == ("job_own", name == "own")
    await table.start(1)
    await table.end(1, DONE)
    return await process()


@pytest.mark.parametrize("key", ["own", "second"])
@pytest.mark.parametrize(
    ("later_s", "change", "same"),
    [
        (0.0, {}, True),
        (0.0, {"task_type": None, "job_key": None}, True),
        (DAY_S - 1, {}, True),
        (DAY_S + 1, {}, False),
        (0.0, {"caller": "somebody else"}, False),
        (0.0, {"idempotency_key": "other"}, False),
        (0.0, {"idempotency_key": None}, False),
    ],
)
async def test_a_key_stands_for_the_job_that_answered_it_for_a_day(process, clock, key, later_s, change, same):
    table = await answered_with_the_letter(process)
    clock.advance(later_s)
    new = replace(LETTER, **{"job_id": "job_9", "idempotency_key": key, "digest": "d1"} | change)
    if same:
        with pytest.raises(KeyReused):
            await table.add(replace(new, digest="d2"), LIMITS)
    again = await table.add(new, LIMITS)
    assert (again.job.job_id, again.is_new) == (("job_own", False) if same else ("job_9", True))
    assert len(await table.list_jobs()) == 1 + again.is_new


async def test_an_idempotency_key_stands_for_its_job_for_as_long_as_that_waits(process, clock):
    table = await process()
    new = job(idempotency_key="key", digest="d1")
    await table.add(new, LIMITS)
    clock.advance(10 * DAY_S)
    assert not (await table.add(replace(new, job_id="job_2"), LIMITS)).is_new
    await table.cancel("job_1")
    assert (await table.add(replace(new, job_id="job_2"), LIMITS)).is_new


async def test_such_a_key_may_be_answered_with_another_job_after_a_day_and_stands_for_that_from_then(process, clock):
    table = await answered_with_the_letter(process)
    clock.advance(DAY_S + 1)
    await table.add(replace(LETTER, job_id="job_9"), LIMITS)
    for later_s in (0.0, DAY_S - 1):
        clock.advance(later_s)
        again = await table.add(replace(LETTER, job_id="job_10", idempotency_key="second", digest="d2"), LIMITS)
        assert (again.job.job_id, again.is_new) == ("job_9", False)
        await table.cancel("job_9")


async def test_of_a_key_whose_job_is_forgotten_nothing_is_left(clock):
    disk = Disk()

    async def process() -> JobTable:
        return disk.table(clock)

    table = await answered_with_the_letter(process)
    assert disk.rows("SELECT idempotency_key FROM job_keys ORDER BY idempotency_key") == [("second",), ("third",)]
    clock.advance(DAY_S / 2)
    assert await table.forget(clock.wall())
    assert disk.rows("SELECT * FROM job_keys") == []
    assert (await table.add(replace(LETTER, job_id="job_9", idempotency_key="second", digest="d2"), LIMITS)).is_new


async def test_jobs_and_keys_of_a_file_without_job_keys_go_on(tmp_path, clock):
    path = tmp_path / "hearth.db"
    create(path, connect_writer, shipped_migrations()[:6])
    with closing(connect_writer(path, 0.0)) as connection:
        connection.execute("ALTER TABLE jobs ADD COLUMN webhook_host TEXT")
        insert(connection, replace(LETTER, idempotency_key="own", digest="d1"), WALL)
        connection.execute("ALTER TABLE jobs DROP COLUMN webhook_host")
    store = await Store.open(path, StorageSettings(reserve_mib=0), clock=clock, events=Recorder())
    assert await waiting(store.jobs) == [("job_1", 0)]
    for state in (JobState.QUEUED, JobState.CANCELLED):
        for key in ("own", "second"):
            again = await store.jobs.add(replace(LETTER, job_id="job_2", idempotency_key=key, digest="d1"), LIMITS)
            assert (again.job.job_id, again.is_new) == ("job_1", False)
        assert await state_of(store.jobs) is state
        await store.jobs.cancel("job_1")
    await store.close(5.0)


async def test_no_more_jobs_wait_and_no_more_is_kept_than_allowed(process):
    table = await process()
    few = StoreLimits(max_queued=2, max_bytes=1 << 20)
    await table.add(job("job_1"), few)
    await table.add(job("job_2"), few)
    with pytest.raises(QueueFull, match=r"jobs\.max_queued"):
        await table.add(job("job_3"), few)
    await table.start(1)
    await table.add(job("job_3"), few)
    small = StoreLimits(max_queued=100, max_bytes=3 * len(job().request) + 10)
    with pytest.raises(QueueFull, match=r"jobs\.max_stored_mib"):
        await table.add(job("job_4"), small)
    assert len(await table.list_jobs()) == 3


async def test_one_caller_has_a_share_and_external_ones_leave_room_for_the_house(process):
    table = await process()
    size = len(job().request)
    settings = Settings(
        auth=AuthSettings(keys=(KeySettings(name="guest", sha256="0" * 64),)),
        jobs=JobSettings(max_queued=10, max_stored_mib=100 * size / MIB, caller_share_pct=50, internal_room_pct=20),
    )
    external, internal = limits_of(settings, Lane.EXTERNAL), limits_of(settings, Lane.INTERNAL)
    for number in range(5):
        await table.add(job(f"job_{number}", caller="greedy", lane=Lane.EXTERNAL), external)
    with pytest.raises(QueueFull, match=r"caller_share_pct of jobs\.max_queued"):
        await table.add(job("job_5", caller="greedy", lane=Lane.EXTERNAL), external)
    for number in range(3):
        await table.add(job(f"job_1{number}", caller="other", lane=Lane.EXTERNAL), external)
    with pytest.raises(QueueFull, match=r"jobs\.max_queued"):
        await table.add(job("job_13", caller="third", lane=Lane.EXTERNAL), external)
    await table.add(job("job_20", caller="house"), internal)
    assert limits_of(Settings(), Lane.EXTERNAL).own_max_bytes is None


async def test_a_caller_that_keeps_its_share_is_refused_until_it_forgets_a_job(process):
    table = await process()
    size = len(job().request)
    share = StoreLimits(max_queued=100, max_bytes=1 << 20, own_max_bytes=2 * size)
    await table.add(job("job_1"), share)
    await table.start(1)
    await table.end(1, JobEnd(state=JobState.COMPLETED, result=b"x" * 2 * size))
    assert not await table.remove("job_2")
    with pytest.raises(QueueFull, match="forget=true"):
        await table.add(job("job_2"), share)
    assert await table.remove("job_1")
    await table.add(job("job_2"), share)
    assert not await table.remove("job_2")


async def test_ended_jobs_are_forgotten_and_waiting_ones_and_those_still_to_be_told_of_never(process, clock):
    table = await process()
    for n, webhook in enumerate([None, "http://hook.lan/", None], start=1):
        await table.add(job(f"job_{n}", webhook_url=webhook), LIMITS)
    for number in (1, 2):
        await table.start(number)
        await table.end(number, DONE)
    clock.advance(10 * DAY_S)
    assert await table.forget(clock.wall() - 7 * DAY_S)
    assert not await table.forget(clock.wall() - 7 * DAY_S)
    assert {record.job_id for record in await table.list_jobs()} == {"job_2", "job_3"}
    assert await table.note_delivery("job_2", "delivered", 1, None)
    assert await table.forget(clock.wall() - 7 * DAY_S)


async def test_a_message_waits_from_the_end_of_its_job_until_it_is_told_and_its_url_is_forgotten(process, clock):
    table = await process()
    await table.add(job(webhook_url="http://hook.lan/s3cret"), LIMITS)
    assert await table.deliveries(10) == ()
    await table.start(1)
    await table.end(1, DONE)
    (delivery,) = await (await process()).deliveries(10)
    assert (delivery.job_id, delivery.url, delivery.state, delivery.due_wall_s) == (
        "job_1",
        "http://hook.lan/s3cret",
        JobState.COMPLETED,
        WALL,
    )
    table = await process()
    assert await table.note_delivery("job_1", "waiting", 1, WALL + 5)
    assert [(again.attempts, again.due_wall_s) for again in await table.deliveries(10)] == [(1, WALL + 5)]
    assert await table.note_delivery("job_1", "delivered", 2, None)
    assert not await table.note_delivery("job_1", "delivered", 3, None)
    assert await table.deliveries(10) == ()
    found = await table.find("job_1")
    assert found.webhook == "delivered"


async def test_every_way_to_an_end_has_its_message(process):
    table = await process()
    for n in range(1, 4):
        await table.add(job(f"job_{n}", webhook_url="http://hook.lan/"), LIMITS)
    await table.cancel("job_1")
    await table.start(3)
    table.note_dispatch(3)
    await table.start(2)
    await table.end(2, DONE)
    table = await process()
    await recovered(table, requeue=False)
    states = {delivery.job_id: delivery.state for delivery in await table.deliveries(10)}
    assert states == {"job_1": JobState.CANCELLED, "job_2": JobState.COMPLETED, "job_3": JobState.FAILED}
