"""Places at which a test kills the process, before and after every commit (docs/reliability.md).
Switched off, `reach` does nothing.

`HEARTH_FAILPOINTS="name=3"` kills the process with SIGKILL when that place is reached for the third
time, `name=3,other=1` at whichever comes first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C")
T = TypeVar("T")

VARIABLE = "HEARTH_FAILPOINTS"
_BOTH_SIDES = (
    "storage.epoch",
    "storage.group",
    *(
        f"jobs.{change}"
        for change in (
            "accept",
            "start",
            "end",
            "put_back",
            "cancel",
            "recover",
            "forget",
            "webhook",
        )
    ),
    *(f"ledger.{change}" for change in ("reserve", "close", "orphans")),
)
POINTS = (
    "storage.create.before_rename",
    "storage.create.after_rename",
    "storage.migrate.before_step",
    "storage.migrate.after_step",
    *(f"{name}.{side}_commit" for name in _BOTH_SIDES for side in ("before", "after")),
    "storage.retention.before_delete",
    "storage.retention.after_delete",
    "log.invocation.before_commit",
    "log.swap.before_commit",
    "estimates.before_commit",
)
"""`before_commit`: the statements have run, their transaction is open.

`after_commit`: it is on the disk, and nobody knows yet.
"""


def parsed(text: str) -> dict[str, int]:
    """`{name: count}`.

    Raises ValueError for a place that does not exist, and a count that is not 1 or more.
    """
    wanted = {}
    for entry in filter(None, text.split(",")):
        name, _, count = entry.strip().partition("=")
        if name not in POINTS or not count.isdigit() or int(count) < 1:
            raise ValueError(
                f"{VARIABLE}: {entry!r} is not NAME=COUNT with one of the names in"
                " hearth/storage/failpoints.py"
            )
        wanted[name] = int(count)
    return wanted


_wanted = parsed(os.environ.get(VARIABLE, ""))
_reached: Counter[str] = Counter()
_lock = threading.Lock()  # places are reached on several threads
if _wanted:
    sys.stderr.write(f"{VARIABLE} is set: this process will kill itself ({os.environ[VARIABLE]})\n")


def reach(name: str) -> None:
    """Says that a place was reached; does not return from the place and count that were asked
    for.
    """
    if _wanted:
        with _lock:
            _reached[name] += 1
            if _wanted.get(name) == _reached[name]:
                os.kill(os.getpid(), signal.SIGKILL)


def before_commit(name: str, run: Callable[[C], T]) -> Callable[[C], T]:
    """`run`, a function that the group commit calls, reaching `name.before_commit` at its end;
    `run` itself where all is off.
    """

    def marked(connection: C) -> T:
        result = run(connection)
        reach(f"{name}.before_commit")
        return result

    return marked if _wanted else run
