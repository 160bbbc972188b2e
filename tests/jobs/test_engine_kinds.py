"""A job or a batch runs only on the kind of server that it was accepted for: a model server, or the
emulator.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hearth.events import JobEnded, JobsRecovered
from hearth.job_types import JobState, StoreLimits
from tests.jobs.batch_house import BatchHouse, jsonl, lines
from tests.jobs.house import JobHouse, job, started, with_jobs
from tests.storage.memory import Disk
from tests.support.fields import Fields
from tests.support.stopped_clock import StoppedClock
from tests.support.virtual_time import in_virtual_time, sleep_until

LIMITS = StoreLimits(max_queued=100, max_bytes=1 << 20)
GONE = ("failed", "emulator_gone")


def life(disk: Disk, *, emulated: bool, **settings: Any) -> JobHouse:
    """One process's time with the disk."""
    return JobHouse(disk=disk, emulated=emulated, settings=with_jobs(**settings))


@in_virtual_time
async def test_a_job_for_a_model_server_waits_and_holds_up_none_of_the_emulators():
    disk = Disk()
    first = life(disk, emulated=False)
    await first.accept(job("real_1"))
    await first.accept(job("real_2"))
    await first.table.claim(1)  # and there the process dies
    async with life(disk, emulated=True) as house:
        await house.accept(job("made_up"))
        await house.ended("made_up")
        await sleep_until(600.0)
        assert started(house) == ["made_up"]
        waiting = await house.record("real_2")
        assert (waiting.state, waiting.emulated, house.jobs.estimated_start_s(waiting)) == (
            JobState.QUEUED,
            False,
            None,
        )
        assert (await house.record("made_up")).emulated
    async with life(disk, emulated=False) as house:
        await house.ended("real_1", "real_2")
        assert started(house) == ["real_1", "real_2"]


@pytest.mark.parametrize("was_running", [False, True])
@in_virtual_time
async def test_a_job_of_the_emulator_fails_once_a_model_server_answers(was_running: bool):
    disk = Disk()
    first = life(disk, emulated=True)
    await first.accept(job("made_up", webhook_url="http://hook/", idempotency_key="k", digest="d"))
    if was_running:
        await first.table.claim(1)
    async with life(disk, emulated=False) as house:
        end = await house.end_of_job("made_up")
        assert (end.state, end.reason) == GONE
        record = await house.record("made_up")
        assert (record.state, record.webhook, record.emulated) == (JobState.FAILED, "waiting", True)
        assert (
            record.error
            == "the emulator had accepted this job, and a model server answers now; send it again"
        )
        again = await house.accept(job("real", idempotency_key="k", digest="d"))
        assert again.job_id == "real"
        await house.ended("real")
        assert started(house) == ["real"]
        assert house.events.of(JobsRecovered) == []


@in_virtual_time
async def test_a_key_stands_for_its_job_but_not_for_what_the_emulator_has_done():
    table = Disk().tables(StoppedClock()).jobs
    ways: tuple[Fields, ...] = (
        {"idempotency_key": "k", "digest": "d"},
        {"task_type": "letter", "job_key": "7"},
    )
    for known_by in ways:
        name = "".join(known_by)
        await table.accept(job(f"real_{name}", **known_by), LIMITS)
        assert (
            await table.accept(job(f"other_{name}", emulated=True, **known_by), LIMITS)
        ).job_id == f"real_{name}"
    known_by = {"idempotency_key": "k2", "digest": "d"}
    await table.accept(job("made_up", emulated=True, **known_by), LIMITS)
    assert (await table.accept(job("same", emulated=True, **known_by), LIMITS)).job_id == "made_up"
    assert (await table.accept(job("meant", **known_by), LIMITS)).job_id == "meant"


@in_virtual_time
async def test_what_waits_for_the_emulator_ends_when_a_model_server_comes():
    async with JobHouse(emulated=True) as house:
        runtime = house.gateway.worker.runtime
        for number in (1, 2, 3):
            await house.accept(job(f"job_{number}", service_s=50.0))
        await sleep_until(1.0)
        house.ollama.go_down()
        await sleep_until(2.0)  # of the three, one was sent, and all of them wait now
        house.disk.latency_s = 1.0
        runtime.emulated = False
        house.jobs.runner.server_replaced()
        ends = await house.ended("job_1", "job_2", "job_3")
        assert {(end.state, end.reason) for end in ends} == {GONE}
        runtime.emulated = True
        late = asyncio.ensure_future(house.accept(job("late")))
        await sleep_until(house.now + 0.5)
        runtime.emulated = False
        await late
        end = await house.end_of_job("late")
        assert (end.state, end.reason) == GONE
        assert [event.job_id for event in house.events.of(JobEnded)].count("late") == 1


@in_virtual_time
async def test_a_batch_is_checked_and_run_by_the_kind_it_was_accepted_for():
    disk = Disk()
    first = BatchHouse("a", disk=disk)
    await first.started(jsonl(*lines(3)), "batch_1")
    # whose models it does not name
    async with BatchHouse("b", resident="b", disk=disk, emulated=True) as house:
        await sleep_until(60.0)
        assert (await house.batch("batch_1")).status == "validating"
        made_up = await house.started(jsonl(*lines(2, "b")), "batch_2")
        assert made_up.emulated
        assert await house.outcome("batch_2") == (["r1", "r2"], {})
        await house.started(jsonl(*lines(2, "b", service_s=100.0)), "batch_3")
        await sleep_until(house.now + 10.0)
    async with BatchHouse("a", "b", resident="a", disk=disk) as house:
        assert await house.outcome("batch_1") == (["r1", "r2", "r3"], {})
        done, codes = await house.outcome("batch_3")
        assert (done, codes) == ([], {"r1": "emulator_gone", "r2": "emulator_gone"})
