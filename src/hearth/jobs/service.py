"""The way in for durable work: a job is accepted once it is on the disk, cancelled once that is, and found by its id. Whose job it is, is
the caller's to check.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hearth.config.settings import Settings
from hearth.errors import BadRequest, ShuttingDown, StorageUnavailable
from hearth.events import BackendCameUp, ConfigReloaded, DrainEnded, GatewayStopping, ItemDispatched, JobQueued, ModeChanged, OrderGiven
from hearth.job_types import Acceptance, JobFilter, JobRecord, JobState, NewJob, StoreLimits, WaitingJob
from hearth.jobs.queue import KeysInUse
from hearth.jobs.runner import Feeder, House, Tasks, is_off_peak, named
from hearth.observability.sinks import HandlingSink
from hearth.ports import JobQueue, JobRecords
from hearth.types import MIB, Lane, Sequence

FORGET_INTERVAL_S = 600.0
STOP_S = 2.0
CANCELLED_TOGETHER = 1000
"""So many jobs are read and ended at a time, where a caller has more."""
_DAY_S = 86_400.0
_MAY_START = (BackendCameUp, ModeChanged, DrainEnded, OrderGiven)
"""What may let a job start that could not before."""


class Jobs(HandlingSink):
    """The desk. Subscribe it to the events of the gateway; have `run` and `forget` run beside it."""

    def __init__(self, *, queue: JobQueue, records: JobRecords, house: House) -> None:
        self.records = records
        self._queue = queue
        self._house = house
        self._feeder = Feeder(queue, records, house)
        self._tasks = Tasks(house.clock, house.events)
        self._keys = KeysInUse()
        self._doubtful: dict[str, JobRecord] = {}
        self._handlers = {
            GatewayStopping: self._on_stopping,
            ConfigReloaded: lambda _: self._feeder.reconfigured(),
            ItemDispatched: self._feeder.note_dispatch,
            **dict.fromkeys(_MAY_START, lambda _: self._feeder.wake()),
        }

    async def accept(self, new: NewJob) -> Acceptance:
        """Take a job; when this returns, it is on the disk. A caller who leaves meanwhile does not stop it.

        Raises:
            BadRequest: it waits for an off-peak time that never comes.
            KeyInUse, KeyReused: see Idempotency-Key in docs/jobs.md.
            QueueFull, ShuttingDown: it was not taken.
            StorageUnavailable: it was not taken; where it has an idempotency key or a job key it may have been, and asking again with
                the same key makes sure.
        """
        if self._feeder.stopping:
            raise ShuttingDown(retry_after_s=self._house.config().settings.server.shutdown_grace_s)
        if new.off_peak and not self.off_peak_comes():
            raise BadRequest("window: it is active hours all day here (scheduling.active_hours), so off-peak never comes")
        with self._keys.use(new.caller, new.idempotency_key):
            return await asyncio.shield(self._tasks.start(self._add(new)))

    async def _add(self, new: NewJob) -> Acceptance:
        accepted = await self._queue.add(new, limits_of(self._house.config().settings, new.lane))
        if accepted.is_new:
            self.take_in(_waiting(new, number=accepted.number, accepted_wall_s=accepted.accepted_wall_s))
        else:
            await self._make_sure_of(accepted.job_id)
        return accepted

    async def _make_sure_of(self, job_id: str) -> None:
        """A job that was asked for before may wait on the disk only: its commit was made and reported as failed."""
        record = await self.records.find(job_id)
        if record is not None and record.state is JobState.QUEUED:
            known = _waiting(record, number=record.number, accepted_wall_s=record.accepted_wall_s, attempts=record.attempts)
            self.take_in_again(known)

    def take_in(self, job: WaitingJob) -> None:
        """A job that is on the disk now waits here."""
        self._feeder.take_in(job)
        self._house.events.emit(JobQueued(at=self._house.clock.monotonic(), **named(job), waiting=len(self._feeder.board)))

    def take_in_again(self, job: WaitingJob) -> None:
        """A job that was on the disk before waits here, whether that was known or not."""
        self._feeder.take_in(job)

    async def cancel(self, record: JobRecord) -> bool:
        """End a job that waits or runs; False where it had ended. Raises StorageUnavailable: ask again."""
        return await asyncio.shield(self._tasks.start(self._cancel(record)))

    async def cancel_by_id(self, job_id: str, *, caller: str | None) -> bool | None:
        """The same by its id. With a `caller`, only one of its own.

        Returns:
            True where it is cancelled now or was before, False where it had ended otherwise, None where there is no such job.
        """
        record = await self.records.find(job_id)
        if record is None or caller not in {None, record.caller}:
            return None
        if await self.cancel(record):
            return True
        record = await self.records.find(job_id)
        return record is not None and record.state is JobState.CANCELLED

    async def _cancel(self, record: JobRecord) -> bool:
        try:
            cancelled = await self.records.cancel(record.job_id) or await self._goes_on_cancelled(record.job_id)
        except StorageUnavailable:
            self._doubtful = {**self._known(), record.job_id: record}
            raise
        self._doubtful.pop(record.job_id, None)
        if cancelled:
            self._feeder.give_up(record)
        return cancelled

    async def cancel_doubtful(self) -> None:
        """End those of which a cancel was reported as failed and may have been made, and that go on. Raises StorageUnavailable."""
        for record in self._known().values():
            await self.cancel(record)

    def _known(self) -> dict[str, JobRecord]:
        return {job_id: record for job_id, record in self._doubtful.items() if self._feeder.knows(job_id)}

    async def _goes_on_cancelled(self, job_id: str) -> bool:
        """It waits or runs here, and is cancelled on the disk: that commit was made and reported as failed."""
        if not self._feeder.knows(job_id):
            return False
        record = await self.records.find(job_id)
        return record is not None and record.state is JobState.CANCELLED and self._feeder.knows(job_id)

    async def cancel_caller(self, caller: str) -> int:
        """End all jobs of a caller that wait or run. How many that were, 0 the next time. Raises StorageUnavailable: ask again."""
        return await asyncio.shield(self._tasks.start(self._cancel_all(caller)))

    async def _cancel_all(self, caller: str) -> int:
        wanted = JobFilter(caller=caller, unended=True, limit=CANCELLED_TOGETHER)
        ended = 0
        while found := await self.records.list_jobs(wanted):
            ended += sum(await asyncio.gather(*map(self.cancel, found)))
            if len(found) < wanted.limit:
                break
        for job_id in self._feeder.jobs_of(caller):  # that the disk does not list
            record = await self.records.find(job_id)
            if record is not None:
                ended += await self.cancel(record)
        return ended

    def position(self, job_id: str) -> int | None:
        """How many jobs of the store are ahead of one that waits there; None for any other."""
        return self._feeder.board.position(job_id)

    def job_at(self, sequence: Sequence) -> str | None:
        """The id of the job that is on its way with this number in the GPU's queue."""
        return self._feeder.job_at(sequence)

    def item_of(self, job_id: str) -> int | None:
        """The sequence number in the GPU's queue of a job that is on its way."""
        return self._feeder.item_of(job_id)

    def estimated_start_s(self, record: JobRecord) -> float | None:
        """Seconds until a waiting job starts; None for any other, and where nothing tells."""
        position = self.position(record.job_id)
        return None if position is None else self.start_s(record, position)

    def start_s(self, job: JobRecord | WaitingJob, ahead: int) -> float | None:
        """The same for a waiting job with so many ahead of it. Nobody can tell when an order is taken back, or the model server returns."""
        if not self._house.ready() or (job.lane is Lane.EXTERNAL and self._house.paused()):
            return None
        config, wall_s = self._house.config(), self._house.clock.wall()
        earliest_s = 0.0 if job.not_before_wall_s is None else job.not_before_wall_s - wall_s
        change = config.next_mode_change(wall_s) if is_off_peak(job, config.settings.batches) and config.is_active_hours(wall_s) else None
        return self._feeder.start_s(ahead, earliest_s if change is None else max(earliest_s, change - wall_s))

    def in_line(self) -> list[WaitingJob]:
        """The jobs that wait in the store, each with as many ahead as `position` says."""
        return self._feeder.board.in_line()

    def under_way(self) -> list[WaitingJob]:
        """The jobs in the GPU's queue or on the GPU."""
        return self._feeder.under_way()

    def ended(self, caller: str | None) -> dict[str, int]:
        """How many jobs of a caller (None: of all) have ended since the start, by state."""
        counts = dict.fromkeys((state.value for state in JobState if state.is_end), 0)
        for (owner, state), number in self._feeder.ended.items():
            counts[state] += number if caller in (None, owner) else 0
        return counts

    def status(self) -> dict[str, object]:
        """For the status page."""
        return {"waiting": len(self._feeder.board), "running": self._feeder.running}

    def _on_stopping(self, _event: GatewayStopping) -> None:
        self._feeder.stopping = True

    async def run(self) -> None:
        """Feed the GPU's queue until cancelled; what is being written then gets a moment."""
        try:
            await self._feeder.run()
        except asyncio.CancelledError:
            await self._tasks.end(STOP_S)
            raise

    async def forget(self) -> None:
        """Delete ended jobs after `jobs.keep_results_days`, a little at a time, until cancelled."""
        while True:
            before = self._house.clock.wall() - self._house.config().settings.jobs.keep_results_days * _DAY_S
            with suppress(StorageUnavailable):
                while await self.records.forget(before):
                    pass
            await asyncio.sleep(FORGET_INTERVAL_S)

    def off_peak_comes(self) -> bool:
        """Whether there are hours that are not active ones."""
        config, wall_s = self._house.config(), self._house.clock.wall()
        return not config.is_active_hours(wall_s) or config.next_mode_change(wall_s) is not None


def limits_of(settings: Settings, lane: Lane) -> StoreLimits:
    """How much the store may keep of a caller in this lane, files included.

    The internal lane may use all; external callers leave `jobs.internal_room_pct` of it free, and each of them has a share. Without keys
    there is one caller only, so nothing is shared.
    """
    jobs = settings.jobs
    max_bytes = jobs.max_stored_mib * MIB
    if lane is Lane.INTERNAL or not settings.auth.keys:
        return StoreLimits(max_queued=jobs.max_queued, max_bytes=int(max_bytes))
    open_part, share = 1.0 - jobs.internal_room_pct / 100, jobs.caller_share_pct / 100
    return StoreLimits(
        max_queued=max(1, int(jobs.max_queued * open_part)),
        max_bytes=int(max_bytes * open_part),
        own_max_queued=max(1, int(jobs.max_queued * share)),
        own_max_bytes=int(max_bytes * share),
    )


def _waiting(job: NewJob | JobRecord, *, number: int, accepted_wall_s: float, attempts: int = 0) -> WaitingJob:
    return WaitingJob(
        number=number,
        job_id=job.job_id,
        caller=job.caller,
        lane=job.lane,
        priority=job.priority,
        task_type=job.task_type,
        model=job.model,
        accepted_wall_s=accepted_wall_s,
        not_before_wall_s=job.not_before_wall_s,
        off_peak=job.off_peak,
        attempts=attempts,
    )
