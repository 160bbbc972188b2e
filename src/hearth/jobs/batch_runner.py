"""One step of one batch that has been validated: its next requests become jobs, what has ended is written, and at last it ends.

Only a few requests of a batch are jobs at one time, so that a long one neither fills the store nor keeps others from their turn. Nothing is
remembered here between two steps.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hearth.clock import new_id
from hearth.errors import QueueFull
from hearth.execution.runtime import Runtime
from hearth.job_types import PART_BYTES, Batch, BatchLine, BatchStatus, EndedLine, Job, JobEnd, JobState, LineOutcome
from hearth.jobs.batch_lines import request_in
from hearth.jobs.service import Jobs, limits_of
from hearth.storage.batches import BatchTable
from hearth.storage.files import FileTable
from hearth.types import BATCH_JOB_PREFIX, MIB

JOBS_AT_ONCE = 64
"""Requests of one batch that are jobs at one time: enough for two runs on one model."""
PORTION_BYTES = 4 * MIB
UNDONE_TOGETHER = 500

_UNDONE: dict[BatchStatus | None, tuple[str, str]] = {
    BatchStatus.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    BatchStatus.CANCELLED: ("batch_cancelled", "This request was not executed: the batch was cancelled."),
}
_CANCELLED_ALONE = ("request_cancelled", "This request was cancelled.")
_LOST = ("result_lost", "This request was executed, and its answer was deleted before it could be written here.")


def outcome_of(ended: EndedLine) -> LineOutcome:
    """What is written about a line whose job has ended."""
    end = ended.end
    if end is None:
        return _without_answer(ended, *_LOST)
    if end.state is JobState.CANCELLED:
        return _without_answer(ended, *_UNDONE.get(ended.ending, _CANCELLED_ALONE))
    body = _document(end)
    if body is None:
        return _without_answer(ended, end.reason or "invalid_response", end.error or "The answer of the model server is not JSON.")
    completed = end.state is JobState.COMPLETED
    usage = body.get("usage") if completed and isinstance(body, dict) else None
    return LineOutcome(
        line=ended.line,
        job=ended.job,
        completed=completed,
        text=_with_answer(ended, end),
        prompt_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        output_tokens=_count(usage, "completion_tokens", "output_tokens"),
    )


def _document(end: JobEnd) -> object | None:
    if not end.result or "json" not in end.content_type:
        return None
    with suppress(ValueError, RecursionError):
        document: object = json.loads(end.result.decode("utf-8"))
        return document
    return None


def _with_answer(ended: EndedLine, end: JobEnd) -> bytes:
    """The answer stands in the line as the model server wrote it; line breaks can only be between its values."""
    answer = b" ".join((end.result or b"").splitlines())
    names = f'{{"id": {json.dumps(ended.job_id)}, "custom_id": {json.dumps(ended.custom_id)}, '
    head = f'"response": {{"status_code": {end.status}, "request_id": {json.dumps(ended.job_id)}, "body": '
    return (names + head).encode() + answer.strip() + b'}, "error": null}\n'


def _without_answer(ended: EndedLine, code: str, message: str) -> LineOutcome:
    error = {"code": code, "message": message}
    text = json.dumps({"id": ended.job_id, "custom_id": ended.custom_id, "response": None, "error": error}) + "\n"
    return LineOutcome(line=ended.line, job=ended.job, completed=False, text=text.encode())


def _count(usage: object, *names: str) -> int:
    """The first of these numbers of tokens that is one."""
    values = [usage.get(name) for name in names] if isinstance(usage, Mapping) else []
    return next((value for value in values if isinstance(value, int) and 0 < value < 1 << 40), 0)


class BatchRunner:
    """Batches in progress, and those that are about to end. `held`: the store had no room for the next request at the last step."""

    def __init__(self, *, files: FileTable, batches: BatchTable, jobs: Jobs, runtime: Runtime) -> None:
        self._files = files
        self._batches = batches
        self._jobs = jobs
        self._runtime = runtime
        self.held = False

    async def step(self, batch: Batch) -> bool:
        """Take a batch further; True where there is more to be done at once. Raises StorageUnavailable: do it again."""
        await self._jobs.runner.cancel_doubtful()  # what is cancelled in the store only would be written as such, and go on
        ended = await self._batches.ended_lines(batch.number)
        if ended:
            outcomes = await asyncio.to_thread(lambda: [outcome_of(each) for each in ended])
            await self._batches.record(batch.number, outcomes)
            return True
        if batch.ending is not None:
            return await self._wind_up(batch, batch.ending)
        if batch.status is BatchStatus.IN_PROGRESS and batch.completed + batch.failed >= batch.total:
            return await self._batches.begin_end(batch.number, BatchStatus.COMPLETED)
        if self._runtime.clock.wall() >= batch.expires_wall_s:
            return await self._batches.begin_end(batch.number, BatchStatus.EXPIRED)
        await self._feed(batch)
        return False

    async def _wind_up(self, batch: Batch, ending: BatchStatus) -> bool:
        """Have what has not ended end as undone; True while there was something."""
        for job_id in await self._batches.unended_jobs(batch.number):
            await self._jobs.cancel_by_id(job_id, caller=None)
        lines = await self._batches.lines_without_job(batch.number, UNDONE_TOGETHER) if batch.output_file is not None else ()
        if lines:
            ended = [_undone(line, ending) for line in lines]
            await self._batches.record(batch.number, [outcome_of(each) for each in ended])
        return bool(lines) or bool(await self._batches.ended_lines(batch.number))

    async def _feed(self, batch: Batch) -> None:
        limits = limits_of(self._runtime.config.settings, batch.lane)
        most = max(1, min(JOBS_AT_ONCE, limits.max_queued // 2))  # the rest is for jobs of others
        lines = _portion(await self._batches.lines_without_job(batch.number, most))
        if not lines:
            return
        text = await self._text(batch, lines)
        new = await asyncio.to_thread(_jobs_of, batch, lines, text)
        try:
            with self._jobs.runner.accepting([job for _, job in new]):
                for job in await self._jobs.store.admit(batch.number, new, limits):
                    self._jobs.runner.announce(job)
        except QueueFull:
            self.held = True

    async def _text(self, batch: Batch, lines: Sequence[BatchLine]) -> bytes:
        """The input file from the first of the lines to the end of the last."""
        first, end = lines[0].start, lines[-1].start + lines[-1].length
        begin = first // PART_BYTES
        place, found = begin - 1, bytearray()
        while len(found) < end - begin * PART_BYTES:
            parts = await self._files.parts(batch.input_file, place)
            if not parts:
                break
            found += b"".join(data for _, data in parts)
            place = parts[-1][0]
        skipped = first % PART_BYTES
        return bytes(found[skipped : skipped + end - first])


def _undone(line: BatchLine, ending: BatchStatus) -> EndedLine:
    """A line that never became a job."""
    job_id, end = new_id(BATCH_JOB_PREFIX), JobEnd(state=JobState.CANCELLED)
    return EndedLine(line=line.line, custom_id=line.custom_id, job=None, job_id=job_id, end=end, ending=ending)


def _portion(lines: Sequence[BatchLine]) -> Sequence[BatchLine]:
    """So many of them, at least one, that their part of the file is not long."""
    kept = [line for line in lines if line.start + line.length - lines[0].start <= PORTION_BYTES]
    return kept or lines[:1]


def _jobs_of(batch: Batch, lines: Sequence[BatchLine], text: bytes) -> list[tuple[int, Job]]:
    """The jobs that lines become, by line; `text` begins with the first of them."""
    first = lines[0].start
    return [
        (
            line.line,
            Job(
                job_id=new_id(BATCH_JOB_PREFIX),
                caller=batch.caller,
                lane=batch.lane,
                priority=batch.priority,
                path=batch.endpoint,
                model=line.model,
                request=request_in(text[line.start - first : line.start - first + line.length], batch.endpoint),
            ),
        )
        for line in lines
    ]
