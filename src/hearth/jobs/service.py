"""The way in for durable work: a job is accepted once it is on the disk, cancelled once that is,
and found by its id. Whose job it is, is the caller's to check.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

from hearth.config.settings import Settings
from hearth.errors import BadRequest, ShuttingDown, StorageUnavailable
from hearth.events import (
    BackendCameUp,
    ConfigReloaded,
    DrainEnded,
    GatewayStopping,
    GpuLeaseEnded,
    ItemDispatched,
    ModeChanged,
    ModeSwitched,
    OrderGiven,
    SwapCompleted,
)
from hearth.events.handling import HandlingSink
from hearth.job_types import Job, JobState, StoreLimits
from hearth.jobs.queue import key_in_use
from hearth.jobs.runner import JobRunner, is_off_peak
from hearth.ports import JobStore
from hearth.queue.worker import LLMQueueWorker
from hearth.types import DAY_S, MIB, JsonDict, Lane

FORGET_INTERVAL_S = 600.0
CANCELLED_TOGETHER = 1000
"""So many jobs are read and ended at a time, where a caller has more."""
_MAY_START = (
    BackendCameUp,
    ModeChanged,
    DrainEnded,
    OrderGiven,
    ConfigReloaded,
    ModeSwitched,
    SwapCompleted,
    GpuLeaseEnded,
)
"""What may let a job start that could not before."""


class Jobs(HandlingSink):
    """Takes, cancels and shows jobs.

    Subscribe it to the events of the gateway; have `runner.run` and `forget` run beside it.
    """

    def __init__(self, *, store: JobStore, worker: LLMQueueWorker) -> None:
        self.store = store
        self.runner = JobRunner(store, worker)
        self._runtime = worker.runtime
        self._keys = set[tuple[str, str]]()
        self._handlers = {
            GatewayStopping: lambda _: setattr(self.runner, "stopping", True),
            ItemDispatched: self.runner.note_dispatch,
            **dict.fromkeys(_MAY_START, lambda _: self.runner.wake()),
        }

    async def accept(self, new: Job) -> Job:
        """Take a job; when this returns, it is on the disk. A caller who leaves meanwhile does not
        stop it.

        Returns the one that it is the same as, where there is one; that has another id. The
        position of a job that goes right on to the GPU's queue is None.

        Raises BadRequest: it would never start; KeyInUse, KeyReused (docs/jobs.md), QueueFull,
        ShuttingDown; and StorageUnavailable: where it has an idempotency key or a job key it may
        have been taken, and asking again with that makes sure.
        """
        if self.runner.stopping:
            raise ShuttingDown(retry_after_s=self._runtime.settings.server.shutdown_grace_s)
        if new.off_peak and not self.off_peak_comes():
            raise BadRequest(
                "window: active hours last all day, so the job would never start",
                remedy="scheduling.active_hours",
            )
        new = replace(new, emulated=self._runtime.emulated)
        with key_in_use(self._keys, new.caller, new.idempotency_key):
            return await asyncio.shield(self.runner.tasks.start(self._add(new)))

    async def _add(self, new: Job) -> Job:
        with self.runner.accepting([new]):
            accepted = await self.store.accept(new, limits_of(self._runtime.settings, new.lane))
            if accepted.job_id != new.job_id:
                return accepted
            self.runner.announce(accepted)
        if accepted.emulated is not self._runtime.emulated:  # another server has come meanwhile
            await self.runner.end_emulated()
            return accepted
        return replace(accepted, position=None) if self.runner.start_at_once(accepted) else accepted

    async def cancel(self, job: Job) -> bool:
        """End a job that waits or runs; False where it had ended.

        Raises StorageUnavailable: ask again.
        """
        return await asyncio.shield(self.runner.tasks.start(self.runner.cancel(job)))

    async def cancel_by_id(self, job_id: str, *, caller: str | None) -> bool | None:
        """By its id, only of one `caller`.

        True where it is or was cancelled, False where it had ended, None where there is none.
        """
        job = await self.store.find(job_id)
        if job is None or caller not in {None, job.caller}:
            return None
        if await self.cancel(job):
            return True
        job = await self.store.find(job_id)
        return job is not None and job.state is JobState.CANCELLED

    async def cancel_caller(self, caller: str) -> int:
        """End all jobs of a caller that wait or run. How many that were, 0 the next time.

        Raises StorageUnavailable: ask again.
        """
        return await asyncio.shield(self.runner.tasks.start(self._cancel_all(caller)))

    async def _cancel_all(self, caller: str) -> int:
        ended = await self.runner.cancel_doubtful(caller)
        while found := await self.store.list_jobs(
            caller=caller, unended=True, limit=CANCELLED_TOGETHER
        ):
            ended += sum(await asyncio.gather(*map(self.cancel, found)))
            if len(found) < CANCELLED_TOGETHER:
                break
        return ended

    def estimated_start_s(self, job: Job) -> float | None:
        """Seconds until a waiting job starts; None for any other, and where nothing tells, as while
        its model server is not there.
        """
        if (
            job.position is None
            or not self.runner.ready()
            or self.runner.is_paused(job)
            or job.emulated is not self._runtime.emulated
        ):
            return None
        config = self._runtime.config
        wall_s = self._runtime.clock.wall()
        earliest_s = 0.0 if job.not_before_wall_s is None else job.not_before_wall_s - wall_s
        change = (
            config.next_mode_change(wall_s)
            if is_off_peak(job, config.settings.batches) and config.is_active_hours(wall_s)
            else None
        )
        return self.runner.start_s(
            job, job.position, earliest_s if change is None else max(earliest_s, change - wall_s)
        )

    def ended(self, caller: str | None) -> dict[str, int]:
        """How many jobs of a caller (None: of all) have ended since the start, by state."""
        counts = dict.fromkeys((state.value for state in JobState if state.is_end), 0)
        for (owner, state), number in self.runner.ended.items():
            counts[state] += number if caller in (None, owner) else 0
        return counts

    def status(self) -> JsonDict:
        """For the status page."""
        return {"waiting": self.store.queued, "running": len(self.runner.running())}

    async def forget(self) -> None:
        """Delete ended jobs after `jobs.keep_results_days`, a little at a time, until cancelled."""
        while True:
            before = (
                self._runtime.clock.wall() - self._runtime.settings.jobs.keep_results_days * DAY_S
            )
            with suppress(StorageUnavailable):
                while await self.store.forget(before):
                    pass
            await asyncio.sleep(FORGET_INTERVAL_S)

    def off_peak_comes(self) -> bool:
        """Whether there are hours that are not active ones."""
        config = self._runtime.config
        wall_s = self._runtime.clock.wall()
        return not config.is_active_hours(wall_s) or config.next_mode_change(wall_s) is not None


def limits_of(settings: Settings, lane: Lane) -> StoreLimits:
    """How much the store may keep of a caller in this lane, files included; without keys there is
    one caller only, so nothing is shared.
    """
    jobs = settings.jobs
    max_bytes = jobs.max_stored_mib * MIB
    if lane is Lane.INTERNAL or not settings.auth.keys:
        return StoreLimits(max_queued=jobs.max_queued, max_bytes=int(max_bytes))
    open_part = 1.0 - jobs.internal_room_pct / 100
    share = jobs.caller_share_pct / 100
    return StoreLimits(
        max_queued=max(1, int(jobs.max_queued * open_part)),
        max_bytes=int(max_bytes * open_part),
        own_max_queued=max(1, int(jobs.max_queued * share)),
        own_max_bytes=int(max_bytes * share),
    )
