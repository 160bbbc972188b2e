"""The seams between Hearth and the world. Adapters implement them, `bootstrap` chooses them, tests
replace them by fakes with behaviour.

Implementations raise only `hearth.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any, Protocol

from hearth.events import Event
from hearth.job_types import (
    Batch,
    BatchEnd,
    BatchLine,
    Delivery,
    EndedLine,
    Job,
    JobEnd,
    JobState,
    LineOutcome,
    LineProblem,
    Page,
    StoredFile,
    StoreLimits,
    WebhookState,
)
from hearth.types import (
    CloudCall,
    Counted,
    EndedCount,
    GpuReading,
    Invocation,
    JsonDict,
    JsonMapping,
    Lane,
    LoggedSwap,
    LogPage,
    LogPlace,
    LogSearch,
    ModelUse,
    Post,
    PostAnswer,
    ProcessRun,
    QueueLook,
    UsageQuery,
)


class EventSink(Protocol):
    """Where facts go. Must not block, must not raise."""

    def emit(self, event: Event) -> None: ...


class CloudExchange(Protocol):
    """One answer of Claude, its head already read.

    `events` yields what the stream says, as it says it, pings and unknown kinds too; it raises
    `BackendError` or `CallerError` where the stream reports an error or breaks off. `aclose` ends
    the connection at once, may be called twice, and is called on every path.
    """

    def events(self) -> AsyncIterator[JsonMapping]: ...

    async def aclose(self) -> None: ...


class CloudBackend(Protocol):
    """A paid model somewhere else."""

    async def open(self, call: CloudCall, sending: Callable[[], None]) -> CloudExchange:
        """Send the call and read the answer's head. No retries, no redirects, no overall timeout:
        the caller owns them.

        Args:
            sending: called when there is a connection, before anything is sent on it that can be
            charged.

        Raises:
            BackendUnreachable: no connection could be made: nothing was sent, nothing is charged.
            BackendBusy, BackendError, CloudUnavailable, CallerError: it answered that it will not
            do it: nothing is charged. BackendGone: the connection ended before a head was read;
            whether it is charged is not known.
        """

    async def aclose(self) -> None: ...


class Poster(Protocol):
    """Sends one post for an alert or a webhook.

    Never raises but for cancellation; what goes wrong is the answer's `failure`.
    """

    async def post(self, post: Post, timeout_s: float) -> PostAnswer: ...

    async def aclose(self) -> None: ...


class Renderer(Protocol):
    """A program with a queue of jobs for the same GPU, by its URL.

    Never raises but for cancellation; what goes wrong is the look's `problem`.
    """

    async def look(self, url: str) -> QueueLook:
        """Its queue."""

    async def free(self, url: str) -> QueueLook:
        """Have it unload its models; the look says only whether it has understood."""


class LoginManager(Protocol):
    """What knows when the machine is about to sleep, and can hold that up for a moment.

    What it is asked raises LoginManagerUnavailable; then it is to be connected again.
    """

    @property
    def is_preparing(self) -> bool:
        """The machine is about to sleep, or asleep; changes with `on_change`."""

    async def connect(self, on_change: Callable[[], None]) -> float:
        """Follow it from now on; the seconds for which a sleep can be held up."""

    def check(self) -> None:
        """Raises where it cannot be followed any more, or never was."""

    async def hold_up(self) -> None:
        """Have the next sleep wait for `let_sleep`; nothing where it does so already."""

    def let_sleep(self) -> None: ...

    def close(self) -> None:
        """Follow it no longer, and hold nothing up."""


class GpuReader(Protocol):
    """What the card says of itself. May take a while, never blocks the event loop."""

    async def read(self) -> GpuReading:
        """The numbers of this moment.

        Raises GpuUnavailable where there are none; the next call tries again from the start.
        """


# The store. What changes it resolves once the change is on the disk, what asks reads beside the
# event loop. All of it raises StorageUnavailable where the disk is at fault: ask again; a change
# may have been made all the same.


class JobStore(Protocol):
    """Durable jobs by number and by id. Each state is left once, and each job ends once: who comes
    late gets False or None and changes nothing.
    """

    @property
    def queued(self) -> int:
        """How many jobs wait, as of the last change that was made here."""

    async def accept(self, new: Job, limits: StoreLimits) -> Job:
        """Keep a job; it, or the one that it is the same as, which has another id; with its
        position.

        Raises KeyReused, QueueFull, and StorageUnavailable: then it may be kept where it has a key
        by which it can be asked for again.
        """

    async def accept_lines(
        self, batch: int, jobs: Sequence[tuple[int, Job]], limits: StoreLimits
    ) -> tuple[Job, ...]:
        """Make the jobs of lines that have none, as many as may wait, while their batch runs.

        Raises QueueFull: none is made.
        """

    async def startable(
        self,
        *,
        off_peak: bool,
        batches_off_peak: bool,
        paused: bool,
        paused_callers: Collection[str],
        emulated: bool,
        running: Collection[int],
        suspects: Collection[int],
    ) -> tuple[list[Job], list[Job], float | None]:
        """The first job of each lane, priority, task type and model that may start; those of
        `suspects` that may; when more may.

        Args:
            off_peak: whether off-peak jobs may start; batches_off_peak: whether all jobs of batches
            are such. paused: whether external ones wait on the owner's order, as those of
            paused_callers do. emulated: whether the
            emulator answers: then only those that it has accepted start, else only the others.
            running, suspects: numbers of jobs that are among no first ones.
        """

    async def claim(self, number: int) -> Job | None:
        """Note that a waiting job starts here; that job with its request, None where it does not
        wait any more.
        """

    def note_dispatch(self, number: int) -> None:
        """A job that runs here has been sent to the model server.

        It is on the disk a moment later; nobody waits for that.
        """

    async def finish(self, number: int, end: JobEnd) -> bool:
        """Record result and end of a job that runs here; False where it has ended otherwise, which
        changes nothing.
        """

    async def put_back(
        self, number: int, *, counted: bool, not_before_wall_s: float | None
    ) -> bool:
        """Have a job that runs here wait again; not `counted`, it was as if it had never started.

        False as for `finish`.
        """

    async def recover(
        self, *, requeue: bool, max_attempts: int
    ) -> tuple[frozenset[int], tuple[Job, ...]]:
        """Settle what dead processes left running: it waits again, or fails after `max_attempts`,
        or if it was sent and not `requeue`.

        Returns the numbers of those that wait again, and the jobs that failed.
        """

    async def end_emulated(self) -> tuple[Job, ...]:
        """End the jobs that wait and that only the emulator may do, which answers no more; they
        have failed.
        """

    async def cancel(self, job_id: str, since_wall_s: float) -> bool:
        """End a job that waits or runs as cancelled; False where it has ended, but not as cancelled
        since an instant, or never was.
        """

    async def find(self, job_id: str) -> Job | None:
        """One job with its result and position."""

    async def list_jobs(
        self,
        *,
        caller: str | None = None,
        state: JobState | None = None,
        unended: bool = False,
        task_type: str | None = None,
        limit: int = 50,
        positions: bool = False,
    ) -> tuple[Job, ...]:
        """The jobs that match, the latest accepted first, without results.

        `unended`: only those that wait or run.
        """

    async def waiting(
        self, caller: str | None, limit: int
    ) -> tuple[int, float | None, tuple[Job, ...]]:
        """The jobs of a caller (None: of all) that wait: how many, since when the oldest, the first
        `limit` with their positions.
        """

    async def forget(self, before_wall_s: float) -> bool:
        """Delete some of the jobs that ended before an instant; True while there is more.

        One with a message to deliver stays.
        """

    async def remove(self, job_id: str) -> bool:
        """Delete a job that has ended, with its result; False where it has not, or never was, or
        belongs to a batch.
        """


class WebhookOutbox(Protocol):
    """The messages about ends of jobs; one is there from the commit that ends its job."""

    async def deliveries(self, limit: int) -> tuple[Delivery, ...]:
        """Messages that are still to be delivered, the next due first, so many for each host at
        most.
        """

    async def note_delivery(
        self, job_id: str, webhook: WebhookState, attempts: int, due_wall_s: float | None
    ) -> bool:
        """Note what came of an attempt; `waiting` has another one at `due_wall_s`.

        False where nothing was to be delivered.
        """


class BatchStore(Protocol):
    """Batches by number and by id, and the lines of each that are still to be done."""

    async def accept(self, new: Batch, max_open: int, own_max_open: int | None = None) -> Batch:
        """Keep a batch, or say which one its idempotency key stands for. A file that was begun for
        it is its own from now on, complete, and deleted when it ends.

        Raises KeyReused, NotFound, QueueFull, and StorageUnavailable: it may be kept with a key,
        and without one is cancelled then.
        """

    async def find(self, batch_id: str) -> Batch | None: ...

    async def list_batches(self, page: Page) -> tuple[Batch, ...]:
        """A caller's batches, the latest first.

        Raises NotFound where it has none with the id `after`.
        """

    async def cancel(self, batch_id: str) -> bool:
        """Have a batch end as cancelled; False where it has ended, or is about to."""

    async def open_of(self, caller: str) -> tuple[str, ...]:
        """The ids of a caller's batches that can be cancelled."""

    async def open_batches(self) -> tuple[Batch, ...]:
        """All that have not ended, the oldest first."""

    async def note_lines(self, number: int, lines: Sequence[BatchLine], *, first: bool) -> bool:
        """Note requests of a batch that is being validated, `first` ones in place of all before;
        False where it is not, any more.
        """

    async def settle_validation(
        self, number: int, problems: Sequence[LineProblem], total: int, model: str | None
    ) -> None:
        """A batch that is being validated is in progress, or has failed for its problems."""

    async def remove(self, number: int) -> bool:
        """Delete a batch that has ended, with its files; False where there is none."""

    async def lines_without_job(self, batch: int, most: int) -> tuple[BatchLine, ...]:
        """The next lines without a job: so many that `most` have one."""

    async def unended_jobs(self, batch: int) -> tuple[str, ...]:
        """The ids of the jobs of its lines that wait or run, in the order of acceptance."""

    async def ended_lines(self, batch: int) -> tuple[EndedLine, ...]:
        """Lines whose jobs have ended, some MiB of results at a time."""

    async def record(self, batch: int, outcomes: Sequence[LineOutcome]) -> None:
        """Write and count what came of lines, and forget their jobs; what was written before is not
        written again.
        """

    async def begin_end(self, number: int, ending: BatchEnd) -> bool:
        """No more requests of it start, and it will end as `ending`; False where that was decided
        otherwise before.
        """

    async def finish(self, number: int) -> None:
        """It ends as was decided, and its files can be seen; nothing happens where it had ended
        before.
        """

    async def forget(self, before_wall_s: float) -> bool:
        """Delete some of what ended batches do not need, and of those that ended before an instant;
        True while there is more.
        """


class FileStore(Protocol):
    """Files by number and by id. A file is seen by nobody until it is complete."""

    async def begin(self, caller: str) -> int:
        """A file that nobody sees yet; its number.

        It is forgotten when the process ends before `seal`.
        """

    async def append(
        self, number: int, place: int, data: bytes, max_bytes: int, own_max_bytes: int | None = None
    ) -> None:
        """Add pieces of `PART_BYTES`, the file's last may be shorter, from a place on.

        Raises QueueFull: store or share are full.
        """

    async def seal(self, number: int, *, file_id: str, filename: str, life_s: float) -> StoredFile:
        """The file is complete: from now on it is there, for `life_s`.

        Raises BadRequest where it was given up meanwhile.
        """

    async def discard(self, number: int) -> None:
        """Give up a file that was begun; nothing happens to one that is complete, or a batch's."""

    async def find(self, file_id: str) -> StoredFile | None:
        """A file that is complete and not deleted."""

    async def list_files(self, page: Page) -> tuple[StoredFile, ...]:
        """A caller's files. Raises NotFound where it has none with the id `after`."""

    async def list_all(self, caller: str | None, limit: int) -> tuple[StoredFile, ...]:
        """The files of everybody, or of one caller, the largest first."""

    async def parts(self, number: int, after: int) -> tuple[tuple[int, bytes], ...]:
        """`(place, bytes)` of the next pieces after a place (-1: from the first), about 1 MiB
        together; empty at the end.
        """

    async def stored(self) -> tuple[dict[str, Any], ...]:
        """What each caller keeps in the store, the most first: files, and jobs with their requests
        and results, with their bytes.
        """

    async def remove(self, number: int) -> bool:
        """Delete a file; False where that was done before.

        Raises BadRequest while a batch reads it.
        """

    async def sweep(self) -> bool:
        """Delete some of what is abandoned, expired or deleted; True while there is more."""


class SpendLedger(Protocol):
    """The durable record of money: reservations by id, each of which ends once."""

    async def reserve(
        self,
        reservation_id: str,
        *,
        caller: str,
        lane: Lane,
        model: str,
        reserved_usd: float,
        at_wall_s: float,
    ) -> bool:
        """Note what was set aside at an instant; False where the id was used before.

        Raises StorageUnavailable: the call must not start; ValueError for no amount of money.
        """

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        """Note what the call has cost; False where the reservation is unknown or has ended."""

    async def release(self, reservation_id: str) -> bool:
        """Give the money back: nothing was charged. False as for `settle`."""

    async def booked(
        self, *, start_wall_s: float, end_wall_s: float
    ) -> tuple[tuple[str, str, Lane, float], ...]:
        """`(id, caller, lane, US dollars)` of what was reserved in [start, end): paid, or set aside
        where the end is not known yet.
        """


class Documents(Protocol):
    """Small documents of plain JSON values by name, kept across restarts."""

    def save(self, name: str, document: JsonMapping) -> None:
        """Keep a document some time soon; a later one replaces an earlier one.

        Raises TypeError or ValueError for other values.
        """

    async def keep(self, name: str, document: JsonMapping) -> None:
        """The same, and return once it is on the disk. Raises StorageUnavailable: it is not."""

    async def load(self, name: str) -> JsonDict | None:
        """The document last saved, an empty one where it is damaged; None where there is none."""


class InvocationHistory(Protocol):
    """The items and swaps that have ended, also those of earlier processes."""

    async def find(self, *, since_wall_s: float = 0.0, limit: int) -> tuple[Invocation, ...]:
        """Items that ended at that instant or later, the latest written first."""

    async def search(
        self, wanted: LogSearch, *, limit: int, before: LogPlace | None = None, skip: int = 0
    ) -> LogPage:
        """Items that match, by their end, the latest first, without the first `skip`; `before`:
        those that follow this place.
        """

    async def swaps(
        self, *, since_wall_s: float, until_wall_s: float | None, limit: int, skip: int = 0
    ) -> tuple[LoggedSwap, ...]:
        """Swaps that ended between the two instants, both inclusive, the latest written first,
        without the first `skip`.
        """

    async def used(self, query: UsageQuery) -> JsonDict:
        """As JSON: what was used in total, by time, caller, model and engine; swaps and energy are
        always those of all. Null where nothing is known: Hearth did not run, or nothing was
        measured.
        """

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        """What became of the items that ended at or after `wall_s`, minute by minute, oldest
        first.
        """

    async def by_caller(self, *, last_hour: int, caller: str | None) -> dict[str, JsonDict]:
        """As JSON, by name: what each caller used in the 24 hours (`24h`) and the 30 days (`30d`)
        up to and with `last_hour`, and when the last of its items ended (`last_end_wall_s`).
        """

    async def uses_since(self, wall_s: float) -> tuple[ModelUse, ...]:
        """What the models of model servers did that ended at or after `wall_s`, oldest first."""

    async def runs_since(self, wall_s: float) -> tuple[ProcessRun, ...]:
        """The earlier processes that ran at or after `wall_s`, oldest first."""

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float, Counted], ...]:
        """Caller, instant (`accepted_wall_s`) and kind of what the rate limits count of external
        requests, jobs and batches since `wall_s`, oldest first."""
