"""Which job is next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hearth.job_types import WaitingJob
from hearth.jobs.queue import BATCH_LIMIT, Board
from hearth.types import Lane, Priority
from tests.support.cases import for_each

NOW = 1_767_571_200.0


def waiting(number: int, model: str = "a", **changed: Any) -> WaitingJob:
    job = WaitingJob(
        number=number,
        job_id=f"job_{number}",
        caller="test",
        lane=Lane.INTERNAL,
        priority=Priority.BACKGROUND,
        task_type=None,
        model=model,
        accepted_wall_s=NOW,
    )
    return replace(job, **changed)


def board_of(*jobs: WaitingJob) -> Board:
    board = Board()
    for job in jobs:
        board.add(job)
    return board


def order(board: Board, *, now: float = NOW, off_peak: bool = False) -> list[int]:
    """The numbers in which the jobs run, one at a time."""
    taken = []
    while (job := board.take(now, off_peak=off_peak, running=())) is not None:
        taken.append(job.number)
    return taken


EXTERNAL: dict[str, Any] = {"lane": Lane.EXTERNAL}
CRITICAL: dict[str, Any] = {"priority": Priority.CRITICAL}


@for_each(
    ("jobs", "expected"),
    [
        ([waiting(1), waiting(2), waiting(3)], [1, 2, 3]),
        ([waiting(1), waiting(2, **CRITICAL), waiting(3, **CRITICAL)], [2, 3, 1]),
        ([waiting(1, **EXTERNAL), waiting(2)], [2, 1]),
        ([waiting(1, **EXTERNAL, **CRITICAL), waiting(2)], [2, 1]),
        ([waiting(1, **EXTERNAL), waiting(2, **EXTERNAL, **CRITICAL)], [1, 2]),
        ([waiting(1, "a"), waiting(2, "b"), waiting(3, "a"), waiting(4, "b")], [1, 3, 2, 4]),
        ([waiting(1, "a"), waiting(2, "b", **CRITICAL), waiting(3, "a")], [2, 1, 3]),
        ([waiting(1, "a", task_type="t"), waiting(2, "b", task_type="t"), waiting(3, "a", task_type="t")], [1, 2, 3]),
        ([waiting(1), waiting(2, not_before_wall_s=NOW + 1), waiting(3, not_before_wall_s=NOW)], [1, 3]),
        ([waiting(1, off_peak=True), waiting(2)], [2]),
        ([waiting(3), waiting(1), waiting(4, suspect=True), waiting(2)], [4, 1, 2, 3]),
        ([waiting(1), waiting(2, task_type="t"), waiting(3, task_type="t", suspect=True)], [2, 3, 1]),
    ],
)
def test_the_order(jobs, expected):
    assert order(board_of(*jobs)) == expected


def test_off_peak_jobs_run_outside_active_hours():
    assert order(board_of(waiting(1, off_peak=True), waiting(2)), off_peak=True) == [1, 2]


def test_a_batch_does_not_go_on_for_ever():
    board = board_of(waiting(1, "a"), waiting(2, "b"), *(waiting(n, "a") for n in range(3, 3 + 2 * BATCH_LIMIT)))
    assert order(board).index(2) == BATCH_LIMIT


def test_a_suspect_runs_alone():
    board = board_of(waiting(1, suspect=True), waiting(2))
    assert board.take(NOW, off_peak=False, running=[waiting(9)]) is None
    suspect = board.take(NOW, off_peak=False, running=())
    assert suspect is not None
    assert suspect.number == 1
    assert board.take(NOW, off_peak=False, running=[suspect]) is None
    assert order(board) == [2]


def test_a_pause_holds_external_jobs_back_and_nobody_behind_them():
    board = board_of(waiting(1, suspect=True, **EXTERNAL), waiting(2), waiting(3, **EXTERNAL))
    taken = board.take(NOW, off_peak=False, running=(), paused=True)
    assert taken is not None
    assert taken.number == 2
    assert board.take(NOW, off_peak=False, running=(), paused=True) is None
    assert order(board) == [1, 3]


def test_jobs_of_a_type_run_beside_each_other_on_one_model_and_after_each_other_on_several():
    jobs = [waiting(1, "a", task_type="t"), waiting(2, "a", task_type="t"), waiting(3, "b", task_type="t")]
    board = board_of(*jobs[1:])
    second = board.take(NOW, off_peak=False, running=jobs[:1])
    assert second is not None
    assert second.number == 2
    assert board.take(NOW, off_peak=False, running=[second]) is None
    assert order(board) == [3]


def test_positions_count_what_is_ahead():
    board = board_of(waiting(1, **EXTERNAL), waiting(2), waiting(3, **CRITICAL))
    assert [board.position(f"job_{n}") for n in (3, 2, 1, 9)] == [0, 1, 2, None]


def test_the_next_instant_to_look_is_that_of_the_first_job_that_is_not_due():
    assert board_of(waiting(1, not_before_wall_s=NOW - 1), waiting(2)).next_due(NOW) is None
    assert board_of(waiting(1, not_before_wall_s=NOW + 9), waiting(2, not_before_wall_s=NOW + 5)).next_due(NOW) == NOW + 5


def test_a_job_is_taken_once_however_often_it_was_added():
    board = board_of(waiting(1), waiting(1))
    assert order(board) == [1]
    assert board.remove("job_1") is None


def test_a_batch_follows_the_model_that_was_served_last_to_whomever():
    board = board_of(waiting(1, "a"), waiting(2, "b"), waiting(3, "a"), waiting(4, "b"))
    first = board.take(NOW, off_peak=False, running=(), served="b")
    assert first is not None
    assert first.number == 2
    second = board.take(NOW, off_peak=False, running=[first], served="a")  # its own model is served next
    assert second is not None
    assert second.number == 4
