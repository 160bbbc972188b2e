"""One attempt at a job: what the model server is asked, and what comes of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial

from hearth.admission.auth import is_local_only
from hearth.config.settings import JobSettings, Settings
from hearth.dialects.errors import render_error
from hearth.dialects.gojson import LARGE_BYTES
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.errors import (
    BackendUnreachable,
    CallerGone,
    CardTaken,
    Draining,
    HearthError,
    NotCapable,
    QueueFull,
    ShuttingDown,
)
from hearth.execution.request import Reply, ReplyHead, Submission, Ticket
from hearth.job_types import EMULATOR_GONE, Job, JobEnd, JobState
from hearth.jobs.queue import item_of
from hearth.queue.worker import LLMQueueWorker
from hearth.types import MIB, RequestId, frozen

RETRY_S = 5.0
"""After a start that was in vain through no fault of the job: the model server is down, other
programs have its memory, or the queue is full.
"""
MAX_BACKOFF_S = 300.0
CANCELLED = JobEnd(state=JobState.CANCELLED, reason=CallerGone.reason)
_NOT_ITS_FAULT = (BackendUnreachable, CardTaken, Draining, QueueFull, ShuttingDown)


@frozen
class Retry:
    """The job waits in the store for another start, at least `retry_s` seconds.

    Not `counted`, this one was as if it had never been.
    """

    reason: str
    counted: bool
    retry_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class JobRun:
    """A job on its way. `suspect`: it starts alone; `cancelled`: its end is on the disk already;
    `withdrawn`: only the emulator may do it, and answers no more.
    """

    job: Job
    suspect: bool = False
    ticket: Ticket | None = None
    cancelled: bool = False
    withdrawn: bool = False

    @property
    def given_up(self) -> JobEnd | Retry | None:
        """What comes of it without an answer, None while it is to be done."""
        if self.cancelled:
            return CANCELLED
        return Retry(reason=EMULATOR_GONE, counted=False, retry_s=0.0) if self.withdrawn else None


async def attempt(
    run: JobRun, job: Job, settings: Settings, worker: LLMQueueWorker
) -> JobEnd | Retry:
    """Have a started job done once; what came of it. Raises nothing but defects."""
    try:
        new = await _submission_of(job, settings, worker)
        if run.given_up is not None:  # there was no item yet that could have been cancelled
            return run.given_up
        run.ticket = worker.submit(new)
        head = await run.ticket.reply.head()
        body = await _whole(run.ticket.reply, int(settings.jobs.max_result_mib * MIB))
    except CallerGone:
        return run.given_up or CANCELLED
    except HearthError as error:
        return _failed(error, job, settings.jobs)
    return _answered(head, body, job, settings.jobs)


async def _submission_of(job: Job, settings: Settings, worker: LLMQueueWorker) -> Submission:
    """The job as the GPU's queue takes it. Raises HearthError where it cannot be done."""
    alias = worker.aliases.named(job.model)
    local_only = is_local_only(settings.auth, job.caller)
    if alias:
        new = await _of_alias(job, alias, worker, local_only=local_only)
    else:
        model = await worker.watch.resolve(job.model, local_only=local_only)
        new = await _on_model(job, model, worker)
        await worker.watch.check_capable(new.needs)
    new.item.local_only = local_only
    return new


async def _on_model(
    job: Job, model: str, worker: LLMQueueWorker, *, renamed: bool = False
) -> Submission:
    """The job on this model, which its body is made to name where it is `renamed`."""
    pinned = worker.watch.load_options(model)
    wire_name = worker.watch.wire_name
    make = partial(item_of, job, model, pinned, renamed=renamed, wire_name=wire_name)
    return await asyncio.to_thread(make) if len(job.request) > LARGE_BYTES else make()


async def _of_alias(
    job: Job, alias: str, worker: LLMQueueWorker, *, local_only: bool
) -> Submission:
    """The job with the models that can do it; an embedding with the first of them alone."""
    models = worker.aliases.models_of(alias)
    new = await _on_model(job, models[0], worker, renamed=True)
    choices = await worker.aliases.choices(alias, models, new.needs, local_only=local_only)
    if new.item.kind == "embed":
        choices = choices[:1]
    on_model = {model: await _on_model(job, model, worker, renamed=True) for model in choices}
    new = on_model[choices[0]]
    new.item.alias = alias
    if new.item.kind != "embed":
        new.item.choices = choices
    return replace(new, call=lambda model: on_model[model].call_on(model))


async def _whole(reply: Reply, limit_bytes: int) -> bytes | None:
    """The whole answer, None where it is longer than the limit.

    Raises HearthError as `Reply.take` does.
    """
    whole = bytearray()
    while chunks := await reply.take():
        whole += b"".join(chunks)
        if len(whole) > limit_bytes:
            return None
    return bytes(whole)


def _answered(head: ReplyHead, body: bytes | None, job: Job, jobs: JobSettings) -> JobEnd | Retry:
    """What an answer makes of a job; `body` is None where that is too long."""
    if body is None:
        return JobEnd(
            state=JobState.FAILED,
            reason="result_too_large",
            error="the answer is longer than an answer of a job may be",
            status=head.status,
        )
    if head.status >= 500 and job.attempts < jobs.max_attempts:
        return Retry(reason="backend_error", counted=True, retry_s=backoff_s(job.attempts))
    failed = head.status >= 400
    content_types = (value for name, value in head.headers if name == b"content-type")
    return JobEnd(
        state=JobState.FAILED if failed else JobState.COMPLETED,
        reason="backend_status" if failed else "",
        error=f"the model server answered {head.status}" if failed else "",
        status=head.status,
        content_type=next(content_types, b"").decode("latin-1"),
        result=body,
    )


def _failed(error: HearthError, job: Job, jobs: JobSettings) -> JobEnd | Retry:
    if isinstance(error, NotCapable):
        return _not_capable(error, job)
    if isinstance(error, _NOT_ITS_FAULT):
        pause_s = 0.0 if isinstance(error, ShuttingDown) else RETRY_S
        return Retry(reason=error.reason, counted=False, retry_s=pause_s)
    if error.retryable and job.attempts < jobs.max_attempts:
        return Retry(reason=error.reason, counted=True, retry_s=backoff_s(job.attempts))
    return JobEnd(state=JobState.FAILED, reason=error.reason, error=error.message)


def _not_capable(error: NotCapable, job: Job) -> JobEnd:
    """It ends as if the model server had been asked."""
    answer = render_error(INFERENCE_ROUTES[job.path].dialect, error, RequestId(job.job_id))
    return JobEnd(
        state=JobState.FAILED,
        reason=error.reason,
        error=error.message,
        status=answer.status,
        content_type=answer.headers[0][1].decode("latin-1"),
        result=answer.body,
    )


def backoff_s(attempts: int) -> float:
    """The pause after so many attempts that failed: 5, 10, 20 ... 300 seconds."""
    return float(min(MAX_BACKOFF_S, RETRY_S * 2.0 ** min(max(0, attempts - 1), 10)))
