"""Which named places are reached where, and how often a process is to die at each."""

from __future__ import annotations

import os

from hearth.storage.failpoints import POINTS

KILLS = int(os.environ.get("HEARTH_KILLS", "5"))
"""Deaths at each place: 5 in CI, 10 in `make reliability`."""
IN_QUEUE = 3
"""Jobs on their way at one time, which is how many a stop puts back."""
_BOOKS = ("ledger.", "estimates.", "storage.retention.", "jobs.forget.")
BOOKS = tuple(name for name in POINTS if name.startswith(_BOOKS))
"""Reached without a gateway, by `work.keep_books`."""
SERVING = tuple(name for name in POINTS if not name.startswith(_BOOKS))
_ONCE_A_LIFE = ("storage.create.", "storage.epoch.", "jobs.recover.", "ledger.orphans.")
_NEW_FILE = ("storage.create.", "storage.migrate.")


def nth_of(point: str, kill: int) -> int:
    """At which reach the process dies, another one each time."""
    if point.startswith(_ONCE_A_LIFE):
        return 1
    return (kill - 1) % (IN_QUEUE if "put_back" in point else 5) + 1


def takes_a_new_file(point: str) -> bool:
    """Whether it is reached only where there is no file yet."""
    return point.startswith(_NEW_FILE)
