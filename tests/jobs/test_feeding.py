"""Jobs on their way through a whole gateway, in virtual time: accepted, fed, ended once, whatever
breaks in between.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hearth.config.settings import GatewayConfig, Window
from hearth.errors import BadRequest, KeyInUse, ShuttingDown, StorageUnavailable, WaitExpired
from hearth.events import (
    InternalFault,
    ItemQueued,
    JobEnded,
    JobRequeued,
    JobsRecovered,
)
from hearth.job_types import JobState
from hearth.jobs.attempt import backoff_s
from hearth.types import Lane
from tests.jobs.house import JobHouse, in_house, job, started, with_jobs
from tests.storage.memory import Disk
from tests.support.fake_exchange import CallFault
from tests.support.fake_ollama import FakeModel
from tests.support.house import bodies_of, body_of, settings_with, settle
from tests.support.virtual_time import in_virtual_time, sleep_until


@in_house()
async def test_a_job_is_accepted_and_started_once_on_the_disk_and_its_answer_kept(house):
    house.disk.latency_s = 0.5
    await sleep_until(1.0)
    accepting = asyncio.ensure_future(house.accept(job(service_s=2.0)))
    await sleep_until(1.4)
    assert not accepting.done()
    assert house.disk.rows("SELECT COUNT(*) FROM jobs") == [(0,)]
    accepted = await accepting
    assert house.disk.rows("SELECT state FROM jobs") == [("queued",)]
    await house.events.until(lambda: bool(house.ollama.calls))
    assert house.disk.rows("SELECT state, attempts FROM jobs") == [("running", 1)]
    end = await house.end_of_job()
    assert (end.state, end.attempts, end.status, end.reason) == ("completed", 1, 200, "")
    assert 2.5 <= end.total_s < 4.0
    record = await house.record("job_1")
    assert json.loads(record.result or b"")["response"] == " alpha beta gamma"
    assert record.number == accepted.number


@in_house(settings=settings_with(queue={"max_wait_s": 5.0}))
async def test_a_job_waits_longer_than_any_request_may(house):
    busy = house.submit("a", lane=Lane.INTERNAL, service_s=60.0)
    await settle()
    late = house.submit("a")
    end = await house.run(job())
    assert (end.state, end.attempts) == ("completed", 1)
    assert not house.events.of(JobRequeued)
    await body_of(busy)
    with pytest.raises(WaitExpired):
        await body_of(late)


@in_house()
async def test_a_caller_who_leaves_during_the_commit_leaves_a_job_that_runs(house):
    house.disk.latency_s = 0.5
    accepting = asyncio.ensure_future(house.accept(job()))
    await asyncio.sleep(0.1)
    accepting.cancel()
    await house.ended("job_1")


@in_house(settings=with_jobs(max_in_queue=2))
async def test_only_so_many_jobs_are_in_the_queue_and_more_room_is_filled_at_once(house):
    for n in range(6):
        await house.accept(job(f"job_{n}", lane=Lane.EXTERNAL, service_s=100.0))
    await settle()
    assert len(house.events.of(ItemQueued)) == 2
    assert [(await house.record(f"job_{n}")).position for n in range(6)] == [None, None, 0, 1, 2, 3]
    ticket = house.submit("a")
    assert ticket.position <= 2
    await body_of(ticket)
    house.gateway.reload(GatewayConfig(settings=with_jobs(max_in_queue=4)))
    await sleep_until(house.now + 0.1)
    assert len(started(house)) == 4 + len(house.events.of(JobEnded))
    await house.ended(*(f"job_{n}" for n in range(6)))
    assert started(house) == [f"job_{n}" for n in range(6)]


NOON = settings_with(scheduling={"active_hours": (Window(start_minute=0, end_minute=60),)})


@in_house(settings=NOON)
async def test_a_job_waits_for_its_time_and_for_the_end_of_active_hours(house):
    wall = house.gateway.clock.wall()
    await house.accept(job("job_1", not_before_wall_s=wall + 100))
    await house.accept(job("job_2", off_peak=True))
    await house.accept(job("job_3"))
    assert house.jobs.estimated_start_s(await house.record("job_1")) == pytest.approx(100, abs=1)
    await house.ended("job_3")
    await sleep_until(99.0)
    assert started(house) == ["job_3"]
    assert house.jobs.estimated_start_s(await house.record("job_2")) == pytest.approx(3501, abs=1)
    await house.ended("job_1")
    assert house.now < 103
    await sleep_until(3590.0)
    assert started(house) == ["job_3", "job_1"]
    await house.ended("job_2")
    assert 3600 <= house.now < 3615


@in_house("a")
async def test_a_job_for_an_off_peak_time_that_never_comes_is_refused(house):
    with pytest.raises(BadRequest, match="would never start"):
        await house.accept(job(off_peak=True))


@in_house()
async def test_two_requests_with_one_key_at_once_conflict_and_later_are_one_job(house):
    house.disk.latency_s = 0.1
    first = asyncio.ensure_future(house.accept(job(idempotency_key="k", digest="d")))
    await asyncio.sleep(0)
    with pytest.raises(KeyInUse):
        await house.accept(job("job_2", idempotency_key="k", digest="d"))
    await first
    assert (await house.accept(job("job_3", idempotency_key="k", digest="d"))).job_id == "job_1"
    await house.ended("job_1")
    assert started(house) == ["job_1"]


@pytest.mark.parametrize(
    "known_by",
    [{"idempotency_key": "k", "digest": "d"}, {"task_type": "letter", "job_key": "7"}, {}],
)
@in_house()
async def test_a_job_whose_commit_seemed_to_fail_runs_only_where_it_can_be_found(house, known_by):
    await settle()
    house.disk.silent = True
    with pytest.raises(StorageUnavailable):
        await house.accept(job(webhook_url="http://hook/", **known_by))
    assert house.disk.rows("SELECT id FROM jobs") == [("job_1",)]
    house.disk.silent = False
    kept = "job_1" if known_by else "job_2"
    for again in ("job_2", "job_3") if known_by else ("job_2",):
        assert (await house.accept(job(again, **known_by))).job_id == kept
    await house.ended(kept)
    assert started(house) == [kept]
    assert house.disk.rows("SELECT id FROM jobs") == [(kept,)]


@in_house()
async def test_while_the_model_server_is_down_jobs_wait_and_no_attempt_is_burnt(house):
    await house.accept(job(service_s=30.0))
    await sleep_until(5.0)
    house.ollama.go_down()
    await sleep_until(600.0)
    assert (await house.record("job_1")).state is JobState.QUEUED
    house.ollama.come_up()
    end = await house.end_of_job()
    assert (end.state, end.attempts) == ("completed", 1)


@pytest.mark.parametrize(
    ("settings", "fault", "changed", "expected", "pauses"),
    [
        (
            {"max_attempts": 3},
            CallFault.SERVER_ERROR,
            {},
            ("failed", 3, 500, "backend_status"),
            [5.0, 10.0],
        ),
        (
            {"max_attempts": 3},
            CallFault.GONE_BEFORE_HEAD,
            {},
            ("failed", 3, None, "backend_gone"),
            [5.0, 10.0],
        ),
        ({}, None, {"model": "nowhere"}, ("failed", 1, None, "model_not_found"), []),
        ({"max_result_mib": 0.0001}, None, {}, ("failed", 1, 200, "result_too_large"), []),
    ],
)
@in_virtual_time
async def test_what_fails_is_tried_again_later_where_that_may_help_and_then_given_up(
    settings, fault, changed, expected, pauses
):
    async with JobHouse(settings=with_jobs(**settings)) as house:
        house.ollama.next_calls(*[fault] * 8)
        end = await house.run(job(**changed))
        assert (end.state, end.attempts, end.status, end.reason) == expected
        assert [event.retry_s for event in house.events.of(JobRequeued)] == pauses


@in_house("a", FakeModel(name="emb", capabilities=frozenset({"embedding"})), resident="a")
async def test_a_job_beyond_its_model_ends_as_if_asked_and_costs_no_swap(house):
    end = await house.run(job(model="emb"))
    assert (end.state, end.attempts, end.status, end.reason) == (
        "failed",
        1,
        400,
        "model_not_capable",
    )
    record = await house.record("job_1")
    assert record.result == b'{"error":"\\"emb:latest\\" does not support generate"}'
    assert house.ollama.control == []


def test_pauses_between_attempts_double_up_to_five_minutes():
    assert [backoff_s(attempts) for attempts in (1, 2, 3, 6, 7, 8, 5000)] == [
        5,
        10,
        20,
        160,
        300,
        300,
        300,
    ]


@in_house(settings=with_jobs(max_in_queue=1), expect_faults=True)
async def test_a_defect_ends_its_job_and_holds_up_no_other(house):
    await house.accept(job(path="/no/route"))
    await house.accept(job("job_2"))
    ends = {end.job_id: (end.state, end.reason) for end in await house.ended("job_1", "job_2")}
    assert ends == {"job_1": ("failed", "internal_error"), "job_2": ("completed", "")}
    assert [(fault.where, fault.detail) for fault in house.events.of(InternalFault)] == [
        ("job", "KeyError")
    ]


@in_house(settings=settings_with(queue={"max_external_depth": 1}))
async def test_a_full_queue_of_the_gpu_is_no_fault_of_the_job(house):
    tickets = [house.submit("a", service_s=20.0)]
    await settle()
    tickets.append(house.submit("a", service_s=1.0))
    end = await house.run(job(lane=Lane.EXTERNAL))
    assert (end.state, end.attempts) == ("completed", 1)
    assert house.events.of(JobRequeued)[0].reason == "queue_full"
    await bodies_of(tickets)


@in_house()
async def test_while_the_disk_fails_nothing_is_accepted_and_a_result_waits(house):
    await house.accept(job(service_s=5.0))
    await sleep_until(1.0)
    house.disk.broken = True
    with pytest.raises(StorageUnavailable):
        await house.accept(job("job_2"))
    await sleep_until(60.0)
    assert house.events.of(JobEnded) == []
    house.disk.broken = False
    end = await house.end_of_job()
    assert (end.state, end.attempts) == ("completed", 1)
    assert house.disk.rows("SELECT id FROM jobs") == [("job_1",)]


@pytest.mark.parametrize("silent_at", [0.6, 2.0], ids=["of its start", "of its end"])
@in_house()
async def test_a_commit_reported_as_failed_costs_neither_an_end_nor_a_second_run(house, silent_at):
    house.disk.latency_s = 0.5
    await house.accept(job(service_s=5.0))
    await sleep_until(silent_at)
    house.disk.silent = True
    await asyncio.sleep(10.0)
    house.disk.silent = False
    end = await house.end_of_job()
    assert (end.state, end.attempts, len(house.ollama.calls)) == ("completed", 1, 1)


@in_virtual_time
async def test_a_stop_hands_back_what_has_not_ended_without_burning_an_attempt():
    disk = Disk()
    names = [f"job_{n}" for n in range(8)]
    async with JobHouse(disk=disk) as house:
        for name in names:
            await house.accept(job(name, service_s=50.0))
        await sleep_until(1.0)
    assert disk.rows("SELECT state, attempts, COUNT(*) FROM jobs GROUP BY 1, 2") == [
        ("queued", 0, 8)
    ]
    assert house.events.of(JobRequeued) == []
    with pytest.raises(ShuttingDown):
        await house.accept(job("late"))
    async with JobHouse(disk=disk) as house:
        await house.ended(*names)
        assert started(house) == names
        (recovered,) = house.events.of(JobsRecovered)
        assert (recovered.queued, recovered.requeued, recovered.failed) == (8, 0, 0)


@in_virtual_time
async def test_a_stop_before_the_recovery_is_written_leaves_no_task_behind():
    disk = Disk()
    disk.broken_writes = True
    async with JobHouse(disk=disk) as house:
        await sleep_until(0.5)
        disk.broken_writes = False
        await house.accept(job(service_s=50.0))
        await sleep_until(1.0)
        disk.broken_writes = True
    assert disk.rows("SELECT state, attempts FROM jobs") == [("running", 1)]


@in_virtual_time
async def test_a_restart_may_fail_the_job_on_the_gpu_and_not_those_in_its_queue():
    async with JobHouse(settings=settings_with(gpu={"parallel": 1})) as house:
        for n in range(3):
            await house.accept(job(f"job_{n}", service_s=50.0))
        await sleep_until(1.0)
        await house.accept(job("job_3", service_s=50.0))
        left_behind = house.disk.copy()
    async with JobHouse(disk=left_behind, settings=with_jobs(on_restart="fail")) as house:
        await house.ended(*(f"job_{n}" for n in range(4)))
        ends = [(end.job_id, end.state) for end in house.events.of(JobEnded)]
        assert ends == [("job_0", "failed"), *((f"job_{n}", "completed") for n in (1, 2, 3))]


@in_virtual_time
async def test_a_job_that_kills_the_gateway_each_time_is_found_and_others_are_done():
    """The process "dies" by being left behind with its disk: whatever it had started is running
    there.
    """
    first = JobHouse("a")
    disk = first.disk
    names = ["good_1", "poison", "good_2", "good_3", "good_4"]
    for name in names:
        await first.accept(job(name))
    for number in (1, 2, 3, 4):
        await first.table.claim(number)
    deaths = 1
    done = "SELECT COUNT(*) FROM jobs WHERE state = 'completed'"
    while True:
        async with JobHouse(disk=disk, settings=with_jobs(max_attempts=3)) as house:
            # the disk may show it after the event
            while "poison" not in started(house) and disk.rows(done) != [(4,)]:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
            if "poison" not in started(house):
                break
            left_behind = disk.copy()
        deaths = deaths + 1
        disk = left_behind
    states = dict(disk.rows("SELECT id, state FROM jobs"))
    assert states == {name: "failed" if name == "poison" else "completed" for name in names}
    assert deaths == 3
    assert [
        event.job_id
        for event in house.events.of(JobEnded)
        if event.reason == "interrupted_by_restart"
    ] == ["poison"]


@in_virtual_time
async def test_a_pause_of_external_work_holds_no_internal_job_up():
    first = JobHouse("a")
    for name, lane in (("outside", Lane.EXTERNAL), ("inside", Lane.INTERNAL)):
        await first.accept(job(name, lane=lane))
    await first.table.claim(1)
    first.disk.broken = True
    async with JobHouse(disk=first.disk) as house:
        house.gateway.orders.pause()
        house.disk.broken = False
        await sleep_until(60.0)
        assert started(house) == ["inside"]
        house.gateway.orders.resume()
        await house.ended("inside", "outside")


@in_house(settings=with_jobs(max_in_queue=1))
async def test_a_jobs_start_is_estimated_from_those_that_ran_unless_it_is_held_back(house):
    for n in range(3):
        await house.accept(job(f"job_{n}", lane=Lane.EXTERNAL, service_s=10.0))
    await settle()

    async def estimate(name: str) -> Any:
        return house.jobs.estimated_start_s(await house.record(name))

    assert await estimate("job_2") is None
    await house.ended("job_0")
    assert await estimate("job_2") == pytest.approx(10.0, abs=1.0)
    assert await estimate("job_0") is None
    for order in (house.gateway.orders.pause, house.gateway.orders.drain):
        order()
        assert await estimate("job_2") is None
        house.gateway.orders.resume()
    assert await estimate("job_2") is not None
    await house.ended("job_1", "job_2")
