"""What files and batches need of a store. At most five methods each; implementations raise only `hearth.errors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hearth.batch_types import (
    Admission,
    BatchLine,
    BatchRecord,
    BatchStatus,
    EndedLine,
    LineOutcome,
    NewBatch,
    NewFile,
    Page,
    Problem,
    Stored,
    StoredFile,
)
from hearth.job_types import StoreLimits, WaitingJob


class FileUploads(Protocol):
    """Files on their way in: seen by nobody until they are complete. Raises StorageUnavailable where the disk is at fault."""

    async def begin(self, caller: str) -> int:
        """A file without content; its number. It is forgotten when the process ends before `seal`."""

    async def append(self, number: int, place: int, data: bytes, max_bytes: int, own_max_bytes: int | None = None) -> None:
        """Add pieces of `PART_BYTES` from a place on; only the last of a file may be shorter.

        Raises:
            QueueFull: with it, the store would keep more than `max_bytes` of files, requests and results, or more than `own_max_bytes`
                of its caller's.
        """

    async def seal(self, number: int, new: NewFile) -> StoredFile:
        """It is complete, and there from now on."""

    async def discard(self, number: int) -> None:
        """Give it up; nothing happens to a file that is complete."""


class FileRecords(Protocol):
    """Files that are complete; raises StorageUnavailable where the disk is at fault."""

    async def find(self, file_id: str) -> StoredFile | None:
        """One file."""

    async def list_files(self, page: Page) -> tuple[StoredFile, ...]:
        """A caller's files. Raises NotFound where it has none with the id `after`."""

    async def parts(self, number: int, after: int) -> tuple[tuple[int, bytes], ...]:
        """`(place, bytes)` of the next pieces after a place (-1: from the first), a few at a time; empty at the end."""

    async def remove(self, number: int) -> bool:
        """Delete it; False where that was done before. Raises BadRequest while a batch reads it."""

    async def sweep(self) -> bool:
        """Delete some of what is abandoned, expired or deleted; True while there is more."""


class FileAccounts(Protocol):
    """What everybody keeps, for the owner; raises StorageUnavailable where the disk is at fault."""

    async def list_all(self, caller: str | None, limit: int) -> tuple[StoredFile, ...]:
        """The files of everybody, or of one caller, the largest first."""

    async def stored(self) -> tuple[Stored, ...]:
        """What each caller keeps in the store, the most first."""


class BatchRecords(Protocol):
    """Batches by their ids; every change resolves once it is on the disk. Raises StorageUnavailable where it may not be."""

    async def add(self, new: NewBatch, max_open: int, own_max_open: int | None = None) -> BatchRecord:
        """Keep a batch, or say which one its idempotency key stands for.

        Raises:
            KeyReused: the key stands for another request.
            NotFound, QueueFull: there is no such file of its caller's; `max_open` batches are open, or `own_max_open` of its caller.
        """

    async def find(self, batch_id: str) -> BatchRecord | None:
        """One batch."""

    async def list_batches(self, page: Page) -> tuple[BatchRecord, ...]:
        """A caller's batches, the latest first. Raises NotFound where it has none with the id `after`."""

    async def cancel(self, batch_id: str) -> bool:
        """Have it end as cancelled; False where it has ended, or is about to."""

    async def open_of(self, caller: str) -> tuple[str, ...]:
        """The ids of a caller's batches that can be cancelled."""


class BatchProgress(Protocol):
    """The way of a batch. Every change is guarded by where it is now: what comes too late changes nothing and says so."""

    async def open_batches(self) -> tuple[BatchRecord, ...]:
        """All that have not ended, the oldest first."""

    async def note_lines(self, number: int, lines: Sequence[BatchLine], *, first: bool) -> bool:
        """Note requests of a batch that is being validated, `first` ones in place of all before; False where it is not, any more."""

    async def settle_validation(self, number: int, problems: Sequence[Problem], total: int, model: str | None) -> bool:
        """It is in progress, or has failed for its problems."""

    async def begin_end(self, number: int, ending: BatchStatus) -> bool:
        """No more of its requests start, and it will end as `ending`."""

    async def end(self, number: int) -> BatchRecord | None:
        """It ends as was decided, and its files can be seen; None where it had ended."""


class BatchLines(Protocol):
    """The requests of a batch: each of them is still to be done, or written once. Raises StorageUnavailable."""

    async def waiting(self, batch: int, most: int) -> tuple[BatchLine, ...]:
        """The next lines without a job: so many that `most` have one."""

    async def admit(self, batch: int, admissions: Sequence[Admission], limits: StoreLimits) -> tuple[WaitingJob, ...]:
        """Make jobs of the first lines, as many as may wait, of those that have none. Raises QueueFull; then none is made."""

    async def running(self, batch: int) -> tuple[tuple[WaitingJob, bool], ...]:
        """The jobs of a batch that have not ended, and of each whether it is on its way."""

    async def ended(self, batch: int) -> tuple[EndedLine, ...]:
        """Lines whose jobs have ended, some of them at a time."""

    async def record(self, batch: int, outcomes: Sequence[LineOutcome]) -> None:
        """Write and count what came of lines, and forget their jobs; what was written before is not written again."""


class BatchUpkeep(Protocol):
    """Forgetting; raises StorageUnavailable."""

    async def forget(self, before_wall_s: float) -> bool:
        """Delete some of what ended batches do not need, and of those that ended before an instant; True while there is more."""
