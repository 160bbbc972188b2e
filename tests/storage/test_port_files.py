"""Files in any store: seen by nobody until they are complete, gone a little at a time."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from hearth.errors import BadRequest, NotFound, QueueFull
from hearth.job_types import PART_BYTES, JobEnd, JobState, Page, StoreLimits
from hearth.types import DAY_S
from tests.jobs.batch_house import new_batch
from tests.jobs.house import job
from tests.storage.port import Ports
from tests.support.stopped_clock import WALL

ROOM = 1 << 40


async def stored(
    ports: Ports,
    file_id: str,
    content: bytes = b"x",
    *,
    caller: str = "test",
    life_s: float = 30 * DAY_S,
) -> int:
    """A file that is complete."""
    number = await ports.files.begin(caller)
    await ports.files.append(number, 0, content, ROOM)
    await ports.files.seal(number, file_id=file_id, filename=f"{file_id}.jsonl", life_s=life_s)
    return number


async def content(ports: Ports, number: int) -> bytes:
    whole = b""
    place = -1
    while parts := await ports.files.parts(number, place):
        whole += b"".join(data for _, data in parts)
        place = parts[-1][0]
    return whole


async def swept(ports: Ports) -> None:
    while await ports.files.sweep():
        pass


async def ids(ports: Ports, **page: Any) -> list[str]:
    asked = Page(**{"caller": "test", "limit": 10, **page})
    return [file.file_id for file in await ports.files.list_files(asked)]


async def test_a_file_is_seen_once_it_is_complete_with_all_its_pieces(ports):
    text = bytes(range(256)) * 1024 * 5  # more than is read at a time
    number = await ports.files.begin("test")
    for start in range(0, len(text), 4 * PART_BYTES):
        piece = text[start : start + 4 * PART_BYTES]
        await ports.files.append(number, start // PART_BYTES, piece, ROOM)
    assert await ports.files.find("file-1") is None
    assert await ids(ports) == []
    sealed = await ports.files.seal(number, file_id="file-1", filename="in.jsonl", life_s=60.0)
    assert (sealed.number, sealed.size_bytes, sealed.expires_wall_s) == (
        number,
        len(text),
        WALL + 60.0,
    )
    assert await ports.files.find("file-1") == sealed
    assert await content(ports, number) == text


async def test_a_file_that_was_given_up_takes_no_more_and_cannot_be_completed(ports):
    number = await ports.files.begin("test")
    await ports.files.discard(number)
    await ports.files.append(number, 0, b"late", ROOM)
    assert await content(ports, number) == b""
    with pytest.raises(BadRequest):
        await ports.files.seal(number, file_id="file-1", filename="x", life_s=60.0)
    kept = await stored(ports, "file-2")
    await ports.files.discard(kept)
    assert (await ports.files.find("file-2")) is not None


async def test_an_upload_whose_process_died_is_forgotten_unless_it_was_complete(process):
    dead = await process()
    number = await dead.files.begin("test")
    await dead.files.append(number, 0, b"half", ROOM)
    complete = await stored(dead, "file-2", b"whole")
    ports = await process()
    mine = await ports.files.begin("test")
    await ports.files.append(mine, 0, b"mine", ROOM)
    await swept(ports)
    assert await content(ports, number) == b""
    assert await content(ports, complete) == b"whole"
    assert await content(ports, mine) == b"mine"


async def test_lists_go_on_after_an_entry_in_both_orders_and_are_of_one_caller(ports):
    for number in range(1, 5):
        await stored(ports, f"file-{number}")
    await stored(ports, "file-5", caller="somebody else")
    assert await ids(ports) == ["file-4", "file-3", "file-2", "file-1"]
    assert await ids(ports, after="file-3", limit=1) == ["file-2"]
    assert await ids(ports, after="file-3", ascending=True) == ["file-4"]
    assert await ids(ports, purpose="batch_output") == []
    with pytest.raises(NotFound):
        await ids(ports, after="file-5")
    removed = await ports.files.find("file-3")
    assert await ports.files.remove(removed.number)
    assert await ids(ports, after="file-3") == ["file-2", "file-1"]


async def test_the_owner_sees_the_largest_first_and_what_each_caller_keeps(ports):
    await stored(ports, "file-1", b"x" * 5)
    await stored(ports, "file-2", b"x" * 50)
    await stored(ports, "file-3", b"x" * 7, caller="you")
    await ports.jobs.accept(
        job("job_1", caller="you", request=b"r" * 100), StoreLimits(max_queued=1, max_bytes=1000)
    )
    assert [file.file_id for file in await ports.files.list_all(None, 2)] == ["file-2", "file-3"]
    assert [file.file_id for file in await ports.files.list_all("you", 2)] == ["file-3"]
    assert [dict(each) for each in await ports.files.stored()] == [
        {"caller": "you", "files": 1, "file_bytes": 7, "jobs": 1, "job_bytes": 100},
        {"caller": "test", "files": 2, "file_bytes": 55, "jobs": 0, "job_bytes": 0},
    ]


@pytest.mark.parametrize(
    ("max_bytes", "own_max_bytes", "says"),
    [(119, None, "the store is full"), (1000, 119, "forget=true")],
)
async def test_files_and_jobs_share_the_room(ports, max_bytes, own_max_bytes, says):
    new = job("job_1", request=b"r" * 100)
    await ports.jobs.accept(new, StoreLimits(max_queued=1, max_bytes=1000))
    number = await ports.files.begin("test")
    await ports.files.append(number, 0, b"x" * 10, max_bytes, own_max_bytes)
    with pytest.raises(QueueFull, match=says):
        await ports.files.append(number, 1, b"x" * 10, max_bytes, own_max_bytes)
    await ports.files.append(number, 1, b"x" * 10, 120, 120)


async def test_a_file_that_a_batch_reads_is_not_deleted_and_one_that_expires_is(ports, clock):
    read = await stored(ports, "file-batch_1", life_s=60.0)
    await stored(ports, "file-2", life_s=60.0)
    batch = await ports.batches.accept(new_batch(), 10)
    with pytest.raises(BadRequest, match="batch_1"):
        await ports.files.remove(read)
    clock.advance(61.0)
    await swept(ports)
    assert await ports.files.find("file-batch_1") is not None
    assert await ports.files.find("file-2") is None
    await ports.batches.settle_validation(batch.number, [{"code": "empty_file"}], 0, None)
    assert await ports.files.remove(read)
    assert not await ports.files.remove(read)
    await swept(ports)
    assert await content(ports, read) == b""


async def test_what_ended_jobs_keep_counts_until_they_are_forgotten(ports, clock):
    await ports.jobs.accept(job("job_1"), StoreLimits(max_queued=1, max_bytes=1000))
    await ports.jobs.claim(1)
    await ports.jobs.finish(1, JobEnd(state=JobState.COMPLETED, result=b"x" * 100))
    number = await ports.files.begin("test")
    with pytest.raises(QueueFull):
        await ports.files.append(number, 0, b"y", 100)
    assert await ports.jobs.forget(inf)
    await ports.files.append(number, 0, b"y", 100)
