"""The way in for batches: accepted once they are on the disk, cancelled once that is, and taken
further in the background by one task.

Where each of them is, only the store knows. Whose batch it is, is the caller's to check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from hearth.errors import BadRequest, QueueFull, ShuttingDown, StorageUnavailable
from hearth.events import BatchEnded, BatchStarted, JobEnded
from hearth.events.handling import HandlingSink
from hearth.execution.tasks import wait_at_most
from hearth.job_types import PART_BYTES, Batch, BatchEnd, BatchLine, EndedLine
from hearth.jobs.batch_lines import Check, jobs_of, outcome_of, portion, without_job
from hearth.jobs.queue import key_in_use
from hearth.jobs.runner import LOOK_INTERVAL_S, STORE_RETRY_S
from hearth.jobs.service import FORGET_INTERVAL_S, Jobs, limits_of
from hearth.ports import BatchStore, FileStore
from hearth.queue.worker import LLMQueueWorker
from hearth.types import BATCH_JOB_PREFIX, DAY_S, JsonDict, Lane

GATHER_S = 0.2
"""Requests that end within this time are written together."""
JOBS_AT_ONCE = 64
"""Requests of one batch that are jobs at one time, so that a long one neither fills the store nor
keeps others from their turn: enough for two runs on one model.
"""
UNDONE_TOGETHER = 500
WRITE_BYTES = 16 * PART_BYTES
"""So much of a file is written at a time."""


class Batches(HandlingSink):
    """Takes, cancels and runs batches; `files` and `store` are for those who only look or
    upload.
    """

    def __init__(
        self, *, files: FileStore, store: BatchStore, jobs: Jobs, worker: LLMQueueWorker
    ) -> None:
        self.files = files
        self.store = store
        self._jobs = jobs
        self._worker = worker
        self._runtime = worker.runtime
        self._held = False  # the store had no room for the next request at the last step
        self._keys = set[tuple[str, str]]()
        self._checks: dict[int, Check] = {}
        self._open: tuple[Batch, ...] = ()
        self._wake = asyncio.Event()
        self._deleted = asyncio.Event()
        self._given_up: set[int] = set()
        self._handlers = {
            JobEnded: lambda event: (
                self._wake.set() if event.job_id.startswith(BATCH_JOB_PREFIX) else None
            )
        }

    async def create(self, new: Batch) -> Batch:
        """Take a batch, on the disk on return, or the one of its idempotency key.

        Raises as `Jobs.accept`, and NotFound: no such file.
        """
        settings = self._runtime.settings
        if self._jobs.runner.stopping:
            raise ShuttingDown(retry_after_s=settings.server.shutdown_grace_s)
        if settings.batches.window == "offpeak" and not self._jobs.off_peak_comes():
            raise BadRequest(
                "batches run outside active hours, which last all day, so it would never start",
                remedy="batches.window, scheduling.active_hours",
            )
        new = replace(new, emulated=self._runtime.emulated)
        with key_in_use(self._keys, new.caller, new.idempotency_key):
            shared = new.lane is Lane.EXTERNAL and settings.auth.keys
            own = (
                max(1, int(settings.batches.max_open * settings.jobs.caller_share_pct / 100))
                if shared
                else None
            )
            accepted = await self.store.accept(new, settings.batches.max_open, own)
        self._wake.set()
        return accepted

    async def create_from(self, new: Batch, content: bytes) -> Batch:
        """As `create`, with an input file of its own, which nobody else sees.

        Raises as `create`, and QueueFull where the store has no room for the file.
        """
        limits = limits_of(self._runtime.settings, new.lane)
        number = await self.files.begin(new.caller)
        try:
            for start in range(0, len(content), WRITE_BYTES):
                piece = content[start : start + WRITE_BYTES]
                place = start // PART_BYTES
                await self.files.append(
                    number, place, piece, limits.max_bytes, limits.own_max_bytes
                )
            return await self.create(replace(new, input_file=number))
        finally:
            self.give_up(number)  # where the batch was not taken

    async def remove(self, number: int) -> bool:
        """Delete a batch that has ended, with its files; False where there is none.

        Raises StorageUnavailable.
        """
        removed = await self.store.remove(number)
        self._deleted.set()
        return removed

    async def cancel(self, batch_id: str) -> bool:
        """Have a batch end as cancelled; False where it has ended, or is about to.

        Raises StorageUnavailable: ask again.
        """
        cancelled = await self.store.cancel(batch_id)
        self._wake.set()
        return cancelled

    async def cancel_caller(self, caller: str) -> int:
        """The same for all of a caller's; how many that were. Raises StorageUnavailable."""
        return sum([await self.cancel(batch_id) for batch_id in await self.store.open_of(caller)])

    async def delete_file(self, number: int) -> None:
        """Raises BadRequest while a batch reads it, StorageUnavailable."""
        await self.files.remove(number)
        self._deleted.set()

    def give_up(self, number: int) -> None:
        """Forget a file whose upload has come to nothing, some time soon."""
        self._given_up.add(number)
        self._deleted.set()

    def status(self) -> JsonDict:
        """For the status page; `held`: the store had no room for the next request."""
        left = sum(batch.total - batch.completed - batch.failed for batch in self._open)
        return {"open": len(self._open), "requests_left": left, "held": self._held}

    async def run(self) -> None:
        """Take all batches further until cancelled."""
        while True:
            self._wake.clear()
            try:
                again = await self._round()
            except StorageUnavailable:
                self._checks.clear()
                await asyncio.sleep(STORE_RETRY_S)
                continue
            if not again:
                await wait_at_most(self._patience_s(), self._wake)
                await asyncio.sleep(GATHER_S)

    async def _round(self) -> bool:
        """A step of every open batch; True where there is more to be done at once."""
        now_open = {batch.number: batch for batch in await self.store.open_batches()}
        progress = [
            (before, now_open.get(before.number) or await self.store.find(before.batch_id))
            for before in self._open
        ]
        self._open = tuple(now_open.values())
        for before, now in progress:
            self._report_progress(before, now)
        self._held = False
        self._checks = {
            number: check for number, check in self._checks.items() if number in now_open
        }
        steps = [
            await self._guarded(batch) for batch in self._open if not self._jobs.runner.stopping
        ]
        return any(steps)

    async def _guarded(self, batch: Batch) -> bool:
        try:
            return await self._step(batch)
        except StorageUnavailable:
            raise
        # supervision point: a defect in one batch must not hold up the others
        except Exception as error:  # noqa: BLE001
            self._checks.pop(batch.number, None)  # what it has seen was not noted
            self._runtime.report_fault("batch", error)
            return False

    async def _step(self, batch: Batch) -> bool:
        is_late = self._runtime.clock.wall() >= batch.expires_wall_s
        # each request of a batch of messages has a result, also where none has time to run
        if batch.status == "validating" and (batch.of_messages or not is_late):
            if self._runtime.emulated and not batch.emulated:  # which has other models
                return False
            await self._validate(batch)
            return True
        if await self._advance(batch):
            return True
        if batch.ending is not None:
            await self.store.finish(batch.number)
        return batch.ending is not None

    async def _advance(self, batch: Batch) -> bool:
        """Take a batch further; True where there is more to be done at once.

        Raises StorageUnavailable: do it again.
        """
        # what is cancelled in the store only would be written as such, and go on
        await self._jobs.runner.cancel_doubtful()
        ended = await self.store.ended_lines(batch.number)
        if ended:
            await self._record(batch, ended)
            return True
        if batch.ending is not None:
            return await self._wind_up(batch, batch.ending)
        if batch.status == "in_progress" and batch.completed + batch.failed >= batch.total:
            return await self.store.begin_end(batch.number, "completed")
        if self._runtime.clock.wall() >= batch.expires_wall_s:
            return await self.store.begin_end(batch.number, "expired")
        return await self._feed(batch)

    async def _record(self, batch: Batch, ended: Sequence[EndedLine]) -> None:
        of_messages = batch.of_messages
        outcomes = await asyncio.to_thread(
            lambda: [outcome_of(each, of_messages=of_messages) for each in ended]
        )
        await self.store.record(batch.number, outcomes)

    async def _wind_up(self, batch: Batch, ending: BatchEnd) -> bool:
        """Have what has not ended end as undone; True while there was something."""
        for job_id in await self.store.unended_jobs(batch.number):
            await self._jobs.cancel_by_id(job_id, caller=None)
        lines = (
            await self.store.lines_without_job(batch.number, UNDONE_TOGETHER)
            if batch.output_file is not None
            else ()
        )
        if lines:
            await self._record(batch, [without_job(line, ending) for line in lines])
        return bool(lines) or bool(await self.store.ended_lines(batch.number))

    async def _feed(self, batch: Batch) -> bool:
        """Make jobs of its next lines; True where lines with problems were ended instead."""
        limits = limits_of(self._runtime.settings, batch.lane)
        most = max(1, min(JOBS_AT_ONCE, limits.max_queued // 2))  # the rest is for jobs of others
        found = await self.store.lines_without_job(batch.number, most)
        refused = [without_job(line, None) for line in found if line.problem is not None]
        if refused:
            await self._record(batch, refused)
            return True
        lines = portion(found)
        if not lines:
            return False
        text = await self._text(batch, lines)
        new = await asyncio.to_thread(jobs_of, batch, lines, text)
        try:
            with self._jobs.runner.accepting([job for _, job in new]):
                for job in await self._jobs.store.accept_lines(batch.number, new, limits):
                    self._jobs.runner.announce(job)
        except QueueFull:
            self._held = True
        if batch.emulated:
            await self._jobs.runner.end_emulated()
        return False

    async def _text(self, batch: Batch, lines: Sequence[BatchLine]) -> bytes:
        """The input file from the first of the lines to the end of the last."""
        first = lines[0].start
        end = lines[-1].start + lines[-1].length
        begin = first // PART_BYTES
        place = begin - 1
        found = bytearray()
        while len(found) < end - begin * PART_BYTES:
            parts = await self.files.parts(batch.input_file, place)
            if not parts:
                break
            found += b"".join(data for _, data in parts)
            place = parts[-1][0]
        skipped = first % PART_BYTES
        return bytes(found[skipped : skipped + end - first])

    async def _validate(self, batch: Batch) -> None:
        check = self._checks.get(batch.number)
        if check is None:
            settings = self._runtime.settings
            check = Check(
                batch=batch,
                files=self.files,
                batches=self.store,
                settings=settings,
                resolve=self._worker.aliases.resolve,
                canonical=self._worker.watch.canonical,
                check_request=self._worker.aliases.check_request,
            )
            self._checks[batch.number] = check
        if not await check.advance():
            del self._checks[batch.number]

    def _report_progress(self, before: Batch, now: Batch | None) -> None:
        """Report what the store says now and did not say then: so it does not matter whether a
        commit was reported as failed.
        """
        at = self._runtime.clock.monotonic()
        if (
            now is not None
            and before.in_progress_wall_s is None
            and now.in_progress_wall_s is not None
        ):
            self._runtime.events.emit(
                BatchStarted(
                    at=at,
                    batch_id=now.batch_id,
                    caller=now.caller,
                    endpoint=now.endpoint,
                    requests=now.total,
                )
            )
        if now is not None and now.ended_wall_s is not None:
            self._runtime.events.emit(
                BatchEnded(
                    at=at,
                    batch_id=now.batch_id,
                    caller=now.caller,
                    state=now.status,
                    requests=now.total,
                    completed=now.completed,
                    failed=now.failed,
                    total_s=max(0.0, self._runtime.clock.wall() - now.created_wall_s),
                )
            )

    def _patience_s(self) -> float:
        now = self._runtime.clock.wall()
        soonest = min(
            (batch.expires_wall_s - now for batch in self._open if batch.ending is None),
            default=LOOK_INTERVAL_S,
        )
        return min(LOOK_INTERVAL_S, max(0.001, soonest))

    async def forget(self) -> None:
        """Delete what is expired, abandoned or deleted, a little at a time, until cancelled."""
        while True:
            self._deleted.clear()
            before = (
                self._runtime.clock.wall() - self._runtime.settings.batches.keep_files_days * DAY_S
            )
            with suppress(StorageUnavailable):
                # until the disk has taken it: what ends an upload is often the disk itself
                for number in tuple(self._given_up):
                    await self.files.discard(number)
                    self._given_up.discard(number)
                while await self.files.sweep():
                    pass
                while await self.store.forget(before):
                    pass
            await wait_at_most(FORGET_INTERVAL_S, self._deleted)
