"""Batches on their way through a whole gateway, in virtual time: validated, run, written once,
whatever breaks in between.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hearth.config.settings import BatchSettings, GatewayConfig, JobSettings, Window
from hearth.engines.ollama.traits import canonical_model
from hearth.errors import (
    BadRequest,
    HearthError,
    NotFound,
    QueueFull,
    ShuttingDown,
    StorageUnavailable,
)
from hearth.events import BatchEnded, BatchStarted, InternalFault, JobEnded, JobStarted
from hearth.job_types import Batch, Page
from hearth.jobs.batch_lines import PORTION_BYTES
from hearth.jobs.batches import GATHER_S, JOBS_AT_ONCE
from hearth.jobs.message_batches import input_of
from hearth.jobs.service import FORGET_INTERVAL_S
from hearth.storage.files import AFTER_DELETED_S
from tests.jobs.batch_house import BatchHouse, in_batch_house, jsonl, line, lines, new_batch
from tests.jobs.house import job
from tests.storage.memory import Disk
from tests.support.fake_exchange import CallFault
from tests.support.fields import Fields
from tests.support.house import settings_with
from tests.support.virtual_time import LoopClock, in_virtual_time, loop_s, sleep_until


@in_batch_house()
async def test_a_batch_is_run_and_its_answers_are_in_the_order_of_its_file(house):
    accepted = await house.started(jsonl(*lines(10)), metadata={"night": "7"})
    assert (accepted.status, accepted.total) == ("validating", 0)
    assert await house.outcome() == ([f"r{number}" for number in range(1, 11)], {})
    batch = await house.batch()
    assert (batch.status, batch.completed, batch.failed, batch.total, batch.model) == (
        "completed",
        10,
        0,
        10,
        "a:latest",
    )
    assert (batch.error_file_id, batch.metadata) == (None, {"night": "7"})
    (started,) = house.events.of(BatchStarted)
    assert started.requests == 10
    first = (await house.content(batch.output_file_id))[0]
    assert first["response"]["status_code"] == 200
    assert first["response"]["body"]["choices"][0]["text"] == " alpha beta gamma"
    assert batch.output_tokens == 10 * first["response"]["body"]["usage"]["completion_tokens"] > 0
    assert (
        house.disk.rows("SELECT COUNT(*) FROM jobs")
        == house.disk.rows("SELECT COUNT(*) FROM batch_lines")
        == [(0,)]
    )


@pytest.mark.parametrize("max_queued", [1, 7, JOBS_AT_ONCE, 1000])
@in_batch_house()
async def test_few_requests_of_a_long_batch_are_jobs_at_one_time(house, max_queued):
    house.gateway.reload(GatewayConfig(settings=settings_with(jobs={"max_queued": max_queued})))
    await house.started(jsonl(*lines(2 * JOBS_AT_ONCE, service_s=0.1)))
    jobs = list[int]()
    queued = list[int]()
    while not house.events.of(BatchEnded):
        await asyncio.sleep(0.5)
        for counts, which in ((jobs, "1"), (queued, "state = 'queued'")):
            counts.append(house.disk.rows(f"SELECT COUNT(*) FROM jobs WHERE {which}")[0][0])
    assert max(queued) <= max(1, max_queued // 2)
    assert max(jobs) <= JOBS_AT_ONCE
    assert max(jobs) == JOBS_AT_ONCE or max_queued < 1000
    assert len((await house.outcome())[0]) == 2 * JOBS_AT_ONCE


@in_batch_house()
async def test_requests_are_cut_out_of_a_file_as_they_were_written(house):
    prompts = [
        f"{number} " * times
        for number, times in enumerate([30_000] * 6 + [PORTION_BYTES // 2] + [5, 30_000, 5])
    ]
    await house.started(
        jsonl(*(line(f"r{number}", prompt=prompt) for number, prompt in enumerate(prompts)))
    )
    assert (await house.outcome())[0] == [f"r{number}" for number in range(len(prompts))]
    assert [json.loads(call.body)["prompt"] for call in house.ollama.calls] == prompts


@in_batch_house("a", "b", resident="a")
async def test_requests_for_one_model_go_together(house):
    both = [line(f"r{number}", "ab"[number % 2]) for number in range(40)]
    await house.started(jsonl(*both))
    await house.outcome()
    models = [event.model for event in house.events.of(JobStarted)]
    assert sum(one != other for one, other in pairwise(models)) == 1
    assert (await house.batch()).model is None


@in_batch_house(settings=settings_with(jobs={"max_in_queue": 1, "max_attempts": 1}))
async def test_what_the_server_cannot_do_is_in_the_error_file_and_the_rest_goes_on(house):
    house.ollama.next_calls(None, CallFault.SERVER_ERROR)
    await house.started(jsonl(*lines(3)))
    assert await house.outcome() == (["r1", "r3"], {"r2": "500"})
    assert (await house.batch()).status == "completed"


@pytest.mark.parametrize(
    ("content", "problems"),
    [
        (b"", [(None, "empty_file")]),
        (b"\n  \n", [(None, "empty_file")]),
        (
            jsonl(line("x"), line("x"), line("y", "nowhere")) + b"nonsense\n",
            [(2, "duplicate_custom_id"), (3, "model_not_found"), (4, "invalid_json_line")],
        ),
        (jsonl(line("x"), line("y", "b")), [(2, "model_not_allowed")]),
    ],
)
@in_batch_house("a", "b", resident="a")
async def test_a_file_that_is_not_in_order_fails_and_nothing_of_it_runs(house, content, problems):
    await house.started(content, models=() if b"nowhere" in content else ("a*",))
    batch = await house.ended_batch()
    assert batch.status == "failed"
    assert [(each["line"], each["code"]) for each in batch.problems] == problems
    assert (house.ollama.calls, batch.output_file_id, batch.error_file_id) == ([], None, None)


@in_batch_house("a", settings=settings_with(batches={"max_requests": 110}))
async def test_too_many_requests_fail_and_a_hundred_problems_at_most_are_told(house):
    await house.started(jsonl(*lines(111)), "batch_1")
    assert [each["code"] for each in (await house.ended_batch("batch_1")).problems] == [
        "too_many_requests"
    ]
    # the rest is not read, and so not counted: a piece of a file may have half a million lines
    await house.started(b"x\n" * 150, "batch_2")
    assert [each["line"] for each in (await house.ended_batch("batch_2")).problems] == list(
        range(1, 101)
    )
    await house.started(jsonl(*lines(110)), "batch_3")
    assert (await house.ended_batch("batch_3")).completed == 110


@in_batch_house()
async def test_a_cancelled_batch_keeps_its_answers_and_again_changes_nothing(house):
    await house.started(jsonl(*lines(200, service_s=10.0)))
    await sleep_until(35.0)
    await house.batches.cancel("batch_1")
    assert (await house.batch()).status == "cancelling"
    await house.batches.cancel("batch_1")
    done, codes = await house.outcome()
    assert 1 <= len(done) <= 4
    assert (set(codes.values()), len(done) + len(codes)) == ({"batch_cancelled"}, 200)
    before = await house.batch()
    assert before.status == "cancelled"
    assert house.now < 40.0
    await house.batches.cancel("batch_1")
    await asyncio.sleep(20.0)
    assert await house.batch() == before


@in_batch_house()
async def test_a_batch_counts_where_all_of_its_caller_is_cancelled(house):
    await house.started(jsonl(*lines(5)), "batch_1")
    assert (await house.batch("batch_1")).status == "validating"
    assert await house.gateway.cancel_caller("test") == ((), 0, 1)
    assert await house.gateway.cancel_caller("test") == ((), 0, 0)
    await house.started(jsonl(*lines(5, service_s=5.0)), "batch_2")
    theirs = await house.uploaded(jsonl(*lines(1)), caller="them")
    await house.started(jsonl(*lines(1)), "batch_3", caller="them", input_file_id=theirs)
    await sleep_until(3.0)
    assert await house.gateway.cancel_caller("test") == ((), 5, 1)
    assert await house.outcome("batch_1") == ([], {})
    assert set((await house.outcome("batch_2"))[1].values()) == {"batch_cancelled"}
    assert (await house.ended_batch("batch_3")).status == "completed"


@in_batch_house()
async def test_a_cancelled_batchs_code_is_right_while_another_is_written(house):
    await house.started(
        jsonl(line("x")),
        "batch_1",
        caller="them",
        input_file_id=await house.uploaded(jsonl(line("x")), caller="them"),
    )
    await house.started(jsonl(*lines(5, service_s=10.0)), "batch_2")
    await house.events.until(lambda: bool(house.events.of(JobEnded)))
    house.disk.latency_s = 1.0
    await asyncio.sleep(GATHER_S + 0.5)
    house.disk.latency_s = 0.0
    assert (await house.batch("batch_1")).completed == 0
    assert await house.gateway.cancel_caller("test") == ((), 5, 1)
    assert set((await house.outcome("batch_2"))[1].values()) == {"batch_cancelled"}


@in_batch_house()
async def test_at_the_end_of_its_window_what_has_not_ended_is_named_in_the_error_file(house):
    await house.started(jsonl(*lines(700, service_s=10.0)), window_s=60.0)
    done, codes = await house.outcome()
    batch = await house.batch()
    assert batch.status == "expired"
    assert 60.0 <= house.now < 65.0
    assert 1 <= len(done) <= 6
    assert (set(codes.values()), len(done) + len(codes)) == ({"batch_expired"}, 700)
    assert batch.finalizing_wall_s is not None
    assert 0.0 <= batch.finalizing_wall_s - batch.expires_wall_s < 1.0


@in_batch_house()
async def test_a_cancelled_or_deleted_request_is_named_and_the_others_are_done(house):
    await house.started(jsonl(*lines(8, service_s=20.0)))
    await sleep_until(5.0)
    ((job_id,),) = house.disk.rows(
        "SELECT id FROM jobs WHERE state = 'queued' ORDER BY number DESC LIMIT 1"
    )
    assert await house.jobs.cancel(await house.record(job_id))
    house.disk.connection.execute("DELETE FROM jobs WHERE number = 7")
    done, codes = await house.outcome()
    assert (len(done), codes) == (6, {"r7": "result_lost", "r8": "request_cancelled"})


@pytest.mark.parametrize(
    ("ends_at", "orderly"),
    [*((at, False) for at in (0.05, 0.3, 3.0, 17.5, 29.9, 60.0, 100.2)), (20.0, True)],
)
@in_virtual_time
async def test_a_batch_survives_the_end_of_its_process_and_writes_every_request_once(
    ends_at, orderly
):
    disk = Disk()
    async with BatchHouse("a", "b", resident="a", disk=disk) as house:
        await house.started(
            jsonl(*[line(f"r{number}", "ab"[number % 2], service_s=1.0) for number in range(100)])
        )
        await sleep_until(ends_at)
        left_behind = disk if orderly else disk.copy()
    async with BatchHouse("a", "b", resident="a", disk=left_behind) as house:
        if (await house.batch()).status != "completed":
            await house.ended_batch()
        batch = await house.batch()
        assert (batch.status, batch.completed, batch.failed) == ("completed", 100, 0)
        assert [each["custom_id"] for each in await house.content(batch.output_file_id)] == [
            f"r{number}" for number in range(100)
        ]


@pytest.mark.parametrize("how", ["broken", "silent"])
@in_batch_house()
async def test_while_the_disk_fails_or_lies_a_batch_waits_and_then_goes_on(house, how):
    await house.started(jsonl(*lines(100)))
    for broken_at in (0.1, 0.25, 10.0, 40.0):
        await sleep_until(broken_at)
        setattr(house.disk, how, True)
        await asyncio.sleep(7.0)
        setattr(house.disk, how, False)
    done, codes = await house.outcome()
    assert (len(done), codes) == (100, {})
    assert house.events.of(InternalFault) == []


@in_virtual_time
async def test_a_defect_in_one_batch_holds_up_no_other():
    broken = {**lines(1)[0], "url": "/no/route"}
    async with BatchHouse(expect_faults=True) as house:
        await house.started(jsonl(broken), "batch_0", endpoint="/no/route")
        await house.started(jsonl(*lines(2)))
        assert await house.outcome() == (["r1", "r2"], {})
        assert {(fault.where, fault.detail) for fault in house.events.of(InternalFault)} == {
            ("batch", "KeyError")
        }


@in_batch_house()
async def test_a_batch_whose_caller_was_told_otherwise_is_cancelled(house):
    file_id = await house.uploaded(jsonl(*lines(3)))
    house.disk.silent = True
    with pytest.raises(StorageUnavailable):
        await house.batches.create(new_batch(input_file_id=file_id))
    house.disk.silent = False
    assert (await house.ended_batch()).status == "cancelled"
    assert house.told_of_batches() == ["cancelled"]
    assert house.ollama.calls == []


@in_batch_house()
async def test_a_request_of_a_cancelled_batch_ends_though_its_commit_seemed_to_fail(house):
    await house.started(jsonl(*lines(2, service_s=50.0)))
    await sleep_until(5.0)
    await house.batches.cancel("batch_1")
    house.disk.silent = True
    await asyncio.sleep(1.0)
    house.disk.silent = False
    batch = await house.ended_batch()
    assert (batch.status, batch.failed) == ("cancelled", 2)
    assert all(call.ended_at is not None for call in house.ollama.calls)
    await asyncio.sleep(100.0)
    assert [event.state for event in house.events.of(JobEnded)] == ["cancelled"] * 2


@pytest.mark.parametrize("status", ["in_progress", "failed", "finalizing", "cancelling"])
@in_batch_house()
async def test_a_batch_whose_commit_was_made_and_reported_as_failed_is_told_of_once(house, status):
    disk = house.disk
    request = lines(3)
    bad = [request[0]] if status == "failed" else []
    disk.latency_s = 0.5
    await house.started(jsonl(*request, *bad))
    if status == "finalizing":
        await house.on_disk("SELECT 1 FROM batches WHERE status = 'finalizing'")
    else:
        await house.on_disk("SELECT 1 FROM batch_lines")
        await asyncio.sleep(0.6)
        assert (await house.batch()).status == "validating"
    before = house.told_of_batches()
    disk.silent = True
    await asyncio.sleep(0.6)
    disk.silent = False
    assert (await house.batch()).status not in ("validating", "finalizing")
    assert house.told_of_batches() == before
    if status == "cancelling":
        await house.batches.cancel("batch_1")
    batch = await house.ended_batch()
    await asyncio.sleep(30.0)
    began = [] if status == "failed" else ["began"]
    assert house.told_of_batches() == [*began, batch.status]


@in_virtual_time
async def test_a_changed_window_holds_at_once_for_requests_that_are_jobs():
    day = settings_with(scheduling={"active_hours": (Window(start_minute=0, end_minute=60),)})
    off_peak = day.replace(batches=BatchSettings(window="offpeak"))
    async with BatchHouse(settings=off_peak.replace(jobs=JobSettings(max_in_queue=1))) as house:
        await house.started(jsonl(*lines(6)))
        await sleep_until(60.0)
        assert house.ollama.calls == []
        house.gateway.reload(GatewayConfig(settings=day.replace(jobs=JobSettings(max_in_queue=1))))
        await sleep_until(62.5)
        assert len(house.ollama.calls) == 3
        house.gateway.reload(GatewayConfig(settings=off_peak))
        await sleep_until(3590.0)
        assert len(house.ollama.calls) == 3
        assert len((await house.outcome())[0]) == 6
        assert house.now > 3600.0


@in_virtual_time
async def test_a_full_store_holds_a_batch_up_until_there_is_room():
    content = jsonl(*lines(4))
    settings = settings_with().replace(
        jobs=JobSettings(max_stored_mib=(len(content) + 200) / (1 << 20))
    )
    async with BatchHouse(settings=settings) as house:
        await house.started(content)
        await sleep_until(30.0)
        assert (house.batches.status(), house.ollama.calls) == (
            {"open": 1, "requests_left": 4, "held": True},
            [],
        )
        house.gateway.reload(
            replace(house.gateway.config, settings=settings.replace(jobs=JobSettings()))
        )
        assert len((await house.outcome())[0]) == 4
        assert house.now < 50.0


@in_batch_house(settings=settings_with(jobs={"max_queued": 10}))
async def test_a_batch_takes_the_places_that_others_jobs_leave(house):
    for number in range(8):
        await house.accept(job(f"job_{number}", not_before_wall_s=LoopClock().wall() + 3000.0))
    await house.started(jsonl(*lines(5)))
    assert len((await house.outcome())[0]) == 5
    assert house.now < 100.0


@in_batch_house("a", settings=settings_with(jobs={"max_stored_mib": 0.001}))
async def test_what_files_keep_is_not_there_for_jobs_or_other_files(house):
    await house.uploaded(b"x" * 1000)
    number = await house.files.begin("test")
    await house.files.append(number, 0, b"x", 1001)
    with pytest.raises(QueueFull, match="the store is full"):
        await house.files.append(number, 1, b"x", 1001)
    with pytest.raises(QueueFull, match="the store is full"):
        await house.accept(job())


@in_batch_house("a", settings=settings_with(batches={"max_open": 1}))
async def test_a_batch_is_refused_without_room_file_or_hours_and_while_stopping(house):
    await house.started(jsonl(*lines(1)), "batch_1")

    async def refused(error: type[HearthError], batch_id: str, **changed: Any) -> str:
        with pytest.raises(error) as found:
            await house.started(jsonl(*lines(1)), batch_id, **changed)
        return found.value.message

    await refused(QueueFull, "batch_2")
    await house.ended_batch("batch_1")
    await refused(NotFound, "batch_3", input_file_id="file-none")
    await refused(NotFound, "batch_4", caller="somebody else")
    house.gateway.reload(GatewayConfig(settings=settings_with(batches={"window": "offpeak"})))
    assert "would never start" in await refused(BadRequest, "batch_5")
    await house.gateway.stop(0.0)
    await refused(ShuttingDown, "batch_6")


@in_batch_house()
async def test_several_batches_share_the_gpu_instead_of_waiting_for_the_first_to_end(house):
    await house.started(jsonl(*lines(400)), "batch_1")
    await sleep_until(20.0)
    await house.started(jsonl(*lines(20)), "batch_2")
    await house.ended_batch("batch_2")
    assert (await house.batch("batch_1")).status == "in_progress"
    await house.batches.cancel_caller("test")
    assert (await house.ended_batch("batch_1")).status == "cancelled"


@in_batch_house()
async def test_files_are_forgotten_at_their_time_but_not_while_a_batch_reads_them(house):
    await house.uploaded(b"x" * 200_000, file_id="file-old", life_s=3600.0)
    await house.started(jsonl(*lines(30, service_s=600.0)))
    house.disk.connection.execute("UPDATE files SET expires_wall_s = 0 WHERE id = 'file-batch_1'")
    with pytest.raises(BadRequest, match="batch_1"):
        await house.batches.delete_file(
            house.disk.rows("SELECT number FROM files WHERE id = 'file-batch_1'")[0][0]
        )
    await sleep_until(7200.0)
    assert await house.files.find("file-old") is None
    assert house.disk.rows(
        "SELECT COUNT(*) FROM file_parts WHERE file IN (SELECT number FROM files "
        "WHERE id = 'file-old')"
    ) == [(0,)]
    assert await house.files.find("file-batch_1") is not None
    assert len((await house.outcome())[0]) == 30
    await asyncio.sleep(1300.0)
    assert await house.files.find("file-batch_1") is None
    await asyncio.sleep(AFTER_DELETED_S)
    assert house.disk.rows("SELECT COUNT(*) FROM files WHERE purpose = 'batch'") == [(0,)]


@in_batch_house("a")
async def test_a_list_goes_on_after_an_entry_that_was_deleted_and_whose_room_is_free(house):
    for number in range(3):
        await house.uploaded(b"x" * 1000, file_id=f"file-{number}")
    (latest,) = await house.files.list_files(Page(caller="test", limit=1))
    await house.batches.delete_file(latest.number)
    await asyncio.sleep(1.0)
    assert house.disk.rows(
        "SELECT TOTAL(bytes), COUNT(filename = 'in.jsonl' OR NULL) FROM files"
    ) == [(2000.0, 2)]
    rest = Page(caller="test", limit=9, after="file-2")
    assert [each.file_id for each in await house.files.list_files(rest)] == ["file-1", "file-0"]
    await asyncio.sleep(AFTER_DELETED_S + FORGET_INTERVAL_S)
    assert house.disk.rows("SELECT COUNT(*) FROM files") == [(2,)]
    with pytest.raises(NotFound):
        await house.files.list_files(rest)


@in_virtual_time
async def test_a_batch_of_ended_requests_is_complete_though_its_process_died():
    disk = Disk()
    async with BatchHouse(disk=disk) as house:
        await house.started(jsonl(*lines(2)), window_s=60.0)
        await house.events.until(lambda: len(house.events.of(JobEnded)) == 2)
        left = disk.copy()
    await sleep_until(100.0)
    async with BatchHouse(disk=left) as house:
        assert await house.outcome() == (["r1", "r2"], {})
        assert (await house.batch()).status == "completed"


@pytest.mark.parametrize(
    "how", ["its process ends", "it is given up", "it is given up while the disk fails"]
)
@in_virtual_time
async def test_an_upload_that_comes_to_nothing_leaves_nothing(how):
    disk = Disk()
    begun_at = loop_s()
    async with BatchHouse("a", disk=disk) as house:
        number = await house.files.begin("test")
        await house.files.append(number, 0, b"x" * 1000, 1 << 20)
        if how != "its process ends":
            disk.broken = "disk" in how
            house.batches.give_up(number)
            await sleep_until(begun_at + 5.0)
            assert (disk.rows("SELECT COUNT(*) FROM files") == [(0,)]) is not disk.broken
            disk.broken = False
            await sleep_until(begun_at + 1000.0)
            assert (
                disk.rows("SELECT COUNT(*) FROM files")
                == disk.rows("SELECT COUNT(*) FROM file_parts")
                == [(0,)]
            )
    async with BatchHouse("a", disk=disk) as house:
        await asyncio.sleep(1.0)
        assert (
            disk.rows("SELECT COUNT(*) FROM files")
            == disk.rows("SELECT COUNT(*) FROM file_parts")
            == [(0,)]
        )


@in_batch_house(settings=settings_with(batches={"keep_files_days": 1.0}))
async def test_ended_batches_are_forgotten_after_a_while(house):
    await house.started(jsonl(*lines(1)))
    await house.ended_batch()
    await sleep_until(23 * 3600.0)
    assert (await house.batch()).status == "completed"
    await sleep_until(25 * 3600.0)
    assert await house.table_of_batches.find("batch_1") is None


def messages(*bodies: Fields) -> bytes:
    """The requests m0, m1, ... of a batch of messages."""
    return input_of(((f"m{n}", body) for n, body in enumerate(bodies)), large=False)


def message(model: str = "a", *, service_s: float = 1.0) -> Fields:
    text = {"role": "user", "content": "hi"}
    fake = {"service_s": service_s}
    return {"model": canonical_model(model), "max_tokens": 9, "messages": [text], "fake": fake}


async def begun(house: BatchHouse, *bodies: Fields, **changed: Any) -> Batch:
    new = new_batch("msgbatch_1", endpoint="/v1/messages", input_file_id="", total=len(bodies))
    return await house.batches.create_from(replace(new, **changed), messages(*bodies))


async def results(house: BatchHouse) -> Fields:
    """What the results say, by custom_id: a kind, and of an error its type."""
    batch = await house.ended_batch("msgbatch_1")
    files = (batch.output_file_id, batch.error_file_id)
    found = [each for file_id in files for each in await house.content(file_id)]
    kinds = {
        each["custom_id"]: each["result"].get("error", {}).get("error", each["result"])["type"]
        for each in found
    }
    assert len(kinds) == len(found) == batch.total == batch.completed + batch.failed
    return kinds


@in_batch_house()
async def test_requests_of_a_batch_of_messages_fail_alone_and_the_rest_runs(house):
    bad = (message("nowhere"), message() | {"stream": True}, message() | {"max_tokens": 0})
    await begun(house, message(), *bad, *[message()] * (2 * JOBS_AT_ONCE))
    kinds = await results(house)
    assert [kinds.pop(f"m{n}") for n in (1, 2, 3)] == [
        "not_found_error",
        "invalid_request_error",
        "invalid_request_error",
    ]
    assert set(kinds.values()) == {"succeeded"}
    assert house.told_of_batches() == ["began", "completed"]
    assert house.disk.rows("SELECT COUNT(*) FROM batch_lines") == [(0,)]
    batch = await house.batch("msgbatch_1")
    assert (batch.completed, batch.failed, batch.output_tokens > 0) == (
        2 * JOBS_AT_ONCE + 1,
        3,
        True,
    )


@in_batch_house(settings=settings_with(jobs={"max_in_queue": 1, "max_attempts": 1}))
async def test_what_the_server_cannot_do_is_an_error_of_its_request(house):
    house.ollama.next_calls(None, CallFault.SERVER_ERROR)
    await begun(house, *[message()] * 3)
    assert await results(house) == {"m0": "succeeded", "m1": "api_error", "m2": "succeeded"}


@in_batch_house("a", settings=settings_with(batches={"max_requests": 1}))
async def test_a_lower_limit_takes_back_nothing_that_was_accepted(house):
    await begun(house, *[message()] * 3)
    assert set((await results(house)).values()) == {"succeeded"}


@pytest.mark.parametrize(("ending", "kind"), [("cancelled", "canceled"), ("expired", "expired")])
@in_batch_house()
async def test_each_message_has_a_result_whenever_its_batch_ends_early(house, ending, kind):
    window_s = 0.0 if ending == "expired" else 3600.0
    batch = await begun(house, *[message()] * 3, message("nowhere"), window_s=window_s)
    if ending == "cancelled":  # before any line of it was read
        assert await house.batches.cancel(batch.batch_id)
    kinds = await results(house)
    assert kinds == {"m0": kind, "m1": kind, "m2": kind, "m3": "not_found_error"}
    batch = await house.batch("msgbatch_1")
    assert (batch.status, getattr(batch, ending), house.ollama.calls) == (ending, 3, [])


@in_batch_house()
async def test_one_request_that_is_cancelled_is_canceled_and_the_others_succeed(house):
    await begun(house, *[message(service_s=10.0)] * 3)
    await sleep_until(5.0)
    (job_id,) = house.disk.rows("SELECT id FROM jobs WHERE state = 'running' LIMIT 1")[0]
    await house.jobs.cancel_by_id(job_id, caller=None)
    assert sorted((await results(house)).values()) == ["canceled", "succeeded", "succeeded"]


@in_virtual_time
async def test_a_batch_of_messages_survives_a_kill_at_any_step_and_writes_each_once():
    disk = Disk()
    async with BatchHouse("a", disk=disk) as house:
        await begun(house, *[message(service_s=2.0)] * 5, message("nowhere"))
        copies = list[Disk]()
        while not house.events.of(BatchEnded):
            copies.append(disk.copy())
            await asyncio.sleep(0.5)
        await results(house)
    assert len(copies) > 5
    for copy in copies:
        async with BatchHouse("a", disk=copy) as house:
            kinds = await results(house)
            assert kinds.pop("m5") == "not_found_error"
            assert set(kinds.values()) == {"succeeded"}


@in_batch_house()
async def test_a_batch_of_messages_whose_commit_is_reported_as_failed_keeps_its_requests(house):
    house.disk.latency_s = 1.0
    beginning = asyncio.ensure_future(begun(house, message(), idempotency_key="k"))
    await house.on_disk("SELECT 1 FROM file_parts")
    house.disk.silent = True  # for the batch itself, which comes next
    with pytest.raises(StorageUnavailable):
        await beginning
    house.disk.silent = False
    assert await results(house) == {"m0": "succeeded"}
