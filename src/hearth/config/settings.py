"""The settings: what the owner's file says, as frozen pydantic models with the defaults in the one place where they are written.

`loading` turns YAML into them, `schema` turns them into the JSON Schema, `GatewayConfig` is what the rest of Hearth holds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

# Every choice, and every section of the scheduler, is had from here too.
from hearth.config.choices import AlertType, BackendMode, LogFormat, PackingMode, PolicyName, StartedStreams, UnreplayableStreams, Window
from hearth.config.fields import (
    EMPTY,
    RESTART,
    AllowedHost,
    ApiKey,
    Count,
    Depth,
    Digest,
    Duration,
    FilePath,
    Flag,
    HttpUrl,
    HttpUrlOrNothing,
    Integer,
    Items,
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
    Table,
    Text,
    Timeout,
    TokenPrice,
    Usd,
    WebhookUrl,
)
from hearth.config.scheduler_settings import (
    AgingSettings,
    Announcement,
    CostAwareSettings,
    GpuAlertSettings,
    GpuSettings,
    ModelSettings,
    PackingSettings,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
    TimeSliceSettings,
    load_options,
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
    allowed_hosts: Items[AllowedHost] = ()
    """Host names callers may use besides loopback names and `host` (`gpu-box.lan`, without port)."""
    allowed_origins: Items[Origin] = ()
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
    log_level: Annotated[Literal["info", "debug"], RESTART] = "info"
    """`info`: one line for each finished item; `debug`: also its steps on the way."""


class ClientSettings(Section):
    """Habits of well-known clients, and what is done about them."""

    background_tasks: Literal["resident", "as_asked"] = "resident"
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

    default: CallerLimits = CallerLimits()
    """Applies to every external caller without an entry of its own; unset is 120 and 2000 for callers with a key, no limit without."""
    callers: Table[Name, CallerLimits] = EMPTY
    """Overrides by caller name."""

    def of_caller(self, caller: str) -> tuple[int, int]:
        """Requests per minute and hour: the caller's own, else the owner's default, else ours."""
        rungs = (self.callers.get(caller, CallerLimits()), self.default, _WITH_KEYS)
        return (
            next(rung.requests_per_minute for rung in rungs if rung.requests_per_minute is not None),
            next(rung.requests_per_hour for rung in rungs if rung.requests_per_hour is not None),
        )

    def are_stated(self, caller: str) -> bool:
        """Whether the owner has set any limit for this caller."""
        return {self.default, self.callers.get(caller, CallerLimits())} != {CallerLimits()}

    def setting_of(self, caller: str, field: str) -> str:
        """The path of the setting that decides `requests_per_minute` or `requests_per_hour` of a caller."""
        own = self.callers.get(caller)
        return f"rate_limits.{'default' if own is None or getattr(own, field) is None else f'callers.{caller}'}.{field}"


class BudgetSettings(Section):
    """Money."""

    daily_external_usd: Usd = 5.0
    """US dollars a day that external callers may spend on cloud models, together; days begin at midnight in `scheduling.time_zone`."""
    alert_pct: Percentage = 80.0
    """Percentage of the budget at which you get an alert."""


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
    models: Items[ModelName] = ()
    """Models it may use, `*` as wildcard; empty is all."""
    admin: Flag = False
    """May preempt, cancel others' requests, reload, and manage Ollama's models."""
    allow_cloud: Flag = False
    """Its requests may be answered by Claude (`cloud`), which costs money and sends the prompt out of your network."""
    local_only: Flag = False
    """Its requests never leave your network, whatever `allow_cloud` says."""
    daily_usd: Usd | None = None
    """US dollars a day that this caller may spend on Claude; unset is no limit of its own."""


class AuthSettings(Section):
    """Who may call."""

    keys: Items[KeySettings] = ()
    """API keys; none at all means loopback callers only."""


class WebhookSettings(Section):
    """Webhooks at the end of a job. The secret is in no repr, log, error or status."""

    allowed_hosts: Items[AllowedHost] = ()
    """Hosts that a job's `webhook` may name, without port; none at all means that no job may have one."""
    secret: SigningSecret = Field(default="", repr=False)
    """What every message is signed with (HMAC-SHA256), 16 characters or more; `${NAME}` takes it from the environment."""
    max_attempts: Annotated[Integer, Field(ge=1, le=20)] = 8
    """Attempts for one message, further and further apart, before it is given up."""
    timeout_s: Annotated[Number, Field(gt=0, le=300)] = 10.0
    """Seconds for one attempt."""


class JobSettings(Section):
    """Durable jobs (docs/jobs.md): they need `storage.enabled`, and their requests and results are kept in its file."""

    task_types: Items[Name] = ()
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
    on_restart: Annotated[Literal["requeue", "fail"], RESTART] = "requeue"
    """What becomes of a job that had been sent to the model server when the gateway died: requeue (it runs again) or fail."""
    keep_results_days: Annotated[Number, Field(ge=1, le=36_600)] = 7.0
    """Days after which an ended job is deleted with its result."""
    pool_workers: Annotated[Integer, Field(ge=1, le=256), RESTART] = 4
    """Threads for the tasks of `submit_task` that are not in `task_types`."""
    webhooks: WebhookSettings = WebhookSettings()


class BatchSettings(Section):
    """OpenAI's files and batches (docs/batches.md): they need `storage.enabled`, and share `jobs.max_stored_mib` with the jobs."""

    window: Literal["any", "offpeak"] = "any"
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


class CloudPriceSettings(Section):
    """What a million tokens of one Claude model cost, in US dollars."""

    input_usd: TokenPrice
    """Tokens of the prompt."""
    output_usd: TokenPrice
    """Tokens of the answer, thinking included."""
    cache_read_usd: TokenPrice | None = None
    """Prompt tokens read from Claude's cache; unset is a tenth of `input_usd`."""
    cache_write_usd: TokenPrice | None = None
    """Prompt tokens written to it for five minutes; unset is 1.25 times `input_usd`. For an hour it is always twice `input_usd`."""


class CloudSettings(Section):
    """Claude, for callers whose key has `allow_cloud`: where Ollama is down, lacks the model, or would take too long."""

    api_key: ApiKey = Field(default="", repr=False)
    """Anthropic's API key, as `${NAME}` from the environment; empty is no cloud at all. Needs `storage.enabled`."""
    model: ModelName = "claude-haiku-5-5"
    """The Claude model that answers in place of a local one."""
    models: Table[ModelName, Text] = EMPTY
    """Other Claude models by the local model that was asked for, `*` as wildcard; the first that matches counts."""
    base_url: HttpUrl = "https://api.anthropic.com"
    """Where the API is."""
    when_wait_over_s: Duration | None = None
    """Estimated wait in seconds beyond which Claude answers instead; unset is never."""
    max_per_request_usd: Usd = 0.5
    """US dollars that one call may cost at worst, for internal callers too."""
    daily_external_usd: Usd | None = None
    """US dollars a day for external callers; with `budget.daily_external_usd` the smaller of the two holds. Unset is that one."""
    default_max_tokens: Annotated[Integer, Field(ge=1, le=1_000_000)] = 4096
    """Limit of the answer in tokens where the caller gives none; Claude insists on one."""
    timeout_s: Timeout = 300.0
    """Seconds without any piece of the answer after which the call has failed; signs of life do not count."""
    max_retries: Annotated[Integer, Field(ge=0, le=10)] = 2
    """Further attempts of a call that failed before its first byte."""
    allow_local: Flag = False
    """Without `auth.keys`: callers on this machine may use Claude."""
    prices: Table[ModelName, CloudPriceSettings] = EMPTY
    """Prices by Claude model, where the list that comes with Hearth (genai-prices) is wrong or lacks one."""


class StorageSettings(Section):
    """What outlives the process: one database file."""

    enabled: Annotated[Flag, RESTART] = True
    """Keep a log of finished requests; without it, rate limits and statistics begin anew with every start."""
    path: Annotated[FilePath, RESTART] = ""
    """The file, absolute or beginning with `~/`; empty is `$XDG_STATE_HOME/hearth/hearth.db`."""
    retention_days: Annotated[Number, Field(gt=0, le=36_600), RESTART] = 90.0
    """Days after which an entry is forgotten."""
    max_mib: Annotated[Number, Field(ge=1, le=1_000_000), RESTART] = 512.0
    """Size of the data in MiB beyond which the oldest entries are forgotten."""
    reserve_mib: Annotated[Number, Field(ge=0, le=1_000_000), RESTART] = 8.0
    """MiB put aside beside the file for the day the disk is full; 0 for none."""


class TelemetrySettings(Section):
    """Traces of finished requests for an OpenTelemetry collector (docs/telemetry.md)."""

    otlp_endpoint: Annotated[HttpUrlOrNothing, RESTART] = ""
    """Where a collector takes OTLP over HTTP, such as `http://127.0.0.1:4318`; empty sends nothing. Needs the extra `otel`."""
    service_name: Annotated[Name, RESTART] = "hearth"
    """What Hearth is called in the traces."""
    sample_ratio: Annotated[Number, Field(ge=0, le=1), RESTART] = 1.0
    """Share of the requests that are traced, from 0 to 1; a caller that traces itself decides for its own."""


class AlertSettings(Section):
    """What is worth a message to the owner, and where it goes. The URLs are secrets: they are in no repr, log, error or status."""

    discord_webhook_url: WebhookUrl = Field(default="", repr=False)
    """Discord webhook that gets the messages; `${NAME}` takes it from the environment; empty is none."""
    webhook_url: WebhookUrl = Field(default="", repr=False)
    """Any HTTP address that gets them as JSON (docs/alerts.md); `${NAME}` as above; empty is none."""
    ntfy_url: WebhookUrl = Field(default="", repr=False)
    """Topic of an ntfy server, such as `https://ntfy.sh/my-topic`; `${NAME}` as above; empty is none."""
    debounce_minutes: Annotated[Number, Field(ge=0, le=10_080)] = 10.0
    """Minutes between two messages of one type about one caller; what is left out is counted in the next one."""
    mute: Items[AlertType] = ()
    """Types of alerts that are never sent."""
    rate_limit_alert_threshold: Annotated[Integer, Field(ge=1, le=10_000)] = 5
    """Refusals of one caller by its rate limit within 5 minutes that are worth a message."""
    queue_depth_warning: Count = 10
    """More external items than this waiting; it is over at half as many."""
    loop_lag_warning_s: Annotated[Number, Field(ge=0.05, le=3600)] = 1.0
    """Seconds that Hearth's event loop was held up, which delays everybody; less is usual while a model loads."""
    disk_free_warning_mib: Annotated[Number, Field(ge=0, le=1_000_000_000)] = 512.0
    """Less free space than this in MiB on the disk of the log file; 0 never warns."""


def _spelled_out(value: object) -> object:
    """`backend: auto` is its mode."""
    return {"mode": value} if isinstance(value, str) else {} if value is None else value


class Settings(Section):
    """The whole file."""

    scheduling: SchedulingSettings = SchedulingSettings()
    queue: QueueSettings = QueueSettings()
    priority_map: Table[Name, PriorityName] = EMPTY
    """Internal task types by priority; a type that is not listed is `normal`."""
    rate_limits: RateLimitSettings = RateLimitSettings()
    budget: BudgetSettings = BudgetSettings()
    gpu: GpuSettings = GpuSettings()
    models: Table[ModelName, ModelSettings] = EMPTY
    """Models by name as callers write it."""
    backend: Annotated[BackendSettings, BeforeValidator(_spelled_out, json_schema_input_type=BackendSettings | BackendMode | None)] = (
        BackendSettings()
    )
    ollama: OllamaSettings = OllamaSettings()
    keepalive: KeepaliveSettings = KeepaliveSettings()
    clients: ClientSettings = ClientSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    cloud: CloudSettings = CloudSettings()
    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    storage: StorageSettings = StorageSettings()
    jobs: JobSettings = JobSettings()
    batches: BatchSettings = BatchSettings()
    alerts: AlertSettings = AlertSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
