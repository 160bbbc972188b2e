"""One start of one job: through the GPU's queue like everybody's work, and what came of it.

Knows nothing of the store. Called by `feeder`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hearth.config.settings import JobSettings, Settings
from hearth.dialects.gojson import LARGE_BYTES
from hearth.errors import BackendUnreachable, CallerGone, Draining, HearthError, QueueFull, ShuttingDown
from hearth.intake import NewItem, Ticket
from hearth.job_types import JobEnd, JobState, StartedJob, WaitingJob
from hearth.jobs.requests import item_of
from hearth.reply import Reply
from hearth.types import MIB

RETRY_S = 5.0
"""After a start that was in vain through no fault of the job: the model server is down, or the queue is full."""
MAX_BACKOFF_S = 300.0
_NOT_ITS_FAULT = (BackendUnreachable, Draining, QueueFull, ShuttingDown)

Submit = Callable[[NewItem], Ticket]
Resolve = Callable[[str], Awaitable[str]]


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A job on its way. `cancelled`: its end is on the disk already."""

    job: WaitingJob
    ticket: Ticket | None = None
    cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The job waits in the store for another start, at least `retry_s` seconds. Not `counted`, this one was as if it had never been."""

    reason: str
    counted: bool
    retry_s: float


async def run_once(run: Run, started: StartedJob, settings: Settings, submit: Submit, resolve: Resolve) -> JobEnd | Again:
    """Have the job done once; what came of it. Raises nothing but defects."""
    try:
        run.ticket = await _in_queue(run, started, settings, submit, resolve)
        head = await run.ticket.reply.head()
        body = await _whole(run.ticket.reply, int(settings.jobs.max_result_mib * MIB))
    except CallerGone:
        return JobEnd(state=JobState.CANCELLED, reason=CallerGone.reason)
    except HearthError as error:
        return _after(error, started, settings.jobs)
    if body is None:
        error_text = "the answer is longer than jobs.max_result_mib allows"
        return JobEnd(state=JobState.FAILED, reason="result_too_large", error=error_text, status=head.status)
    content_type = next((value.decode("latin-1") for name, value in head.headers if name == b"content-type"), "")
    if head.status >= 500 and started.attempt < settings.jobs.max_attempts:
        return Again(reason="backend_error", counted=True, retry_s=backoff_s(started.attempt))
    if head.status >= 400:
        error_text = f"the model server answered {head.status}"
        return JobEnd(
            state=JobState.FAILED,
            reason="backend_status",
            error=error_text,
            status=head.status,
            content_type=content_type,
            result=body,
        )
    return JobEnd(state=JobState.COMPLETED, status=head.status, content_type=content_type, result=body)


async def _in_queue(run: Run, started: StartedJob, settings: Settings, submit: Submit, resolve: Resolve) -> Ticket:
    """Put the job into the GPU's queue. Raises HearthError as `submit` and `resolve`, CallerGone where it was cancelled meanwhile."""
    model = await resolve(run.job.model)
    if len(started.request) > LARGE_BYTES:
        new = await asyncio.to_thread(item_of, run.job, started, model, settings)
    else:
        new = item_of(run.job, started, model, settings)
    if run.cancelled:  # there was no item yet that could have been cancelled
        raise CallerGone
    return submit(new)


def backoff_s(attempts: int) -> float:
    """The pause after so many attempts that failed: 5, 10, 20 ... 300 seconds."""
    return float(min(MAX_BACKOFF_S, RETRY_S * 2.0 ** min(max(0, attempts - 1), 10)))


def _after(error: HearthError, started: StartedJob, jobs: JobSettings) -> JobEnd | Again:
    if isinstance(error, _NOT_ITS_FAULT):
        return Again(reason=error.reason, counted=False, retry_s=0.0 if isinstance(error, ShuttingDown) else RETRY_S)
    if error.retryable and started.attempt < jobs.max_attempts:
        return Again(reason=error.reason, counted=True, retry_s=backoff_s(started.attempt))
    return JobEnd(state=JobState.FAILED, reason=error.reason, error=error.message)


async def _whole(reply: Reply, limit_bytes: int) -> bytes | None:
    """The whole answer, None where it is longer than the limit. Raises HearthError as `Reply.take` does."""
    parts, size = list[bytes](), 0
    while chunks := await reply.take():
        parts.extend(chunks)
        size += sum(map(len, chunks))
        if size > limit_bytes:
            return None
    return b"".join(parts)
