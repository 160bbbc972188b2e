"""What happens to durable jobs and to batches of them. Their requests, results and webhooks never appear."""

from __future__ import annotations

from hearth.events.base import DEBUG, WARNING, Event
from hearth.types import value


@value
class JobEvent(Event):
    """Base of what happens to one job."""

    job_id: str
    caller: str
    task_type: str | None
    model: str


@value
class JobQueued(JobEvent):
    """A job is on the disk: it will be done. `waiting` counts the jobs that wait in the store, this one included."""

    LEVEL = DEBUG

    waiting: int


@value
class JobStarted(JobEvent):
    """A job goes to the GPU's queue; `attempt` counts from 1."""

    LEVEL = DEBUG

    attempt: int
    waited_s: float


@value
class JobRequeued(JobEvent):
    """A job that was started waits in the store again; it runs once more, not before `retry_s` from now."""

    LEVEL = WARNING

    attempt: int
    reason: str
    retry_s: float


@value
class JobEnded(JobEvent):
    """The one end of a job, said once its record is on the disk.

    Attributes:
        state: completed, failed or cancelled; reason: empty for a completed job.
        total_s: accepted to end.
        status: HTTP status of the answer, None where there was none.
    """

    state: str
    reason: str
    attempts: int
    total_s: float
    status: int | None


@value
class JobsRecovered(Event):
    """What earlier processes left behind: `queued` jobs wait on, `requeued` ones were running and run again, `failed` ones do not."""

    queued: int
    requeued: int
    failed: int


@value
class BatchStarted(Event):
    """The file of a batch is in order: its `requests` will be done."""

    batch_id: str
    caller: str
    endpoint: str
    requests: int


@value
class BatchEnded(Event):
    """The one end of a batch, said once its record is on the disk.

    Attributes:
        state: completed, expired, cancelled or failed (its file was not in order).
        requests, completed, failed: all, with an answer, without one.
        total_s: accepted to end.
    """

    batch_id: str
    caller: str
    state: str
    requests: int
    completed: int
    failed: int
    total_s: float


@value
class WebhookDelivered(Event):
    """Whoever asked to be told of the end of a job has been told."""

    job_id: str
    host: str
    attempts: int


@value
class WebhookFailed(Event):
    """The message about the end of a job was given up."""

    LEVEL = WARNING

    job_id: str
    host: str
    attempts: int
    reason: str
