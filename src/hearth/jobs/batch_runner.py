"""One step of one batch that has been validated: its next requests become jobs, what has ended is written, and at last it ends.

Only a few requests of a batch are jobs at one time, so that a long one neither fills the store nor memory, nor keeps others from their
turn. Nothing is remembered here between two steps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from hearth.clock import new_id
from hearth.errors import QueueFull
from hearth.job_types import (
    PART_BYTES,
    Admission,
    BatchLine,
    BatchRecord,
    BatchStatus,
    EndedLine,
    JobEnd,
    JobState,
    LineOutcome,
    NewJob,
    Tokens,
)
from hearth.jobs.batch_lines import BatchLines, BatchProgress, FileRecords, request_in
from hearth.jobs.runner import House
from hearth.jobs.service import Jobs, limits_of
from hearth.types import BATCH_JOB_PREFIX, MIB

_UNDONE: Mapping[BatchStatus, tuple[str, str]] = MappingProxyType(
    {
        BatchStatus.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
        BatchStatus.CANCELLED: ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    }
)
_CANCELLED_ALONE = ("request_cancelled", "This request was cancelled.")
_LOST = ("result_lost", "This request was executed, and its answer was deleted before it could be written here.")


def outcome_of(ended: EndedLine) -> LineOutcome:
    """What is written about a line whose job has ended."""
    end = ended.end
    if end is None:
        return _without_answer(ended.line, ended.job, ended.job_id, ended.custom_id, _LOST)
    if end.state is JobState.CANCELLED:
        undone = _CANCELLED_ALONE if ended.ending is None else _UNDONE.get(ended.ending, _CANCELLED_ALONE)
        return _without_answer(ended.line, ended.job, ended.job_id, ended.custom_id, undone)
    body = _document(end)
    if body is None:
        why = (end.reason or "invalid_response", end.error or "The answer of the model server is not JSON.")
        return _without_answer(ended.line, ended.job, ended.job_id, ended.custom_id, why)
    completed = end.state is JobState.COMPLETED
    tokens = _tokens(body) if completed else Tokens()
    return LineOutcome(line=ended.line, job=ended.job, completed=completed, text=_with_answer(ended, end), tokens=tokens)


def undone(line: BatchLine, ending: BatchStatus, request_id: str) -> LineOutcome:
    """What is written about a line that never became a job, because its batch ends as `ending`."""
    return _without_answer(line.line, None, request_id, line.custom_id, _UNDONE[ending])


def _document(end: JobEnd) -> object | None:
    if not end.result or "json" not in end.content_type:
        return None
    try:
        document: object = json.loads(end.result.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return document


def _with_answer(ended: EndedLine, end: JobEnd) -> bytes:
    """The answer stands in the line as the model server wrote it; line breaks can only be between its values."""
    answer = b" ".join((end.result or b"").splitlines())
    names = f'{{"id": {json.dumps(ended.job_id)}, "custom_id": {json.dumps(ended.custom_id)}, '
    head = f'"response": {{"status_code": {end.status}, "request_id": {json.dumps(ended.job_id)}, "body": '
    return (names + head).encode() + answer.strip() + b'}, "error": null}\n'


def _without_answer(line: int, job: int | None, request_id: str, custom_id: str, why: tuple[str, str]) -> LineOutcome:
    error = {"code": why[0], "message": why[1]}
    text = json.dumps({"id": request_id, "custom_id": custom_id, "response": None, "error": error}) + "\n"
    return LineOutcome(line=line, job=job, completed=False, text=text.encode())


def _tokens(body: object) -> Tokens:
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, dict):
        return Tokens()
    return Tokens(
        prompt=_count(usage, "prompt_tokens") or _count(usage, "input_tokens"),
        output=_count(usage, "completion_tokens") or _count(usage, "output_tokens"),
    )


def _count(usage: Mapping[str, object], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) and 0 <= value < 1 << 40 else 0


JOBS_AT_ONCE = 64
"""Requests of one batch that are jobs at one time: enough for two runs on one model."""
PORTION_BYTES = 4 * MIB
UNDONE_TOGETHER = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """The store as batches see it."""

    files: FileRecords
    progress: BatchProgress
    lines: BatchLines


class Runner:
    """Batches in progress, and those that are about to end. `held`: the store had no room for the next request at the last step."""

    def __init__(self, shelf: Shelf, jobs: Jobs, house: House) -> None:
        self._shelf = shelf
        self._jobs = jobs
        self._house = house
        self._fed: set[int] = set()
        self.held = False

    async def step(self, batch: BatchRecord) -> bool:
        """Take a batch further; True where there is more to be done at once. Raises StorageUnavailable: do it again."""
        await self._jobs.cancel_doubtful()  # what is cancelled in the store only would be written as such, and go on
        if await self._collect(batch):
            return True
        if batch.ending is not None:
            return await self._wind_up(batch, batch.ending)
        if batch.status is BatchStatus.IN_PROGRESS and batch.completed + batch.failed >= batch.total:
            return await self._shelf.progress.begin_end(batch.number, BatchStatus.COMPLETED)
        if self._house.clock.wall() >= batch.expires_wall_s:
            return await self._shelf.progress.begin_end(batch.number, BatchStatus.EXPIRED)
        await self._feed(batch)
        return False

    def forget(self, open_numbers: set[int]) -> None:
        """Only these are open."""
        self._fed &= open_numbers

    def doubt(self) -> None:
        """What was written last may or may not be there: the jobs of all batches are looked for in the store."""
        self._fed.clear()

    async def _collect(self, batch: BatchRecord) -> bool:
        """Write what came of requests that have ended; False where there were none."""
        ended = await self._shelf.lines.ended(batch.number)
        if not ended:
            return False
        outcomes = await asyncio.to_thread(lambda: [outcome_of(each) for each in ended])
        await self._shelf.lines.record(batch.number, outcomes)
        return True

    async def _wind_up(self, batch: BatchRecord, ending: BatchStatus) -> bool:
        """Have what has not ended end as undone; True while there was something."""
        for job, _ in await self._shelf.lines.running(batch.number):
            record = await self._jobs.records.find(job.job_id)
            if record is not None:
                await self._jobs.cancel(record)
        lines = await self._shelf.lines.waiting(batch.number, UNDONE_TOGETHER) if batch.output_file is not None else ()
        if lines:
            outcomes = [undone(line, ending, new_id(BATCH_JOB_PREFIX)) for line in lines]
            await self._shelf.lines.record(batch.number, outcomes)
        return bool(lines) or bool(await self._shelf.lines.ended(batch.number))

    async def _feed(self, batch: BatchRecord) -> None:
        await self._take_in_again(batch)
        limits = limits_of(self._house.config().settings, batch.lane)
        most = max(1, min(JOBS_AT_ONCE, limits.max_queued // 2))  # the rest is for jobs of others
        lines = _portion(await self._shelf.lines.waiting(batch.number, most))
        if not lines:
            return
        text = await self._text(batch, lines)
        admissions = await asyncio.to_thread(self._admissions, batch, lines, text)
        try:
            taken = await self._shelf.lines.admit(batch.number, admissions, limits)
        except QueueFull:
            self.held = True
            return
        for job in taken:
            self._jobs.take_in(job)

    async def _take_in_again(self, batch: BatchRecord) -> None:
        """Once after the start, and after every doubt: a job that is on the disk and nowhere else would wait for ever."""
        if batch.number in self._fed:
            return
        for job, on_its_way in await self._shelf.lines.running(batch.number):
            if not on_its_way:
                self._jobs.take_in_again(job)
        self._fed.add(batch.number)

    async def _text(self, batch: BatchRecord, lines: Sequence[BatchLine]) -> bytes:
        """The input file from the first of the lines to the end of the last."""
        first, end = lines[0].start, lines[-1].start + lines[-1].length
        place, found, size = first // PART_BYTES - 1, list[bytes](), 0
        while size < end - (first // PART_BYTES) * PART_BYTES:
            parts = await self._shelf.files.parts(batch.input_file, place)
            if not parts:
                break
            found += [data for _, data in parts]
            size += sum(len(data) for _, data in parts)
            place = parts[-1][0]
        skipped = first % PART_BYTES
        return b"".join(found)[skipped : skipped + end - first]

    def _admissions(self, batch: BatchRecord, lines: Sequence[BatchLine], text: bytes) -> list[Admission]:
        first = lines[0].start
        return [
            Admission(
                line=line.line,
                job=NewJob(
                    job_id=new_id(BATCH_JOB_PREFIX),
                    caller=batch.caller,
                    lane=batch.lane,
                    priority=batch.priority,
                    task_type=None,
                    job_key=None,
                    path=batch.endpoint,
                    model=line.model,
                    request=request_in(text[line.start - first : line.start - first + line.length], batch.endpoint),
                ),
            )
            for line in lines
        ]


def _portion(lines: Sequence[BatchLine]) -> Sequence[BatchLine]:
    """So many of them, at least one, that their part of the file is not long."""
    kept = [line for line in lines if line.start + line.length - lines[0].start <= PORTION_BYTES]
    return kept or lines[:1]
