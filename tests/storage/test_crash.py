"""What `kill -9` leaves: every acknowledged row, whole, and nothing twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hearth.errors import StorageRefused
from tests.storage.house import notes, open_database

ROOT = Path(__file__).parents[2]


def acknowledging(path: Path, first: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.storage.acknowledging", str(path), str(first)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def killed_after(process: subprocess.Popen[str], rows: int) -> list[int]:
    """The rows that were acknowledged until the process was killed."""
    with process:
        assert process.stdout is not None
        acknowledged = [int(process.stdout.readline()) for _ in range(rows)]
        process.kill()
        rest = process.stdout.read()
    complete = rest[: rest.rfind("\n") + 1]
    return acknowledged + [int(line) for line in complete.split()]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 13, 21, 34, 89, 233])
def test_no_acknowledged_row_is_lost_when_the_process_is_killed(tmp_path, rows):
    path = tmp_path / "hearth.db"
    acknowledged = killed_after(acknowledging(path, 0), rows)
    assert len(acknowledged) >= rows
    assert set(acknowledged) <= set(notes_after_restart(path))


def test_a_database_survives_being_killed_again_and_again(tmp_path):
    path = tmp_path / "hearth.db"
    acknowledged = [row for life in range(3) for row in killed_after(acknowledging(path, life * 1_000_000), 20)]
    assert set(acknowledged) <= set(notes_after_restart(path))


def test_a_second_process_is_refused_while_the_first_lives_and_welcome_after(tmp_path):
    path = tmp_path / "hearth.db"
    first = acknowledging(path, 0)
    assert first.stdout is not None
    first.stdout.readline()
    with pytest.raises(StorageRefused, match=f"in use by process {first.pid}"):
        open_database(path)
    killed_after(first, 1)
    open_database(path).close()


def notes_after_restart(path: Path) -> list[int]:
    open_database(path).close()
    return notes(path)
