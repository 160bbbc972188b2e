"""Feeds the GPU's queue from the store, a few jobs at a time, and records what came of each. The one owner of what waits and runs.

A start is on the disk before the job can do any harm; result and end are recorded together. Must never start a job that the store does
not know as started.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypedDict, TypeVar

from hearth.clock import Clock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BatchSettings, JobSettings, Settings
from hearth.dialects.gojson import LARGE_BYTES
from hearth.errors import BackendUnreachable, CallerGone, Draining, HearthError, QueueFull, ShuttingDown, StorageUnavailable
from hearth.events import InternalFault, ItemDispatched, JobEnded, JobRequeued, JobsRecovered, JobStarted
from hearth.execution.request import Reply, Submission, Ticket
from hearth.job_types import JobEnd, JobRecord, JobState, Recovered, StartedJob, WaitingJob
from hearth.jobs.queue import Board, item_of
from hearth.ports import EventSink, JobQueue, JobRecords
from hearth.queue.worker import LLMQueueWorker
from hearth.types import BATCH_JOB_PREFIX, MIB, Lane, Sequence

ALPHA = 0.3


class Forecast:
    """A moving average of the time that the house takes for one job."""

    def __init__(self) -> None:
        self._each_s: float | None = None

    def note(self, ran_s: float, at_once: int) -> None:
        """A job took `ran_s` while `at_once` were on their way, itself included."""
        share_s = ran_s / max(1, at_once)
        self._each_s = share_s if self._each_s is None else self._each_s + ALPHA * (share_s - self._each_s)

    def start_s(self, ahead: int, earliest_s: float) -> float | None:
        """Seconds until a job with so many ahead starts, not before `earliest_s`; None before the first job has run."""
        if ahead == 0:
            return max(0.0, earliest_s)
        return None if self._each_s is None else max(earliest_s, ahead * self._each_s)


T = TypeVar("T")


class Tasks:
    """The tasks of one part."""

    def __init__(self, clock: Clock, events: EventSink) -> None:
        self._clock = clock
        self._events = events
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it to its end, whether anybody waits for it or not; shield the task where somebody does."""
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
            self._events.emit(InternalFault(at=self._clock.monotonic(), where="jobs", detail=type(error).__name__))


RETRY_S = 5.0
"""After a start that was in vain through no fault of the job: the model server is down, or the queue is full."""
MAX_BACKOFF_S = 300.0
_NOT_ITS_FAULT = (BackendUnreachable, Draining, QueueFull, ShuttingDown)

Submit = Callable[[Submission], Ticket]
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


LOOK_INTERVAL_S = 10.0
"""At least this often, since the wall clock may jump."""
STORE_RETRY_S = 2.0
STOP_S = 2.0
"""For what still waits for the disk at the end; a job whose end could not be written runs again at the next start."""


class Named(TypedDict):
    """What every event of a job says of it."""

    job_id: str
    caller: str
    task_type: str | None
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class House:
    """What jobs need of the gateway.

    Attributes:
        ready: whether work can be taken and done now.
        ended: called when a job has ended.
        paused: whether external work waits on the owner's order.
    """

    worker: LLMQueueWorker
    resolve: Resolve
    ready: Callable[[], bool]
    config: Callable[[], GatewayConfig]
    clock: Clock
    events: EventSink
    ended: Callable[[], None]
    paused: Callable[[], bool]


class Feeder:
    """The jobs that wait in the store, and those that are on their way.

    Attributes:
        ended: how many have ended since the start, by caller and state.
    """

    def __init__(self, queue: JobQueue, records: JobRecords, house: House) -> None:
        self._queue = queue
        self._records = records
        self._house = house
        self._tasks = Tasks(house.clock, house.events)
        self._runs: dict[str, Run] = {}
        self._forecast = Forecast()
        self._wake = asyncio.Event()
        self.board = Board()
        self.ended: Counter[tuple[str, str]] = Counter()
        self.stopping = False

    def take_in(self, job: WaitingJob) -> None:
        """A job waits in the store; nothing happens to one that is known."""
        if job.job_id not in self._runs and self.board.position(job.job_id) is None:
            self._put(job)
            self._wake.set()

    def give_up(self, record: JobRecord) -> None:
        """The end of this job is recorded elsewhere: it is cancelled."""
        self.board.remove(record.job_id)
        run = self._runs.get(record.job_id)
        if run is not None:
            run.cancelled = True
            if run.ticket is not None:
                self._house.worker.cancel(run.ticket.sequence)
        self.tell_end(record, JobEnd(state=JobState.CANCELLED, reason="cancelled"), record.attempts)

    def knows(self, job_id: str) -> bool:
        """Whether it waits here or is on its way."""
        run = self._runs.get(job_id)
        return self.board.position(job_id) is not None if run is None else not run.cancelled

    def jobs_of(self, caller: str) -> list[str]:
        """The ids of a caller's jobs that are known here."""
        jobs = (*self.board.in_line(), *self.under_way())
        return [job.job_id for job in jobs if job.caller == caller and self.knows(job.job_id)]

    def wake(self) -> None:
        """Something has changed that may let a job start."""
        self._wake.set()

    def reconfigured(self) -> None:
        """Other settings are in force."""
        batches = self._house.config().settings.batches
        for job in self.board.in_line():
            if job.off_peak is not is_off_peak(job, batches):
                self._put(job)
        self._wake.set()

    def _put(self, job: WaitingJob) -> None:
        """Have a job wait on the board, as the settings say now."""
        off_peak = is_off_peak(job, self._house.config().settings.batches)
        self.board.add(job if job.off_peak is off_peak else replace(job, off_peak=off_peak))

    @property
    def running(self) -> int:
        """Jobs in the GPU's queue, or on the GPU."""
        return len(self._runs)

    def under_way(self) -> list[WaitingJob]:
        """These jobs, the longest there first."""
        return [run.job for run in self._runs.values()]

    def item_of(self, job_id: str) -> int | None:
        """The sequence number in the GPU's queue of a job that is on its way."""
        run = self._runs.get(job_id)
        return None if run is None or run.ticket is None else int(run.ticket.sequence)

    def job_at(self, sequence: Sequence) -> str | None:
        """The id of the job that is on its way with this number."""
        return next((job_id for job_id, run in self._runs.items() if run.ticket is not None and run.ticket.sequence == sequence), None)

    def note_dispatch(self, event: ItemDispatched) -> None:
        """An item is sent to the model server: where it is a job, a restart must know that it has run."""
        run = self._runs.get(event.request_id)
        if run is not None:
            self._queue.note_dispatch(run.job.number)

    def start_s(self, position: int, earliest_s: float) -> float | None:
        """Seconds until the job at a position starts; None where nothing tells."""
        ahead = position + len(self._runs) if position > 0 or len(self._runs) >= self._jobs.max_in_queue else 0
        return self._forecast.start_s(ahead, earliest_s)

    async def run(self) -> None:
        """Settle what earlier processes left, then feed until cancelled; then wait a little for what is still to be written."""
        await self._recover()
        try:
            while True:
                self._wake.clear()
                self._feed()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience_s()):
                        await self._wake.wait()
        except asyncio.CancelledError:
            self.stopping = True
            await self._tasks.end(STOP_S)
            raise

    async def _recover(self) -> None:
        requeue = self._jobs.on_restart == "requeue"
        while True:
            try:
                left = await self._queue.recover(requeue=requeue, max_attempts=self._jobs.max_attempts)
            except StorageUnavailable:
                await asyncio.sleep(STORE_RETRY_S)
            else:
                self._take_over(left)
                return

    def _take_over(self, left: Recovered) -> None:
        for job in left.waiting:
            if job.job_id not in self._runs:
                self._put(job)
        for record in left.failed:
            self.tell_end(record, JobEnd(state=JobState.FAILED, reason=record.reason), record.attempts)
        if left.waiting or left.failed:
            queued, now = len(left.waiting) - left.requeued, self._house.clock.monotonic()
            self._house.events.emit(JobsRecovered(at=now, queued=queued, requeued=left.requeued, failed=len(left.failed)))

    def _feed(self) -> None:
        while not self.stopping and self._has_room() and len(self.board) > 0 and self._house.ready():
            wall_s = self._house.clock.wall()
            off_peak = not self._house.config().is_active_hours(wall_s)
            served = self._house.worker.tracker.loaded_model
            job = self.board.take(wall_s, off_peak=off_peak, running=self.under_way(), paused=self._house.paused(), served=served)
            if job is None:
                return
            run = Run(job=job)
            self._runs[job.job_id] = run
            self._tasks.start(self._perform(run))

    def _has_room(self) -> bool:
        """What the owner has paused keeps no other job from the queue."""
        return sum(not self._is_paused(run.job) for run in self._runs.values()) < self._jobs.max_in_queue

    def _is_paused(self, job: WaitingJob) -> bool:
        return job.lane is Lane.EXTERNAL and self._house.paused()

    def _patience_s(self) -> float:
        wall_s = self._house.clock.wall()
        due = self.board.next_due(wall_s)
        return LOOK_INTERVAL_S if due is None else min(LOOK_INTERVAL_S, max(due - wall_s, 0.001))

    async def _perform(self, run: Run) -> None:
        try:
            await self._attempt(run)
        finally:
            del self._runs[run.job.job_id]
            self._wake.set()

    async def _attempt(self, run: Run) -> None:
        try:
            started = await self._queue.start(run.job.number)
        except StorageUnavailable as error:
            await self._return(run, Again(reason=error.reason, counted=False, retry_s=STORE_RETRY_S), run.job.attempts)
            return
        if started is None:
            await self._tell_what_is_recorded(run, None)
        if started is None or run.cancelled:
            return
        began_at, waited_s = self._house.clock.monotonic(), self._house.clock.wall() - run.job.accepted_wall_s
        self._house.events.emit(JobStarted(at=began_at, **named(run.job), attempt=started.attempt, waited_s=max(0.0, waited_s)))
        try:
            came = await run_once(run, started, self._house.config().settings, self._house.worker.submit, self._house.resolve)
        except Exception as error:  # noqa: BLE001 - supervision point: a defect must not leave a job without an end
            self._house.events.emit(InternalFault(at=self._house.clock.monotonic(), where="job", detail=type(error).__name__))
            came = JobEnd(state=JobState.FAILED, reason="internal_error", error="something went wrong inside Hearth")
        finally:
            if run.ticket is not None:
                self._house.worker.cancel(run.ticket.sequence)
        await self._settle(run, came, started.attempt, began_at)

    async def _settle(self, run: Run, came: JobEnd | Again, attempt: int, began_at: float) -> None:
        if run.cancelled:
            return
        if isinstance(came, Again):
            await self._return(run, came, attempt)
            return
        if came.state is JobState.COMPLETED:
            self._forecast.note(self._house.clock.monotonic() - began_at, len(self._runs))
        if not await self._until_written(lambda: self._queue.end(run.job.number, came)):
            await self._tell_what_is_recorded(run, came, attempt)
        elif not run.cancelled:
            self.tell_end(run.job, came, attempt)

    async def _tell_what_is_recorded(self, run: Run, came: JobEnd | None, attempt: int = 0) -> None:
        """It has ended before: as `came`, in a commit that was reported as failed, or it was cancelled.

        Who has cancelled it says so, but was told that this had failed, if it was.
        """
        await asyncio.sleep(0)  # who was told of that commit in this turn comes first
        record = await self._until_written(lambda: self._records.find(run.job.job_id))
        if run.cancelled:
            return
        if record is not None and record.state is JobState.CANCELLED:
            run.cancelled = True
            self.tell_end(record, JobEnd(state=JobState.CANCELLED, reason="cancelled"), record.attempts)
        elif came is not None:  # of a batch's job, it may be all that is left
            self.tell_end(run.job, came, attempt)

    async def _return(self, run: Run, again: Again, attempt: int) -> None:
        """Have the job wait again, in the store first: a start that failed there may have been noted all the same."""
        due = self._house.clock.wall() + again.retry_s if again.retry_s > 0 else None
        await self._until_written(lambda: self._queue.put_back(run.job.number, counted=again.counted, not_before_wall_s=due))
        if run.cancelled or self.stopping:
            return
        job, attempts = run.job, attempt if again.counted else run.job.attempts
        self._put(replace(job, attempts=attempts, not_before_wall_s=due or job.not_before_wall_s, suspect=False))
        now = self._house.clock.monotonic()
        self._house.events.emit(JobRequeued(at=now, **named(job), attempt=attempt, reason=again.reason, retry_s=again.retry_s))

    @staticmethod
    async def _until_written(write: Callable[[], Awaitable[T]]) -> T:
        """Try until the disk takes it."""
        while True:
            try:
                return await write()
            except StorageUnavailable:
                await asyncio.sleep(STORE_RETRY_S)

    def tell_end(self, job: WaitingJob | JobRecord, end: JobEnd, attempts: int) -> None:
        """Say that the end of a job is recorded."""
        self.ended[job.caller, end.state.value] += 1
        total_s = max(0.0, self._house.clock.wall() - job.accepted_wall_s)
        self._house.events.emit(
            JobEnded(
                at=self._house.clock.monotonic(),
                **named(job),
                state=end.state.value,
                reason=end.reason,
                attempts=attempts,
                total_s=total_s,
                status=end.status,
            )
        )
        self._house.ended()

    @property
    def _jobs(self) -> JobSettings:
        return self._house.config().settings.jobs


def named(job: WaitingJob | JobRecord) -> Named:
    return {"job_id": job.job_id, "caller": job.caller, "task_type": job.task_type, "model": job.model}


def is_off_peak(job: WaitingJob | JobRecord, batches: BatchSettings) -> bool:
    """Whether it starts outside active hours only: for requests of batches, `batches.window` says so at any time anew."""
    return batches.window == "offpeak" if job.job_id.startswith(BATCH_JOB_PREFIX) else job.off_peak
