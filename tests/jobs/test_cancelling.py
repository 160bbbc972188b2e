"""All jobs of a caller are cancelled: those that wait and those that run, each of them once,
whatever the disk does.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from hearth.errors import StorageUnavailable
from hearth.events import JobEnded, JobStarted
from hearth.job_types import JobEnd, JobState
from hearth.jobs import service
from hearth.jobs.attempt import JobRun, attempt
from hearth.queue.worker import LLMQueueWorker
from hearth.types import LoadOptions, Outcome, RequestId, Sequence
from tests.jobs.house import JobHouse, in_house, job, with_jobs
from tests.storage.memory import Disk
from tests.support.fake_exchange import CallFault
from tests.support.house import settle
from tests.support.virtual_time import in_virtual_time, sleep_until

ONE_AT_A_TIME = with_jobs(max_in_queue=1)


def jobs_cancelled(count: int) -> tuple[tuple[RequestId, ...], int, int]:
    return ((), count, 0)


def ends(house: JobHouse) -> dict[str, str]:
    return {event.job_id: event.state for event in house.events.of(JobEnded)}


@in_house(settings=with_jobs(max_in_queue=2))
async def test_all_jobs_and_requests_of_a_caller_are_cancelled_and_nobody_elses(house):
    for number, caller in enumerate(["me", "them", "me", "me"]):
        await house.accept(job(f"job_{number}", caller=caller, service_s=5.0))
    mine = house.submit("a", caller="me", request_id="req_mine")
    await sleep_until(1.0)
    assert await house.gateway.cancel_caller("me") == ((RequestId("req_mine"),), 3, 0)
    assert await house.gateway.cancel_caller("me") == jobs_cancelled(0)
    assert (await house.end_of(mine)).outcome is Outcome.CANCELLED
    assert house.ollama.calls[0].ended_at == 1.0
    await house.ended("job_1")
    assert house.now == 6.0
    assert ends(house) == {
        "job_0": "cancelled",
        "job_2": "cancelled",
        "job_3": "cancelled",
        "job_1": "completed",
    }
    assert len(house.ollama.calls) == 2


MANY = 2 * service.CANCELLED_TOGETHER + 5


@in_house(settings=with_jobs(max_in_queue=1, max_queued=MANY))
async def test_more_jobs_than_are_read_at_a_time_are_all_cancelled(house):
    for number in range(MANY):
        await house.accept(job(f"job_{number}", caller="me", service_s=5.0))
    assert await house.jobs.cancel_caller("me") == MANY
    assert house.jobs.status()["waiting"] == 0
    assert set(ends(house).values()) == {"cancelled"}


@in_virtual_time
async def test_cancelling_races_with_every_moment_of_a_job_and_there_is_one_end():
    for delay in range(40):
        disk = Disk()
        disk.latency_s = 0.1
        async with JobHouse(disk=disk) as house:
            await house.accept(job(service_s=0.5))
            await asyncio.sleep(delay * 0.025)
            cancelled = await house.jobs.cancel(await house.record("job_1"))
            end = await house.end_of_job()
            assert end.state == ("cancelled" if cancelled else "completed")


@pytest.mark.parametrize("how", ["id", "number", "caller"])
@in_house()
async def test_a_cancelled_job_frees_the_gpu_and_is_on_the_disk_when_answered(house, how: str):
    """While the disk is broken requests are cancelled all the same, and the job frees the GPU where
    it is asked for as a request.
    """

    async def cancel() -> object:
        if how == "caller":
            return (await house.gateway.cancel_caller("me"))[1] == 1
        if how == "id":
            return await house.gateway.cancel_request(RequestId("job_1"), caller="me")
        return await house.gateway.cancel_item(
            Sequence(house.jobs.runner.sequence_of("job_1") or 0)
        )

    await house.accept(job("job_1", caller="me", service_s=50.0))
    mine = house.submit("a", caller="me", request_id="req_1")
    await sleep_until(2.0)
    house.disk.broken = True
    with pytest.raises(StorageUnavailable):
        await cancel()
    await settle()
    if how != "caller":
        assert house.ollama.calls[0].ended_at == 2.0
        assert await house.gateway.cancel_request(RequestId("req_1"), caller="me") is True
    assert (await house.end_of(mine)).outcome is Outcome.CANCELLED
    house.disk.broken, house.disk.latency_s = False, 0.5
    assert await cancel() is True
    assert house.disk.rows("SELECT state FROM jobs") == [("cancelled",)]
    assert await house.gateway.cancel_request(RequestId("job_1"), caller="me") is True
    assert await house.gateway.cancel_item(Sequence(1)) is True
    assert ends(house) == {"job_1": "cancelled"}


@pytest.mark.parametrize("where", ["in the store", "between two attempts"])
@in_house(settings=ONE_AT_A_TIME)
async def test_the_id_of_a_job_cancels_it_while_it_waits_and_nobody_elses(house, where: str):
    if where == "in the store":
        await house.accept(job("job_0", caller="them", service_s=10.0))
    else:
        house.ollama.next_calls(CallFault.SERVER_ERROR)
    await house.accept(job("job_1", caller="me"))
    await sleep_until(2.0)
    assert (await house.record("job_1")).position == 0
    assert await house.gateway.cancel_request(RequestId("job_1"), caller="them") is None
    assert await house.gateway.cancel_request(RequestId("job_9"), caller=None) is None
    assert [
        await house.gateway.cancel_request(RequestId("job_1"), caller=caller)
        for caller in ("me", None)
    ] == [True, True]
    await sleep_until(30.0)
    assert ends(house)["job_1"] == "cancelled"
    assert len(house.ollama.calls) == 1


@in_house()
async def test_an_ended_job_cannot_be_cancelled_and_its_item_ends_a_job_too(house):
    await house.accept(job("job_1", caller="me"))
    await house.ended("job_1")
    assert await house.gateway.cancel_request(RequestId("job_1"), caller="me") is False
    assert await house.gateway.cancel_item(Sequence(1)) is False
    await house.accept(job("job_2", service_s=5.0))
    await settle()
    house.worker.cancel_request("job_2", caller=None)
    await house.ended("job_2")
    assert ends(house) == {"job_1": "completed", "job_2": "cancelled"}


@pytest.mark.parametrize("by", ["id", "caller", "nobody"])
@in_house(settings=ONE_AT_A_TIME)
async def test_a_cancel_reported_as_failed_is_told_of_once(house, by: str):
    began_at = house.now
    for name in ("job_1", "job_2"):
        await house.accept(job(name, caller="me", service_s=50.0))
    await asyncio.sleep(1.0)
    house.disk.silent = True
    for name in ("job_1", "job_2"):
        with pytest.raises(StorageUnavailable):
            await house.jobs.cancel(await house.record(name))
    house.disk.silent = False
    assert house.jobs.status() == {"waiting": 1, "running": 1}
    for count in (2, 0):
        if by == "id":
            records = [await house.record(name) for name in ("job_1", "job_1", "job_2", "job_2")]
            assert sum(await asyncio.gather(*map(house.jobs.cancel, records))) == count
        elif by == "caller":
            assert await house.gateway.cancel_caller("me") == jobs_cancelled(count)
    await house.ended("job_1", "job_2")
    await settle()
    assert house.jobs.status() == {"waiting": 0, "running": 0}
    if by != "nobody":
        assert house.ollama.calls[0].ended_at == began_at + 1.0
    assert ends(house) == {"job_1": "cancelled", "job_2": "cancelled"}
    assert [event.job_id for event in house.events.of(JobStarted)] == ["job_1"]


@in_house()
async def test_a_cancel_of_what_has_ended_tells_nobody_again_whatever_the_disk_does(house):
    await house.accept(job(service_s=50.0))
    await sleep_until(1.0)
    seen = await house.record("job_1")
    assert await house.jobs.cancel(seen)
    for house.disk.broken_writes in (True, False):
        assert not await house.jobs.cancel(await house.record("job_1"))
    await sleep_until(2.0)
    house.disk.broken_writes = True
    with pytest.raises(StorageUnavailable):
        await house.jobs.cancel(seen)
    house.disk.broken_writes = False
    await sleep_until(60.0)  # meanwhile it is tried again
    assert [event.job_id for event in house.events.of(JobEnded)] == ["job_1"]


@in_house()
async def test_a_job_cancelled_before_its_result_was_written_is_told_as_cancelled(house):
    await house.accept(job(service_s=1.0))
    await sleep_until(0.5)
    house.disk.broken_writes = True
    await sleep_until(2.0)
    house.disk.broken_writes, house.disk.silent = False, True
    with pytest.raises(StorageUnavailable):
        await house.jobs.cancel(await house.record("job_1"))
    house.disk.silent = False
    await house.ended("job_1")
    assert ends(house) == {"job_1": "cancelled"}


@in_virtual_time
async def test_a_job_cancelled_during_its_models_lookup_never_reaches_the_queue():
    run = JobRun(job=job())

    async def resolve(model: str, **_: object) -> str:
        run.cancelled = True
        return model

    async def check_capable(_: object) -> None:
        """It can do everything."""

    watch = SimpleNamespace(
        resolve=resolve,
        check_capable=check_capable,
        load_options=lambda model: LoadOptions(),
        wire_name=str,
    )
    aliases = SimpleNamespace(named=lambda _: "")
    worker = cast("LLMQueueWorker", SimpleNamespace(watch=watch, aliases=aliases))
    assert await attempt(run, run.job, with_jobs(), worker) == JobEnd(
        state=JobState.CANCELLED, reason="cancelled"
    )
