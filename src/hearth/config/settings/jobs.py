"""Durable jobs, batches of them, and embedding calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hearth.types import Priority


class OnRestart(StrEnum):
    """What becomes of a job that had been sent to the model server when the gateway died."""

    REQUEUE = "requeue"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Who may be told that a job has ended. The secret is in no repr, log, error or status."""

    allowed_hosts: tuple[str, ...] = ()
    """Hosts that a job's `webhook` may name, without port; none at all means that no job may have one. hot"""
    secret: str = field(default="", repr=False)
    """What every message is signed with (HMAC-SHA256), 16 characters or more; `${NAME}` takes it from the environment. hot"""
    max_attempts: int = 8
    """Attempts for one message, further and further apart, before it is given up. hot"""
    timeout_s: float = 10.0
    """Seconds for one attempt. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Durable jobs (docs/jobs.md): they need `storage.enabled`, and their requests and results are kept in its file."""

    task_types: tuple[str, ...] = ()
    """Task types that `submit_task` puts into the durable queue; others run at once on a pool of threads. hot"""
    priority: Priority = Priority.BACKGROUND
    """The internal band of a job that asks for none; jobs of external callers wait in the external queue. hot"""
    max_in_queue: int = 4
    """Jobs that are in the GPU's own queue, or running, at one time; all others wait in the store. hot"""
    max_queued: int = 10_000
    """Jobs that may wait in the store; one more is refused with 503. hot"""
    max_stored_mib: float = 256.0
    """MiB of requests, results and files in the store beyond which new jobs and files are refused with 503. hot"""
    caller_share_pct: float = 50.0
    """Percentage of `max_queued`, `max_stored_mib` and `batches.max_open` that one external key may use. hot"""
    internal_room_pct: float = 20.0
    """Percentage of `max_queued` and `max_stored_mib` that external keys leave free for the internal lane. hot"""
    max_result_mib: float = 16.0
    """MiB that one answer may have; a job with a larger one fails. hot"""
    max_attempts: int = 3
    """Starts of one job after which it ends failed: a job that brings the gateway down, or an answer that always fails. hot"""
    on_restart: OnRestart = OnRestart.REQUEUE
    """What becomes of a job that had been sent to the model server when the gateway died: requeue (it runs again) or fail. restart"""
    keep_results_days: float = 7.0
    """Days after which an ended job is deleted with its result. hot"""
    pool_workers: int = 4
    """Threads for the tasks of `submit_task` that are not in `task_types`. restart"""
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)


class BatchWindow(StrEnum):
    """When the requests of batches may start."""

    ANY = "any"
    OFF_PEAK = "offpeak"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """OpenAI's files and batches (docs/batches.md): they need `storage.enabled`, and share `jobs.max_stored_mib` with the jobs."""

    window: BatchWindow = BatchWindow.ANY
    """When requests of batches may start: any, or offpeak (outside `scheduling.active_hours` only). hot"""
    max_file_mib: float = 100.0
    """MiB that one uploaded file may have. hot"""
    max_requests: int = 50_000
    """Requests that one batch may have. hot"""
    max_open: int = 50
    """Batches that may be open, of all callers together; one more is refused with 503. hot"""
    keep_files_days: float = 30.0
    """Days after which a file is deleted, unless its caller has said otherwise; and an ended batch with it. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """Embedding calls with a single input (docs/embeddings.md): those that come while one like them is under way go together."""

    accumulate: bool = True
    """Put them into one call of the model server. hot"""
    max_inputs: int = 8
    """Inputs of one call at most; a full one goes at once. hot"""
    max_wait_ms: float = 50.0
    """Milliseconds that an input is held back for company at most; one that nothing like it is under way for is not held at all. hot"""
