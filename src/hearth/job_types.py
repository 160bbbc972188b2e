"""Durable jobs and batches as values: what the store keeps and the pages show. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hearth.types import Lane, Priority


class JobState(StrEnum):
    """Where a job is; the last three are ends, and each job reaches exactly one of them."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_end(self) -> bool:
        """Nothing changes any more."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


class Webhook(StrEnum):
    """What has become of the message about the end of a job."""

    NONE = "none"
    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job as it is accepted.

    Attributes:
        path: the inference route that its request is meant for; `request` is the whole body of that route.
        model: the name that the backend lists.
        task_type, job_key: while a job of the two has not ended, another of the same caller is the same job; None is like no other.
        not_before_wall_s: it does not start earlier.
        off_peak: it starts outside active hours only.
        webhook_url: is told of the end; a secret.
        idempotency_key, digest: the caller's own word for this request, and what tells it from others (SHA-256 in hex).
    """

    job_id: str
    caller: str
    lane: Lane
    priority: Priority
    task_type: str | None
    job_key: str | None
    path: str
    model: str
    request: bytes
    not_before_wall_s: float | None = None
    off_peak: bool = False
    webhook_url: str | None = None
    idempotency_key: str | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """What choosing the next job takes: a waiting job without its request.

    Attributes:
        number: place in the order of acceptance, strictly increasing, never reused.
        attempts: starts so far.
        suspect: it was running when an earlier process died.
    """

    number: int
    job_id: str
    caller: str
    lane: Lane
    priority: Priority
    task_type: str | None
    model: str
    accepted_wall_s: float
    not_before_wall_s: float | None = None
    off_peak: bool = False
    attempts: int = 0
    suspect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedJob:
    """What running takes; `attempt` counts from 1."""

    path: str
    request: bytes
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """What a job came to.

    Attributes:
        reason, error: empty for a completed job; the second is for people.
        status, content_type, result: the answer, where there was one.
    """

    state: JobState
    reason: str = ""
    error: str = ""
    status: int | None = None
    content_type: str = ""
    result: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as the store knows it; `result` only where it was asked for, the request never."""

    number: int
    job_id: str
    caller: str
    lane: Lane
    priority: Priority
    task_type: str | None
    job_key: str | None
    path: str
    model: str
    state: JobState
    attempts: int
    accepted_wall_s: float
    not_before_wall_s: float | None
    off_peak: bool
    ended_wall_s: float | None
    reason: str
    error: str
    status: int | None
    content_type: str
    webhook: Webhook
    result: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list, latest first; None is any. `unended`: only those that wait or run."""

    caller: str | None = None
    state: JobState | None = None
    unended: bool = False
    task_type: str | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What became of a `NewJob`: a job of its own, or one that was there before."""

    job_id: str
    number: int
    is_new: bool
    accepted_wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLimits:
    """How much may be kept: jobs that wait, and bytes of requests, results and files; `own_` by the one caller, None is no share."""

    max_queued: int
    max_bytes: int
    own_max_queued: int | None = None
    own_max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What earlier processes left: the jobs that wait now, in order; how many of them were running; and those that failed for it."""

    waiting: tuple[WaitingJob, ...]
    requeued: int
    failed: tuple[JobRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message about the end of a job that is still to be delivered; `host`: those with one host wait for each other."""

    job_id: str
    url: str
    host: str | None
    state: JobState
    task_type: str | None
    reason: str
    accepted_wall_s: float
    ended_wall_s: float
    attempts: int
    due_wall_s: float


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
