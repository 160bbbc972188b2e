"""Disk space put aside for the day the disk is full: with nothing free, SQLite cannot even delete rows.

Used by `database` at start and by the writer's thread; never touches the database.
"""

from __future__ import annotations

import os
from pathlib import Path

from hearth.types import MIB

HEADROOM = 4
"""The reserve is made again only where this many times its size is free, so that it is not spent and made in turns."""


class Reserve:
    """A file of `mib` MiB beside the database that holds nothing but its space; 0 MiB is no reserve.

    Failures to make it are not errors: a missing reserve is visible in `is_held`.
    """

    def __init__(self, path: Path, mib: float) -> None:
        self.path = path.with_name(path.name + ".reserve")
        self._bytes = int(mib * MIB)

    @property
    def is_held(self) -> bool:
        """Whether the space is put aside now."""
        return self.path.exists()

    def restore(self) -> None:
        """Put the space aside where that leaves enough for everybody else; does nothing where it is held already."""
        if self._bytes == 0 or self.is_held:
            return
        try:
            if self._free_bytes() >= HEADROOM * self._bytes:
                self._allocate()
        except OSError:
            self.path.unlink(missing_ok=True)

    def spend(self) -> bool:
        """Give the space to whoever needs it; True where there was some to give."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def _free_bytes(self) -> int:
        disk = os.statvfs(self.path.parent)
        return disk.f_bavail * disk.f_frsize

    def _allocate(self) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._bytes)
        finally:
            os.close(descriptor)
