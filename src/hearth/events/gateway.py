"""What happens to the gateway as a whole: jobs and batches, configuration, storage, alerts, faults."""

from __future__ import annotations

from hearth.events.items import DEBUG, ERROR, WARNING, Event
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


@value
class GatewayStarted(Event):
    """The gateway listens."""

    url: str
    version: str
    backend: str
    authentication: bool


@value
class GatewayStopping(Event):
    """A stop was asked for; new work is refused."""

    grace_s: float
    waiting: int
    running: int


@value
class GatewayStopped(Event):
    """Everything has ended."""

    uptime_s: float


@value
class EmulatorStarted(Event):
    """No Ollama answered, or the emulator was asked for: answers are made up."""

    LEVEL = WARNING

    url: str
    reason: str


@value
class BackendWentDown(Event):
    """The model server stopped answering."""

    LEVEL = WARNING

    reason: str


@value
class BackendCameUp(Event):
    """The model server answers (again)."""

    version: str
    down_s: float


@value
class TaskAnnounced(Event):
    """An internal task is due `due_s` from now; shortly before that, external work that could overrun it is held back."""

    task_type: str
    due_s: float


@value
class ModeChanged(Event):
    """Active hours began or ended."""

    active: bool


@value
class ConfigReloaded(Event):
    """A new configuration is in force. `needs_restart` names the keys that have changed since the start and wait for a restart."""

    generation: int
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


@value
class ConfigRejected(Event):
    """The file was not usable; the configuration in force stays."""

    LEVEL = WARNING

    problems: tuple[str, ...]


@value
class StorageFailed(Event):
    """What should be kept cannot be written; it waits in memory, and requests go on. `reason`: a `StorageFault`."""

    LEVEL = WARNING

    reason: str
    detail: str


@value
class StorageRecovered(Event):
    """The store writes again. `dropped` rows found no room in memory meanwhile and are lost."""

    dropped: int


@value
class OwnerWarned(Event):
    """Something that the owner should change, seen at start."""

    LEVEL = WARNING

    text: str


@value
class ClockDoubted(Event):
    """The wall clock has jumped ahead by `ahead_s`; nothing is deleted for its age until somebody confirms it, or a day has passed."""

    LEVEL = WARNING

    ahead_s: float


@value
class ClockConfirmed(Event):
    """The wall clock is believed again: it is right, was confirmed, or has said the same for a day."""


@value
class InternalFault(Event):
    """A defect of ours was caught at a supervision point; `where` names it."""

    LEVEL = ERROR

    where: str
    detail: str


@value
class KeysTried(Event):
    """More wrong keys came from a peer within a minute than are answered; said once a minute. `wrong`: how many since it was said last."""

    LEVEL = WARNING

    peer: str
    wrong: int


@value
class ConnectionsCrowded(Event):
    """A peer wanted one connection more than it may have; once a minute while it does.

    Attributes:
        bound: who may have no more: one_machine, this_machine, all_others (but this machine) or all.
        open: connections of the peer; refused: those that it did not get since this was said last.
    """

    LEVEL = WARNING

    peer: str
    bound: str
    open: int
    refused: int


@value
class LoopLagged(Event):
    """The event loop was held up for `lag_s` (`alerts.loop_lag_warning_s` or more): whatever should have happened meanwhile was late."""

    LEVEL = WARNING

    lag_s: float


@value
class DiskRanLow(Event):
    """The disk of the log file has less free space than `alerts.disk_free_warning_mib`."""

    LEVEL = WARNING

    free_mib: float
    limit_mib: float


@value
class DiskSpaceReturned(Event):
    """The disk of the log file has enough free space again."""

    free_mib: float


@value
class TelemetryFailed(Event):
    """The collector of traces does not take them; they are lost, and requests go on. Said once, until it takes them again."""

    LEVEL = WARNING

    endpoint: str
    detail: str


@value
class TelemetryRecovered(Event):
    """The collector takes traces again."""

    lost_spans: int


@value
class AlertSent(Event):
    """A message with one or several alerts has arrived. `suppressed`: further ones like them that it only counts."""

    target: str
    types: tuple[str, ...]
    alerts: int
    suppressed: int
    attempts: int


@value
class AlertFailed(Event):
    """A message was given up. `stopped`: the target wants no more (401, 403, 404, 410), and gets none until a reload."""

    LEVEL = WARNING

    target: str
    types: tuple[str, ...]
    alerts: int
    attempts: int
    reason: str
    stopped: bool


@value
class BudgetThresholdReached(Event):
    """External callers have spent `budget.alert_pct` of what they may spend today on cloud models.

    Said once a day, and at each start until a message about it has arrived.
    """

    LEVEL = WARNING

    spent_usd: float
    limit_usd: float
    pct: float


@value
class BudgetExhausted(Event):
    """A call to a cloud model was refused because it could have cost more than is left for today.

    `own`: of the budget of its key, which the amounts are about then; else of that of all external callers.
    """

    LEVEL = WARNING

    caller: str
    own: bool
    wanted_usd: float
    spent_usd: float
    limit_usd: float


@value
class CloudWentDown(Event):
    """Claude takes no work from this house: the key or the account is at fault. It is tried again after `retry_s`, or after a reload."""

    LEVEL = WARNING

    reason: str
    detail: str
    retry_s: float


@value
class CloudCameUp(Event):
    """Claude has answered again."""

    down_s: float


@value
class EmbeddingsFlushed(Event):
    """A call for `inputs` callers went to the queue.

    Attributes:
        why: alone, full, timer, idle, other_model, apart or stopping.
        held_s: how long its first input was held back.
    """

    LEVEL = DEBUG

    model: str | None
    inputs: int
    why: str
    held_s: float


@value
class EmbeddingsParted(Event):
    """A call for several callers failed in a way that one of its inputs can cause; each input is now asked for by itself."""

    LEVEL = WARNING

    model: str | None
    inputs: int
    reason: str


@value
class DrainStarted(Event):
    """New work is refused from now on, on the owner's order; what waits and runs is finished."""

    waiting: int
    running: int


@value
class DrainEnded(Event):
    """New work is taken again."""

    drained_s: float


@value
class OrderGiven(Event):
    """The owner ordered something else. `order`: pause, resume, pin, unpin, load or unload; `model`: which, where it is about one."""

    order: str
    model: str | None = None
