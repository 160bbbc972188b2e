"""What waits to be written: a bounded queue between the event loop and the writer's thread.

Its lock is held for moments only and never while the disk is busy, so that the loop may take it. Used by `writer` alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass

from hearth.storage.transaction import Statement


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A function to run on the database; `future` is None where nobody waits for it."""

    run: Statement
    future: asyncio.Future[object] | None


GATHER_S = 0.2
"""Jobs that nobody waits for are gathered for this long: one synced commit for many rows, and one wake-up of the writer."""


class Backlog:
    """First in, first out; at most `capacity` jobs. A job that somebody waits for is never held up, and takes the others with it."""

    def __init__(self, capacity: int, *, gather_s: float = GATHER_S) -> None:
        self._capacity = capacity
        self._gather_s = gather_s
        self._awaited = 0
        self._left_behind = 0
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._fresh = False
        self._closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_closed(self) -> bool:
        """Whether no more jobs are taken."""
        return self._closed

    def add(self, job: Job) -> bool:
        """Queue a job; False where there is no room, or no more jobs are taken."""
        with self._changed:
            if self._closed or len(self._jobs) >= self._capacity:
                return False
            self._jobs.append(job)
            self._fresh = True
            self._awaited += job.future is not None
            if job.future is not None or len(self._jobs) in {1, self._capacity}:
                self._changed.notify()
            return True

    def take(self, limit: int, timeout_s: float | None) -> list[Job] | None:
        """The oldest jobs, at most `limit`; waits for one that was not tried before, but no longer than `timeout_s`.

        Returns:
            An empty list when the time is up and nothing waits; None when the queue is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._fresh or self._closed, timeout_s)
            if self._fresh and len(self._jobs) < limit:
                self._changed.wait_for(lambda: self._awaited or self._closed or len(self._jobs) >= self._capacity, self._gather_s)
            if self._closed and not self._jobs:
                return None
            taken = [self._jobs.popleft() for _ in range(min(limit, len(self._jobs)))]
            self._awaited -= _awaited(taken)
            self._left_behind = len(self._jobs)
            self._fresh = bool(self._jobs)
            return taken

    def put_back(self, jobs: list[Job]) -> list[Job]:
        """Return the jobs of the last `take`, which could not be done, to the front, but for those that somebody waits for.

        Returns:
            Those, and the ones that waited behind them at that `take`: all would meet the same fate, and must hear of it now. What came
            since then has not been tried, and is next.
        """
        with self._changed:
            behind = [self._jobs.popleft() for _ in range(self._left_behind)]
            self._left_behind = 0
            self._awaited -= _awaited(behind)
            self._fresh = self._awaited > 0
            self._jobs.extendleft(job for job in reversed([*jobs, *behind]) if job.future is None)
            return [job for job in [*jobs, *behind] if job.future is not None]

    def close(self) -> None:
        """Take no more jobs; what is queued can still be taken out."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def clear(self) -> list[Job]:
        """Take out everything that is left."""
        with self._changed:
            left = list(self._jobs)
            self._jobs.clear()
            self._awaited = self._left_behind = 0
            return left


def _awaited(jobs: list[Job]) -> int:
    return sum(job.future is not None for job in jobs)
