"""The store as a whole: open, back up, close, open again."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from contextlib import closing

import pytest

from hearth.config.settings import StorageSettings
from hearth.errors import StorageFault, StorageRefused, StorageUnavailable
from hearth.storage.retention import copy_into
from hearth.storage.store import Store
from hearth.storage.writer import StorageHealth
from tests.storage.conftest import opened, written
from tests.storage.house import Fuse, StoppedClock, open_database
from tests.storage.samples import ended


async def test_what_was_emitted_is_there_after_a_restart_under_its_own_epoch(tmp_path, clock):
    for _ in range(2):
        async with opened(tmp_path / "hearth.db", clock) as store:
            store.invocations.emit(ended(1))
    async with opened(tmp_path / "hearth.db", clock) as store:
        assert [(row.epoch, row.sequence) for row in await store.invocations.find(limit=50)] == [(2, 1), (1, 1)]


async def test_the_status_tells_how_the_store_is_and_what_the_last_trouble_was(tmp_path, clock):
    fuse, heard = Fuse(sqlite3.SQLITE_IOERR), asyncio.Event()

    def hear(health: StorageHealth) -> None:
        heard.set()

    store = await Store.open(tmp_path / "hearth.db", StorageSettings(reserve_mib=0), clock=clock, listener=hear, connect=fuse.connect)
    well = {"state": "ok", "waiting_rows": 0, "dropped": 0, "reserve_held": False, "last_fault": None, "clock_in_doubt": False}
    assert store.shown() == well
    fuse.arm(1, lasting=True)
    store.invocations.emit(ended(1))
    await heard.wait()
    trouble = {"reason": "io_error", "at_wall": clock.wall()}
    assert store.shown() == well | {"state": "io_error", "waiting_rows": 1, "last_fault": trouble}
    assert store.trouble() == "io_error"
    fuse.repair()
    await written(store)
    assert store.shown() == well | {"last_fault": trouble}
    assert store.trouble() == ""
    await store.close(5.0)


async def test_a_backup_of_a_live_store_is_whole_and_private_and_overwrites_nothing(store, tmp_path):
    for sequence in range(20):
        store.invocations.emit(ended(sequence))
    await written(store)
    target = tmp_path / "backup.db"
    await store.back_up(target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    before = target.read_bytes()
    with pytest.raises(FileExistsError):
        await store.back_up(target)
    assert target.read_bytes() == before
    copy = open_database(target)
    assert copy.connection().execute("SELECT COUNT(*) FROM invocation_log").fetchone()[0] == 20
    copy.close()


def test_a_backup_that_fails_leaves_no_half_of_one(tmp_path):
    connection = sqlite3.connect(":memory:")
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError):
        copy_into(connection, tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()


async def test_an_owner_who_looks_in_with_a_shell_disturbs_nobody(store, tmp_path):
    store.invocations.emit(ended(1))
    await written(store)
    with closing(sqlite3.connect(tmp_path / "hearth.db")) as shell:
        shell.execute("BEGIN")
        assert shell.execute("SELECT COUNT(*) FROM invocation_log").fetchone() == (1,)
        store.invocations.emit(ended(2))
        await written(store)
        assert shell.execute("SELECT COUNT(*) FROM invocation_log").fetchone() == (1,)
    assert len(await store.invocations.find(limit=50)) == 2


async def test_a_question_to_a_file_that_is_gone_is_unavailable(store, tmp_path):
    (tmp_path / "hearth.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(StorageUnavailable) as refused:
        await store.invocations.find(limit=50)
    assert refused.value.fault is StorageFault.CANNOT_OPEN
    (tmp_path / "elsewhere.db").rename(tmp_path / "hearth.db")


async def test_a_question_that_still_waits_when_the_store_closes_is_refused_and_one_in_progress_is_answered(store):
    asked, answer = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> bool:
        asked.set()
        return answer.wait(30.0)

    reading = [asyncio.ensure_future(store.reader.read(slow)) for _ in range(2)]
    await asyncio.to_thread(asked.wait, 30.0)
    await store.close(5.0)
    answer.set()
    assert await reading[0]
    for late in (reading[1], store.reader.read(slow)):
        with pytest.raises(StorageUnavailable) as refused:
            await late
        assert refused.value.fault is StorageFault.CLOSED


@pytest.mark.parametrize("operation", range(1, 60, 4))
async def test_a_start_on_a_disk_that_fails_for_good_ends_with_the_lock_given_back(tmp_path, operation):
    path, settings = tmp_path / "hearth.db", StorageSettings(reserve_mib=0)
    fuse = Fuse()
    fuse.arm(operation, lasting=True)
    opening = Store.open(path, settings, clock=StoppedClock(), listener=lambda health: None, busy_timeout_s=1.0, connect=fuse.connect)
    (result,) = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(result, StorageRefused | StorageUnavailable) is bool(fuse.fired)
    fuse.repair()
    if isinstance(result, Store):
        await result.close(5.0)
    async with opened(path, StoppedClock()):
        pass
