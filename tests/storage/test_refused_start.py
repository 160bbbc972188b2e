"""`hearth serve` on a file that must not be written: exit 2, a message that says what to do, and the file as it was. Exit 1 where that may
pass by itself: then systemd tries again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hearth.cli import main
from hearth.errors import StorageBusy, StorageRefused
from hearth.storage.opening import refusal
from tests.storage.house import open_database
from tests.support.cases import for_each


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * 20_000)


def age(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 999")


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "hearth.db"
    open_database(path).close()
    return path


@pytest.mark.parametrize(("spoil", "says"), [(damage, "Restore a backup"), (age, "newer Hearth")])
def test_serve_refuses_a_file_that_must_not_be_written_with_2_and_leaves_it_alone(old_file, tmp_path, spoil, says):
    spoil(old_file)
    before = old_file.read_bytes()
    result = serve(tmp_path, old_file)
    assert result.exit_code == 2
    assert f"Error: {old_file}" in result.stderr
    assert says in result.stderr
    assert "gateway_started" not in result.stdout
    assert old_file.read_bytes() == before


def test_serve_refuses_a_directory_that_cannot_be_written_with_2_and_names_the_setting(tmp_path):
    result = serve(tmp_path, Path("/proc/hearth/hearth.db"))
    assert result.exit_code == 2
    assert "storage.path" in result.stderr


def test_serve_ends_with_1_while_another_process_has_the_file(old_file, tmp_path):
    holder = open_database(old_file)
    try:
        result = serve(tmp_path, old_file)
    finally:
        holder.close()
    assert result.exit_code == 1
    assert f"Error: {old_file} is in use by process" in result.stderr


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
