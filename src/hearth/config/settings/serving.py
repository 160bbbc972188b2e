"""What Hearth listens on and stands in front of, who may come in, and what is done for callers: jobs, batches, embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from hearth.config.choices import BackendMode, BackgroundTasks, BatchWindow, LogFormat, LogLevel, OnRestart
from hearth.config.fields import (
    LIST,
    MAPPING,
    RESTART,
    SECTION,
    AllowedHost,
    Count,
    Depth,
    Digest,
    Duration,
    Flag,
    HttpUrl,
    Integer,
    ListenHost,
    Mebibytes,
    ModelName,
    Name,
    Number,
    Origin,
    Percentage,
    PriorityName,
    Section,
    SigningSecret,
    Timeout,
    Usd,
)
from hearth.types import Lane, Priority


class BackendSettings(Section):
    """How model servers are treated."""

    mode: Annotated[BackendMode, RESTART] = BackendMode.AUTO
    """`ollama`, `emulator`, or `auto`: Ollama where one answers at start, else the embedded emulator."""
    wait_when_down_s: Duration = 10.0
    """Seconds that requests wait for a model server that is down before they get 503."""
    check_interval_s: Timeout = 5.0
    """Seconds between looks at what the model server holds in memory."""


class OllamaSettings(Section):
    """The Ollama behind Hearth."""

    url: Annotated[HttpUrl, RESTART] = "http://127.0.0.1:11434"
    """Where it listens."""
    connect_timeout_s: Annotated[Timeout, RESTART] = 5.0
    """Seconds for a connection."""
    first_byte_timeout_s: Timeout = 60.0
    """Seconds without any byte before a model counts as stuck (prompt time is added for long prompts)."""
    idle_timeout_s: Timeout = 120.0
    """Seconds between two chunks of a running answer."""
    answer_timeout_s: Timeout | None = None
    """Seconds that an answer may take which does not stream; unset is twice what its longest form should take, 30 at least. A stream has
    no such limit: it ends when it stops moving."""


class KeepaliveSettings(Section):
    """Signs of life for streaming callers who wait."""

    after_s: Timeout = 10.0
    """Seconds of waiting after which the answer begins with a sign of life; before it, real status codes are possible."""
    every_s: Timeout = 15.0
    """Seconds between further signs of life while nothing else is sent."""


class ServerSettings(Section):
    """Hearth's own door."""

    host: Annotated[ListenHost, RESTART] = "127.0.0.1"
    """Address to listen on; anything but loopback needs `auth.keys`."""
    port: Annotated[Integer, Field(ge=1, le=65_535), RESTART] = 8411
    """Port to listen on."""
    allowed_hosts: Annotated[tuple[AllowedHost, ...], LIST] = ()
    """Host names callers may use besides loopback names and `host` (`gpu-box.lan`, without port)."""
    allowed_origins: Annotated[tuple[Origin, ...], LIST] = ()
    """Pages that may use the model APIs from a browser (`app://obsidian.md`, `http://localhost:*`, `vscode-webview://*`)."""
    max_body_mib: Mebibytes = 32.0
    """Largest request body in MiB."""
    max_bodies_mib: Mebibytes = 256.0
    """All request bodies together that are held at one time, in MiB; never less than three times `max_body_mib`."""
    prompt_previews: Flag = False
    """Show the first 80 characters of each prompt in the status and its stream, to everybody who may read them."""
    write_buffer_mib: Mebibytes = 4.0
    """Unread bytes held for a slow reader, in MiB, before the model server is made to wait."""
    write_deadline_s: Timeout = 10.0
    """Seconds a full buffer may stand still before its reader is dropped."""
    shutdown_grace_s: Duration = 10.0
    """Seconds that running work gets at shutdown."""
    log_format: Annotated[LogFormat, RESTART] = LogFormat.AUTO
    """`text`, `json`, or `auto`: text in a terminal, JSON elsewhere."""
    log_level: Annotated[LogLevel, RESTART] = LogLevel.INFO
    """`info`: one line for each finished item; `debug`: also its steps on the way."""


class ClientSettings(Section):
    """Habits of well-known clients, and what is done about them."""

    background_tasks: BackgroundTasks = BackgroundTasks.RESIDENT
    """Open WebUI's titles, tags and follow-ups: answered by whatever model is `resident`, so that they never cause a swap, or by the model
    `as_asked`."""
    strip_attribution: Flag = True
    """Take Claude Code's changing attribution line out of its system prompt, which else spoils the prompt cache on every turn."""


class CallerLimits(Section):
    """Requests of one caller per sliding window; None inherits the default."""

    requests_per_minute: Count | None = None
    """Requests in any 60 seconds."""
    requests_per_hour: Count | None = None
    """Requests in any 3600 seconds."""


_WITH_KEYS = CallerLimits(requests_per_minute=120, requests_per_hour=2000)
"""More than any interactive program asks: Open WebUI sends three requests beside each answer, an editor one for each pause in typing."""


class RateLimitSettings(Section):
    """How often callers may ask."""

    default: Annotated[CallerLimits, SECTION] = CallerLimits()
    """Applies to every external caller without an entry of its own; unset is 120 and 2000 for callers with a key, no limit without."""
    callers: Annotated[Mapping[Name, Annotated[CallerLimits, SECTION]], MAPPING] = {}
    """Overrides by caller name."""

    def of_caller(self, caller: str) -> tuple[int, int]:
        """Requests per minute and hour: the caller's own, else the owner's default, else ours."""
        rungs = (*self._stated(caller), _WITH_KEYS)
        return (
            next(rung.requests_per_minute for rung in rungs if rung.requests_per_minute is not None),
            next(rung.requests_per_hour for rung in rungs if rung.requests_per_hour is not None),
        )

    def are_stated(self, caller: str) -> bool:
        """Whether the owner has set any limit for this caller."""
        return any(rung != CallerLimits() for rung in self._stated(caller))

    def setting_of(self, caller: str, field: str) -> str:
        """The path of the setting that decides `requests_per_minute` or `requests_per_hour` of a caller."""
        own = self.callers.get(caller)
        return f"rate_limits.{'default' if own is None or getattr(own, field) is None else f'callers.{caller}'}.{field}"

    def _stated(self, caller: str) -> tuple[CallerLimits, ...]:
        return (*((self.callers[caller],) if caller in self.callers else ()), self.default)


class BudgetSettings(Section):
    """Money."""

    daily_external_usd: Usd = 5.0
    """US dollars a day that external callers may spend on cloud models, together; days begin at midnight in `scheduling.time_zone`."""
    alert_pct: Percentage = 80.0
    """Percentage of the budget at which the owner is told."""


def _allow_key(schema: dict[str, Any]) -> None:
    """In the file a key from the environment may stand in place of its digest; it is hashed before the settings are made."""
    schema["properties"]["key"] = {
        "type": "string",
        "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$",
        "description": "In place of `sha256`: `${NAME}` takes the key from the environment. hot",
    }
    schema["required"] = ["name"]
    schema["oneOf"] = [{"required": ["sha256"]}, {"required": ["key"]}]


class KeySettings(Section):
    """One API key: who it names and what that caller may do. Exactly one of `sha256` and `key` is given."""

    model_config = ConfigDict(json_schema_extra=_allow_key)

    name: Name
    """The caller's name in status, limits and logs."""
    sha256: Digest
    """SHA-256 of the key in hex (`hearth admin key new NAME` prints both); `key: ${ENV}`, 16 characters or more, is hashed."""
    lane: Lane = Lane.EXTERNAL
    """`internal` goes before everything else; `external` queues in order."""
    max_priority: PriorityName = Priority.CRITICAL
    """The highest internal priority this key may claim: critical, normal or background."""
    models: Annotated[tuple[ModelName, ...], LIST] = ()
    """Models it may use, `*` as wildcard; empty is all."""
    admin: Flag = False
    """May preempt, cancel others' requests, reload, and manage Ollama's models."""
    allow_cloud: Flag = False
    """Its requests may be answered by Claude (`cloud`), which costs money and takes the prompt out of the house."""
    local_only: Flag = False
    """Its requests never leave the house, whatever `allow_cloud` says."""
    daily_usd: Usd | None = None
    """US dollars a day that this caller may spend on Claude; unset is no limit of its own."""


class AuthSettings(Section):
    """Who may come in."""

    keys: Annotated[tuple[Annotated[KeySettings, SECTION], ...], LIST] = ()
    """API keys; none at all means loopback callers only."""


class WebhookSettings(Section):
    """Who may be told that a job has ended. The secret is in no repr, log, error or status."""

    allowed_hosts: Annotated[tuple[AllowedHost, ...], LIST] = ()
    """Hosts that a job's `webhook` may name, without port; none at all means that no job may have one."""
    secret: SigningSecret = Field(default="", repr=False)
    """What every message is signed with (HMAC-SHA256), 16 characters or more; `${NAME}` takes it from the environment."""
    max_attempts: Annotated[Integer, Field(ge=1, le=20)] = 8
    """Attempts for one message, further and further apart, before it is given up."""
    timeout_s: Annotated[Number, Field(gt=0, le=300)] = 10.0
    """Seconds for one attempt."""


class JobSettings(Section):
    """Durable jobs (docs/jobs.md): they need `storage.enabled`, and their requests and results are kept in its file."""

    task_types: Annotated[tuple[Name, ...], LIST] = ()
    """Task types that `submit_task` puts into the durable queue; others run at once on a pool of threads."""
    priority: PriorityName = Priority.BACKGROUND
    """The internal band of a job that asks for none; jobs of external callers wait in the external queue."""
    max_in_queue: Annotated[Integer, Field(ge=1, le=1000)] = 4
    """Jobs that are in the GPU's own queue, or running, at one time; all others wait in the store."""
    max_queued: Depth = 10_000
    """Jobs that may wait in the store; one more is refused with 503."""
    max_stored_mib: Mebibytes = 256.0
    """MiB of requests, results and files in the store beyond which new jobs and files are refused with 503."""
    caller_share_pct: Annotated[Number, Field(ge=1, le=100)] = 50.0
    """Percentage of `max_queued`, `max_stored_mib` and `batches.max_open` that one external key may use."""
    internal_room_pct: Annotated[Number, Field(ge=0, le=99)] = 20.0
    """Percentage of `max_queued` and `max_stored_mib` that external keys leave free for the internal lane."""
    max_result_mib: Mebibytes = 16.0
    """MiB that one answer may have; a job with a larger one fails."""
    max_attempts: Annotated[Integer, Field(ge=1, le=100)] = 3
    """Starts of one job after which it ends failed: a job that brings the gateway down, or an answer that always fails."""
    on_restart: Annotated[OnRestart, RESTART] = OnRestart.REQUEUE
    """What becomes of a job that had been sent to the model server when the gateway died: requeue (it runs again) or fail."""
    keep_results_days: Annotated[Number, Field(ge=1, le=36_600)] = 7.0
    """Days after which an ended job is deleted with its result."""
    pool_workers: Annotated[Integer, Field(ge=1, le=256), RESTART] = 4
    """Threads for the tasks of `submit_task` that are not in `task_types`."""
    webhooks: Annotated[WebhookSettings, SECTION] = WebhookSettings()


class BatchSettings(Section):
    """OpenAI's files and batches (docs/batches.md): they need `storage.enabled`, and share `jobs.max_stored_mib` with the jobs."""

    window: BatchWindow = BatchWindow.ANY
    """When requests of batches may start: any, or offpeak (outside `scheduling.active_hours` only)."""
    max_file_mib: Mebibytes = 100.0
    """MiB that one uploaded file may have."""
    max_requests: Depth = 50_000
    """Requests that one batch may have."""
    max_open: Annotated[Integer, Field(ge=1, le=1000)] = 50
    """Batches that may be open, of all callers together; one more is refused with 503."""
    keep_files_days: Annotated[Number, Field(ge=1, le=36_600)] = 30.0
    """Days after which a file is deleted, unless its caller has said otherwise; and an ended batch with it."""


class EmbeddingSettings(Section):
    """Embedding calls with a single input (docs/embeddings.md): those that come while one like them is under way go together."""

    accumulate: Flag = True
    """Put them into one call of the model server."""
    max_inputs: Annotated[Integer, Field(ge=1, le=128)] = 8
    """Inputs of one call at most; a full one goes at once."""
    max_wait_ms: Annotated[Number, Field(ge=0, le=10_000)] = 50.0
    """Milliseconds that an input is held back for company at most; one that nothing like it is under way for is not held at all."""
