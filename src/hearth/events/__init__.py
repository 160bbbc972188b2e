"""What happened, in the past tense: the one vocabulary of log line, metric, alert, row and
dashboard.

An event is a frozen value without behaviour. Prompts, keys and URLs with secrets never appear in
one. The documentation is made from their docstrings. Here is what happens to the gateway as a
whole, to jobs and batches; `items` has requests, models and the GPU, `machine` what they are on.
"""

from __future__ import annotations

from hearth.events.items import *  # noqa: F403 - every kind of event
from hearth.events.items import DEBUG, ERROR, WARNING, Event
from hearth.events.machine import *  # noqa: F403


class JobEvent(Event):
    """Base of what happens to one job."""

    job_id: str
    caller: str
    task_type: str | None
    model: str


class JobQueued(JobEvent, level=DEBUG):
    """The job is stored and will run.

    Fields: `waiting`: jobs that wait in the store, this one included.
    """

    waiting: int


class JobStarted(JobEvent, level=DEBUG):
    """It enters the queue for the GPU.

    Fields: `attempt`, from 1; `waited_s`: since it was accepted.
    """

    attempt: int
    waited_s: float


class JobRequeued(JobEvent, level=WARNING):
    """It waits in the store again. Fields: `attempt` that failed; `reason`: the error's; `retry_s`:
    how long it waits at least.
    """

    attempt: int
    reason: str
    retry_s: float


class JobEnded(JobEvent):
    """The one end of a job, once its record is on the disk. Fields: `state`: completed, failed or
    cancelled; `reason`: empty when completed, else the error's; `attempts`; `total_s`: accepted to
    end; `status`: HTTP status of the answer.
    """

    state: str
    reason: str
    attempts: int
    total_s: float
    status: int | None


class JobsRecovered(Event):
    """The gateway has read what earlier processes left behind. Fields: `queued`: jobs that wait on;
    `requeued`: were running, run again; `failed`: were running, ended failed.
    """

    queued: int
    requeued: int
    failed: int


class BatchStarted(Event):
    """The file of a batch is valid, and its requests will run."""

    batch_id: str
    caller: str
    endpoint: str
    requests: int


class BatchEnded(Event):
    """The one end of a batch, once its record is on the disk. Fields: `batch_id`; `caller`;
    `state`: completed, expired, cancelled, or failed when its file was not in order; `requests`;
    `completed`: with an answer; `failed`: without; `total_s`: accepted to end.
    """

    batch_id: str
    caller: str
    state: str
    requests: int
    completed: int
    failed: int
    total_s: float


class WebhookDelivered(Event):
    """A webhook at the end of a job was delivered."""

    job_id: str
    host: str
    attempts: int


class WebhookFailed(Event, level=WARNING):
    """A webhook at the end of a job was given up.

    Fields: `job_id`; `host`; `attempts`; `reason`: of the last attempt.
    """

    job_id: str
    host: str
    attempts: int
    reason: str


class GatewayStarted(Event):
    """The gateway listens. Fields: `url`; `version` of Hearth; `backend`: where answers come from;
    `authentication`: whether API keys are configured.
    """

    url: str
    version: str
    backend: str
    authentication: bool


class GatewayStopping(Event):
    """Hearth is stopping and refuses new requests.

    Fields: `grace_s`: time for running requests; `waiting` and `running` items.
    """

    grace_s: float
    waiting: int
    running: int


class GatewayStopped(Event):
    """Everything has ended. Fields: `uptime_s`: since the start."""

    uptime_s: float


class EmulatorStarted(Event, level=WARNING):
    """The emulator answers in place of a model server: answers are made up.

    Fields: `url` of the emulator; `reason`.
    """

    url: str
    reason: str


class EmulatorStopped(Event):
    """A model server answers in place of the emulator, or is waited for: nothing is made up any
    more.

    Fields: its `url`; `reason`.
    """

    url: str
    reason: str


class SmallModelAnswers(Event, level=WARNING):
    """A small model on the CPU answers, since there is no model server: answers are real, and often
    wrong.

    Fields: `model`: its name; `reason`.
    """

    model: str
    reason: str


class BackendWentDown(Event, level=WARNING):
    """The model server stopped answering. Fields: `reason`; `problem`: where it answers, but not as
    it should, the route, the status and what was expected; `engine`: its row, where there are
    several.
    """

    reason: str
    problem: str = ""
    engine: str = ""


class BackendAnswerUnexpected(Event, level=WARNING):
    """The model server, which is down, gave an answer that was not expected. Fields: `problem`: the
    route, the status and what was expected; each is emitted once. `engine` as above.
    """

    problem: str
    engine: str = ""


class BackendCameUp(Event):
    """The model server answers, for the first time or again.

    Fields: `version` of the server; `down_s`: how long it was down; `engine` as above.
    """

    version: str
    down_s: float
    engine: str = ""


class TaskAnnounced(Event):
    """An internal task is expected at a known time; shortly before it, external requests that could
    overrun it do not start. Fields: `task_type` announced; `due_s`: seconds until it is due.
    """

    task_type: str
    due_s: float


class ModeChanged(Event):
    """Active hours began or ended.

    Fields: `active`: whether internal requests interrupt external ones now.
    """

    active: bool


class ModeSwitched(Event):
    """Another mode of `modes` is in force, whose settings are; `mode_changed` is about the active
    hours. Fields: `mode` and `previous`, null for none; `by`: the caller who switched it, or the
    word times; `changed` settings.
    """

    mode: str | None
    previous: str | None
    by: str
    changed: tuple[str, ...]


class ConfigReloaded(Event):
    """A new configuration is in force. Fields: `generation`, counted from the start; `changed`
    keys; `needs_restart`: keys that have changed since the start and wait for a restart.
    """

    generation: int
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


class ConfigRejected(Event, level=WARNING):
    """The file has a mistake; the old configuration stays.

    Fields: `problems`, each as `file:line: path: what and what to do`.
    """

    problems: tuple[str, ...]


class KeyCreated(Event):
    """An admin made a key over HTTP. Fields: `caller`: whose; `by`: the admin; `admin`: whether it
    has admin rights.
    """

    caller: str
    by: str
    admin: bool


class KeyRotated(Event):
    """An admin gave a caller another secret over HTTP. Fields as `KeyCreated`."""

    caller: str
    by: str


class KeyRevoked(Event):
    """An admin removed a key over HTTP. Fields as `KeyCreated`."""

    caller: str
    by: str


class StorageFailed(Event, level=WARNING):
    """The database cannot be written. Rows wait in memory, and requests continue. Fields: `reason`:
    disk_full, io_error, read_only, locked, corrupt, cannot_open, file_moved, overloaded (more than
    the disk can take), or closed (at the end, and the rest is lost); `detail`.
    """

    reason: str
    detail: str


class StorageRecovered(Event):
    """The store writes again.

    Fields: `dropped`: rows that found no room in memory meanwhile and are lost.
    """

    dropped: int


class WalDamaged(Event, level=WARNING):
    """At start, frames of the database's write-ahead log could not be read. Fields:
    `unreadable_frames`: that were committed, behind the last commit that could be read;
    `readable_frames`: up to that; `certain`: false where they may be a commit that a power cut
    broke off, which nobody was told of; `copy`: the file that keeps the database as it was found,
    with its log beside it.
    """

    unreadable_frames: int
    readable_frames: int
    certain: bool
    copy: str


class OwnerWarned(Event, level=WARNING):
    """Something the owner should change, found at start: another Hearth schedules the same models,
    or other users can read the directory of `storage.path`.
    """

    text: str


class ClockDoubted(Event, level=WARNING):
    """The wall clock is ahead of where the last run left it; nothing is deleted for its age until
    it is confirmed, right again, or a day has passed.
    """

    ahead_s: float


class ClockConfirmed(Event):
    """The wall clock is trusted again, and old data is deleted."""


class InternalFault(Event, level=ERROR):
    """A defect of Hearth was caught; the rest of Hearth continues."""

    where: str
    detail: str


class KeysTried(Event, level=WARNING):
    """More than 10 requests with a wrong key came from a peer within a minute; said once a minute
    while they come. Fields: `peer`: an IPv4 address, an IPv6 network (/64) or `this machine`;
    `wrong`: how many since it was said last.
    """

    peer: str
    wrong: int


class ConnectionsCrowded(Event, level=WARNING):
    """A peer wanted one connection more than it may have; said once a minute while it does. Fields:
    `peer`, as above; `bound`: who may have no more, one_machine, this_machine, all_others (but this
    machine) or all; `open`: connections of the peer; `refused`: those that it did not get since it
    was said last.
    """

    peer: str
    bound: str
    open: int
    refused: int


class LoopLagged(Event, level=WARNING):
    """Hearth's event loop was blocked, and with it all requests."""

    lag_s: float


class DiskRanLow(Event, level=WARNING):
    """The disk of the database has less free space than `alerts.disk_free_warning_mib`."""

    free_mib: float
    limit_mib: float


class DiskSpaceReturned(Event):
    """The disk has enough free space again."""

    free_mib: float


class TelemetryFailed(Event, level=WARNING):
    """The collector does not accept traces (telemetry). They are lost, and requests continue.
    Emitted once. Fields: `endpoint`; `detail`: what OpenTelemetry's exporter said.
    """

    endpoint: str
    detail: str


class TelemetryRecovered(Event):
    """The collector accepts traces again. Fields: `lost_spans` until then."""

    lost_spans: int


class AlertSent(Event):
    """A message with alerts was delivered (alerts). Fields: `target`: discord, webhook or ntfy;
    `types` of alerts in it; `alerts`: how many; `suppressed`: further ones like them that it only
    counts; `attempts` it took.
    """

    target: str
    types: tuple[str, ...]
    alerts: int
    suppressed: int
    attempts: int


class AlertFailed(Event, level=WARNING):
    """A message with alerts was given up. Fields: `target`; `types`; `alerts`; `attempts`;
    `reason`: http_404 and the like, timeout, dns, connect, tls, broken or stopping; `problem`: what
    that means, perhaps empty; `stopped`: whether the target gets no more until a reload.
    """

    target: str
    types: tuple[str, ...]
    alerts: int
    attempts: int
    reason: str
    problem: str
    stopped: bool


class BudgetThresholdReached(Event, level=WARNING):
    """External callers have spent `budget.alert_pct` of what they may spend today; once a day, and
    at each start until a message about it has arrived. Fields: `spent_usd`; `limit_usd`: the
    smaller of the two daily limits; `pct`.
    """

    spent_usd: float
    limit_usd: float
    pct: float


class BudgetExhausted(Event, level=WARNING):
    """A call was refused because it could have cost more than is left for today. Fields: `caller`;
    `own`: it is the budget of the caller's key that has no room; `wanted_usd`: what it could have
    cost at worst; `spent_usd` by external callers today, or by this caller where `own`, calls that
    run at their worst; `limit_usd` of the same budget.
    """

    caller: str
    own: bool
    wanted_usd: float
    spent_usd: float
    limit_usd: float


class CloudWentDown(Event, level=WARNING):
    """Claude refuses the key or the account. Fields: `reason`; `detail`: what to look at;
    `retry_s`: when it is tried again, a reload tries at once.
    """

    reason: str
    detail: str
    retry_s: float


class CloudCameUp(Event):
    """Claude has answered again. Fields: `down_s`: how long it was down."""

    down_s: float


class EmbeddingsFlushed(Event, level=DEBUG):
    """A call for one or more inputs went to the queue. Fields: `model`; `inputs`: how many; `why`:
    alone (nothing like it was under way), full, timer, idle (the last one like it has ended),
    other_model, apart (the call it was in has failed) or stopping; `held_s`: how long its first
    input was held back.
    """

    model: str | None
    inputs: int
    why: str
    held_s: float


class EmbeddingsParted(Event, level=WARNING):
    """A call for several inputs failed in a way that one of them can cause, or its answer could not
    be cut; each input is asked for by itself. Fields: `model`; `inputs`; `reason`: status_400 and
    the like, an error's `reason`, or unknown_answer.
    """

    model: str | None
    inputs: int
    reason: str


class DrainStarted(Event):
    """An admin started a drain (orders): new requests are refused.

    Fields: `waiting` and `running` requests, which are finished.
    """

    waiting: int
    running: int


class DrainEnded(Event):
    """New requests are accepted again. Fields: `drained_s`: how long they were not."""

    drained_s: float


class UnloadRequested(Event):
    """A caller of the model APIs asked for a model to go (`keep_alive` 0), which is a wish. Fields:
    `caller`; `model`; `kept`: why the model stays, empty where it goes.
    """

    caller: str
    model: str
    kept: str


class OrdersRecalled(Event):
    """Admin commands and GPU leases of the process before are in force again. Fields: `paused`;
    `pinned`; `loads` and `unloads` that were not done; `leases`: how many.
    """

    paused: bool
    pinned: str | None
    loads: tuple[str, ...]
    unloads: tuple[str, ...]
    leases: int


class OrderDropped(Event, level=WARNING):
    """An admin command of the process before is void: no engine has its model any more. Fields:
    `order`: pin, load or unload; `model`.
    """

    order: str
    model: str


class OrderGiven(Event):
    """Another admin command took effect. Fields: `order`: pause, resume, pin, unpin, load or
    unload; `model`: which, where it is about one.
    """

    order: str
    model: str | None = None
