"""What an owner should know of the directory in which the store lies."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from hearth.storage.opening import open_directory

_NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "SMB",
    0xFE534D42: "SMB",
    0x01021997: "9P, a folder of another machine",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x00C36400: "Ceph",
}
"""By `f_type` (statfs(2), linux/magic.h)."""
_STATFS_BYTES = 256
"""More than the structure has on any system."""


def directory_warnings(
    configured: str,
    path: Path,
    *,
    type_of: Callable[[Path], int] | None = None,
) -> tuple[str, ...]:
    """Texts about `storage.path`; `type_of` gives the type of the file system of a path."""
    found = open_directory(configured, path)
    nearest = next(each for each in (path, *path.absolute().parents) if _exists(each))
    network = _NETWORK.get((type_of or file_system_type)(nearest))
    if network is None:
        return found
    says = f"storage.path: {nearest} lies on a network file system ({network})"
    why = "where SQLite can lose data and two Hearths can write at once"
    return (*found, f"{says}, {why}: set it to a local disk")


def _exists(path: Path) -> bool:
    """False too for what may not be looked at."""
    return os.path.exists(path)  # noqa: PTH110


def file_system_type(path: Path) -> int:
    """`f_type` of the file system that a path lies on, 0 where the system does not say."""
    if not sys.platform.startswith("linux"):
        return 0
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(path), buffer) != 0:
        return 0
    # It is the first field of the structure, and a machine word but on few systems. The magic
    # numbers have 32 bits, of which some come with their sign.
    return int(ctypes.c_long.from_buffer(buffer).value) & 0xFFFFFFFF
