"""Main memory that processes hold, as Linux tells in /proc."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from os import sysconf
from pathlib import Path

from hearth.types import MIB

PROC = Path("/proc")


def resident_mib(processes: Iterable[int]) -> float | None:
    """What these hold together, their files in memory as far as they were read; None where that
    cannot be seen.
    """
    if not PROC.exists():
        return None
    pages = 0
    for process in processes:
        with suppress(OSError, ValueError, IndexError):  # it has just ended
            pages += int((PROC / str(process) / "statm").read_text().split()[1])
    return pages * sysconf("SC_PAGE_SIZE") / MIB
