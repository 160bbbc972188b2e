"""Main memory that programs of a name hold on this machine, as Linux tells in /proc."""

from __future__ import annotations

import re
from contextlib import suppress
from os import sysconf
from pathlib import Path
from urllib.parse import urlsplit

from hearth.config.addresses import is_loopback
from hearth.types import MIB

PROC = Path("/proc")


def is_here(base_url: str) -> bool:
    """The server at this URL runs on this machine."""
    host = urlsplit(base_url).hostname or ""
    return host == "localhost" or is_loopback(host)


def resident_mib(name: re.Pattern[str], proc: Path = PROC) -> float | None:
    """What all programs hold whose name matches, None where none is seen: another machine,
    container or system.

    A program's file that is mapped into memory counts as far as it was read, which is how models
    are loaded. Takes some milliseconds.
    """
    pages = 0
    seen = False
    with suppress(OSError):
        for process in proc.glob("[0-9]*"):
            with suppress(OSError, ValueError, IndexError):  # it has just ended
                if name.fullmatch((process / "comm").read_text().strip()):
                    pages += int((process / "statm").read_text().split()[1])
                    seen = True
    return pages * sysconf("SC_PAGE_SIZE") / MIB if seen else None
