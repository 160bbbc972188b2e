"""The mark in the environment of all that a gateway starts, by which what it leaves behind is
found, as Linux tells in /proc.

It names the gateway's process, by its number, the instant of its start and the namespace that the
number is of; and the run. What bears the mark of a process that is no more was left behind.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "HEARTH_ENGINE"
PROC = Path("/proc")
LOOK_S = 0.05
KILL_S = 5.0
"""How long SIGKILL may take: a process may wait for a disk."""
_MARKED = re.compile(rb"(?:^|\0)HEARTH_ENGINE=([0-9a-f.]+)\0")
_START_TIME = 19
"""Its place in /proc/PID/stat behind the name, in ticks since the machine was started."""


def new_mark(run: str) -> str:
    """Of a run that is about to start; `run`: its own hexadecimal digits."""
    process = os.getpid()
    return f"{_namespace()}.{process}.{_started(process) or 0}.{run}"


def is_left_behind(mark: str) -> bool:
    """Its gateway is a process of this namespace, and is no more."""
    namespace, process, started, *_ = (*mark.split("."), "", "", "")
    is_known = namespace == _namespace() != "0" and process.isdecimal() and started.isdecimal()
    return is_known and _started(int(process)) != int(started)


def marked(is_meant: Callable[[str], bool]) -> Iterator[int]:
    """The processes of this user with such a mark."""
    known: dict[str, bool] = {}
    with suppress(OSError):
        for entry in os.scandir(PROC):
            if not entry.name.isdecimal():
                continue
            with suppress(OSError):  # another user's, or it has just ended
                found = _MARKED.search(Path(entry.path, "environ").read_bytes())
                mark = found[1].decode() if found else ""
                if mark and known.setdefault(mark, is_meant(mark)):
                    yield int(entry.name)


def end_marked(is_meant: Callable[[str], bool], grace_s: float) -> bool:
    """End all processes with such a mark, by SIGTERM, and after `grace_s` by SIGKILL. Blocks.

    Returns whether they are gone, `KILL_S` after the latter at most.
    """
    asked: set[int] = set()
    looks_in_grace = round(grace_s / LOOK_S)
    for look in range(looks_in_grace + round(KILL_S / LOOK_S)):
        left = set(marked(is_meant))
        if not left:
            return True
        is_late = look >= looks_in_grace
        for process in left if is_late else left - asked:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL if is_late else signal.SIGTERM)
        asked |= left
        time.sleep(LOOK_S)
    return not any(marked(is_meant))


def _namespace() -> str:
    """Of process numbers; `0` where there is none to be seen."""
    try:
        return "".join(each for each in str((PROC / "self/ns/pid").readlink()) if each.isdigit())
    except OSError:
        return "0"


def _started(process: int) -> int | None:
    try:
        stat = (PROC / str(process) / "stat").read_bytes()
        return int(stat.rpartition(b")")[2].split()[_START_TIME])
    except (OSError, IndexError, ValueError):
        return None
