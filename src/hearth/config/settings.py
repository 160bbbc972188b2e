"""The settings: what the owner's file says, as frozen pydantic models with the defaults in the one
place where they are written.

`loading` turns YAML into them; the rest of Hearth holds a `GatewayConfig`, of which a reload makes
a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from datetime import tzinfo
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from hearth.config import active_hours, fields

# Every choice, and every section of the scheduler, is had from here too.
from hearth.config.choices import (
    AlertType,
    KeepaliveShow,
    LogFormat,
    PackingMode,
    PolicyName,
    StartedStreams,
    UnreplayableStreams,
    WholeAnswerSigns,
    Window,
)
from hearth.config.engines import EngineSettings
from hearth.config.fields import RESTART, Section
from hearth.config.mode_times import ModeTimes
from hearth.config.origins import Origin, SettingPath
from hearth.config.overlay import overlaid, stated_paths
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
)
from hearth.types import Counted, JsonDict, Lane, Priority, frozen


class BackendMode(StrEnum):
    """Where answers come from."""

    AUTO = "auto"
    OLLAMA = "ollama"
    EMULATOR = "emulator"


class BackendSettings(Section):
    """The model server. `backend: emulator` is short for `mode` alone."""

    mode: Annotated[BackendMode, RESTART] = BackendMode.AUTO
    """`ollama`, `emulator` (made-up answers), or `auto`: Ollama; a small model, or else the
    emulator, only while nothing is configured and nothing runs at the default address
    (docs/quickstart.md).
    """
    wait_when_down_s: fields.Duration = 10.0
    """Seconds requests wait for a model server that is down before they get 503."""
    check_interval_s: fields.Timeout = 5.0
    """Seconds between two checks of the models that the model server has loaded."""


class OllamaSettings(Section):
    """The Ollama server that Hearth sends requests to."""

    url: Annotated[fields.ServerUrl, RESTART] = "http://127.0.0.1:11434"
    """URL of Ollama, without `/v1` or `/api`. `${NAME}` is read from the environment."""
    connect_timeout_s: Annotated[fields.Timeout, RESTART] = 5.0
    """Seconds a connection to Ollama may take."""
    first_byte_timeout_s: fields.Timeout = 60.0
    """Seconds a model may take to send its first byte before it counts as stuck.

    Long prompts get more.
    """
    idle_timeout_s: fields.Timeout = 120.0
    """Maximum seconds between two chunks of an answer."""
    answer_timeout_s: fields.Timeout | None = None
    """Maximum seconds for an answer that is not streamed. Unset: twice the expected time of its
    longest form, at least 30. Streams have no such limit, only `idle_timeout_s`.
    """


_SignsOrFalse = Annotated[
    WholeAnswerSigns, fields.OFF_FOR_FALSE, fields.schema_or_false(*get_args(WholeAnswerSigns))
]


class KeepaliveSettings(Section):
    """Keep-alive messages for callers that wait for an answer."""

    after_s: fields.Timeout = 10.0
    """Seconds of waiting until the first message.

    From then on, errors can only be reported inside the stream.
    """
    every_s: fields.Timeout = 15.0
    """Seconds between further messages while nothing else is sent."""
    show: KeepaliveShow = "nothing"
    """What they show a person: `nothing`, or place and estimated wait as the model's `thinking`
    (docs/http-api/waiting.md). A key's `keepalive_show` goes first.
    """
    whole_answers: _SignsOrFalse = "off"
    """For answers that do not stream: `off`, or `whitespace` before their JSON, at the same times,
    for clients that give up after minutes without a byte. The price: from the first one on, the
    status is 200, and an error is in the body only (docs/http-api/waiting.md).
    """


class ServerSettings(Section):
    """Hearth's own HTTP server."""

    host: Annotated[fields.ListenHost, RESTART] = "127.0.0.1"
    """Address to listen on. Anything but loopback requires `auth.keys`."""
    port: Annotated[fields.Integer, Field(ge=1, le=65_535), RESTART] = 8411
    """Port to listen on."""
    allowed_hosts: fields.Items[fields.HostPattern] = ()
    """Host names callers may use besides loopback names and `host`, without port, such as
    `gpu-box.lan`, `*.home.arpa`, or with keys `*` for all. Addresses need no entry if there are
    keys. `${NAME}` is read from the environment.
    """
    base_path: fields.BasePath = ""
    """Path below which a reverse proxy serves Hearth, such as `/hearth`. Requests are taken with
    and without it, so the proxy may remove it.
    """
    allowed_origins: fields.Items[fields.BrowserOrigin] = ()
    """Origins whose pages may use the model APIs from a browser, such as `app://obsidian.md`,
    `http://localhost:*` or `vscode-webview://*`. They cannot use Hearth's own pages and commands.
    """
    max_body_mib: fields.Mebibytes = 32.0
    """Maximum size of a request body, in MiB."""
    max_upload_mib: fields.Mebibytes = 512.0
    """Maximum size of a recording that is sent to be transcribed, in MiB. It is kept on the disk,
    not in memory.
    """
    max_bodies_mib: fields.Mebibytes = 256.0
    """Maximum size of all request bodies in memory, in MiB. Beyond it, requests get 503.

    At least three times `max_body_mib` is used.
    """
    prompt_previews: fields.Flag = False
    """Show the first 80 characters of each prompt in the status, to everyone who may read it."""
    write_buffer_mib: fields.Mebibytes = 4.0
    """Unread bytes to keep for a slow client, in MiB, before Hearth stops reading from the model
    server.
    """
    write_deadline_s: fields.Timeout = 10.0
    """Seconds a client with a full buffer may read nothing before it is disconnected."""
    shutdown_grace_s: fields.Duration = 10.0
    """Seconds running requests get to finish at shutdown."""
    log_format: Annotated[LogFormat, RESTART] = "auto"
    """`text`, `json`, or `auto`: text in a terminal, JSON elsewhere."""
    log_level: Annotated[Literal["info", "debug"], RESTART] = "info"
    """`info` logs one line per finished request, `debug` also its steps."""


class BackgroundRequest(Section):
    """A request that a program sends on its own account, known by how its prompt begins."""

    name: fields.Name
    """Name in status and logs."""
    place: Literal["system", "only", "last"] = "system"
    """Where the text stands: `system` (in one of the first instructions), `only` (in the only
    message beside the instructions) or `last` (in the user's last message).
    """
    starts_with: fields.PromptText
    """How the text begins, in exactly these letters; at least 8 characters."""
    then: fields.Items[fields.PromptPart] = ()
    """What follows anywhere behind that, in this order."""
    background: fields.Flag = True
    """`false`: a user waits for it, although an entry that ships with Hearth says otherwise."""


class ClientSettings(Section):
    """How Hearth adapts to well-known clients."""

    background: fields.Items[BackgroundRequest] = ()
    """Requests that go behind all other external ones, beside the titles and the like that Hearth
    knows (docs/background.md). The first entry that fits decides.
    """
    background_tasks: Literal["resident", "as_asked"] = "resident"
    """Model for Open WebUI's titles, tags and follow-ups: `resident` (one that is loaded, so no
    swap) or `as_asked` (as in the request).
    """
    strip_attribution: fields.Flag = True
    """Remove the changing attribution line from Claude Code's system prompt.

    With it, the prompt cache is lost on every turn.
    """


class CallerLimits(Section):
    """Limits of one caller."""

    requests_per_minute: fields.Count | None = None
    """Maximum requests in any 60 seconds, embeddings apart. Unset: see `rate_limits.default`."""
    requests_per_hour: fields.Count | None = None
    """Maximum requests in any 3600 seconds, embeddings apart. Unset: see `rate_limits.default`."""
    embeddings_per_minute: fields.Count | None = None
    """Maximum embedding calls to the model server in any 60 seconds; requests that share one are
    one. Unset: see `rate_limits.default`.
    """
    embeddings_per_hour: fields.Count | None = None
    """Maximum embedding calls to the model server in any 3600 seconds.

    Unset: see `rate_limits.default`.
    """
    reading_s_per_minute: fields.Duration | None = None
    """Maximum CPU seconds in any 60 that Hearth spends on reading the bodies of requests.

    Unset: see `rate_limits.default`.
    """
    when_exceeded: Literal["refuse", "wait"] | None = None
    """What becomes of requests over a limit: `refuse` (429) or `wait` (until they are within it, at
    most 240 s, else 429). Unset: see `rate_limits.default`, and `refuse`.
    """


def _first(limits: Iterable[float | None]) -> float:
    return next(limit for limit in limits if limit is not None)


_UNSET = CallerLimits()
_LIMITS = tuple(name for name in CallerLimits.model_fields if name != "when_exceeded")
_WITH_KEYS = CallerLimits(
    requests_per_minute=120,
    requests_per_hour=2000,
    embeddings_per_minute=600,
    embeddings_per_hour=20_000,
    reading_s_per_minute=3.0,
    when_exceeded="refuse",
)
"""More than any interactive program asks: Open WebUI sends three requests beside each answer, an
editor one for each pause in typing, and an upload of a thousand chunks is 125 calls. A prompt of
128,000 tokens takes 20 ms to read.
"""


class RateLimitSettings(Section):
    """How many requests callers may send. Internal callers have no limit."""

    default: CallerLimits = _UNSET
    """Limits of every external caller without its own. Unset, for callers with a key: 120 requests
    per minute and 2000 per hour, 600 and 20000 embedding calls, and 3 s of reading per minute; none
    without keys.
    """
    callers: fields.ReadOnlyTable[fields.Name, CallerLimits] = fields.EMPTY
    """Limits of single callers by name, such as `notebook: {requests_per_minute: 30}`."""

    def of_caller(self, caller: str, kind: Counted = "requests") -> tuple[int, int]:
        """Requests, or embedding calls, per minute and hour."""
        chain = self._chain(caller)
        if kind == "requests":
            return int(_first(each.requests_per_minute for each in chain)), int(
                _first(each.requests_per_hour for each in chain)
            )
        return int(_first(each.embeddings_per_minute for each in chain)), int(
            _first(each.embeddings_per_hour for each in chain)
        )

    def reading_s(self, caller: str) -> float:
        """Seconds per minute that reading this caller's bodies may take."""
        return _first(each.reading_s_per_minute for each in self._chain(caller))

    def when_exceeded(self, caller: str) -> Literal["refuse", "wait"]:
        """What becomes of a request over a limit of its caller."""
        chosen = (each.when_exceeded for each in self._chain(caller))
        return next(each for each in chosen if each is not None)

    def _chain(self, caller: str) -> tuple[CallerLimits, ...]:
        """The caller's own, then the owner's default, then ours."""
        return (self.callers.get(caller, _UNSET), self.default, _WITH_KEYS)

    def default_of(self, field: str) -> float:
        """A limit of callers who have none of their own."""
        return _first(getattr(each, field) for each in self._chain(""))

    def are_stated(self, caller: str) -> bool:
        """Whether the owner has set any limit for this caller."""
        stated = (self.default, self.callers.get(caller, _UNSET))
        return any(getattr(each, name) is not None for each in stated for name in _LIMITS)

    def setting_of(self, caller: str, field: str) -> str:
        """The path of the setting that decides a limit of a caller, such as
        `requests_per_minute`.
        """
        own = self.callers.get(caller)
        is_default = own is None or getattr(own, field) is None
        return f"rate_limits.{'default' if is_default else f'callers.{caller}'}.{field}"


class BudgetSettings(Section):
    """The daily budget for cloud models."""

    daily_external_usd: fields.Usd = 5.0
    """US dollars that all external callers together may spend per day.

    Days begin at midnight in `scheduling.time_zone`.
    """
    alert_pct: fields.Percentage = 80.0
    """Percentage of the budget at which you get an alert."""


def _allow_key(schema: dict[str, Any]) -> None:
    """In the file a key from the environment may stand in place of its digest; it is hashed before
    the settings are made.
    """
    schema["properties"]["key"] = {
        "type": "string",
        "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}$",
        "description": (
            "Instead of `sha256`: the key itself, as `${NAME}` from the environment, 16 characters"
            " or more. `${NAME:-}` may be unset; then nobody has the key. hot"
        ),
    }
    schema["required"] = ["name"]
    schema["oneOf"] = [{"required": ["sha256"]}, {"required": ["key"]}]


class KeySettings(Section):
    """One API key and the rights of its caller. Exactly one of `sha256` and `key` is given."""

    model_config = ConfigDict(json_schema_extra=_allow_key)

    name: fields.Name
    """Name of the caller in status, limits and logs."""
    sha256: fields.Digest
    """SHA-256 of the key in hex; `hearth key new NAME` prints both.

    Or `key: ${NAME}`: the key itself, from the environment.
    """
    lane: Lane = Lane.EXTERNAL
    """`internal` requests go before all others.

    `external` requests are served in order of arrival, or by `queue.sharing`.
    """
    max_priority: fields.PriorityName = Priority.CRITICAL
    """Highest internal priority the caller may ask for: `critical`, `normal` or `background`."""
    priority: fields.PriorityName = Priority.NORMAL
    """Internal priority of requests that name no task type.

    `critical` for an assistant that somebody talks to.
    """
    models: fields.Items[fields.ModelName] = ()
    """Models the caller may use, with `*` as wildcard. Empty: all."""
    users_from: fields.HeaderName = ""
    """Header in which the program behind this key names its users, such as `x-openwebui-user-id`.
    Each then has a share of its own (`queue.sharing`), half of the key's rate limits at most, and
    is shown in status and history; rights are those of the key. Empty: its users are one caller.
    """
    admin: fields.Flag = False
    """Allow interrupting, cancelling requests of others, reloading, and managing Ollama's
    models.
    """
    may_lease: fields.Flag = False
    """Allow taking the GPU for another program (`/llm/gpu/leases`). Admins may anyway."""
    may_set_mode: fields.Flag = False
    """Allow switching the mode (`/llm/mode`). Admins may anyway."""
    allow_cloud: fields.Flag = False
    """Allow answers from Claude (`cloud`).

    This costs money and sends prompts out of your network.
    """
    local_only: fields.Flag = False
    """Keep the caller's requests on this machine: no Claude, whatever `allow_cloud` says, and no
    model of an `openai` or elastic engine.
    """
    daily_usd: fields.Usd | None = None
    """US dollars the caller may spend on Claude per day. Unset: no limit of its own."""
    keepalive_show: KeepaliveShow | None = None
    """What the caller's waiting streams show a person, `thinking` or `nothing`.

    Unset: as `keepalive.show`.
    """


class AuthSettings(Section):
    """Who may use Hearth."""

    keys: fields.Items[KeySettings] = ()
    """API keys. Empty: only callers on this machine."""


class WebhookSettings(Section):
    """Webhooks at the end of a job."""

    allowed_hosts: fields.Items[fields.AllowedHost] = ()
    """Hosts that the `webhook` of a job may name, without port, such as `n8n.lan`.

    Empty: no job may have one.
    """
    secret: fields.SigningSecret = Field(default="", repr=False)
    """Secret that signs messages (HMAC-SHA256), 16 characters or more; `${NAME}` is read from the
    environment. Webhooks require it.
    """
    max_attempts: Annotated[fields.Integer, Field(ge=1, le=20)] = 8
    """Maximum attempts to deliver a message. The pauses between them grow."""
    timeout_s: Annotated[fields.Number, Field(gt=0, le=300)] = 10.0
    """Seconds one attempt may take."""


class JobSettings(Section):
    """Durable jobs (docs/jobs.md).

    They require `storage.enabled`; requests and results are kept in its file.
    """

    task_types: fields.Items[fields.Name] = ()
    """Task types that `submit_task` puts into the durable queue.

    Others run at once in a thread pool.
    """
    priority: fields.PriorityName = Priority.BACKGROUND
    """Internal priority of a job that names none.

    Jobs of external callers wait in the external queue.
    """
    max_in_queue: Annotated[fields.Integer, Field(ge=1, le=1000)] = 4
    """Maximum number of jobs in the queue for the GPU, running ones included.

    All others wait in the store.
    """
    max_queued: fields.Depth = 10_000
    """Maximum number of jobs waiting in the store. Further ones get 503."""
    max_stored_mib: fields.Mebibytes = 256.0
    """Maximum size of requests, results and files in the store, in MiB.

    Beyond it, new jobs and files get 503.
    """
    caller_share_pct: Annotated[fields.Number, Field(ge=1, le=100)] = 50.0
    """Percentage of `max_queued`, `max_stored_mib` and `batches.max_open` that one external key may
    use.
    """
    internal_room_pct: Annotated[fields.Number, Field(ge=0, le=99)] = 20.0
    """Percentage of `max_queued` and `max_stored_mib` that is reserved for internal callers."""
    max_result_mib: fields.Mebibytes = 16.0
    """Maximum size of an answer, in MiB. A job with a larger one fails."""
    max_attempts: Annotated[fields.Integer, Field(ge=1, le=100)] = 3
    """Starts of one job before it fails, if it crashes the gateway or its answer always fails."""
    on_restart: Annotated[Literal["requeue", "fail"], RESTART] = "requeue"
    """If the gateway crashes while a job runs: `requeue` runs it again, `fail` ends it."""
    keep_results_days: Annotated[fields.Number, Field(ge=1, le=36_600)] = 7.0
    """Days to keep an ended job and its result."""
    pool_workers: Annotated[fields.Integer, Field(ge=1, le=256), RESTART] = 4
    """Threads for tasks of `submit_task` that are not in `task_types`."""
    webhooks: WebhookSettings = WebhookSettings()


class BatchSettings(Section):
    """OpenAI's files and batches, and Anthropic's batches (docs/batches.md).

    They require `storage.enabled` and share `jobs.max_stored_mib` with jobs.
    """

    window: Literal["any", "offpeak"] = "any"
    """When requests of batches may start: `any` time, or `offpeak`, which is outside
    `scheduling.active_hours`.
    """
    max_file_mib: fields.Mebibytes = 100.0
    """Maximum size of an uploaded file, in MiB."""
    max_requests: fields.Depth = 50_000
    """Maximum number of requests in a batch."""
    max_open: Annotated[fields.Integer, Field(ge=1, le=1000)] = 50
    """Maximum number of open batches of all callers together. Further ones get 503."""
    keep_files_days: Annotated[fields.Number, Field(ge=1, le=36_600)] = 30.0
    """Days to keep an ended batch, and a file whose caller has set no other time."""


class EmbeddingSettings(Section):
    """Embedding requests with a single input (docs/embeddings.md).

    Those that arrive while one like them runs are sent together.
    """

    accumulate: fields.Flag = True
    """Combine such requests into one request to the model server."""
    max_inputs: Annotated[fields.Integer, Field(ge=1, le=128)] = 8
    """Maximum inputs per combined request. A full one is sent at once."""
    max_wait_ms: Annotated[fields.Number, Field(ge=0, le=10_000)] = 50.0
    """Maximum milliseconds an input waits for others. It does not wait if nothing like it runs."""


class CloudPriceSettings(Section):
    """Prices of one Claude model, in US dollars per million tokens."""

    input_usd: fields.TokenPrice
    """Tokens of the prompt."""
    output_usd: fields.TokenPrice
    """Tokens of the answer, including thinking."""
    cache_read_usd: fields.TokenPrice | None = None
    """Prompt tokens read from Claude's cache. Unset: a tenth of `input_usd`."""
    cache_write_usd: fields.TokenPrice | None = None
    """Prompt tokens written to the cache for five minutes. Unset: 1.25 times `input_usd`.

    For an hour, it is always twice `input_usd`.
    """


class CloudSettings(Section):
    """Claude, for callers with `allow_cloud`: for `claude-...` models, and if Ollama is down, lacks
    the model, or would take too long.
    """

    api_key: fields.ApiKey = Field(default="", repr=False)
    """Anthropic API key, as `${NAME}` from the environment. Empty: no cloud.

    Requires `storage.enabled`.
    """
    model: fields.ModelName = "claude-haiku-5-5"
    """Claude model that answers in place of a local one."""
    models: fields.ReadOnlyTable[fields.ModelName, fields.PlainText] = fields.EMPTY
    """Other Claude models by local model, with `*` as wildcard, such as `"qwen2.5:32b*":
    claude-sonnet-5`. The first match counts.
    """
    base_url: fields.HttpUrl = "https://api.anthropic.com"
    """URL of the API. `${NAME}` is read from the environment."""
    when_wait_over_s: fields.Duration | None = None
    """Estimated wait in seconds above which Claude answers instead. Unset: never."""
    max_per_request_usd: fields.Usd = 0.5
    """US dollars one request may cost at most, for internal callers too."""
    daily_external_usd: fields.Usd | None = None
    """US dollars that external callers may spend per day, if less than `budget.daily_external_usd`.

    Unset: only that limit.
    """
    default_max_tokens: Annotated[fields.Integer, Field(ge=1, le=1_000_000)] = 4096
    """Maximum answer tokens if the caller sets no limit. Claude requires one."""
    timeout_s: fields.Timeout = 300.0
    """Seconds without any text of the answer after which a request fails. Pings do not count."""
    max_retries: Annotated[fields.Integer, Field(ge=0, le=10)] = 2
    """Retries of a request that failed before its first byte."""
    allow_local: fields.Flag = False
    """Allow Claude for callers on this machine if there are no `auth.keys`."""
    prices: fields.ReadOnlyTable[fields.ModelName, CloudPriceSettings] = fields.EMPTY
    """Prices by Claude model, if the built-in list (genai-prices) is wrong or lacks one."""


class StorageSettings(Section):
    """The SQLite file that outlives a restart: a row per finished request, without its text, and
    the jobs.
    """

    enabled: Annotated[fields.Flag, RESTART] = True
    """Use this file.

    Without it, rate limits and statistics start from zero after a restart, and `hearth log` and
    jobs do not work.
    """
    path: Annotated[fields.FilePath, RESTART] = ""
    """Path of the file, absolute or beginning with `~/`.

    Empty: `$XDG_STATE_HOME/hearth/hearth.db` (in `~/.local/state`).
    """
    retention_days: Annotated[fields.Number, Field(gt=0, le=36_600), RESTART] = 90.0
    """Days to keep rows."""
    max_mib: Annotated[fields.Number, Field(ge=1, le=1_000_000), RESTART] = 512.0
    """Maximum size of the data, in MiB. Beyond it, the oldest rows are deleted."""
    reserve_mib: Annotated[fields.Number, Field(ge=0, le=1_000_000), RESTART] = 8.0
    """Disk space to reserve in a second file, in MiB. Hearth frees it when the disk is full.

    0: none.
    """


class ConversationSettings(Section):
    """Conversations that outlive an unload, of llama.cpp servers that Hearth starts itself
    (docs/conversations.md).
    """

    directory: Annotated[fields.FilePath, RESTART] = ""
    """Directory of the saved conversations, absolute or beginning with `~/`; it may be in main
    memory. What was said can be read from its files, so only Hearth's user may read them.

    Empty: `conversations` beside the file of `storage`; without one, none are saved.
    """
    quota_gb: Annotated[fields.Gibibytes, RESTART] = 8.0
    """Maximum size of all of them in GiB. Beyond it, those that were not used for longest are
    deleted. 0: none are saved.
    """
    keep_s: Annotated[fields.Duration, RESTART] = 3600.0
    """Seconds to keep one after its last use."""


class TelemetrySettings(Section):
    """Traces of finished requests for an OpenTelemetry collector (docs/telemetry.md)."""

    otlp_endpoint: Annotated[fields.HttpUrlOrNothing, RESTART] = ""
    """URL of a collector for OTLP over HTTP, such as `http://127.0.0.1:4318`. Empty: no traces.

    Requires the extra `otel`.
    """
    service_name: Annotated[fields.Name, RESTART] = "hearth"
    """Service name in the traces."""
    sample_ratio: Annotated[fields.Number, Field(ge=0, le=1), RESTART] = 1.0
    """Share of requests to trace, 0 to 1.

    A caller that sends a trace context decides for its own.
    """


class AlertSettings(Section):
    """Alerts to you. Without any of the three URLs, none is sent.

    `hearth admin alert test` sends a test message.
    """

    discord_webhook_url: fields.WebhookUrl = Field(default="", repr=False)
    """Discord webhook (channel settings, Integrations); `${NAME}` is read from the environment.

    Anyone who has it can post there.
    """
    webhook_url: fields.WebhookUrl = Field(default="", repr=False)
    """URL that gets alerts as JSON by POST (docs/alerts.md).

    `${NAME}` is read from the environment.
    """
    ntfy_url: fields.WebhookUrl = Field(default="", repr=False)
    """Topic of an ntfy server, such as `https://ntfy.sh/my-topic`.

    `${NAME}` is read from the environment.
    """
    debounce_minutes: Annotated[fields.Number, Field(ge=0, le=10_080)] = 10.0
    """Minutes between two alerts of one type about one caller.

    The next one counts those left out.
    """
    mute: fields.Items[AlertType] = ()
    """Alert types that are never sent, such as `residency_drifted`. docs/alerts.md lists them."""
    rate_limit_alert_threshold: Annotated[fields.Integer, Field(ge=1, le=10_000)] = 5
    """Alert if one caller is refused by its rate limit this many times within 5 minutes."""
    queue_depth_warning: fields.Count = 10
    """Alert if more external requests than this wait. The alert ends when half as many wait."""
    loop_lag_warning_s: Annotated[fields.Number, Field(ge=0.05, le=3600)] = 1.0
    """Alert if Hearth is blocked for this many seconds, which delays all requests.

    Less is normal while a model loads.
    """
    disk_free_warning_mib: Annotated[fields.Number, Field(ge=0, le=1_000_000_000)] = 512.0
    """Alert if the disk of the database has less free space than this, in MiB.

    0 turns the alert off.
    """


class ModeSettings(Section):
    """One mode: what is written in it goes before the same setting outside of `modes`, as long as
    the mode is in force. Settings that need a restart cannot be in it, nor keys and addresses.
    """

    when: fields.ModeTime | None = None
    """When it is in force by itself, in `scheduling.time_zone`: hours such as `"22:00-06:00"`, or a
    cron expression for when it begins; it then lasts until another mode begins. Several are a list.
    Unset: only when it is switched on.
    """
    scheduling: SchedulingSettings = SchedulingSettings()
    queue: QueueSettings = QueueSettings()
    priority_map: fields.ReadOnlyTable[fields.Name, fields.PriorityName] = fields.EMPTY
    """Priorities of internal task types in this mode."""
    rate_limits: RateLimitSettings = RateLimitSettings()
    budget: BudgetSettings = BudgetSettings()
    gpu: GpuSettings = GpuSettings()
    models: fields.ReadOnlyTable[fields.ModelName, ModelSettings] = fields.EMPTY
    """Settings of single models in this mode."""
    aliases: fields.ReadOnlyTable[fields.AliasName, fields.ModelNames] = fields.EMPTY
    """Names for any of several models in this mode."""
    keepalive: KeepaliveSettings = KeepaliveSettings()
    clients: ClientSettings = ClientSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    cloud: CloudSettings = CloudSettings()
    jobs: JobSettings = JobSettings()
    batches: BatchSettings = BatchSettings()
    alerts: AlertSettings = AlertSettings()

    @model_serializer(mode="wrap")
    def _as_written(self, write: SerializerFunctionWrapHandler) -> JsonDict:
        """Only what is written in it: the rest is as outside of `modes`."""
        return _stated(self, write(self))


def _stated(section: Section, written: Any) -> JsonDict:  # noqa: ANN401 - as pydantic writes it
    """What is stated of a section that is written out."""
    found: dict[str, Any] = {}
    for name in type(section).model_fields:
        if name not in section.model_fields_set:
            continue
        value = getattr(section, name)
        found[name] = written[name]
        if isinstance(value, Section):
            found[name] = _stated(value, written[name])
        elif isinstance(value, Mapping):
            found[name] = {
                key: _stated(each, written[name][key])
                if isinstance(each, Section)
                else written[name][key]
                for key, each in value.items()
            }
    return found


MODE_SECTIONS = tuple(name for name in ModeSettings.model_fields if name != "when")


def _spelled_out(value: object) -> object:
    """`backend: auto` is its mode."""
    return {"mode": value} if isinstance(value, str) else {} if value is None else value


class Settings(Section):
    """The whole file."""

    scheduling: SchedulingSettings = SchedulingSettings()
    queue: QueueSettings = QueueSettings()
    priority_map: fields.ReadOnlyTable[fields.Name, fields.PriorityName] = fields.EMPTY
    """Priorities of internal task types: `critical`, `normal` or `background`.

    A type that is not listed is `normal`.
    """
    rate_limits: RateLimitSettings = RateLimitSettings()
    budget: BudgetSettings = BudgetSettings()
    gpu: GpuSettings = GpuSettings()
    models: fields.ReadOnlyTable[fields.ModelName, ModelSettings] = fields.EMPTY
    """Settings of single models, by the name callers use."""
    aliases: fields.ReadOnlyTable[fields.AliasName, fields.ModelNames] = fields.EMPTY
    """Names for any of several models, such as `coder: ["qwen3-coder:30b", "qwen2.5-coder:14b"]`.
    The model is chosen when a request starts: one in memory, else the cheapest to load, else the
    first (docs/aliases.md).
    """
    backend: Annotated[
        BackendSettings,
        BeforeValidator(_spelled_out, json_schema_input_type=BackendSettings | BackendMode | None),
    ] = BackendSettings()
    ollama: OllamaSettings = OllamaSettings()
    engines: Annotated[fields.ReadOnlyTable[fields.Name, EngineSettings], RESTART] = fields.EMPTY
    """The model servers, each under a name of your choice, in place of `ollama.url`. The timeouts
    of `ollama` apply to them. Empty: the Ollama at `ollama.url`.
    """
    keepalive: KeepaliveSettings = KeepaliveSettings()
    clients: ClientSettings = ClientSettings()
    embeddings: EmbeddingSettings = EmbeddingSettings()
    cloud: CloudSettings = CloudSettings()
    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    storage: StorageSettings = StorageSettings()
    conversations: ConversationSettings = ConversationSettings()
    jobs: JobSettings = JobSettings()
    batches: BatchSettings = BatchSettings()
    alerts: AlertSettings = AlertSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    modes: fields.ReadOnlyTable[fields.ModeName, ModeSettings] = fields.EMPTY
    """Sets of settings that are put in force together, such as day, night, gaming or guests, by
    their times, by `hearth mode NAME`, on the dashboard or over HTTP (docs/modes.md).
    """

    @property
    def engine(self) -> OllamaSettings:
        """Timeouts of all engines."""
        return self.ollama

    @property
    def engine_rows(self) -> Mapping[str, EngineSettings]:
        """All engines: the rows of `engines`, else the Ollama at `ollama.url`."""
        return self.engines or {ONLY_ENGINE: EngineSettings(kind="ollama", url=self.ollama.url)}

    @property
    def engine_row(self) -> EngineSettings:
        """The first engine."""
        return next(iter(self.engine_rows.values()))

    def url_setting(self, row: str) -> str:
        """Where the URL of a row is written."""
        return f"engines.{row}.url" if self.engines else ENGINE_URL


SECRET_PLACES: tuple[tuple[str, ...], ...] = (
    ("alerts",),
    ("auth",),
    ("cloud",),
    ("engines",),
    ("jobs", "webhooks"),
    ("ollama",),
    ("telemetry",),
)
"""Where keys stand, and URLs that may hold some: no message quotes what is written there."""
ONLY_ENGINE = "main"
"""The name of the one engine where no table names any."""
ENGINE = "ollama"
"""The kind of the one engine: its section, and its name in traces."""
ENGINE_URL = f"{ENGINE}.url"


@frozen
class GatewayConfig:
    """A checked configuration, from the file `source` with the SHA-256 `digest`; `notes`: what its
    owner may want to write otherwise.
    """

    settings: Settings = field(default_factory=Settings)
    source: Path | None = None
    digest: str = field(default="", compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    mode: str | None = None
    """The mode whose settings go before those outside of `modes`."""
    origins: Mapping[SettingPath, Origin] = field(default_factory=dict, compare=False, repr=False)
    """Where values come from that are not the default."""

    def in_mode(self, mode: str | None) -> GatewayConfig:
        """The same, which must be without one, in a mode; None, and one that there is not, is
        none.
        """
        over = self.settings.modes.get(mode or "")
        if over is None:
            return self
        settings = overlaid(self.settings, over, names=MODE_SECTIONS)
        own = {
            path: self.origins.get(("modes", mode or "", *path), Origin("mode"))
            for path in stated_paths(over, names=MODE_SECTIONS)
        }
        origins = {path: Origin("mode", origin.line) for path, origin in own.items()}
        return replace(self, settings=settings, mode=mode, origins={**self.origins, **origins})

    @property
    def mode_times(self) -> ModeTimes:
        """When its modes begin and end."""
        modes = self.settings.modes
        times = {name: mode.when or () for name, mode in modes.items()}
        return ModeTimes(times=times, zone=self._zone)

    def priority_for_task_type(self, task_type: str | None) -> Priority:
        """The internal band of a task type; NORMAL for one that `priority_map` does not list, and
        for none.
        """
        return self.settings.priority_map.get(task_type or "", Priority.NORMAL)

    def is_active_hours(self, wall_s: float) -> bool:
        """Whether internal work preempts external work at an instant (seconds since 1970-01-01
        UTC).
        """
        return active_hours.is_active(self.settings.scheduling.active_hours, self._zone, wall_s)

    def next_mode_change(self, wall_s: float) -> float | None:
        """The first instant after `wall_s` at which `is_active_hours` changes; None where the
        window is the whole day.
        """
        return active_hours.next_change(self.settings.scheduling.active_hours, self._zone, wall_s)

    def day_of(self, wall_s: float) -> tuple[float, float]:
        """The calendar day in `scheduling.time_zone` that an instant belongs to, as instants
        [start, end).
        """
        return active_hours.day_of(self._zone, wall_s)

    def next_announcements(self, wall_s: float) -> tuple[tuple[Announcement, ...], float] | None:
        """The announced tasks that come first after `wall_s`, with their common instant; None where
        nothing is announced.
        """
        return active_hours.next_occurrences(
            self.settings.scheduling.announcements, self._zone, wall_s
        )

    def rpm_for_caller(self, caller: str) -> int:
        """Requests that a caller may make in any 60 seconds."""
        return self.settings.rate_limits.of_caller(caller)[0]

    def rph_for_caller(self, caller: str) -> int:
        """Requests that a caller may make in any 3600 seconds."""
        return self.settings.rate_limits.of_caller(caller)[1]

    def with_names(self, canonical: Callable[[str], str]) -> GatewayConfig:
        """The same with the engine's own names of models, as all that runs has them; the owner
        may have written them in another way.
        """
        given = self.settings
        home = given.gpu.home_model
        changes = {
            "gpu": given.gpu.model_copy(update={"home_model": home and canonical(home)}),
            "models": MappingProxyType(
                {canonical(name): model for name, model in given.models.items()}
            ),
            "aliases": MappingProxyType(
                {name: tuple(map(canonical, models)) for name, models in given.aliases.items()}
            ),
        }
        return replace(self, settings=given.model_copy(update=changes))

    @property
    def scheduler_settings(self) -> SchedulerSettings:
        return SchedulerSettings.of(self.settings)

    @property
    def _zone(self) -> tzinfo:
        return active_hours.zone_of(self.settings.scheduling.time_zone)
