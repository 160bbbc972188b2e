"""The words of files and batches, shared by the store that keeps them and the desk that runs them. Plain values.

Instants (`_wall_s`) are seconds since 1970-01-01 UTC, as for jobs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hearth.job_types import JobEnd, NewJob
from hearth.types import Lane, Priority

PART_BYTES = 64 * 1024
"""What an uploaded file is cut into, so that any place in it is found without reading the rest."""


class Purpose(StrEnum):
    """What a file is for, in OpenAI's words."""

    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A file whose content is on the disk already; `life_s` is how long it is kept from now on."""

    file_id: str
    caller: str
    filename: str
    life_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file as its caller sees it."""

    number: int
    file_id: str
    caller: str
    purpose: Purpose
    filename: str
    size_bytes: int
    created_wall_s: float
    expires_wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What one caller keeps in the store: files, and jobs with their requests and results."""

    caller: str
    files: int
    file_bytes: int
    jobs: int
    job_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which entries of a caller's list: at most `limit` after the one with the id `after`, the latest first unless `ascending`."""

    caller: str
    limit: int
    after: str | None = None
    ascending: bool = False
    purpose: str | None = None


class BatchStatus(StrEnum):
    """OpenAI's words for where a batch is."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """Nothing changes any more."""
        return self in (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED, BatchStatus.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A batch as it is accepted.

    Attributes:
        models: patterns of the models that its caller may use; empty is all.
        window_text, window_s: how long it may take, as it was written and in seconds.
        output_life_s: how long its files are kept once they are complete.
        idempotency_key, digest: as for jobs.
    """

    batch_id: str
    caller: str
    lane: Lane
    priority: Priority
    models: tuple[str, ...]
    endpoint: str
    input_file_id: str
    window_text: str
    window_s: float
    output_life_s: float
    metadata: Mapping[str, str] | None = None
    idempotency_key: str | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a batch cannot be run; `line` counts from 1, None where it is about the whole file."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of the requests that were completed."""

    prompt: int = 0
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch as the store knows it.

    Attributes:
        ending: what it will end as, once its last requests have been settled; None before that.
        input_file, output_file, error_file: their numbers in the store; the last two are there while it runs, before their ids are shown.
        model: the one that all its requests name, None where they name several.
        total, completed, failed: requests.
    """

    number: int
    batch_id: str
    caller: str
    lane: Lane
    priority: Priority
    models: tuple[str, ...]
    endpoint: str
    status: BatchStatus
    ending: BatchStatus | None
    window_text: str
    output_life_s: float
    metadata: Mapping[str, str] | None
    input_file: int
    input_file_id: str
    output_file: int | None
    output_file_id: str | None
    error_file: int | None
    error_file_id: str | None
    model: str | None
    total: int
    completed: int
    failed: int
    tokens: Tokens
    problems: tuple[Problem, ...]
    created_wall_s: float
    expires_wall_s: float
    in_progress_wall_s: float | None
    finalizing_wall_s: float | None
    cancelling_wall_s: float | None
    ended_wall_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """A request of a batch that is still to be done, and where it stands in the input file (bytes from its beginning)."""

    line: int
    custom_id: str
    model: str
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The job that a line becomes."""

    line: int
    job: NewJob


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedLine:
    """A line whose job has ended; `end` is None where nothing is known of that job any more.

    Attributes:
        ending: what its batch is about to end as, at the instant at which `end` was read.
    """

    line: int
    custom_id: str
    job: int
    job_id: str
    end: JobEnd | None
    ending: BatchStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineOutcome:
    """What is written about a line: `text` into the output file, or into the error file where it is not `completed`.

    Attributes:
        job: the job that it had, None for a line that never became one.
    """

    line: int
    job: int | None
    completed: bool
    text: bytes
    tokens: Tokens = Tokens()
