"""The requests of batches: which are still to be done, the jobs that they become, and what is written about each of them once.

Implements `BatchLines` of `batches.ports`. A line becomes a job in one transaction, and its outcome is written, counted and taken off the
jobs in one: wherever the process dies, each line is either still to be done or written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from hearth.batch_types import Admission, BatchLine, BatchStatus, EndedLine, LineOutcome
from hearth.clock import Clock
from hearth.errors import QueueFull
from hearth.job_types import JobEnd, JobState, StoreLimits, WaitingJob
from hearth.storage.files import require_room
from hearth.storage.job_rows import WAITING_COLUMNS, insert, waiting_of
from hearth.storage.job_totals import totals
from hearth.storage.reader import Reader
from hearth.storage.writer import Writer

READ_BYTES = 4 << 20
"""Results are read about so many bytes at a time."""

_COUNT = "SELECT COUNT(*) FROM batch_lines WHERE batch = ? AND job IS NOT NULL"
_LINES = "SELECT line, custom_id, model, start, length FROM batch_lines WHERE batch = ? AND job IS NULL ORDER BY line LIMIT ?"
_CAN_START = (
    "SELECT 1 FROM batch_lines l JOIN batches b ON b.number = l.batch "
    "WHERE l.batch = ? AND l.line = ? AND l.job IS NULL AND b.status = 'in_progress'"
)
_STARTS = "UPDATE batch_lines SET job = ? WHERE batch = ? AND line = ?"
_ENDED = (
    "SELECT l.line, l.custom_id, l.job, j.id, b.ending, j.state, j.reason, j.error, j.status, j.content_type, j.result "
    "FROM batch_lines l JOIN batches b ON b.number = l.batch LEFT JOIN jobs j ON j.number = l.job "
    "WHERE l.batch = ? AND l.job IS NOT NULL AND (j.number IS NULL OR j.ended_wall_s IS NOT NULL) ORDER BY l.line"
)
_RUNNING = (
    f"SELECT {WAITING_COLUMNS}, state FROM jobs WHERE ended_wall_s IS NULL AND number IN "  # noqa: S608 - our names
    "(SELECT job FROM batch_lines WHERE batch = ? AND job IS NOT NULL) ORDER BY number"
)
_TAKE_OFF = "DELETE FROM batch_lines WHERE batch = ? AND line = ? AND job IS ?"
_FORGET_JOB = "DELETE FROM jobs WHERE number = ? AND ended_wall_s IS NOT NULL"
_FILES = "SELECT output_file, error_file FROM batches WHERE number = ?"
_WRITE = "INSERT INTO file_parts (file, place, data) VALUES (?, ?, ?)"
_GROW = "UPDATE files SET bytes = bytes + ? WHERE number = ?"
_TALLY = (
    "UPDATE batches SET completed = completed + ?, failed = failed + ?, prompt_tokens = prompt_tokens + ?, "
    "output_tokens = output_tokens + ? WHERE number = ?"
)


class BatchLineTable:
    """Lines by batch and line number. Every method raises StorageUnavailable where the disk is at fault."""

    def __init__(self, *, writer: Writer, reader: Reader, clock: Clock) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock

    async def waiting(self, batch: int, most: int) -> tuple[BatchLine, ...]:
        """The next lines without a job: so many that `most` have one."""
        return await self._reader.read(partial(_next_lines, batch, most))

    async def admit(self, batch: int, admissions: Sequence[Admission], limits: StoreLimits) -> tuple[WaitingJob, ...]:
        """Make jobs of the first lines, as many as may wait; of those that have one, or of a batch that is about to end, none is made.

        Raises:
            QueueFull: as many jobs wait as `limits` allow, or with these as much is kept; then none is made at all.
        """
        return await self._writer.submit(partial(_admit, batch, admissions, limits, self._clock.wall()))

    async def running(self, batch: int) -> tuple[tuple[WaitingJob, bool], ...]:
        """The jobs of a batch that have not ended, and of each whether it is on its way."""
        return await self._reader.read(partial(_running, batch))

    async def ended(self, batch: int) -> tuple[EndedLine, ...]:
        """Lines whose jobs have ended, about `READ_BYTES` of results at a time."""
        return await self._reader.read(partial(_ended, batch))

    async def record(self, batch: int, outcomes: Sequence[LineOutcome]) -> None:
        """Write and count what came of lines, and forget their jobs; what was written before is not written again."""
        await self._writer.submit(partial(_record, batch, outcomes))


def _next_lines(batch: int, most: int, connection: sqlite3.Connection) -> tuple[BatchLine, ...]:
    room = most - connection.execute(_COUNT, (batch,)).fetchone()[0]
    if room <= 0:
        return ()
    return tuple(BatchLine(**dict(row)) for row in connection.execute(_LINES, (batch, room)))


def _admit(
    batch: int, admissions: Sequence[Admission], limits: StoreLimits, now: float, connection: sqlite3.Connection
) -> tuple[WaitingJob, ...]:
    if not admissions:
        return ()
    caller = admissions[0].job.caller
    first = admissions[: max(0, limits.max_queued - totals(connection, caller).queued)]
    if not first:
        raise QueueFull("the store holds as many jobs as jobs.max_queued allows")
    size = sum(len(each.job.request) for each in first)  # its caller's share is counted when the file is uploaded, not again here
    require_room(connection, caller, size, limits.max_bytes, None)
    return tuple(job for each in first if (job := _admit_one(batch, each, now, connection)) is not None)


def _admit_one(batch: int, admission: Admission, now: float, connection: sqlite3.Connection) -> WaitingJob | None:
    if connection.execute(_CAN_START, (batch, admission.line)).fetchone() is None:
        return None
    job = insert(connection, admission.job, now)
    connection.execute(_STARTS, (job.number, batch, admission.line))
    return job


def _running(batch: int, connection: sqlite3.Connection) -> tuple[tuple[WaitingJob, bool], ...]:
    found = list[tuple[WaitingJob, bool]]()
    for row in map(dict, connection.execute(_RUNNING, (batch,))):
        on_its_way = row.pop("state") == JobState.RUNNING.value
        found.append((waiting_of(row, suspect=False), on_its_way))
    return tuple(found)


def _ended(batch: int, connection: sqlite3.Connection) -> tuple[EndedLine, ...]:
    found, size = list[EndedLine](), 0
    for line, custom_id, job, job_id, ending, *rest in connection.execute(_ENDED, (batch,)):
        ends_as = None if ending is None else BatchStatus(ending)
        found.append(EndedLine(line=line, custom_id=custom_id, job=job, job_id=job_id or "", end=_end_of(*rest), ending=ends_as))
        size += len(rest[-1] or b"")
        if size >= READ_BYTES:
            break
    return tuple(found)


def _end_of(state: str | None, reason: str, error: str, status: int | None, content_type: str, result: bytes | None) -> JobEnd | None:
    if state is None:
        return None
    return JobEnd(state=JobState(state), reason=reason, error=error, status=status, content_type=content_type, result=result)


def _record(batch: int, outcomes: Sequence[LineOutcome], connection: sqlite3.Connection) -> None:
    taken = [each for each in outcomes if connection.execute(_TAKE_OFF, (batch, each.line, each.job)).rowcount]
    output, error = connection.execute(_FILES, (batch,)).fetchone()
    for file, completed in ((output, True), (error, False)):
        texts = [(file, each.line, each.text) for each in taken if each.completed is completed]
        connection.executemany(_WRITE, texts)
        connection.execute(_GROW, (sum(len(text) for *_, text in texts), file))
    connection.executemany(_FORGET_JOB, [(each.job,) for each in taken if each.job is not None])
    done = sum(each.completed for each in taken)
    prompt, written = sum(each.tokens.prompt for each in taken), sum(each.tokens.output for each in taken)
    connection.execute(_TALLY, (done, len(taken) - done, prompt, written, batch))
