"""The board against its own rules, written down as plainly as they can be: it looks at every job, every time."""

from __future__ import annotations

import random
from dataclasses import replace

from hearth.job_types import WaitingJob
from hearth.jobs.queue import BATCH_LIMIT, Board
from hearth.types import Lane, Priority
from tests.jobs.test_board import NOW, waiting
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

STEPS = 60


class PlainBoard:
    """The same questions, answered by sorting everything."""

    def __init__(self) -> None:
        self.jobs: list[WaitingJob] = []
        self.batch = ("", 0)

    def take(self, wall_s: float, *, off_peak: bool, running: list[WaitingJob], paused: bool) -> WaitingJob | None:
        chosen = self._choose(wall_s, off_peak, running, paused)
        if chosen is not None:
            self.jobs.remove(chosen)
            self.batch = (chosen.model, self.batch[1] + 1 if chosen.model == self.batch[0] else 1)
        return chosen

    def _choose(self, wall_s: float, off_peak: bool, running: list[WaitingJob], paused: bool) -> WaitingJob | None:
        due = [job for job in self.jobs if (job.not_before_wall_s or 0.0) <= wall_s and (off_peak or not job.off_peak)]
        due = sorted((job for job in due if not (paused and job.lane is Lane.EXTERNAL)), key=place)
        suspects = [job for job in due if job.suspect]
        if any(job.suspect for job in running) or (suspects and running):
            return None
        if suspects:
            first = suspects[0]
            return next(job for job in due if job is first or (job.task_type is not None and job.task_type == first.task_type))
        ready = [job for index, job in enumerate(due) if leads(job, due[:index]) and follows(job, running)]
        if not ready:
            return None
        same = [job for job in ready if job.model == self.batch[0] and place(job)[:2] == place(ready[0])[:2]]
        return same[0] if same and self.batch[1] < BATCH_LIMIT else ready[0]

    def position(self, job: WaitingJob) -> int:
        return sum(place(other) < place(job) for other in self.jobs)

    def next_due(self, wall_s: float) -> float | None:
        instants = [job.not_before_wall_s or 0.0 for job in self.jobs]
        return min((instant for instant in instants if instant > wall_s), default=None)


def place(job: WaitingJob) -> tuple[bool, int, int]:
    external = job.lane is Lane.EXTERNAL
    return (external, 0 if external else int(job.priority), job.number)


def leads(job: WaitingJob, earlier: list[WaitingJob]) -> bool:
    return job.task_type is None or all(other.task_type != job.task_type for other in earlier)


def follows(job: WaitingJob, running: list[WaitingJob]) -> bool:
    return job.task_type is None or all(other.task_type != job.task_type or other.model == job.model for other in running)


def some_job(chance: random.Random, number: int) -> WaitingJob:
    return waiting(
        number,
        chance.choice("ab"),
        lane=chance.choice(list(Lane)),
        priority=chance.choice(list(Priority)),
        task_type=chance.choice([None, None, "t", "u"]),
        off_peak=chance.random() < 0.2,
        suspect=chance.random() < 0.1,
        not_before_wall_s=chance.choice([None, None, NOW + chance.randrange(20)]),
    )


@for_each("seed", range(100 * EXAMPLES))
def test_the_board_and_its_rules_agree_on_every_step(seed):
    chance, board, plain = random.Random(seed), Board(), PlainBoard()
    running: list[WaitingJob] = []
    wall_s = NOW
    for number in range(STEPS):
        wall_s += chance.choice([0.0, 1.0, 2.0, -1.5])
        job = some_job(chance, number)
        board.add(job)
        plain.jobs.append(job)
        if plain.jobs and chance.random() < 0.2:
            gone = chance.choice(plain.jobs)
            plain.jobs.remove(gone)
            assert board.remove(gone.job_id) == gone
        off_peak, paused = chance.random() < 0.5, chance.random() < 0.2
        taken = board.take(wall_s, off_peak=off_peak, running=running, paused=paused)
        assert taken == plain.take(wall_s, off_peak=off_peak, running=running, paused=paused)
        running = [*running, taken][-2:] if taken is not None else running[1:]
        if taken is not None and chance.random() < 0.3:
            again = replace(taken, suspect=False)
            board.add(again)
            plain.jobs.append(again)
        assert len(board) == len(plain.jobs)
        assert all(board.position(job.job_id) == plain.position(job) for job in plain.jobs)
        assert board.next_due(wall_s) == plain.next_due(wall_s)
