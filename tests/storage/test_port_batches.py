"""Batches in any store: every state is left once, and every line is written once."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from hearth.errors import KeyReused, NotFound, QueueFull
from hearth.job_types import (
    Batch,
    BatchLine,
    JobEnd,
    JobState,
    LineOutcome,
    Page,
    StoreLimits,
)
from hearth.types import DAY_S, Lane
from tests.jobs.batch_house import new_batch
from tests.jobs.house import job
from tests.storage.port import Ports
from tests.support.stopped_clock import WALL

LIMITS = StoreLimits(max_queued=100, max_bytes=1 << 20)
LINES = [BatchLine(line=n, custom_id=f"r{n}", model="a", start=10 * n, length=9) for n in (1, 2, 3)]
KEYED = new_batch(idempotency_key="k", digest="d1")
AGAIN = replace(KEYED, batch_id="batch_2")


async def accepted(ports: Ports, new: Batch | None = None, max_open: int = 10) -> Batch:
    """A batch of a file of its own."""
    new = new or new_batch()
    number = await ports.files.begin(new.caller)
    await ports.files.seal(number, file_id=new.input_file_id, filename="x", life_s=30 * DAY_S)
    return await ports.batches.accept(new, max_open)


async def validated(ports: Ports) -> Batch:
    """One with three lines."""
    batch = await accepted(ports)
    assert await ports.batches.note_lines(batch.number, LINES, first=True)
    await ports.batches.settle_validation(batch.number, [], 3, "a")
    return batch


async def running(ports: Ports) -> Batch:
    """One that is in progress, with three lines, the first two of which are jobs."""
    batch = await validated(ports)
    new = [(n, job(f"batch_req_{n}", lane=Lane.EXTERNAL)) for n in (1, 2)]
    assert len(await ports.jobs.accept_lines(batch.number, new, LIMITS)) == 2
    return await found(ports)


async def found(ports: Ports, batch_id: str = "batch_1") -> Batch:
    batch = await ports.batches.find(batch_id)
    assert batch is not None
    return batch


def outcome(line: int, job_number: int | None, *, completed: bool = True) -> LineOutcome:
    return LineOutcome(
        line=line,
        job=job_number,
        completed=completed,
        text=b"%d\n" % line,
        prompt_tokens=10 * completed,
        output_tokens=completed,
    )


async def written(ports: Ports, file_id: str | None) -> bytes:
    if file_id is None:
        return b""
    file = await ports.files.find(file_id)
    assert file is not None
    return b"".join(data for _, data in await ports.files.parts(file.number, -1))


async def test_a_batch_goes_its_way_and_its_files_are_seen_at_its_end(ports, clock):
    batch = await running(ports)
    assert (batch.status, batch.total, batch.model, batch.output_file_id) == (
        "in_progress",
        3,
        "a",
        None,
    )
    assert [line.line for line in await ports.batches.lines_without_job(batch.number, 3)] == [3]
    assert await ports.batches.lines_without_job(batch.number, 2) == ()
    assert await ports.batches.unended_jobs(batch.number) == ("batch_req_1", "batch_req_2")
    await ports.jobs.claim(1)
    await ports.jobs.finish(1, JobEnd(state=JobState.COMPLETED, status=200, result=b"{}"))
    await ports.jobs.cancel("batch_req_2", inf)
    first, second = await ports.batches.ended_lines(batch.number)
    assert (first.line, first.custom_id, first.job_id, first.end.result) == (
        1,
        "r1",
        "batch_req_1",
        b"{}",
    )
    assert (second.line, second.end.state) == (2, JobState.CANCELLED)
    outcomes = [outcome(1, 1), outcome(2, 2, completed=False), outcome(3, None)]
    for _ in range(2):  # what was written is not written again
        await ports.batches.record(batch.number, outcomes)
    assert await ports.batches.ended_lines(batch.number) == ()
    assert await ports.jobs.list_jobs() == ()
    assert await ports.batches.begin_end(batch.number, "completed")
    assert not await ports.batches.begin_end(batch.number, "expired")
    assert not await ports.batches.cancel("batch_1")
    clock.advance(5.0)
    for _ in range(2):
        await ports.batches.finish(batch.number)
        clock.advance(1.0)
    ended = await found(ports)
    assert (ended.status, ended.completed, ended.failed, ended.ended_wall_s) == (
        "completed",
        2,
        1,
        WALL + 5.0,
    )
    assert (ended.prompt_tokens, ended.output_tokens) == (20, 2)
    assert await written(ports, ended.output_file_id) == b"1\n3\n"
    assert await written(ports, ended.error_file_id) == b"2\n"
    assert await ports.batches.open_batches() == ()


async def test_a_file_into_which_nothing_was_written_is_not_seen(ports):
    batch = await running(ports)
    await ports.batches.begin_end(batch.number, "expired")
    await ports.batches.finish(batch.number)
    ended = await found(ports)
    assert (ended.status, ended.output_file_id, ended.error_file_id) == ("expired", None, None)


async def test_a_file_with_problems_fails_its_batch_which_takes_no_more_lines(ports):
    batch = await accepted(ports)
    problems = ({"code": "empty_file", "message": "m", "line": None, "param": None},)
    await ports.batches.settle_validation(batch.number, problems, 0, None)
    assert ((await found(ports)).status, (await found(ports)).problems) == ("failed", problems)
    assert not await ports.batches.note_lines(batch.number, LINES, first=False)
    assert not await ports.batches.cancel("batch_1")
    await ports.batches.settle_validation(batch.number, [], 3, "a")
    assert (await found(ports)).status == "failed"


async def test_a_check_that_begins_again_notes_its_lines_in_place_of_all_before(process):
    dead = await process()
    batch = await accepted(dead)
    await dead.batches.note_lines(batch.number, LINES[:2], first=True)
    ports = await process()
    await ports.batches.note_lines(batch.number, LINES[:1], first=True)
    await ports.batches.note_lines(batch.number, LINES[1:], first=False)
    assert await ports.batches.lines_without_job(batch.number, 10) == tuple(LINES)


async def test_a_cancelled_batch_gets_no_more_jobs_and_ends_as_cancelled(ports):
    batch = await running(ports)
    assert await ports.batches.open_of("test") == ("batch_1",)
    assert await ports.batches.cancel("batch_1")
    assert not await ports.batches.cancel("batch_1")
    assert await ports.batches.open_of("test") == ()
    third = [(3, job("batch_req_3"))]
    assert await ports.jobs.accept_lines(batch.number, third, LIMITS) == ()
    assert not await ports.batches.begin_end(batch.number, "completed")
    await ports.batches.finish(batch.number)
    assert (await found(ports)).status == "cancelled"


async def test_a_line_gets_one_job_however_often_it_is_asked_for(ports):
    batch = await running(ports)
    again = [(n, job(f"again_{n}")) for n in (1, 2, 3)]
    made = await ports.jobs.accept_lines(batch.number, again, LIMITS)
    assert [each.job_id for each in made] == ["again_3"]
    assert ports.jobs.queued == 3


async def test_no_more_lines_become_jobs_than_may_wait(ports):
    batch = await validated(ports)
    new = [(n, job(f"batch_req_{n}")) for n in (1, 2, 3)]
    two = replace(LIMITS, max_queued=2)
    assert len(await ports.jobs.accept_lines(batch.number, new, two)) == 2
    with pytest.raises(QueueFull, match="the store is full"):
        await ports.jobs.accept_lines(batch.number, new[2:], two)


async def test_no_more_batches_are_open_than_allowed_of_all_and_of_one_caller(ports):
    await accepted(ports)
    with pytest.raises(QueueFull, match="batches are open"):
        await accepted(ports, new_batch("batch_2"), 1)
    with pytest.raises(QueueFull, match="of this caller are open"):
        await ports.batches.accept(new_batch("batch_2"), 10, 1)
    with pytest.raises(NotFound):
        await ports.batches.accept(new_batch("batch_3"), 10)
    with pytest.raises(NotFound):
        await ports.batches.accept(new_batch("batch_2", caller="you"), 10)


async def test_lists_go_on_after_an_entry_and_are_of_one_caller(ports):
    for number in range(1, 4):
        await accepted(ports, new_batch(f"batch_{number}", metadata={"n": str(number)}))
    await accepted(ports, new_batch("batch_4", caller="you"))
    page = Page(caller="test", limit=2)
    listed = await ports.batches.list_batches(page)
    assert [(each.batch_id, each.metadata) for each in listed] == [
        ("batch_3", {"n": "3"}),
        ("batch_2", {"n": "2"}),
    ]
    rest = await ports.batches.list_batches(replace(page, after="batch_2"))
    assert [each.batch_id for each in rest] == ["batch_1"]
    with pytest.raises(NotFound):
        await ports.batches.list_batches(replace(page, after="batch_4"))
    assert len(await ports.batches.open_batches()) == 4


@pytest.mark.parametrize(
    ("later_s", "key", "same"),
    [
        (0.0, "k", True),
        (DAY_S - 1, "k", True),
        (DAY_S + 1, "k", False),
        (0.0, "other", False),
        (0.0, None, False),
    ],
)
async def test_a_key_stands_for_one_batch_for_a_day_and_for_as_long_as_that_is_open(
    process, clock, later_s, key, same
):
    ports = await process()
    batch = await accepted(ports, KEYED)
    clock.advance(2 * DAY_S)
    assert (await ports.batches.accept(AGAIN, 10)).batch_id == "batch_1"
    clock.advance(-2 * DAY_S)
    await ports.batches.settle_validation(batch.number, [{"code": "empty_file"}], 0, None)
    clock.advance(later_s)
    ports = await process()
    kept = await ports.batches.accept(replace(AGAIN, idempotency_key=key), 10)
    assert kept.batch_id == ("batch_1" if same else "batch_2")
    assert len(await ports.batches.open_batches()) == (0 if same else 1)
    if same:
        with pytest.raises(KeyReused):
            await ports.batches.accept(replace(AGAIN, digest="d2"), 10)


async def test_what_ended_long_ago_is_forgotten_and_what_is_open_is_not(ports, clock):
    batch = await running(ports)
    await accepted(ports, new_batch("batch_2"))
    await ports.batches.begin_end(batch.number, "expired")
    await ports.batches.finish(batch.number)
    clock.advance(DAY_S)
    while await ports.batches.forget(clock.wall()):
        pass
    assert await ports.batches.find("batch_1") is None
    assert (await found(ports, "batch_2")).status == "validating"


MESSAGES = new_batch("msgbatch_1", input_file_id="", total=2)
PROBLEM: dict[str, str | int | None] = {"code": "c", "message": "m", "line": 2, "param": None}


async def taken(ports: Ports, **changed: Any) -> Batch:
    """A batch of messages with an input file of its own."""
    number = await ports.files.begin("test")
    await ports.files.append(number, 0, b"x", 1 << 20)
    new = replace(MESSAGES, **{"input_file": number} | changed)
    return await ports.batches.accept(new, 10)


async def test_a_batch_s_own_file_is_kept_while_it_is_open_and_nobody_sees_it(process):
    ports = await process()
    batch = await taken(ports)
    assert (batch.input_file_id, batch.total) == ("", 2)
    await ports.files.discard(batch.input_file)  # as after a failed upload
    ports = await process()
    while await ports.files.sweep():
        pass
    assert await ports.files.parts(batch.input_file, -1) == ((0, b"x"),)
    assert await ports.files.list_files(Page(caller="test", limit=9)) == ()
    await ports.batches.settle_validation(batch.number, [], 2, "a")
    await ports.batches.begin_end(batch.number, "completed")
    await ports.batches.finish(batch.number)
    while await ports.files.sweep():
        pass
    assert await ports.files.parts(batch.input_file, -1) == ()


async def test_a_file_is_taken_by_one_batch_of_its_caller(ports):
    batch = await taken(ports)
    for changed in ({"input_file": batch.input_file}, {"input_file": 99}, {"caller": "you"}):
        with pytest.raises(NotFound):
            await taken(ports, batch_id="msgbatch_2", **changed)


async def test_batches_of_messages_are_listed_apart_and_in_both_directions(ports):
    await accepted(ports)
    for number in (1, 2, 3):
        await taken(ports, batch_id=f"msgbatch_{number}")
    page = Page(caller="test", limit=2)
    assert [each.batch_id for each in await ports.batches.list_batches(page)] == ["batch_1"]
    page = replace(page, of_messages=True, after="msgbatch_1", ascending=True)
    listed = await ports.batches.list_batches(page)
    assert [each.batch_id for each in listed] == ["msgbatch_2", "msgbatch_3"]


async def test_lines_keep_their_problems_and_undone_ones_are_counted_by_why(ports):
    batch = await taken(ports)
    lines = [LINES[0], replace(LINES[1], problem=PROBLEM), LINES[2]]
    await ports.batches.note_lines(batch.number, lines, first=True)
    await ports.batches.settle_validation(batch.number, [], 3, "a")
    assert await ports.batches.lines_without_job(batch.number, 9) == tuple(lines)
    outcomes = [
        replace(outcome(1, None, completed=False), undone="cancelled"),
        outcome(2, None, completed=False),
        replace(outcome(3, None, completed=False), undone="expired"),
    ]
    await ports.batches.record(batch.number, outcomes)
    ended = await found(ports, "msgbatch_1")
    assert (ended.failed, ended.cancelled, ended.expired) == (3, 1, 1)


async def test_one_of_messages_that_is_cancelled_has_its_lines_noted_first(ports):
    batch = await taken(ports)
    assert await ports.batches.cancel("msgbatch_1")
    assert not await ports.batches.cancel("msgbatch_1")
    assert (await found(ports, "msgbatch_1")).status == "validating"
    assert await ports.batches.note_lines(batch.number, LINES, first=True)
    await ports.batches.settle_validation(batch.number, [], 3, "a")
    batch = await found(ports, "msgbatch_1")
    assert (batch.status, batch.ending, batch.output_file is None) == (
        "cancelling",
        "cancelled",
        False,
    )
    await ports.batches.finish(batch.number)
    assert (await found(ports, "msgbatch_1")).status == "cancelled"


async def test_only_what_has_ended_is_removed_and_its_files_with_it(ports):
    batch = await running(ports)
    assert not await ports.batches.remove(batch.number)
    await ports.batches.record(batch.number, [outcome(3, None)])
    await ports.batches.begin_end(batch.number, "expired")
    await ports.batches.finish(batch.number)
    ended = await found(ports)
    assert await ports.batches.remove(batch.number)
    assert not await ports.batches.remove(batch.number)
    assert await ports.batches.find("batch_1") is None
    assert ended.output_file_id is not None
    assert await ports.files.find(ended.output_file_id) is None
    assert await ports.files.find("file-batch_1") is not None
