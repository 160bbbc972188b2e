"""Named places around every commit at which the process can be made to die, so that a test can say what must be true afterwards.

Off unless `HEARTH_FAILPOINTS` is in the environment of the start: `name=3` kills the process with SIGKILL when that place is reached for
the third time, `name=3,other=1` at whichever comes first. Switched off, `reach` does nothing. Where they stand and what is proved with
them: docs/reliability.md.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

C = TypeVar("C")
T = TypeVar("T")

VARIABLE = "HEARTH_FAILPOINTS"
POINTS = (
    "storage.create.before_rename",
    "storage.create.after_rename",
    "storage.migrate.before_step",
    "storage.migrate.after_step",
    "storage.epoch.before_commit",
    "storage.epoch.after_commit",
    "storage.group.before_commit",
    "storage.group.after_commit",
    "storage.retention.before_delete",
    "storage.retention.after_delete",
    "jobs.accept.before_commit",
    "jobs.accept.after_commit",
    "jobs.start.before_commit",
    "jobs.start.after_commit",
    "jobs.end.before_commit",
    "jobs.end.after_commit",
    "jobs.put_back.before_commit",
    "jobs.put_back.after_commit",
    "jobs.cancel.before_commit",
    "jobs.cancel.after_commit",
    "jobs.recover.before_commit",
    "jobs.recover.after_commit",
    "jobs.forget.before_commit",
    "jobs.forget.after_commit",
    "jobs.webhook.before_commit",
    "jobs.webhook.after_commit",
    "ledger.reserve.before_commit",
    "ledger.reserve.after_commit",
    "ledger.close.before_commit",
    "ledger.close.after_commit",
    "ledger.orphans.before_commit",
    "ledger.orphans.after_commit",
    "log.invocation.before_commit",
    "log.swap.before_commit",
    "estimates.before_commit",
)
"""`before_commit`: the statements have run, their transaction is open. `after_commit`: it is on the disk, and nobody has been told."""


class Fuses:
    """Counts how often each place was reached; places are reached on several threads."""

    def __init__(self, wanted: Mapping[str, int]) -> None:
        self._wanted = dict(wanted)
        self._reached: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reach(self, name: str) -> None:
        """Does not return from the place and count that were asked for."""
        with self._lock:
            self._reached[name] += 1
            if self._wanted.get(name) == self._reached[name]:
                os.kill(os.getpid(), signal.SIGKILL)


def parsed(text: str) -> dict[str, int]:
    """`{name: count}`. Raises ValueError for a place that does not exist, and a count that is not 1 or more."""
    wanted = {}
    for entry in text.split(","):
        name, _, count = entry.strip().partition("=")
        if name not in POINTS or not count.isdigit() or int(count) < 1:
            raise ValueError(f"{VARIABLE}: {entry!r} is not NAME=COUNT with one of the names in hearth/failpoints.py")
        wanted[name] = int(count)
    return wanted


def _off(name: str) -> None:
    """Where the process is not to die."""


def _chosen(text: str) -> Callable[[str], None]:
    if not text:
        return _off
    fuses = Fuses(parsed(text))
    sys.stderr.write(f"{VARIABLE} is set: this process will kill itself ({text})\n")
    return fuses.reach


reach = _chosen(os.environ.get(VARIABLE, ""))
"""Says that a place was reached."""


def before_commit(name: str, run: Callable[[C], T]) -> Callable[[C], T]:
    """`run`, a function that the group commit calls, reaching `name.before_commit` at its end; `run` itself where all is off."""
    return run if reach is _off else partial(_marked, name, run)


def _marked(name: str, run: Callable[[C], T], connection: C) -> T:
    result = run(connection)
    reach(f"{name}.before_commit")
    return result
