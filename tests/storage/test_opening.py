"""Which files are opened, which are refused, and what the owner is told."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hearth.cli import main
from hearth.errors import StorageBusy, StorageRefused
from hearth.storage.database import Reserve
from hearth.storage.opening import database_path, refusal, tighten_own_directory
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


def test_every_start_begins_a_new_epoch_which_is_dated_by_the_clock(tmp_path):
    for epoch in (1, 2, 3):
        database = open_database(tmp_path / "hearth.db")
        assert database.epoch == epoch
        rows = [tuple(row) for row in database.connection().execute("SELECT epoch, started_wall_s FROM process")]
        assert rows == [(n, StoppedClock().wall()) for n in range(1, epoch + 1)]
        database.close()


def test_a_second_instance_is_refused_and_told_who_has_the_file(tmp_path):
    database = open_database(tmp_path / "hearth.db")
    with pytest.raises(StorageRefused, match=rf"in use by process {os.getpid()}.*storage\.path"):
        open_database(tmp_path / "hearth.db")
    database.close()
    open_database(tmp_path / "hearth.db").close()


def newer(path: Path) -> None:
    with closing(sqlite3.connect(closed_database(path))) as connection:
        connection.execute("PRAGMA user_version = 999")


def another_programs(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipe (id)")


def no_database(path: Path) -> None:
    path.write_text("queue: {}\n" * 1000)


def cut_off(path: Path) -> None:
    path.write_bytes(b"")


def log_without_database(path: Path) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(b"rows")


def damaged_at(page: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        whole = bytearray(closed_database(path).read_bytes())
        whole[page * 4096 : page * 4096 + 2048] = b"\xa5" * 2048
        path.write_bytes(whole)

    return damage


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (newer, r"newer Hearth \(schema 999"),
        (another_programs, "another program"),
        (no_database, r"not a valid SQLite database.*Restore a backup"),
        (cut_off, "is empty"),
        (log_without_database, "is missing, but"),
        *((damaged_at(page), r"damaged|not a valid.*Restore a backup") for page in (1, 2, 3, 4)),
    ],
)
def test_what_must_not_be_written_is_refused_and_left_alone(tmp_path, make, says):
    path = tmp_path / "hearth.db"
    make(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.suffix != ".lock"}
    with pytest.raises(StorageRefused, match=says):
        open_database(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.suffix != ".lock"} == before
    for file in (path, path.with_name(f"{path.name}-wal")):
        file.unlink(missing_ok=True)
    open_database(path).close()  # the lock was let go


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
    with pytest.raises(StorageRefused, match=r"cannot be created: .*storage\.path"):
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


@pytest.mark.parametrize("reserve_mib", [0.0, 1.0])
def test_a_full_disk_at_the_start_is_met_with_the_reserve_or_refused_without_one(tmp_path, reserve_mib):
    path, fuse = tmp_path / "hearth.db", Fuse(sqlite3.SQLITE_FULL)
    open_database(path, reserve_mib=reserve_mib).close()
    fuse.arm(12)
    with nullcontext() if reserve_mib else pytest.raises(StorageRefused, match="disk is full"):
        database = open_database(path, reserve_mib=reserve_mib, connect=fuse.connect)
        assert (fuse.fired, database.epoch) == (1, 2)
        database.close()


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
    ("configured", "environ", "expected"),
    [
        ("", {"XDG_STATE_HOME": "/var/state", "HOME": "/home/me"}, "/var/state/hearth/hearth.db"),
        ("", {"HOME": "/home/me"}, "/home/me/.local/state/hearth/hearth.db"),
        ("", {"XDG_STATE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.local/state/hearth/hearth.db"),
        ("~/h/x.db", {"HOME": "/home/me", "XDG_STATE_HOME": "/var/state"}, "/home/me/h/x.db"),
        ("/srv/~/x.db", {"HOME": "/home/me", "XDG_STATE_HOME": "/var/state"}, "/srv/~/x.db"),
    ],
)
def test_the_default_place_is_the_state_directory_of_the_user(configured, environ, expected):
    assert database_path(configured, environ) == Path(expected)


def test_serve_ends_with_2_on_a_file_that_must_not_be_written_and_with_1_where_that_may_pass_by_itself(tmp_path):
    path = tmp_path / "hearth.db"
    newer(path)
    before = path.read_bytes()
    for database, code, says in ((path, 2, f"Error: {path} was written by a newer Hearth"), (Path("/proc/hearth/x.db"), 2, "storage.path")):
        result = serve(tmp_path, database)
        assert (result.exit_code, says in result.stderr, "gateway_started" in result.stdout) == (code, True, False)
    assert path.read_bytes() == before
    path.unlink()
    holder = open_database(path)
    result = serve(tmp_path, path)
    holder.close()
    assert (result.exit_code, f"Error: {path} is in use by process" in result.stderr) == (1, True)


@for_each(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, StorageBusy),
        (sqlite3.SQLITE_FULL, StorageBusy),
        (sqlite3.SQLITE_READONLY, StorageRefused),
        (sqlite3.SQLITE_CORRUPT, StorageRefused),
    ],
)
def test_a_disk_that_is_full_and_a_file_that_is_locked_may_be_well_later(code, kind):
    error = sqlite3.OperationalError("no")
    error.sqlite_errorcode = code
    assert type(refusal(Path("hearth.db"), error)) is kind


def serve(home: Path, database: Path) -> Any:
    config = home / "llm_gateway.yaml"
    config.write_text(f"storage: {{path: {database}}}\n")
    environ = {"HOME": str(home), "XDG_STATE_HOME": "", "HEARTH_CONFIG": str(config)}
    return CliRunner().invoke(main, ["serve", "--emulator", "--port", "0"], env=environ, prog_name="hearth")
