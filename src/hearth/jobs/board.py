"""Which job goes to the GPU's queue next. Pure: every instant is an argument (seconds since 1970).

The order: jobs that were running when an earlier process died, each of them alone, so that one that brings the gateway down is found out
and takes no other with it. Then internal before external, by priority, and in order of acceptance, except that jobs for the model that
was served last go first for up to `BATCH_LIMIT` in a row (Peregrine's LLM queue optimizer: batches instead of model swaps). Inside a task
type the order of acceptance always holds: an older job of another model is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable

from hearth.job_types import WaitingJob
from hearth.types import Lane

BATCH_LIMIT = 32
"""So many jobs of one model in a row, while older ones of other models wait."""


class Board:
    """The jobs that wait in the store, without their requests."""

    def __init__(self) -> None:
        self._waiting: dict[int, WaitingJob] = {}
        self._numbers: dict[str, int] = {}
        self._batch_model = ""
        self._batch_jobs = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: WaitingJob) -> None:
        """A job waits; again is harmless."""
        self._waiting[job.number] = job
        self._numbers[job.job_id] = job.number

    def remove(self, job_id: str) -> WaitingJob | None:
        """Take a job out; None where it is not here."""
        number = self._numbers.pop(job_id, None)
        return None if number is None else self._waiting.pop(number)

    def take(self, wall_s: float, *, off_peak: bool, running: Iterable[WaitingJob]) -> WaitingJob | None:
        """The job to start now, taken out; None where none may.

        Args:
            off_peak: it is outside active hours.
            running: the jobs that are in the GPU's queue or running.
        """
        busy = tuple(running)
        chosen = None if any(job.suspect for job in busy) else self._choose(wall_s, off_peak, busy)
        if chosen is not None:
            self.remove(chosen.job_id)
            self._batch_jobs = self._batch_jobs + 1 if chosen.model == self._batch_model else 1
            self._batch_model = chosen.model
        return chosen

    def position(self, job_id: str) -> int | None:
        """How many jobs are ahead of a waiting one; None where it does not wait."""
        number = self._numbers.get(job_id)
        if number is None:
            return None
        place = _place(self._waiting[number])
        return sum(_place(job) < place for job in self._waiting.values())

    def next_due(self, wall_s: float) -> float | None:
        """The first instant after `wall_s` at which a job may start that may not yet; None where there is none."""
        instants = (job.not_before_wall_s for job in self._waiting.values())
        return min((instant for instant in instants if instant is not None and instant > wall_s), default=None)

    def _choose(self, wall_s: float, off_peak: bool, busy: tuple[WaitingJob, ...]) -> WaitingJob | None:  # noqa: FBT001
        due = [job for job in self._waiting.values() if (job.not_before_wall_s or 0.0) <= wall_s and (off_peak or not job.off_peak)]
        suspects = [job for job in due if job.suspect]
        if suspects:
            return None if busy else min(suspects, key=_place)
        ready = _in_type_order(due, busy)
        if not ready:
            return None
        first = min(ready, key=_place)
        if self._batch_jobs >= BATCH_LIMIT:
            return first
        rank = _place(first)[:2]
        batch = [job for job in ready if job.model == self._batch_model and _place(job)[:2] == rank]
        return min(batch, key=_place, default=first)


def _place(job: WaitingJob) -> tuple[bool, int, int]:
    return (job.lane is Lane.EXTERNAL, int(job.priority), job.number)


def _in_type_order(due: list[WaitingJob], busy: tuple[WaitingJob, ...]) -> list[WaitingJob]:
    """Without the jobs that would pass an older one of their type: it waits, or is on its way with another model."""
    heads: dict[str, WaitingJob] = {}
    for job in due:
        if job.task_type is not None and (job.task_type not in heads or _place(job) < _place(heads[job.task_type])):
            heads[job.task_type] = job
    return [job for job in due if job.task_type is None or (job is heads[job.task_type] and _follows(job, busy))]


def _follows(job: WaitingJob, busy: tuple[WaitingJob, ...]) -> bool:
    """Whether those of its type that are on their way run on its own model: then the GPU's queue keeps their order."""
    return all(other.model == job.model for other in busy if other.task_type == job.task_type)
