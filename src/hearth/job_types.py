"""Durable jobs, files and batches as values: what the store keeps and the pages show. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from hearth.types import MESSAGE_BATCH_PREFIX, Lane, Priority, frozen

INTERRUPTED = "interrupted_by_restart"
EMULATOR_GONE = "emulator_gone"
"""Reasons of ends that no attempt has come to."""


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


WebhookState = Literal["none", "waiting", "delivered", "failed"]
"""What has become of the message about the end of a job."""


@frozen
class Job:
    """A durable job, new or as the store knows it.

    Attributes:
        path: the inference route of its request; `request` is the whole body, empty except where a
        job is accepted or starts. model: the name that the backend lists. task_type, job_key: while
        a job of the two has not ended, another of the same caller is the same job; None is like no
        other. off_peak: it starts outside active hours only. emulated: it was accepted while the
        emulator answered, and only the emulator does it. webhook_url: gets a message about the end;
        a secret, and only known of a new job. idempotency_key, digest: the caller's own word for
        this request, and what tells it from others (SHA-256 in hex); of a new job. number: place in
        the order of acceptance, strictly increasing, never reused; 0 before that. attempts: starts
        so far. reason, error: empty for a completed job; the second is for people. position: how
        many waiting jobs are ahead of it; None where it does not wait, or that was not asked for.
        result: the answer, only where it was asked for.
    """

    job_id: str
    caller: str
    lane: Lane
    priority: Priority
    path: str
    model: str
    task_type: str | None = None
    job_key: str | None = None
    request: bytes = b""
    not_before_wall_s: float | None = None
    off_peak: bool = False
    emulated: bool = False
    webhook_url: str | None = None
    idempotency_key: str | None = None
    digest: str = ""
    number: int = 0
    state: JobState = JobState.QUEUED
    attempts: int = 0
    accepted_wall_s: float = 0.0
    ended_wall_s: float | None = None
    reason: str = ""
    error: str = ""
    status: int | None = None
    content_type: str = ""
    webhook: WebhookState = "none"
    position: int | None = None
    result: bytes | None = None


@frozen
class JobEnd:
    """What a job came to; see `Job`."""

    state: JobState
    reason: str = ""
    error: str = ""
    status: int | None = None
    content_type: str = ""
    result: bytes | None = None


@frozen
class StoreLimits:
    """How much may be kept: jobs that wait, and bytes of requests, results and files; `own_` by the
    one caller, None is no share.
    """

    max_queued: int
    max_bytes: int
    own_max_queued: int | None = None
    own_max_bytes: int | None = None


@frozen
class Delivery:
    """A message about the end of a job that is still to be delivered; `host`: those with one host
    wait for each other.
    """

    job_id: str
    url: str
    host: str | None
    state: JobState
    task_type: str | None
    emulated: bool
    reason: str
    accepted_wall_s: float
    ended_wall_s: float
    attempts: int
    due_wall_s: float


PART_BYTES = 64 * 1024
"""What an uploaded file is cut into, so that any place in it is found without reading the rest."""


@frozen
class StoredFile:
    """A file as its caller sees it; its purpose in OpenAI's words."""

    number: int
    file_id: str
    caller: str
    purpose: Literal["batch", "batch_output"]
    filename: str
    size_bytes: int
    created_wall_s: float
    expires_wall_s: float | None


@frozen
class Page:
    """Which entries of a caller's list: at most `limit` after the one with the id `after`, the
    latest first unless `ascending`. `of_messages`: of batches, those of Anthropic's API, else the
    others.
    """

    caller: str
    limit: int
    after: str | None = None
    ascending: bool = False
    purpose: str | None = None
    of_messages: bool = False


BatchEnd = Literal["completed", "expired", "cancelled", "failed"]
BatchStatus = Literal["validating", "in_progress", "finalizing", "cancelling"] | BatchEnd
"""OpenAI's words for where a batch is; nothing changes any more once it is one of the ends."""
LineProblem = Mapping[str, str | int | None]
"""Why a batch cannot be run: code, message, and line (from 1) and param, None where it is about the
whole file.
"""


@frozen
class Batch:
    """A batch, new or as the store knows it.

    Attributes:
        models: patterns of the models that its caller may use; empty is all. window_text, window_s:
        how long it may take, as it was written, and in seconds (of a new batch). output_life_s: how
        long its files are kept once they are complete. emulated: as for jobs. idempotency_key,
        digest: as for jobs. ending: what it will end as, once its last requests have been settled;
        None before that. input_file, output_file, error_file: their numbers in the store; the last
        two are there while it runs, before their ids are shown. model: the one that all its
        requests name, None where they name several. total, completed, failed: requests;
        `cancelled` and `expired` ones have failed, too; `prompt_tokens`, `output_tokens` of the
        completed ones. Of a new batch, `input_file` is one that was begun for it and becomes its
        own, 0 where `input_file_id` says which.
    """

    batch_id: str
    caller: str
    lane: Lane
    priority: Priority
    models: tuple[str, ...]
    endpoint: str
    input_file_id: str
    window_text: str
    output_life_s: float
    window_s: float = 0.0
    metadata: Mapping[str, str] | None = None
    emulated: bool = False
    idempotency_key: str | None = None
    digest: str = ""
    number: int = 0
    status: BatchStatus = "validating"
    ending: BatchEnd | None = None
    input_file: int = 0
    output_file: int | None = None
    output_file_id: str | None = None
    error_file: int | None = None
    error_file_id: str | None = None
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    problems: tuple[LineProblem, ...] = ()
    created_wall_s: float = 0.0
    expires_wall_s: float = 0.0
    in_progress_wall_s: float | None = None
    finalizing_wall_s: float | None = None
    cancelling_wall_s: float | None = None
    ended_wall_s: float | None = None

    @property
    def of_messages(self) -> bool:
        """It came to Anthropic's API: a request that is not in order fails alone, and its results
        are Anthropic's.
        """
        return self.batch_id.startswith(MESSAGE_BATCH_PREFIX)


@frozen
class BatchLine:
    """A request of a batch that is still to be done, and where it stands in the input file (bytes
    from its beginning). One with a `problem` fails without a job.
    """

    line: int
    custom_id: str
    model: str
    start: int
    length: int
    problem: LineProblem | None = None


@frozen
class EndedLine:
    """A line whose job has ended, or that gets none; `end` is None where nothing is known of that
    job any more.

    `ending` is what its batch was about to end as at the instant at which `end` was read.
    """

    line: int
    custom_id: str
    job: int | None
    job_id: str
    end: JobEnd | None
    ending: BatchEnd | None


@frozen
class LineOutcome:
    """What is written about a line: `text` into the output file, or into the error file where it is
    not `completed`; `undone`: why it was not tried to its end.

    `job` is the number of the job that it had, None for a line that never became one.
    """

    line: int
    job: int | None
    completed: bool
    text: bytes
    undone: Literal["cancelled", "expired"] | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
