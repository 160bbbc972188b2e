"""Sorted lines of jobs by number: what lets `board` find the next of a hundred thousand without looking at each.

Numbers grow with acceptance, so a line is added to at its end almost always, and taken from at its front.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from math import inf

from hearth.job_types import WaitingJob
from hearth.types import Lane

Rank = tuple[bool, int]
"""Internal before external; then the priority, which external work has none of."""
_Kind = tuple[Rank, str | None, str]


def rank_of(job: WaitingJob) -> Rank:
    """What goes before the order of acceptance."""
    return (True, 0) if job.lane is Lane.EXTERNAL else (False, int(job.priority))


def place_of(job: WaitingJob) -> tuple[Rank, int]:
    """The sort key of all jobs."""
    return (rank_of(job), job.number)


class Line:
    """Numbers in order."""

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    @property
    def head(self) -> int:
        """The least; there must be one."""
        return self._numbers[0]

    def add(self, number: int) -> None:
        """A number that is not in it."""
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
        else:
            insort(self._numbers, number)

    def discard(self, number: int) -> None:
        """Without this one; one that is not in it is no error."""
        index = self.before(number)
        if index < len(self._numbers) and self._numbers[index] == number:
            del self._numbers[index]

    def before(self, number: int) -> int:
        """How many are less."""
        return bisect_left(self._numbers, number)


class Lines:
    """One line per rank, task type and model; those of suspects and of off-peak jobs apart. Empty lines are forgotten."""

    def __init__(self) -> None:
        self._parts: dict[tuple[bool, bool], dict[_Kind, Line]] = {}

    def add(self, job: WaitingJob) -> None:
        """At its place in the line of its kind."""
        part = self._parts.setdefault((job.suspect, job.off_peak), {})
        part.setdefault((rank_of(job), job.task_type, job.model), Line()).add(job.number)

    def discard(self, job: WaitingJob) -> None:
        """Out of its line; one that stands in none is no error."""
        part, kind = self._parts.get((job.suspect, job.off_peak), {}), (rank_of(job), job.task_type, job.model)
        line = part.get(kind)
        if line is not None:
            line.discard(job.number)
            if not len(line):
                del part[kind]

    def heads(self, *, suspect: bool, off_peak: bool) -> Iterable[int]:
        """The least number of each line."""
        return (line.head for line in self._parts.get((suspect, off_peak), {}).values())


class Due:
    """Jobs that may not start before an instant, in order of the instants."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int]] = []

    def add(self, wall_s: float, number: int) -> None:
        """A job with its instant."""
        insort(self._entries, (wall_s, number))

    def discard(self, wall_s: float, number: int) -> bool:
        """Whether it was here, and is not any more."""
        index = bisect_left(self._entries, (wall_s, number))
        found = index < len(self._entries) and self._entries[index] == (wall_s, number)
        if found:
            del self._entries[index]
        return found

    def take_until(self, wall_s: float) -> list[int]:
        """Those whose instant has come, taken out, the earliest first."""
        index = bisect_right(self._entries, (wall_s, inf))
        taken = [number for _, number in self._entries[:index]]
        del self._entries[:index]
        return taken

    def first_after(self, wall_s: float) -> float | None:
        """The next instant, None where there is none."""
        index = bisect_right(self._entries, (wall_s, inf))
        return self._entries[index][0] if index < len(self._entries) else None
