"""`Idempotency-Key` of batches: what is asked for again is the batch that was taken, whatever has
become of it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from hearth.errors import KeyInUse, KeyReused, NotFound, StorageUnavailable
from hearth.events import BatchStarted
from hearth.storage.opening import connect_writer, create, shipped_migrations
from hearth.types import DAY_S
from tests.jobs.batch_house import BatchHouse, in_batch_house, jsonl, lines, new_batch
from tests.storage.house import opened
from tests.support.house import settings_with
from tests.support.stopped_clock import WALL, StoppedClock
from tests.support.virtual_time import in_virtual_time

FIRST = new_batch(idempotency_key="k", digest="d1")
AGAIN = replace(FIRST, batch_id="batch_2")


@in_virtual_time
async def test_a_batch_that_exists_is_answered_whatever_would_refuse_a_new_one():
    async with BatchHouse(settings=settings_with(batches={"max_open": 1})) as first:
        await first.started(jsonl(*lines(2)), idempotency_key="k", digest="d1")
        assert (await first.batches.create(AGAIN)).batch_id == "batch_1"
        with pytest.raises(NotFound):
            await first.batches.create(replace(AGAIN, caller="somebody else"))
        for _ in range(2):
            with pytest.raises(KeyReused):
                await first.batches.create(replace(AGAIN, digest="d2"))
            ended = await first.ended_batch()
        ((number,),) = first.disk.rows("SELECT number FROM files WHERE id = 'file-batch_1'")
        await first.batches.delete_file(number)
        assert await first.batches.create(AGAIN) == ended
    async with BatchHouse(disk=first.disk) as house:
        assert await house.batches.create(AGAIN) == ended
        assert house.disk.rows("SELECT COUNT(*) FROM batches") == [(1,)]


@in_batch_house()
async def test_a_batch_taken_by_a_commit_reported_as_failed_is_found_again(house):
    await house.uploaded(jsonl(*lines(2)), file_id=FIRST.input_file_id)
    house.disk.silent = True
    with pytest.raises(StorageUnavailable):
        await house.batches.create(FIRST)
    house.disk.silent = False
    assert (await house.batches.create(AGAIN)).batch_id == "batch_1"
    await house.ended_batch()
    assert len(house.events.of(BatchStarted)) == 1


@in_batch_house()
async def test_two_requests_with_one_key_at_once_conflict_and_later_are_one_batch(house):
    await house.uploaded(jsonl(*lines(1)), file_id=FIRST.input_file_id)
    house.disk.latency_s = 0.1
    first = asyncio.ensure_future(house.batches.create(FIRST))
    await asyncio.sleep(0)
    with pytest.raises(KeyInUse):
        await house.batches.create(AGAIN)
    await first
    assert (await house.batches.create(AGAIN)).batch_id == "batch_1"
    await house.ended_batch()


async def test_a_batch_of_a_file_without_keys_goes_on_and_new_ones_have_keys(tmp_path):
    path = tmp_path / "hearth.db"
    create(path, connect_writer, shipped_migrations()[:7])
    with closing(sqlite3.connect(path)) as connection, connection:
        file = (
            "INSERT INTO files (id, caller, purpose, filename, state, created_wall_s) "
            "VALUES (?, 'test', 'batch', 'x', 'ready', ?)"
        )
        connection.execute(file, (FIRST.input_file_id, WALL))
        connection.execute(
            "INSERT INTO batches (id, caller, lane, priority, models, endpoint, status, "
            "window_text, output_life_s, input_file, "
            "input_file_id, created_wall_s, expires_wall_s) VALUES ('batch_0', 'test', "
            "'internal', 2, '[]', '/v1/completions', "
            "'validating', '24h', 1.0, 1, 'file-batch_1', ?, ?)",
            (WALL, WALL + DAY_S),
        )
    async with opened(path, StoppedClock()) as store:
        assert [each.batch_id for each in await store.batches.open_batches()] == ["batch_0"]
        assert (
            (await store.batches.accept(FIRST, 10)).batch_id
            == (await store.batches.accept(AGAIN, 10)).batch_id
            == "batch_1"
        )
        assert [each.batch_id for each in await store.batches.open_batches()] == [
            "batch_0",
            "batch_1",
        ]
