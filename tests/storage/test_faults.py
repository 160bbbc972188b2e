"""A disk that is full, locked, failing, read-only, gone: nothing acknowledged is lost, nothing lost
is acknowledged, and it ends well.
"""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing, nullcontext
from pathlib import Path

import pytest

from hearth.errors import StorageUnavailable
from hearth.storage.opening import connect_writer
from hearth.storage.writer import StoreWriter
from tests.storage.house import (
    Fuse,
    Reports,
    disk_error,
    note,
    notes,
    overwritten,
    same_note,
    writing,
)
from tests.support.patience import WITHIN_S, within_limit


async def outcome(writer: StoreWriter, number: int, text: str = "") -> bool:
    """Whether a durable row was acknowledged."""
    (result,) = await asyncio.gather(writer.submit(note(number, text)), return_exceptions=True)
    assert result == 1 or (
        isinstance(result, StorageUnavailable) and result.status == 503 and result.retryable
    )
    return result == 1


async def test_another_programs_lock_refuses_what_must_be_durable_and_keeps_the_rest(tmp_path):
    path = tmp_path / "hearth.db"
    async with writing(path) as writer:
        with closing(sqlite3.connect(path)) as shell:
            shell.execute("BEGIN EXCLUSIVE")
            writer.post(same_note(1))
            assert not await outcome(writer, 2)
            assert (writer.health.fault, writer.health.waiting) == ("locked", 1)
            shell.rollback()
        await writer.submit(note(3))
    assert notes(path) == [1, 3]


async def test_what_comes_while_an_attempt_fails_is_tried_itself(tmp_path):
    reached = threading.Event()
    fail = threading.Event()

    def failing(_connection: sqlite3.Connection) -> None:
        reached.set()
        assert fail.wait(30.0)
        raise disk_error(sqlite3.SQLITE_IOERR)

    async with writing(tmp_path / "hearth.db") as writer:
        first = writer.submit(failing)
        await asyncio.to_thread(reached.wait)
        second = writer.submit(note(2))
        fail.set()
        with pytest.raises(StorageUnavailable):
            await first
        assert await second == 1


@pytest.mark.parametrize("posted", [True, False])
async def test_a_disk_that_is_well_again_is_noticed_without_being_asked(tmp_path, posted):
    fuse = Fuse()
    reports = Reports()
    path = tmp_path / f"{posted}.db"
    async with writing(path, connect=fuse.connect, retry_s=0.01, listener=reports) as writer:
        fuse.fail_always()
        assert not await outcome(writer, 1)
        if posted:
            writer.post(same_note(2))
        fuse.repair()
        await within_limit(reports.well.wait())
    assert notes(path) == [2] * posted


@pytest.mark.parametrize(
    "code", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY]
)
async def test_trouble_and_recovery_are_each_reported_once(tmp_path, code):
    fuse = Fuse(code)
    reports = Reports()
    path = tmp_path / f"{code}.db"
    async with writing(path, connect=fuse.connect, listener=reports) as writer:
        await writer.submit(note(0))
        fuse.fail_always()
        assert not any([await outcome(writer, number) for number in range(1, 5)])
        fuse.repair()
        assert all([await outcome(writer, number) for number in (5, 6)])
        await asyncio.sleep(0)
        assert [report.fault is None for report in reports.all] == [False, True]
        assert reports.all[0].detail
    assert notes(path) == [0, 5, 6]


CODES = (sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_CORRUPT)


@pytest.mark.parametrize(
    ("code", "after"),
    [(sqlite3.SQLITE_FULL, False), *((code, after) for code in CODES for after in (False, True))],
)
async def test_a_disk_that_fails_at_any_operation_loses_and_doubles_no_row(tmp_path, code, after):
    path = tmp_path / "hearth.db"
    fuse = Fuse(code, after=after)
    acknowledged = set[int]()
    async with writing(path, connect=fuse.connect, reserve_mib=1) as writer:
        for first in range(0, 1000, 10):
            await writer.submit(note(first))
            fuse.arm(first // 10 + 1)
            writer.post(same_note(first + 1))
            acknowledged |= {
                number
                for number in (first + 2, first + 3, first + 4)
                if await outcome(writer, number)
            }
            is_over = fuse.fired == first // 10
            fuse.repair()
            await writer.submit(note(first + 5))
            acknowledged |= {first, first + 1, first + 5}
            assert acknowledged <= set(notes(path))
            if is_over:
                break
        else:
            pytest.fail("the fuse fired in every round")
    assert {first + 2, first + 3, first + 4} <= acknowledged
    assert first > 60


@pytest.mark.parametrize(
    ("code", "operation", "anew"), [(sqlite3.SQLITE_IOERR_FSYNC, 3, 1), (sqlite3.SQLITE_BUSY, 1, 0)]
)
async def test_after_a_failed_sync_the_file_is_reopened_and_after_a_lock_kept(
    tmp_path, code, operation, anew
):
    fuse = Fuse(code)
    statements = list[str]()
    opened = list[sqlite3.Connection]()

    def connect(path: Path, timeout: float) -> sqlite3.Connection:
        opened.append(fuse.connect(path, timeout))
        opened[-1].set_trace_callback(statements.append)
        return opened[-1]

    async with writing(tmp_path / f"{code}.db", connect=connect) as writer:
        await writer.submit(note(0))
        before = len(opened)
        del statements[:]
        fuse.arm(operation)  # BEGIN, INSERT, COMMIT
        assert [await outcome(writer, number) for number in (1, 2)] == [False, True]
        assert len(opened) == before + anew
        assert any("quick_check" in statement for statement in statements) is bool(anew)
        with pytest.raises(sqlite3.ProgrammingError, match="closed") if anew else nullcontext():
            opened[before - 1].execute("SELECT 1")


async def test_a_database_damaged_since_it_was_opened_is_not_written_again(tmp_path):
    fuse = Fuse(sqlite3.SQLITE_IOERR_FSYNC)
    path = tmp_path / "hearth.db"
    async with writing(path, connect=fuse.connect) as writer:
        await writer.submit(note(0))
        fuse.arm(3)  # BEGIN, INSERT, COMMIT
        assert not await outcome(writer, 1)
        overwritten(path)
        assert not await outcome(writer, 2)
        assert writer.health.fault == "corrupt"


@pytest.mark.parametrize("spare_pages", range(1, 9))
async def test_a_full_disk_refuses_without_acknowledging_wherever_it_fills_up(
    tmp_path, spare_pages
):
    path = tmp_path / f"{spare_pages}.db"
    async with writing(path):
        pass

    def connect(path: Path, timeout: float) -> sqlite3.Connection:
        """A disk that holds so many more pages of the database: SQLite itself says SQLITE_FULL."""
        connection = connect_writer(path, timeout)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + spare_pages}")
        return connection

    acknowledged = list[int]()
    async with writing(path, connect=connect) as writer:
        while await outcome(writer, len(acknowledged), "x" * 900):
            acknowledged.append(len(acknowledged))
        assert writer.health.fault == "disk_full"
        assert not await writer.submit(lambda connection: connection.in_transaction is False)
    assert notes(path) == acknowledged


async def test_on_a_full_disk_the_reserve_is_given_up_once_for_pruning(tmp_path):
    fuse = Fuse(sqlite3.SQLITE_FULL)
    reports = Reports()
    path = tmp_path / "hearth.db"
    reserve, prune = (
        tmp_path / "hearth.db.reserve",
        lambda connection: connection.execute("DELETE FROM note").rowcount > 0,
    )
    async with writing(
        path, connect=fuse.connect, reserve_mib=1, upkeep=prune, listener=reports
    ) as writer:
        assert reserve.stat().st_size == 1 << 20
        await writer.submit(note(1))
        fuse.arm(1)
        assert await outcome(writer, 2)
        await writer.submit(lambda connection: None)
        assert reports.all[0].reserve_held is False
        assert notes(path) == []
    assert reserve.exists(), "the disk has room again"
    async with writing(path, connect=fuse.connect, reserve_mib=1) as writer:
        await writer.submit(note(3))
        fuse.fail_always()
        assert not await outcome(writer, 4)
        assert (writer.health.fault, writer.health.reserve_held, reserve.exists()) == (
            "disk_full",
            False,
            False,
        )


async def test_on_a_full_disk_the_write_ahead_log_is_folded_without_a_reserve(tmp_path):
    fuse = Fuse(sqlite3.SQLITE_FULL)
    async with writing(tmp_path / "hearth.db", connect=fuse.connect) as writer:
        await writer.submit(note(1, "x" * 100_000))
        fuse.arm(1)
        assert await outcome(writer, 2)
        assert fuse.fired == 1
        assert (tmp_path / "hearth.db-wal").stat().st_size < 20_000


async def test_a_file_that_was_moved_away_or_replaced_is_not_written_to(tmp_path):
    path = tmp_path / "hearth.db"
    elsewhere = tmp_path / "elsewhere.db"
    async with writing(path) as writer:
        await writer.submit(note(1))
        path.rename(elsewhere)
        assert not await outcome(writer, 2)
        assert (writer.health.fault, "moved or deleted" in writer.health.detail) == (
            "file_moved",
            True,
        )
        path.write_bytes(b"somebody else's")
        assert not await outcome(writer, 2)
        assert path.read_bytes() == b"somebody else's"
        elsewhere.rename(path)
        await writer.submit(note(3))
    assert notes(path) == [1, 3]


async def test_a_disk_that_fails_at_the_end_is_admitted(tmp_path):
    fuse = Fuse()
    async with writing(tmp_path / "hearth.db", connect=fuse.connect) as writer:
        await writer.submit(note(1))
        fuse.fail_always()
        writer.post(same_note(2))
        assert not await writer.close(30.0)
        fuse.repair()
    assert notes(tmp_path / "hearth.db") == [1]


async def test_upkeep_that_meets_a_bad_disk_ends_and_is_reported(tmp_path):
    reported = asyncio.Event()

    def unlucky(_connection: sqlite3.Connection) -> bool:
        raise disk_error(sqlite3.SQLITE_IOERR_READ)

    async with writing(
        tmp_path / "hearth.db", upkeep=unlucky, listener=lambda health: reported.set()
    ) as writer:
        await within_limit(reported.wait())
        assert await outcome(writer, 1)
        assert writer.health.fault is None


SMALL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from tests.storage.house import note, writing
from tests.storage.test_faults import outcome

async def main(path):
    async with writing(path) as writer:
        await writer.submit(note(0))
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        acknowledged = [0]
        for spare in range(0, 9000, 700):
            size = (path.parent / (path.name + "-wal")).stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + spare, unlimited[1]))
            for number in range(len(acknowledged) * 100, len(acknowledged) * 100 + 4):
                if await outcome(writer, number):
                    acknowledged.append(number)
            resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
            assert await outcome(writer, len(acknowledged) * 100 + 50)
            acknowledged.append(len(acknowledged) * 100 + 50)
    print(*acknowledged)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_real_write_that_fails_halfway_loses_no_acknowledged_row(tmp_path):
    path = tmp_path / "hearth.db"
    ran = subprocess.run(
        [sys.executable, "-c", SMALL_DISK, str(path)],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    acknowledged = {int(word) for word in ran.stdout.split()}
    assert acknowledged <= set(notes(path))
    assert len(acknowledged) >= 14
