"""A disk that is full when Hearth starts: the store is opened once there is room, and nothing is
lost.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from hearth.errors import StorageBusy, StorageRefused, StorageUnavailable
from hearth.events import StorageRecovered
from tests.storage.house import (
    Fuse,
    ended,
    make_another_programs,
    make_newer,
    open_database,
    opened,
    swapped,
    written,
)
from tests.support.recorder import Recorder
from tests.support.sql import run_sql
from tests.support.stopped_clock import StoppedClock

CODES_OF_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)


@pytest.mark.parametrize("code", CODES_OF_FULL)
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_start_on_a_full_disk_refuses_durable_work_until_there_is_room(
    tmp_path, code, is_first
):
    """Wherever it is met. What an earlier process has left is settled once there is room."""
    for operation in range(1, 100):
        path = tmp_path / f"{operation}.db"
        fuse = Fuse(code)
        clock = StoppedClock()
        events = Recorder()
        if not is_first:
            async with opened(path, clock) as store:
                await store.ledger.reserve(
                    "req_1", caller="a", model="m", reserved_usd=1.0, at_wall_s=clock.wall()
                )
        fuse.arm(operation, lasting=True)
        async with opened(path, clock, events=events, connect=fuse.connect) as store:
            if not fuse.fired:
                break
            for sequence in (1, 2):
                store.invocations.emit(ended(sequence))
            store.invocations.emit(swapped())
            with pytest.raises(StorageUnavailable) as refused:
                await store.ledger.reserve(
                    "req_2", caller="a", model="m", reserved_usd=1.0, at_wall_s=clock.wall()
                )
            assert (refused.value.status, refused.value.retryable) == (503, True)
            assert store.trouble() == store.shown()["state"] in {"disk_full", "io_error"}
            assert store.calendar.may_delete() is (store.writer.epoch > 0)
            assert store.shown()["clock_in_doubt"] is False
            fuse.repair()
            assert await store.ledger.reserve(
                "req_3", caller="a", model="m", reserved_usd=1.0, at_wall_s=clock.wall()
            )
            await written(store)
            await events.first(StorageRecovered)
            assert store.calendar.may_delete()
            assert (
                {row.epoch for row in await store.invocations.find(limit=9)}
                == {store.writer.epoch}
                == {2 - is_first}
            )
            assert (
                len(await store.invocations.swaps(since_wall_s=0.0, until_wall_s=None, limit=9))
                == 1
            )
        states = dict(run_sql(path, "SELECT id, state FROM ledger"))
        assert states == {"req_3": "reserved"} | ({} if is_first else {"req_1": "settled"})
    else:
        pytest.fail("the fuse fired in every round")
    assert operation > 5


def test_a_full_disk_hides_nothing_that_must_be_refused(tmp_path):
    path = tmp_path / "newer.db"
    fuse = Fuse(sqlite3.SQLITE_FULL)
    make_newer(path)
    fuse.arm(4, lasting=True)
    with pytest.raises(StorageRefused, match="newer Hearth"):
        open_database(path, connect=fuse.connect)


@pytest.fixture
def full() -> Fuse:
    fuse = Fuse(sqlite3.SQLITE_FULL)
    fuse.fail_always()
    return fuse


def test_a_full_disk_may_turn_out_to_be_full_of_another_programs_database(tmp_path, full):
    path = tmp_path / "hearth.db"
    with closing(open_database(path, connect=full.connect)) as database:
        make_another_programs(path)
        full.repair()
        with pytest.raises(StorageUnavailable, match="another program") as refused:
            database.connection()
        assert refused.value.fault == "cannot_open"


def test_a_process_that_waits_for_room_keeps_others_from_its_database(tmp_path, full):
    path = tmp_path / "hearth.db"
    with closing(open_database(path, connect=full.connect)), pytest.raises(StorageBusy):
        open_database(path)
