"""Which files are opened, which are refused, and what the owner is told; migrations, copies, and
the store as a whole.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hearth.cli import main
from hearth.config.settings import StorageSettings
from hearth.errors import StorageBusy, StorageRefused, StorageUnavailable
from hearth.events import InternalFault, StorageFailed, StorageRecovered
from hearth.storage.database import Reserve, copy_into
from hearth.storage.opening import (
    connect_writer,
    create,
    database_path,
    refusal,
    shipped_migrations,
    tighten_own_directory,
    version_of,
)
from hearth.storage.store import Store
from hearth.storage.writer import StorageHealth
from tests.storage.house import (
    Fuse,
    disk_error,
    ended,
    make_another_programs,
    make_newer,
    open_database,
    opened,
    written,
)
from tests.support.fields import Fields
from tests.support.recorder import Recorder
from tests.support.sql import run_sql
from tests.support.stopped_clock import StoppedClock

STEPS = shipped_migrations()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_database_is_private_and_syncs_every_commit(tmp_path):
    path = tmp_path / "state" / "hearth" / "hearth.db"
    path.parent.mkdir(parents=True, mode=0o700)
    # what a first start left when it was killed
    path.with_name("hearth.db.new").write_bytes(b"half")
    path.with_name("hearth.db.new-journal").write_bytes(b"half")
    with closing(open_database(path, reserve_mib=1)) as database:
        database.connection().execute("INSERT INTO estimates VALUES ('a', '{}', 0)")
        assert mode_of(path.parent) == 0o700
        files = {file.name: mode_of(file) for file in path.parent.iterdir()}
        assert files == dict.fromkeys(
            ["hearth.db", "hearth.db-shm", "hearth.db-wal", "hearth.db.lock", "hearth.db.reserve"],
            0o600,
        )
        pragmas = ("journal_mode", "synchronous", "foreign_keys", "mmap_size")
        values = [
            next(map(tuple, database.connection().execute(f"PRAGMA {pragma}")), None)
            for pragma in pragmas
        ]
        assert values[:3] == [("wal",), (2,), (1,)]
        assert values[3] in (None, (0,))


@pytest.mark.parametrize(("configured", "mode"), [("", 0o700), ("chosen", 0o755)])
def test_only_the_default_directory_is_closed_to_other_users(tmp_path, configured, mode):
    directory = tmp_path / f"state{configured}" / "hearth"
    path = database_path(
        f"{directory}/hearth.db" if configured else "", {"XDG_STATE_HOME": str(directory.parent)}
    )
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    tighten_own_directory(configured, path)
    assert mode_of(directory) == mode


def test_every_start_begins_a_new_epoch_which_is_dated_by_the_clock(tmp_path):
    for epoch in (1, 2, 3):
        with closing(open_database(tmp_path / "hearth.db")) as database:
            assert database.epoch == epoch
            rows = [
                tuple(row)
                for row in database.connection().execute(
                    "SELECT epoch, started_wall_s FROM process"
                )
            ]
            assert rows == [(n, StoppedClock().wall()) for n in range(1, epoch + 1)]


def damaged_at(page: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        open_database(path).close()
        whole = bytearray(path.read_bytes())
        whole[page * 4096 : page * 4096 + 2048] = b"\xa5" * 2048
        path.write_bytes(whole)

    return damage


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (make_newer, r"newer Hearth \(schema 999"),
        (make_another_programs, "another program"),
        (
            lambda path: path.write_text("queue: {}\n" * 1000),
            r"not a valid SQLite database.*Restore a backup",
        ),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.with_name(f"{path.name}-wal").write_bytes(b"rows"), "is missing, but"),
        *((damaged_at(page), r"damaged|not a valid.*Restore a backup") for page in (1, 2, 3, 4)),
    ],
)
def test_what_must_not_be_written_is_refused_and_left_alone(tmp_path, make, says):
    path = tmp_path / "hearth.db"
    make(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.suffix != ".lock"}
    with pytest.raises(StorageRefused, match=says):
        open_database(path)
    assert {
        file.name: file.read_bytes() for file in tmp_path.iterdir() if file.suffix != ".lock"
    } == before
    for file in (path, path.with_name(f"{path.name}-wal")):
        file.unlink(missing_ok=True)
    open_database(path).close()  # the lock was let go
    path.unlink()


@pytest.mark.parametrize("lost_bytes", [0, 1, 24, 1000, 4096, 4120, 9000, 10**9])
def test_a_write_ahead_log_that_was_cut_off_loses_only_its_end(tmp_path, lost_bytes):
    whole = tmp_path / f"{lost_bytes}.db"
    copy = tmp_path / f"{lost_bytes}_after.db"
    with closing(open_database(whole)) as database:
        for number in range(8):
            database.connection().execute(
                "INSERT INTO estimates VALUES (?, '{}', 0)", (str(number),)
            )
        shutil.copy(whole, copy)
        wal = whole.with_name(f"{whole.name}-wal").read_bytes()
    copy.with_name(f"{copy.name}-wal").write_bytes(wal[: max(0, len(wal) - lost_bytes)])
    with closing(open_database(copy)) as database:
        names = [
            row[0]
            for row in database.connection().execute("SELECT name FROM estimates ORDER BY name")
        ]
    assert names == [str(number) for number in range(len(names))]
    assert len(names) >= 8 - (lost_bytes + 4119) // 4120


class Network(sqlite3.Connection):
    """On a file system without a write-ahead log."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute("SELECT 'delete'" if "journal_mode" in sql else sql, *arguments)


def reading(path: Path, _timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
    )


@pytest.mark.parametrize(
    ("path", "connect", "says"),
    [
        ("file/hearth.db", connect_writer, r"cannot be created: .*storage\.path"),
        ("hearth.db", reading, "read-only"),
        (
            "hearth.db",
            lambda path, _: sqlite3.connect(path, isolation_level=None, factory=Network),
            "local disk",
        ),
        ("locked.db", connect_writer, "locked by another program"),
        ("used.db", connect_writer, r"in use by process {pid}.*storage\.path"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(tmp_path, path, connect, says):
    (tmp_path / "file").write_text("")
    for name in ("hearth.db", "locked.db"):
        open_database(tmp_path / name).close()
    with (
        closing(sqlite3.connect(tmp_path / "locked.db")) as shell,
        closing(open_database(tmp_path / "used.db")),
    ):
        shell.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageRefused, match=says.format(pid=os.getpid())):
            open_database(tmp_path / path, connect=connect)


@pytest.mark.parametrize("after", [False, True])
def test_a_disk_that_fails_at_any_operation_of_a_start_leaves_nothing_half_made(tmp_path, after):
    for operation in range(1, 200):
        fuse = Fuse(after=after)
        path = tmp_path / f"{operation}.db"
        fuse.arm(operation)
        with suppress(StorageRefused):
            open_database(path, connect=fuse.connect).close()
        open_database(path).close()
        if not fuse.fired:
            break
    else:
        pytest.fail("the fuse fired in every round")
    assert operation > 10


@pytest.mark.parametrize("reserve_mib", [0.0, 1.0])
def test_a_full_disk_at_the_start_is_met_with_the_reserve_or_waited_for(tmp_path, reserve_mib):
    path = tmp_path / f"{reserve_mib}.db"
    fuse = Fuse(sqlite3.SQLITE_FULL)
    open_database(path, reserve_mib=reserve_mib).close()
    fuse.arm(12)
    with closing(open_database(path, reserve_mib=reserve_mib, connect=fuse.connect)) as database:
        assert (fuse.fired, database.epoch) == (1, 2 if reserve_mib else 0)
        assert (
            database.connection().execute("SELECT MAX(epoch) FROM process").fetchone()[0]
            == database.epoch
            == 2
        )


@pytest.mark.parametrize(("free_bytes", "held"), [((4 << 20) - 1, False), (4 << 20, True)])
def test_a_reserve_is_put_aside_only_where_four_times_its_size_is_free(tmp_path, free_bytes, held):
    class OnSmallDisk(Reserve):
        def _free_bytes(self) -> int:
            return int(free_bytes)

    reserve = OnSmallDisk(tmp_path / "hearth.db", 1.0)
    reserve.restore()
    assert reserve.is_held is held


@pytest.mark.parametrize(
    ("configured", "environ", "expected"),
    [
        ("", {"XDG_STATE_HOME": "/var/state", "HOME": "/home/me"}, "/var/state/hearth/hearth.db"),
        ("", {"HOME": "/home/me"}, "/home/me/.local/state/hearth/hearth.db"),
        (
            "",
            {"XDG_STATE_HOME": "relative", "HOME": "/home/me"},
            "/home/me/.local/state/hearth/hearth.db",
        ),
        ("~/h/x.db", {"HOME": "/home/me", "XDG_STATE_HOME": "/var/state"}, "/home/me/h/x.db"),
        ("/srv/~/x.db", {"HOME": "/home/me", "XDG_STATE_HOME": "/var/state"}, "/srv/~/x.db"),
    ],
)
def test_the_default_place_is_the_state_directory_of_the_user(configured, environ, expected):
    assert database_path(configured, environ) == Path(expected)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, StorageBusy),
        (sqlite3.SQLITE_FULL, StorageBusy),
        (sqlite3.SQLITE_READONLY, StorageRefused),
        (sqlite3.SQLITE_CORRUPT, StorageRefused),
    ],
)
def test_a_disk_that_is_full_and_a_file_that_is_locked_may_be_well_later(code, kind):
    assert type(refusal(Path("hearth.db"), disk_error(code))) is kind


def test_serve_ends_with_2_on_a_file_not_to_be_written_and_1_on_one_in_use(tmp_path):
    path = tmp_path / "hearth.db"
    used = tmp_path / "used.db"
    make_newer(path)
    with closing(open_database(used)):
        for database, code, says in (
            (path, 2, f"Error: {path} was written by a newer Hearth"),
            (Path("/proc/hearth/x.db"), 2, "storage.path"),
            (used, 1, f"Error: {used} is in use by process"),
        ):
            config = tmp_path / "llm_gateway.yaml"
            config.write_text(f"storage: {{path: {database}}}\n")
            environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": "", "HEARTH_CONFIG": str(config)}
            result = CliRunner().invoke(
                main, ["serve", "--emulator", "--port", "0"], env=environ, prog_name="hearth"
            )
            assert (
                result.exit_code,
                says in result.stderr,
                "gateway_started" in result.stdout,
            ) == (code, True, False)


# Migrations: from every version there ever was, each step whole or not at all.


def schema(path: Path) -> list[tuple[str, str]]:
    return run_sql(path, "SELECT name, sql FROM sqlite_master ORDER BY name")


def with_step(sql: str) -> Fields:
    return {"migrations": [*STEPS, (f"{len(STEPS) + 1:04}_test", sql)]}


@pytest.mark.parametrize("version", range(1, len(STEPS) + 1))
def test_a_database_of_any_version_is_brought_to_the_newest_with_its_rows(tmp_path, version):
    assert STEPS[version - 1][0].startswith(f"{version:04}_")
    path = tmp_path / f"{version}.db"
    fresh = tmp_path / "fresh.db"
    create(path, connect_writer, STEPS[:version])
    run_sql(path, "INSERT INTO process (epoch, started_wall_s, version) VALUES (7, 1.0, '0.1')")
    open_database(fresh).close()
    with closing(open_database(path)) as database:
        assert (version_of(database.connection()), database.epoch) == (len(STEPS), 8)
    assert schema(path) == schema(fresh)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE a (x); INSERT INTO nowhere VALUES (1)",
        "DROP TABLE swaps; CREATE TABLE process (x)",
        "NOT SQL",
    ],
)
def test_a_step_that_fails_leaves_the_database_as_it_was_and_makes_none(tmp_path, sql):
    path = tmp_path / "hearth.db"
    new = tmp_path / "new.db"
    open_database(path).close()
    before = schema(path)
    for each in (path, new):
        with pytest.raises(StorageRefused, match=r"migration 00\d\d_test failed: .*unchanged"):
            open_database(each, **with_step(sql))
    assert (schema(path), new.exists()) == (before, False)
    open_database(path).close()


def test_a_step_that_comes_later_is_applied_once(tmp_path):
    path = tmp_path / "hearth.db"
    open_database(path).close()
    for _ in range(2):
        open_database(path, **with_step("CREATE TABLE later (id)")).close()
    assert ("later", "CREATE TABLE later (id)") in schema(path)


# The store as a whole: open, back up, close, open again.


async def test_the_status_tells_how_the_store_is_and_what_the_last_trouble_was(tmp_path, clock):
    fuse = Fuse(sqlite3.SQLITE_IOERR)
    events = Recorder()
    async with opened(tmp_path / "hearth.db", clock, events=events, connect=fuse.connect) as store:
        well = {
            "state": "ok",
            "waiting_rows": 0,
            "dropped": 0,
            "reserve_held": False,
            "last_fault": None,
            "clock_in_doubt": False,
        }
        well |= {"wal_frames_unreadable": 0, "damaged_copy": None}
        assert store.shown() == well
        fuse.fail_always()
        store.invocations.emit(ended(1))
        await events.first(StorageFailed)
        trouble = {"reason": "io_error", "at_wall": clock.wall()}
        assert store.shown() == well | {
            "state": "io_error",
            "waiting_rows": 1,
            "last_fault": trouble,
        }
        assert store.trouble() == "io_error"
        fuse.repair()
        await written(store)
        assert store.shown() == well | {"last_fault": trouble}
        assert store.trouble() == ""


FULL = StorageHealth(fault="disk_full", detail="no space")
BAD_BLOCK = StorageHealth(fault="io_error", detail="bad block")
OVERLOADED = StorageHealth(fault="overloaded", detail="too much", dropped=1)
IS_FULL = StorageFailed(at=1000.0, reason="disk_full", detail="no space")


def well(dropped: int) -> StorageHealth:
    return StorageHealth(dropped=dropped)


@pytest.mark.parametrize(
    ("healths", "expected"),
    [
        (
            [FULL, FULL, well(3), well(3), FULL, well(5)],
            [
                IS_FULL,
                StorageRecovered(at=1000.0, dropped=3),
                IS_FULL,
                StorageRecovered(at=1000.0, dropped=2),
            ],
        ),
        (
            [FULL, BAD_BLOCK],
            [IS_FULL, StorageFailed(at=1000.0, reason="io_error", detail="bad block")],
        ),
        (
            [FULL, OVERLOADED, well(1), OVERLOADED],
            [
                IS_FULL,
                StorageRecovered(at=1000.0, dropped=1),
                StorageFailed(at=1000.0, reason="overloaded", detail="too much"),
            ],
        ),
        ([StorageHealth(reserve_held=False)], []),
        (
            [StorageHealth(failed=1), StorageHealth(failed=2)],
            [InternalFault(at=1000.0, where="storage", detail="a row could not be written")],
        ),
    ],
)
async def test_each_trouble_is_reported_once_and_its_end_with_what_it_cost(
    tmp_path, healths, expected
):
    events = Recorder()
    async with opened(tmp_path / "hearth.db", StoppedClock(), events=events) as store:
        for health in healths:
            store.report(health)
    assert events.all == expected


async def test_a_backup_of_a_live_store_is_whole_and_private_and_overwrites_nothing(
    store, tmp_path
):
    for sequence in range(20):
        store.invocations.emit(ended(sequence))
    await written(store)
    target = tmp_path / "backup.db"
    await store.back_up(target)
    assert mode_of(target) == 0o600
    before = target.read_bytes()
    with pytest.raises(FileExistsError):
        await store.back_up(target)
    assert target.read_bytes() == before
    with closing(open_database(target)) as copy:
        assert copy.connection().execute("SELECT COUNT(*) FROM invocation_log").fetchone()[0] == 20


def test_a_backup_that_fails_leaves_no_half_of_one(tmp_path):
    connection = sqlite3.connect(":memory:")
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError):
        copy_into(connection, tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()


async def test_an_owner_who_looks_in_with_a_shell_disturbs_nobody(store, tmp_path):
    with closing(sqlite3.connect(tmp_path / "hearth.db")) as shell:
        shell.execute("BEGIN")
        for sequence in (1, 2):
            assert shell.execute("SELECT COUNT(*) FROM invocation_log").fetchone() == (0,)
            store.invocations.emit(ended(sequence))
            await written(store)
    assert len(await store.invocations.find(limit=50)) == 2


async def test_a_question_to_a_file_that_is_gone_is_unavailable(store, tmp_path):
    (tmp_path / "hearth.db").rename(tmp_path / "elsewhere.db")
    with pytest.raises(StorageUnavailable) as refused:
        await store.invocations.find(limit=50)
    assert refused.value.fault == "cannot_open"
    (tmp_path / "elsewhere.db").rename(tmp_path / "hearth.db")


async def test_a_waiting_question_is_refused_at_the_close_and_a_begun_one_answered(store):
    asked = threading.Event()
    answer = threading.Event()

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
        assert refused.value.fault == "closed"


@pytest.mark.parametrize("operation", range(1, 60, 4))
async def test_a_start_on_a_disk_that_fails_for_good_ends_with_the_lock_given_back(
    tmp_path, operation
):
    path = tmp_path / "hearth.db"
    settings = StorageSettings(reserve_mib=0)
    fuse = Fuse()
    fuse.arm(operation, lasting=True)
    opening = Store.open(
        path,
        settings,
        clock=StoppedClock(),
        events=Recorder(),
        busy_timeout_s=1.0,
        connect=fuse.connect,
    )
    (result,) = await asyncio.gather(opening, return_exceptions=True)
    assert isinstance(result, StorageRefused | StorageUnavailable) is bool(fuse.fired)
    fuse.repair()
    if isinstance(result, Store):
        await result.close(5.0)
    async with opened(path, StoppedClock()):
        pass
