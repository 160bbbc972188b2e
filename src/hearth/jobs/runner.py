"""Feeds the GPU's queue from the store, a few jobs at a time, and records what came of each. Here
is only what is on its way.

A start is on the disk before the job can do any harm; result and end are recorded together.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import Any, TypedDict, TypeVar

from hearth.config.settings import BatchSettings, JobSettings
from hearth.errors import HearthError, StorageUnavailable
from hearth.events import (
    ItemDispatched,
    JobEnded,
    JobQueued,
    JobRequeued,
    JobsRecovered,
    JobStarted,
)
from hearth.execution.tasks import wait_at_most
from hearth.job_types import Job, JobEnd, JobState
from hearth.jobs.attempt import CANCELLED, JobRun, Retry, attempt
from hearth.jobs.queue import BATCH_LIMIT, next_job, rank_of
from hearth.ports import JobStore
from hearth.queue.worker import LLMQueueWorker
from hearth.types import BATCH_JOB_PREFIX, Lane, Sequence

T = TypeVar("T")

ALPHA = 0.3
LOOK_INTERVAL_S = 10.0
"""At least this often, since the wall clock may jump."""
STORE_RETRY_S = 2.0
STOP_S = 2.0
"""For what still waits for the disk at the end; a job whose end could not be written runs again at
the next start.
"""


class BackgroundTasks:
    """Tasks that run to their end, whether anybody waits for them or not."""

    def __init__(self, report_fault: Callable[[str, BaseException], None]) -> None:
        self._report_fault = report_fault
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Shield the task where somebody waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def end(self, within_s: float) -> None:
        """Wait for all of them, and cancel those that take longer."""
        if self._running:
            _, late = await asyncio.wait(tuple(self._running), timeout=within_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HearthError):
            self._report_fault("jobs", error)


DEFECT = JobEnd(
    state=JobState.FAILED,
    reason="internal_error",
    error="something went wrong inside Hearth",
)


class JobFields(TypedDict):
    """What every event of a job says of it."""

    at: float
    job_id: str
    caller: str
    task_type: str | None
    model: str


def fields_of(job: Job, at: float) -> JobFields:
    return {
        "at": at,
        "job_id": job.job_id,
        "caller": job.caller,
        "task_type": job.task_type,
        "model": job.model,
    }


@dataclass(slots=True, kw_only=True, eq=False)
class Cancellation:
    """A job that is being cancelled.

    From `doubtful_since` on, that was reported as failed, and may have been made all the same.
    """

    job: Job
    doubtful_since: float = inf


def is_off_peak(job: Job, batches: BatchSettings) -> bool:
    """Whether it starts outside active hours only: for requests of batches, `batches.window` says
    so at any time anew.
    """
    return batches.window == "offpeak" if job.job_id.startswith(BATCH_JOB_PREFIX) else job.off_peak


class JobRunner:
    """The jobs that are on their way.

    `ended` counts since the start by caller and state; once `stopping`, no more jobs start.
    """

    def __init__(self, store: JobStore, worker: LLMQueueWorker) -> None:
        self._store = store
        self._worker = worker
        self._runtime = worker.runtime
        self._runs: dict[str, JobRun] = {}
        self._suspects: set[int] = set()
        self._accepting: set[str] = set()
        self._cancels: dict[str, Cancellation] = {}
        self._overtaking = 0
        """How many jobs in a row have gone before an older one."""
        self._job_s: float | None = None
        self._wake = asyncio.Event()
        self.tasks = BackgroundTasks(worker.runtime.report_fault)
        self.ended: Counter[tuple[str, str]] = Counter()
        self.stopping = False

    def wake(self) -> None:
        """Something has changed that may let a job start."""
        self._wake.set()

    @contextmanager
    def accepting(self, jobs: Collection[Job]) -> Iterator[None]:
        """For the time of the block, these jobs do not start: the disk may have them, and it is not
        known yet that it does.
        """
        ids = {job.job_id for job in jobs}
        self._accepting |= ids
        try:
            yield
        finally:
            self._accepting -= ids
            self._wake.set()

    def announce(self, job: Job) -> None:
        self._runtime.events.emit(JobQueued(**self._of(job), waiting=self._store.queued))

    def ready(self) -> bool:
        """Whether the gateway and the model server take work now."""
        return self._worker.watch.up and not self._worker.admission.draining and not self.stopping

    def is_paused(self, job: Job) -> bool:
        """Whether it waits for the owner to let external work go on."""
        view = self._runtime.view
        return (job.lane is Lane.EXTERNAL and view.paused) or job.caller in view.paused_callers

    def running(self) -> list[Job]:
        """The jobs in the GPU's queue or on the GPU, the longest there first."""
        return [run.job for run in self._runs.values()]

    def sequence_of(self, job_id: str) -> int | None:
        run = self._runs.get(job_id)
        return None if run is None or run.ticket is None else int(run.ticket.sequence)

    def job_at(self, sequence: Sequence) -> str | None:
        """The id of the job that is on its way with this number in the GPU's queue."""
        for job_id in self._runs:
            if self.sequence_of(job_id) == sequence:
                return job_id
        return None

    def note_dispatch(self, event: ItemDispatched) -> None:
        """An item is sent to the model server: where it is a job, a restart must know that it has
        run.
        """
        run = self._runs.get(event.request_id)
        if run is not None:
            self._store.note_dispatch(run.job.number)
            self._wake.set()  # its model is in memory now, and it is known what fits beside it

    def start_at_once(self, job: Job) -> bool:
        """Have a new job go right on to the GPU's queue, where nothing is ahead of it; False where
        it waits.
        """
        config = self._runtime.config
        wall_s = self._runtime.clock.wall()
        waits = (
            (job.not_before_wall_s or 0.0) > wall_s
            or (job.off_peak and config.is_active_hours(wall_s))
            or self.is_paused(job)
            or self._is_out_of_reach(job)
        )
        if waits or job.position != 0 or self._suspects or not self._may_start():
            return False
        if self._choose([job], []) is None:
            return False
        self._start(job)
        return True

    def start_s(self, job: Job, position: int, earliest_s: float) -> float | None:
        """Seconds until the job at a position starts, not before `earliest_s`; None where nothing
        tells yet.
        """
        is_next = (
            position == 0
            and len(self._runs) < self._settings.max_in_queue
            and self._choose([job], []) is not None
        )
        ahead = 0 if is_next else position + len(self._runs)
        if ahead == 0:
            return max(0.0, earliest_s)
        return None if self._job_s is None else max(earliest_s, ahead * self._job_s)

    async def cancel(self, job: Job) -> bool:
        """End a job that waits or runs; False where it had ended.

        Raises StorageUnavailable: it is tried again, and may be asked again.
        """
        if job.state.is_end and job.job_id not in self._cancels:
            return False
        cancellation = self._cancels.setdefault(job.job_id, Cancellation(job=job))
        asked_wall_s = self._runtime.clock.wall()
        try:
            cancelled = await self._store.cancel(job.job_id, cancellation.doubtful_since)
        except StorageUnavailable:
            # it may be on the disk: who asks again must hear that it was this that ended the job
            cancellation.doubtful_since = min(cancellation.doubtful_since, asked_wall_s)
            raise
        # another cancel, or its run, has learned of its end before
        if self._cancels.pop(job.job_id, None) is not cancellation or not cancelled:
            return False
        self._cancelled(job)
        return True

    async def cancel_doubtful(self, caller: str | None = None) -> int:
        """End the jobs of a caller, or of all, of which a cancel was reported as failed, and may
        have been made; how many that were.
        """
        # Where such a cancel was made after all, the job has ended in the store: who asks that for
        # the jobs that wait or run does not find it.
        doubtful = [
            each.job
            for each in self._cancels.values()
            if each.doubtful_since < inf and caller in {None, each.job.caller}
        ]
        return sum([await self.cancel(job) for job in doubtful])

    def _cancelled(self, job: Job) -> None:
        """It is on the disk that this job is cancelled."""
        run = self._runs.get(job.job_id)
        if run is not None:
            run.cancelled = True
            if run.ticket is not None:
                self._worker.cancel(run.ticket.sequence)
        self._emit_end(job, CANCELLED, job.attempts)

    async def run(self) -> None:
        """Settle what earlier processes left, then feed until cancelled; then wait a little for
        what is still to be written.
        """
        try:
            await self._recover()
            while True:
                self._wake.clear()
                pause_s = await self._feed()
                await wait_at_most(pause_s, self._wake)
        except asyncio.CancelledError:
            self.stopping = True
            await self.tasks.end(STOP_S)
            raise

    async def _recover(self) -> None:
        requeue = self._settings.on_restart == "requeue"
        most = self._settings.max_attempts
        suspects, failed = await self._until_written(
            lambda: self._store.recover(requeue=requeue, max_attempts=most)
        )
        self._suspects |= suspects
        await self.end_emulated()
        requeued = len(self._suspects)
        waiting = self._store.queued - requeued
        at = self._runtime.clock.monotonic()
        for job in failed:
            self._emit_end(job, JobEnd(state=JobState.FAILED, reason=job.reason), job.attempts)
        if waiting or requeued or failed:
            self._runtime.events.emit(
                JobsRecovered(at=at, queued=waiting, requeued=requeued, failed=len(failed))
            )

    def server_replaced(self) -> None:
        """Another server answers: what was accepted for the one before, and has not been sent to
        it, is not sent to this one.
        """
        for run in self._runs.values():
            run.withdrawn = run.job.emulated is not self._runtime.emulated
            if run.withdrawn and run.ticket is not None:
                self._worker.cancel(run.ticket.sequence)
        self.tasks.start(self.end_emulated())
        self._wake.set()

    async def end_emulated(self) -> None:
        """Where a model server answers, end the jobs that wait in the store and that only the
        emulator may do.
        """
        if self._runtime.emulated:
            return
        for job in await self._until_written(self._store.end_emulated):
            self._suspects.discard(job.number)
            self._emit_end(job, JobEnd(state=JobState.FAILED, reason=job.reason), job.attempts)

    async def _feed(self) -> float:
        """Start what may start; seconds until there may be more though nothing happens."""
        try:
            await self.cancel_doubtful()
            while self._may_start():
                job, due_wall_s = await self._next()
                if job is None:
                    due_s = inf if due_wall_s is None else due_wall_s - self._runtime.clock.wall()
                    return min(LOOK_INTERVAL_S, max(due_s, 0.001))
                self._start(job)
        except StorageUnavailable:
            return STORE_RETRY_S
        return LOOK_INTERVAL_S

    def _start(self, job: Job) -> None:
        run = JobRun(job=job, suspect=job.number in self._suspects)
        self._suspects.discard(job.number)
        self._runs[job.job_id] = run
        self.tasks.start(self._perform(run))

    def _may_start(self) -> bool:
        """Whether there is room for a job; what the owner has paused, or an engine that is down
        would do, or what other programs' memory is in the way of, keeps no other from it.

        A suspect runs alone.
        """
        taken = sum(
            not (self.is_paused(run.job) or self._is_out_of_reach(run.job))
            for run in self._runs.values()
        )
        suspect = any(run.suspect for run in self._runs.values())
        return not suspect and taken < self._settings.max_in_queue and self.ready()

    async def _next(self) -> tuple[Job | None, float | None]:
        """The job to start now, if any, and the next instant at which one may start that may not
        yet.
        """
        config = self._runtime.config
        heads, suspects, due_wall_s = await self._store.startable(
            off_peak=not config.is_active_hours(self._runtime.clock.wall()),
            batches_off_peak=config.settings.batches.window == "offpeak",
            paused=self._runtime.view.paused,
            paused_callers=self._runtime.view.paused_callers,
            emulated=self._runtime.emulated,
            running=[job.number for job in self.running()],
            suspects=self._suspects,
        )
        if not self._may_start():  # any more
            return None, None
        heads = list(filter(self._is_ready, heads))
        job = self._choose(heads, list(filter(self._is_ready, suspects)))
        if job is not None:
            overtakes = any(
                rank_of(head) == rank_of(job) and head.number < job.number for head in heads
            )
            self._overtaking = self._overtaking + 1 if overtakes else 0
        return job, due_wall_s

    def _choose(self, heads: list[Job], suspects: list[Job]) -> Job | None:
        running = self.running()
        residents = self._runtime.view.residents.values()
        in_memory = {self._model_of(job) for job in running}
        in_memory |= {resident.model for resident in residents if not resident.is_leaving}
        in_memory |= {job.model for job in heads if self._model_of(job) in in_memory}
        if self._overtaking >= BATCH_LIMIT:
            in_memory = set()
        return next_job(heads, suspects, running, in_memory, self._fits)

    def _fits(self, job: Job) -> bool:
        """Whether the job's model can be in memory beside those of all jobs on their way, none of
        which is still to come.
        """
        view = self._runtime.view
        models = {
            self._model_of(other) for other in self.running() if not self._is_out_of_reach(other)
        }
        if not models <= view.residents.keys():
            return False
        return view.fits_beside(self._model_of(job), models, job.task_type)

    def _is_out_of_reach(self, job: Job) -> bool:
        """No engine answers that could do it, while others do; or other programs have the memory of
        its models.
        """
        watch = self._worker.watch
        asked = self._worker.aliases.models_of(job.model) or (job.model,)
        models = [name for name in map(watch.name_of, asked) if name is not None]
        if not models:
            return not watch.all_listed  # one may have it that has not answered yet
        view = self._runtime.view
        return view.is_barred(models) or all(name.lower() in view.away for name in models)

    def _model_of(self, job: Job) -> str:
        """The model that does a job or is likely to, where it names an alias."""
        return self._worker.aliases.likely(job.model)

    def _is_ready(self, job: Job) -> bool:
        # still: another server may have come since the store was asked
        is_meant = job.emulated is self._runtime.emulated
        return (
            is_meant
            and job.job_id not in self._accepting
            and job.job_id not in self._runs
            and not self.is_paused(job)
            and not self._is_out_of_reach(job)
        )

    async def _perform(self, run: JobRun) -> None:
        try:
            job = await self._store.claim(run.job.number)
            if job is not None and not run.cancelled:
                await self._attempt(run, job)
        except StorageUnavailable as error:  # of the claim: nothing else here raises it
            again = Retry(reason=error.reason, counted=False, retry_s=STORE_RETRY_S)
            await self._put_back(run, again, run.job.attempts)
        finally:
            del self._runs[run.job.job_id]
            self._wake.set()

    async def _attempt(self, run: JobRun, job: Job) -> None:
        began_at = self._runtime.clock.monotonic()
        waited_s = max(0.0, self._runtime.clock.wall() - job.accepted_wall_s)
        self._runtime.events.emit(
            JobStarted(**self._of(job), attempt=job.attempts, waited_s=waited_s)
        )
        try:
            came = await attempt(run, job, self._runtime.settings, self._worker)
        # supervision point: a defect must not leave a job without an end
        except Exception as error:  # noqa: BLE001
            self._runtime.report_fault("job", error)
            came = DEFECT
        finally:
            if run.ticket is not None:
                self._worker.cancel(run.ticket.sequence)
        if run.cancelled:
            return
        if isinstance(came, Retry):
            await self._put_back(run, came, job.attempts)
            return
        if came.state is JobState.COMPLETED:
            self._learn(self._runtime.clock.monotonic() - began_at)
        await self._end(run, came, job.attempts)

    def _learn(self, took_s: float) -> None:
        """What a job takes of the time, of which several run at once."""
        share_s = took_s / max(1, len(self._runs))
        if self._job_s is None:
            self._job_s = share_s
        self._job_s += ALPHA * (share_s - self._job_s)

    async def _end(self, run: JobRun, came: JobEnd, attempts: int) -> None:
        if not await self._until_written(lambda: self._store.finish(run.job.number, came)):
            # It has ended before: as `came`, in a commit that was reported as failed, or it was
            # cancelled.
            found = await self._until_written(lambda: self._store.find(run.job.job_id))
            if not run.cancelled and found is not None and found.state is JobState.CANCELLED:
                came = CANCELLED
        if not run.cancelled:
            self._emit_end(run.job, came, attempts)

    async def _put_back(self, run: JobRun, again: Retry, attempts: int) -> None:
        """Have the job wait again, in the store first: a claim that failed there may have been
        made all the same.
        """
        due = self._runtime.clock.wall() + again.retry_s if again.retry_s > 0 else None
        await self._until_written(
            lambda: self._store.put_back(
                run.job.number, counted=again.counted, not_before_wall_s=due
            )
        )
        if run.job.emulated and not self._runtime.emulated:
            await self.end_emulated()
        elif not run.cancelled and not self.stopping:
            self._runtime.events.emit(
                JobRequeued(
                    **self._of(run.job),
                    attempt=attempts,
                    reason=again.reason,
                    retry_s=again.retry_s,
                )
            )

    @staticmethod
    async def _until_written(write: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await write()
            except StorageUnavailable:
                await asyncio.sleep(STORE_RETRY_S)

    def _emit_end(self, job: Job, end: JobEnd, attempts: int) -> None:
        """The end of a job is recorded.

        Nothing more is emitted of it, whatever comes of those who are cancelling it now.
        """
        self._cancels.pop(job.job_id, None)
        self.ended[job.caller, end.state.value] += 1
        total_s = max(0.0, self._runtime.clock.wall() - job.accepted_wall_s)
        self._runtime.events.emit(
            JobEnded(
                **self._of(job),
                state=end.state.value,
                reason=end.reason,
                attempts=attempts,
                total_s=total_s,
                status=end.status,
            )
        )

    def _of(self, job: Job) -> JobFields:
        return fields_of(job, self._runtime.clock.monotonic())

    @property
    def _settings(self) -> JobSettings:
        return self._runtime.settings.jobs
