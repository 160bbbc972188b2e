"""The words of durable jobs, shared by the store that keeps them and the desk that runs them. Plain values.

Instants (`_wall_s`) are seconds since 1970-01-01 UTC: a job outlives the process, and with it every monotonic clock.
"""

from __future__ import annotations

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
