"""Which files are opened, which are refused, and what the owner is told."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hearth.errors import StorageRefused
from hearth.storage.database import Reserve
from hearth.storage.opening import database_path, tighten_own_directory
from tests.storage.house import Fuse, StoppedClock, open_database
from tests.support.cases import for_each


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def closed_database(path: Path) -> Path:
    open_database(path).close()
    return path


def test_a_new_database_is_private_to_its_user(tmp_path):
    path = tmp_path / "state" / "hearth" / "hearth.db"
    database = open_database(path, reserve_mib=1)
    database.connection().execute("INSERT INTO estimates VALUES ('a', '{}', 0)")
    assert mode_of(path.parent) == 0o700
    assert {mode_of(file) for file in path.parent.iterdir()} == {0o600}
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(
        ["hearth.db", "hearth.db-shm", "hearth.db-wal", "hearth.db.lock", "hearth.db.reserve"]
    )
    database.close()


@pytest.mark.parametrize(("configured", "mode"), [("", 0o700), ("chosen", 0o755)])
def test_only_the_default_directory_is_closed_to_other_users(tmp_path, configured, mode):
    directory = tmp_path / "state" / "hearth"
    path = database_path(f"{directory}/hearth.db" if configured else "", {"XDG_STATE_HOME": str(tmp_path / "state")})
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    tighten_own_directory(configured, path)
    assert mode_of(directory) == mode


def test_the_writing_connection_syncs_every_commit_and_maps_no_memory(tmp_path):
    database = open_database(tmp_path / "hearth.db")
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "mmap_size")
    values = [next(map(tuple, database.connection().execute(f"PRAGMA {pragma}")), None) for pragma in pragmas]
    assert values[:3] == [("wal",), (2,), (1,)]
    assert values[3] in (None, (0,))
    database.close()


def test_every_start_begins_a_new_epoch(tmp_path):
    epochs = []
    for _ in range(3):
        database = open_database(tmp_path / "hearth.db")
        epochs.append(database.epoch)
        database.close()
    assert epochs == [1, 2, 3]


def test_a_second_instance_is_refused_and_told_who_has_the_file(tmp_path):
    database = open_database(tmp_path / "hearth.db")
    with pytest.raises(StorageRefused, match=rf"in use by process {os.getpid()}.*storage\.path"):
        open_database(tmp_path / "hearth.db")
    database.close()
    open_database(tmp_path / "hearth.db").close()


def test_a_refused_start_lets_go_of_the_lock(tmp_path):
    path = closed_database(tmp_path / "hearth.db")
    whole = path.read_bytes()
    path.write_bytes(b"")
    with pytest.raises(StorageRefused):
        open_database(path)
    path.write_bytes(whole)
    open_database(path).close()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path):
    path = closed_database(tmp_path / "hearth.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")
    before = path.read_bytes()
    with pytest.raises(StorageRefused, match=r"newer Hearth \(schema 999"):
        open_database(path)
    assert path.read_bytes() == before


def test_another_programs_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipe (id)")
    before = path.read_bytes()
    with pytest.raises(StorageRefused, match="another program"):
        open_database(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "hearth.db"
    path.write_text("queue: {}\n" * 1000)
    with pytest.raises(StorageRefused, match=r"not a sound SQLite database.*Restore a backup"):
        open_database(path)
    assert path.read_text() == "queue: {}\n" * 1000


@pytest.mark.parametrize("page", [1, 2, 3, 4])
def test_a_damaged_page_is_refused_with_instructions(tmp_path, page):
    path = closed_database(tmp_path / "hearth.db")
    whole = bytearray(path.read_bytes())
    whole[page * 4096 : page * 4096 + 2048] = b"\xa5" * 2048
    path.write_bytes(whole)
    with pytest.raises(StorageRefused, match=r"damaged|not a sound.*Restore a backup"):
        open_database(path)
    assert path.read_bytes() == bytes(whole)


def test_a_file_cut_off_to_nothing_is_not_taken_for_a_new_one(tmp_path):
    path = closed_database(tmp_path / "hearth.db")
    path.write_bytes(b"")
    with pytest.raises(StorageRefused, match="is empty"):
        open_database(path)


def test_a_write_ahead_log_without_its_database_is_not_thrown_away(tmp_path):
    path = tmp_path / "hearth.db"
    wal = tmp_path / "hearth.db-wal"
    wal.write_bytes(b"rows")
    with pytest.raises(StorageRefused, match="is missing, but"):
        open_database(path)
    assert wal.read_bytes() == b"rows"
    assert not path.exists()


@pytest.mark.parametrize("lost_bytes", [0, 1, 24, 1000, 4096, 4120, 9000, 10**9])
def test_a_write_ahead_log_that_was_cut_off_loses_only_its_end(tmp_path, lost_bytes):
    database = open_database(tmp_path / "hearth.db")
    for number in range(8):
        database.connection().execute("INSERT INTO estimates VALUES (?, '{}', 0)", (str(number),))
    copy = tmp_path / "after_power_loss.db"
    shutil.copy(tmp_path / "hearth.db", copy)
    wal = (tmp_path / "hearth.db-wal").read_bytes()
    database.close()
    (tmp_path / "after_power_loss.db-wal").write_bytes(wal[: max(0, len(wal) - lost_bytes)])
    reopened = open_database(copy)
    names = [row[0] for row in reopened.connection().execute("SELECT name FROM estimates ORDER BY name")]
    assert names == [str(number) for number in range(len(names))]
    assert len(names) >= 8 - (lost_bytes + 4119) // 4120
    reopened.close()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageRefused, match=r"cannot be made: .*storage\.path"):
        open_database(tmp_path / "file" / "hearth.db")


def test_a_database_that_can_only_be_read_is_refused(tmp_path):
    path = closed_database(tmp_path / "hearth.db")

    def reading(path, timeout):
        return sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)

    with pytest.raises(StorageRefused, match="read-only"):
        open_database(path, connect=reading)


def test_a_database_locked_by_another_program_is_refused(tmp_path):
    path = closed_database(tmp_path / "hearth.db")
    with closing(sqlite3.connect(path)) as shell:
        shell.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageRefused, match="locked by another program"):
            open_database(path)


def test_a_file_system_without_write_ahead_log_is_refused(tmp_path):
    class Network(sqlite3.Connection):
        def execute(self, sql, *arguments):
            return super().execute("SELECT 'delete'" if "journal_mode" in sql else sql, *arguments)

    with pytest.raises(StorageRefused, match="local disk"):
        open_database(tmp_path / "hearth.db", connect=lambda path, timeout: sqlite3.connect(path, isolation_level=None, factory=Network))


@pytest.mark.parametrize("after", [False, True])
def test_a_disk_that_fails_at_any_operation_of_a_start_leaves_nothing_half_made(tmp_path, after):
    for operation in range(1, 200):
        fuse = Fuse(after=after)
        fuse.arm(operation)
        path = tmp_path / f"{operation}.db"
        with suppress(StorageRefused):
            open_database(path, connect=fuse.connect).close()
        open_database(path).close()
        if not fuse.fired:
            break
    else:
        pytest.fail("the fuse fired in every round")
    assert operation > 10


def test_a_full_disk_at_the_start_is_met_with_the_reserve(tmp_path):
    path = tmp_path / "hearth.db"
    open_database(path, reserve_mib=1).close()
    fuse = Fuse(sqlite3.SQLITE_FULL)
    fuse.arm(12)
    database = open_database(path, reserve_mib=1, connect=fuse.connect)
    assert fuse.fired == 1
    assert database.epoch == 2
    database.close()


def test_a_full_disk_at_the_start_without_a_reserve_is_refused(tmp_path):
    path = closed_database(tmp_path / "hearth.db")
    fuse = Fuse(sqlite3.SQLITE_FULL)
    fuse.arm(12)
    with pytest.raises(StorageRefused, match="disk is full"):
        open_database(path, connect=fuse.connect)


@pytest.mark.parametrize(("free_bytes", "held"), [(4 << 20, True), ((4 << 20) - 1, False)])
def test_a_reserve_is_put_aside_only_where_four_times_its_size_is_free(tmp_path, free_bytes, held):
    class OnSmallDisk(Reserve):
        def _free_bytes(self) -> int:
            return int(free_bytes)

    reserve = OnSmallDisk(tmp_path / "hearth.db", 1.0)
    reserve.restore()
    assert reserve.is_held is held


def test_what_a_first_start_left_when_it_was_killed_is_no_obstacle(tmp_path):
    (tmp_path / "hearth.db.new").write_bytes(b"half")
    (tmp_path / "hearth.db.new-journal").write_bytes(b"half")
    open_database(tmp_path / "hearth.db").close()
    assert not (tmp_path / "hearth.db.new").exists()


@for_each(
    ("environ", "expected"),
    [
        ({"XDG_STATE_HOME": "/var/state", "HOME": "/home/me"}, "/var/state/hearth/hearth.db"),
        ({"HOME": "/home/me"}, "/home/me/.local/state/hearth/hearth.db"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.local/state/hearth/hearth.db"),
    ],
)
def test_the_default_place_is_the_state_directory_of_the_user(environ, expected):
    assert database_path("", environ) == Path(expected)


@pytest.mark.parametrize(("configured", "expected"), [("~/h/x.db", "/home/me/h/x.db"), ("/srv/~/x.db", "/srv/~/x.db")])
def test_a_configured_file_may_lie_in_the_home_of_the_user(configured, expected):
    assert database_path(configured, {"HOME": "/home/me", "XDG_STATE_HOME": "/var/state"}) == Path(expected)


def test_the_start_of_a_process_is_dated_by_the_clock(tmp_path):
    database = open_database(tmp_path / "hearth.db")
    assert database.connection().execute("SELECT started_wall_s FROM process").fetchone()[0] == StoppedClock().wall()
    database.close()
