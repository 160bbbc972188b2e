"""The memory of this machine, as Linux tells in /proc/meminfo."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from hearth.types import frozen

MEMINFO = Path("/proc/meminfo")


@frozen
class MainMemory:
    """All that there is, and what programs can still have of it without swapping (`MemAvailable`:
    free pages and those of files that can be dropped).
    """

    total_mib: float
    available_mib: float


def read_main_memory(meminfo: Path = MEMINFO) -> MainMemory | None:
    """None where the system does not say. In a container these are the machine's numbers."""
    found: dict[str, float] = {}
    try:
        lines = meminfo.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        name, _, said = line.partition(":")
        with suppress(ValueError, IndexError):  # `MemTotal:       127600748 kB`
            found[name] = int(said.split()[0]) / 1024
    total_mib = found.get("MemTotal", 0.0)
    available_mib = found.get("MemAvailable")
    if available_mib is None or not 0 <= available_mib <= total_mib:
        return None
    return MainMemory(total_mib=total_mib, available_mib=available_mib)
