"""What is said of the directory of the store."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hearth.storage.directory import directory_warnings, file_system_type

KINDS = {0x6969: "NFS", 0x517B: "SMB", 0xFF534D42: "SMB", 0xFE534D42: "SMB", 0x01021997: "9P"}
EXT4 = 0xEF53
TMPFS = 0x01021994
BTRFS = 0x9123683E


@pytest.mark.parametrize(("kind", "name"), KINDS.items())
@pytest.mark.parametrize("configured", [True, False])
def test_a_store_on_a_network_file_system_is_named_with_what_to_do(
    kind: int, name: str, configured: bool, tmp_path: Path
):
    tmp_path.chmod(0o700)
    path = tmp_path / "not" / "yet" / "hearth.db"
    (warning,) = directory_warnings(str(path) if configured else "", path, type_of=lambda _: kind)
    assert warning.startswith(f"storage.path: {tmp_path} lies on a network file system ({name}")
    assert warning.endswith(": set it to a local disk")


@pytest.mark.parametrize("kind", [EXT4, TMPFS, BTRFS, 0])
def test_a_local_disk_is_not(kind: int, tmp_path: Path):
    assert directory_warnings("", tmp_path / "hearth.db", type_of=lambda _: kind) == ()


@pytest.mark.parametrize("name", [".", "/proc", "/dev/shm"])
def test_the_type_of_a_file_system_is_what_the_system_calls_it(tmp_path: Path, name: str):
    command = ["stat", "-f", "-c", "%t", str(tmp_path / name)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert file_system_type(tmp_path / name) == int(said, 16)


def test_what_is_not_there_has_no_type(tmp_path: Path):
    assert file_system_type(tmp_path / "missing") == 0
