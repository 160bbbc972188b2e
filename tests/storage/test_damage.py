"""Files of a database that are damaged: what the owner is told, and what is kept."""

from __future__ import annotations

import asyncio
import re
import resource
import shutil
import sqlite3
import stat
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

import pytest

from hearth.config.settings import StorageSettings
from hearth.errors import StorageRefused, StorageUnavailable
from hearth.events import StorageFailed, StorageRecovered, WalDamaged
from hearth.storage.database import set_aside
from hearth.storage.opening import lacks_space
from hearth.storage.page_check import CHECK_INTERVAL_S, PageCheck
from hearth.storage.store import Store
from tests.storage.house import ended, open_database, opened, overwritten, written
from tests.support.recorder import Recorder
from tests.support.stopped_clock import StoppedClock
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time, sleep_until

T = TypeVar("T")


def killed(path: Path, left: Path) -> Path:
    """What a process that has `path` open would leave if it died now."""
    left.mkdir()
    for suffix in ("", "-wal", "-shm"):
        shutil.copy(f"{path}{suffix}", left)
    return left / path.name


async def test_a_damaged_log_is_reported_once_and_kept_beside_the_database(tmp_path, clock):
    async with opened(tmp_path / "hearth.db", clock) as store:
        for number in range(20):
            store.invocations.emit(ended(number))
            await written(store)
        path = killed(tmp_path / "hearth.db", tmp_path / "left")
    log = path.with_name("hearth.db-wal")
    frames = (log.stat().st_size - 32) // 4120
    with log.open("r+b") as file:
        file.seek(32 + (frames // 2) * 4120 + 2000)
        file.write(b"\xa5" * 64)
    before = path.read_bytes(), log.read_bytes()
    events = Recorder()
    async with opened(path, clock, events=events) as store:
        (damaged,) = events.of(WalDamaged)
        assert (damaged.certain, damaged.readable_frames + damaged.unreadable_frames) == (
            True,
            frames,
        )
        assert 0 < damaged.readable_frames <= frames // 2
        kept = Path(damaged.copy)
        assert store.shown() == store.shown() | {
            "wal_frames_unreadable": damaged.unreadable_frames,
            "damaged_copy": kept.name,
        }
        copies = sorted(path.parent.glob("*.damaged-*"))
        assert copies == [kept, kept.with_name(f"{kept.name}-wal")]
        assert tuple(map(Path.read_bytes, copies)) == before
        assert {stat.S_IMODE(copy.stat().st_mode) for copy in copies} == {0o600}
        assert 0 < len(await store.invocations.find(limit=50)) < 20
        store.invocations.emit(ended(99))
        await written(store)
        again = killed(path, tmp_path / "again")
    for each in (path, again):
        async with opened(each, clock, events=Recorder()) as store:
            assert store.shown()["wal_frames_unreadable"] == 0
            assert [row.sequence for row in await store.invocations.find(limit=1)] == [99]
        assert len(list(each.parent.glob("*.damaged-*"))) == (2 if each is path else 0)


def test_a_log_that_is_damaged_still_is_kept_once(tmp_path):
    path = tmp_path / "hearth.db"
    for content in (b"one", b"one", b"another", b"one"):
        path.write_bytes(b"database")
        path.with_name("hearth.db-wal").write_bytes(content)
        set_aside(path)
    kept = {file.name: file.read_bytes() for file in tmp_path.glob("*.damaged-*-wal")}
    assert kept == {"hearth.db.damaged-1-wal": b"one", "hearth.db.damaged-2-wal": b"another"}


def test_a_copy_of_a_damaged_log_that_finds_no_room_leaves_nothing(tmp_path):
    path = tmp_path / "hearth.db"
    path.write_bytes(b"x" * 3000)
    path.with_name("hearth.db-wal").write_bytes(b"y" * 9000)
    limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            set_aside(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hearth.db", "hearth.db-wal"]


def test_a_copy_for_which_there_is_no_room_is_not_begun(tmp_path):
    path = tmp_path / "hearth.db"
    path.with_name("hearth.db-wal").write_bytes(b"log")
    with path.open("wb") as file:
        file.truncate(1 << 43)  # a hole of 8 TiB
    with pytest.raises(OSError, match="no room for a copy of the damaged database") as refused:
        set_aside(path)
    assert lacks_space(refused.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hearth.db", "hearth.db-wal"]


def test_a_damaged_schema_is_refused_or_harmless_and_never_a_defect(tmp_path):
    path = tmp_path / "hearth.db"
    open_database(path).close()
    whole = path.read_bytes()
    refused = 0
    words = [found.start() for found in re.finditer(rb"CREATE|invocation_log|INTEGER|jobs", whole)]
    for at in words[::3]:
        path.write_bytes(whole[:at] + b"\xff\xfe\x80" + whole[at + 3 :])
        says = ""
        try:
            open_database(path).close()
        except StorageRefused as error:
            says = error.message
            refused += 1
        assert not says or "Restore a backup" in says
        assert "codec" not in says
    assert refused > 20


# The hourly check of the pages.


async def held(awaitable: Awaitable[T]) -> T:
    """What the writer's thread does takes no virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    with loop.held():
        return await awaitable


@in_virtual_time
async def test_pages_overwritten_at_work_are_found_within_the_hour_and_end_writing(tmp_path):
    path = tmp_path / "hearth.db"
    clock = StoppedClock()
    events = Recorder()
    store = await Store.open(path, StorageSettings(reserve_mib=0), clock=clock, events=events)
    checking = asyncio.create_task(store.page_check.run())
    await sleep_until(CHECK_INTERVAL_S + 1)
    await held(
        store.writer.submit(
            lambda connection: (
                connection.execute("INSERT INTO estimates VALUES ('a', '{}', 0)").rowcount
            )
        )
    )
    await held(store.writer.submit(lambda connection: None))
    assert events.all == []
    shutil.copy(path, tmp_path / "before")
    overwritten(path)
    await sleep_until(2 * CHECK_INTERVAL_S + 2)
    failed = await held(events.first(StorageFailed))
    assert (failed.reason, bool(failed.detail)) == ("corrupt", True)
    with pytest.raises(StorageUnavailable) as refused:
        await held(store.writer.submit(lambda connection: None))
    assert (refused.value.fault, store.trouble()) == ("corrupt", "corrupt")
    path.write_bytes((tmp_path / "before").read_bytes())
    await sleep_until(3 * CHECK_INTERVAL_S + 3)
    await held(store.writer.submit(lambda connection: None))
    await held(events.first(StorageRecovered))
    checking.cancel()
    await asyncio.gather(checking, return_exceptions=True)
    assert await held(store.close(30.0))


async def test_a_check_that_is_under_way_does_not_hold_up_the_end(tmp_path):
    path = tmp_path / "hearth.db"
    asked = threading.Event()
    noted = list[str]()
    open_database(path).close()

    def look(connection: sqlite3.Connection) -> str:
        asked.set()
        endless = (
            "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT COUNT(*) FROM n"
        )
        return str(connection.execute(endless).fetchone())

    check = PageCheck(path, clock=StoppedClock(), note=noted.append, interval_s=0.0, look=look)
    checking = asyncio.create_task(check.run())
    await asyncio.to_thread(asked.wait)
    checking.cancel()
    await asyncio.gather(checking, return_exceptions=True)
    for thread in threading.enumerate():
        if thread.name.startswith("hearth-storage-check"):
            await asyncio.to_thread(thread.join)
    assert noted == []


@in_virtual_time
async def test_the_checks_take_at_most_a_hundredth_of_the_time(tmp_path):
    path = tmp_path / "hearth.db"
    clock = StoppedClock()
    at = list[float]()
    loop = asyncio.get_running_loop()
    open_database(path).close()

    def look(connection: sqlite3.Connection) -> str:
        del connection
        at.append(loop.time())
        clock.advance(90.0 if len(at) == 1 else 1.0)
        return ""

    checking = asyncio.create_task(
        PageCheck(path, clock=clock, note=lambda found: None, look=look).run()
    )
    await sleep_until(16_300.0)
    checking.cancel()
    await asyncio.gather(checking, return_exceptions=True)
    assert at == [3600.0, 3600.0 + 9000.0, 3600.0 + 9000.0 + 3600.0]
