"""The way in for batches: accepted once they are on the disk, cancelled once that is, and taken further in the background.

One task takes all open batches further, step by step; where each of them is, only the store knows. Whose batch it is, is the caller's to
check.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hearth.errors import BadRequest, ShuttingDown, StorageUnavailable
from hearth.events import BatchEnded, BatchStarted, GatewayStopping, InternalFault, JobEnded
from hearth.job_types import BatchRecord, BatchStatus, NewBatch
from hearth.jobs.batch_lines import BatchRecords, BatchUpkeep, Check, FileAccounts, FileUploads
from hearth.jobs.batch_runner import Runner, Shelf
from hearth.jobs.queue import KeysInUse
from hearth.jobs.runner import House
from hearth.jobs.service import Jobs
from hearth.observability.sinks import HandlingSink
from hearth.types import BATCH_JOB_PREFIX, Lane

LOOK_INTERVAL_S = 10.0
"""At least this often, since the wall clock may jump, and what is full may have room again."""
GATHER_S = 0.2
"""Requests that end within this time are written together."""
STORE_RETRY_S = 2.0
FORGET_INTERVAL_S = 600.0
_DAY_S = 86_400.0


class Batches(HandlingSink):
    """The desk. Subscribe it to the events of the gateway; have `run` and `forget` run beside it.

    Attributes:
        uploads, accounts, files, records: the store, for those who only look or upload.
    """

    def __init__(
        self,
        *,
        uploads: FileUploads,
        accounts: FileAccounts,
        records: BatchRecords,
        upkeep: BatchUpkeep,
        shelf: Shelf,
        jobs: Jobs,
        house: House,
    ) -> None:
        self.uploads = uploads
        self.accounts = accounts
        self.files = shelf.files
        self.records = records
        self._upkeep = upkeep
        self._shelf = shelf
        self._jobs = jobs
        self._house = house
        self._runner = Runner(shelf, jobs, house)
        self._keys = KeysInUse()
        self._checks: dict[int, Check] = {}
        self._open: tuple[BatchRecord, ...] = ()
        self._doubtful: dict[int, BatchRecord] = {}
        self._wake = asyncio.Event()
        self._deleted = asyncio.Event()
        self._given_up: set[int] = set()
        self._stopping = False
        self._handlers = {GatewayStopping: self._on_stopping, JobEnded: self._on_job_ended}

    async def create(self, new: NewBatch) -> BatchRecord:
        """Take a batch; when this returns, it is on the disk: that one, or the one that its idempotency key stands for.

        Raises:
            BadRequest: its requests would wait for an off-peak time that never comes.
            KeyInUse, KeyReused: as for jobs.
            NotFound: its caller has no such file.
            QueueFull, ShuttingDown, StorageUnavailable: as for jobs.
        """
        settings = self._house.config().settings
        if self._stopping:
            raise ShuttingDown(retry_after_s=settings.server.shutdown_grace_s)
        if settings.batches.window == "offpeak" and not self._jobs.off_peak_comes():
            raise BadRequest("batches.window is offpeak, and it is active hours all day here, so that never comes")
        with self._keys.use(new.caller, new.idempotency_key):
            accepted = await self.records.add(new, settings.batches.max_open, self._own_max_open(new.lane))
        self._wake.set()
        return accepted

    def _own_max_open(self, lane: Lane) -> int | None:
        settings = self._house.config().settings
        shared = lane is Lane.EXTERNAL and settings.auth.keys
        return max(1, int(settings.batches.max_open * settings.jobs.caller_share_pct / 100)) if shared else None

    async def cancel(self, batch_id: str) -> bool:
        """Have a batch end as cancelled; False where it has ended, or is about to. Raises StorageUnavailable: ask again."""
        cancelled = await self.records.cancel(batch_id)
        self._wake.set()
        return cancelled

    async def cancel_caller(self, caller: str) -> int:
        """The same for all of a caller's; how many that were. Raises StorageUnavailable."""
        return sum([await self.cancel(batch_id) for batch_id in await self.records.open_of(caller)])

    async def delete_file(self, number: int) -> None:
        """Raises BadRequest while a batch reads it, StorageUnavailable."""
        await self.files.remove(number)
        self._deleted.set()

    def give_up(self, number: int) -> None:
        """Forget a file whose upload has come to nothing, some time soon."""
        self._given_up.add(number)
        self._deleted.set()

    async def _discard(self) -> None:
        """Until the disk has taken it: what ends an upload is often the disk itself."""
        for number in tuple(self._given_up):
            await self.uploads.discard(number)
            self._given_up.discard(number)

    def status(self) -> dict[str, object]:
        """For the status page; `held`: the store had no room for the next request."""
        left = sum(batch.total - batch.completed - batch.failed for batch in self._open)
        return {"open": len(self._open), "requests_left": left, "held": self._runner.held}

    def _on_stopping(self, _event: GatewayStopping) -> None:
        self._stopping = True

    def _on_job_ended(self, event: JobEnded) -> None:
        if event.job_id.startswith(BATCH_JOB_PREFIX):
            self._wake.set()

    async def run(self) -> None:
        """Take all batches further until cancelled."""
        while True:
            self._wake.clear()
            try:
                again = await self._round()
            except StorageUnavailable:
                self._runner.doubt()
                self._checks.clear()
                await asyncio.sleep(STORE_RETRY_S)
                continue
            if not again:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience_s()):
                        await self._wake.wait()
                await asyncio.sleep(GATHER_S)

    async def _round(self) -> bool:
        """A step of every open batch; True where there is more to be done at once."""
        for before in tuple(self._doubtful.values()):
            await self._tell_what_came_of(before)
            del self._doubtful[before.number]
        self._open = await self._shelf.progress.open_batches()
        numbers = {batch.number for batch in self._open}
        self._runner.forget(numbers)
        self._runner.held = False
        self._checks = {number: check for number, check in self._checks.items() if number in numbers}
        steps = [await self._guarded(batch) for batch in self._open if not self._stopping]
        return any(steps)

    async def _guarded(self, batch: BatchRecord) -> bool:
        try:
            return await self._step(batch)
        except StorageUnavailable:
            self._doubtful[batch.number] = batch  # what was written last may be there
            raise
        except Exception as error:  # noqa: BLE001 - supervision point: a defect in one batch must not hold up the others
            self._house.events.emit(InternalFault(at=self._house.clock.monotonic(), where="batch", detail=type(error).__name__))
            return False

    async def _step(self, batch: BatchRecord) -> bool:
        if batch.status is BatchStatus.VALIDATING and self._house.clock.wall() < batch.expires_wall_s:
            return await self._validate(batch)
        if await self._runner.step(batch):
            return True
        if batch.ending is None:
            return False
        await self._end(batch)
        return True

    async def _validate(self, batch: BatchRecord) -> bool:
        check = self._checks.get(batch.number)
        if check is None:
            settings = self._house.config().settings
            check = Check(batch, files=self._shelf.files, progress=self._shelf.progress, settings=settings, resolve=self._house.resolve)
            self._checks[batch.number] = check
        if await check.advance():
            return True
        del self._checks[batch.number]
        await self._tell_what_came_of(batch)
        return True

    async def _tell_what_came_of(self, before: BatchRecord) -> None:
        """Tell of what the store says now and did not say then."""
        now = await self.records.find(before.batch_id)
        if now is None:
            return
        if before.in_progress_wall_s is None and now.in_progress_wall_s is not None:
            self._tell_start(now)
        if now.ended_wall_s is not None:
            self._tell_end(now)

    async def _end(self, batch: BatchRecord) -> None:
        ended = await self._shelf.progress.end(batch.number)
        if ended is not None:
            self._tell_end(ended)

    def _tell_start(self, batch: BatchRecord) -> None:
        self._house.events.emit(
            BatchStarted(
                at=self._house.clock.monotonic(),
                batch_id=batch.batch_id,
                caller=batch.caller,
                endpoint=batch.endpoint,
                requests=batch.total,
            )
        )

    def _tell_end(self, batch: BatchRecord) -> None:
        self._house.events.emit(
            BatchEnded(
                at=self._house.clock.monotonic(),
                batch_id=batch.batch_id,
                caller=batch.caller,
                state=batch.status.value,
                requests=batch.total,
                completed=batch.completed,
                failed=batch.failed,
                total_s=max(0.0, self._house.clock.wall() - batch.created_wall_s),
            )
        )

    def _patience_s(self) -> float:
        now = self._house.clock.wall()
        soonest = min((batch.expires_wall_s - now for batch in self._open if batch.ending is None), default=LOOK_INTERVAL_S)
        return min(LOOK_INTERVAL_S, max(0.001, soonest))

    async def forget(self) -> None:
        """Delete what is expired, abandoned or deleted, a little at a time, until cancelled."""
        while True:
            self._deleted.clear()
            before = self._house.clock.wall() - self._house.config().settings.batches.keep_files_days * _DAY_S
            with suppress(StorageUnavailable):
                await self._discard()
                while await self.files.sweep():
                    pass
                while await self._upkeep.forget(before):
                    pass
            with suppress(TimeoutError):
                async with asyncio.timeout(FORGET_INTERVAL_S):
                    await self._deleted.wait()
