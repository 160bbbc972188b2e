"""The settings tree: what the owner's file says, as frozen values with the defaults in the one place where they are written.

Pure data (the scheduler imports this module): no I/O, no clock, no pydantic. `loading` turns YAML into it, `schema` turns it into the
JSON Schema, `gateway_config` puts it into the `GatewayConfig` that the rest of Hearth holds.

The docstring under a field is its documentation: effect, unit, why this default. `hot` marks what a reload applies at once; the rest
needs a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from hearth.config.client_settings import ClientSettings
from hearth.config.storage_settings import StorageSettings
from hearth.types import Lane, LoadOptions, Priority, canonical_model

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB_PER_GB = 1024.0


class PolicyName(StrEnum):
    """Which model a band serves next when it has a choice."""

    FIFO = "fifo"
    AFFINITY = "affinity"


class BackendMode(StrEnum):
    """Where answers come from."""

    AUTO = "auto"
    OLLAMA = "ollama"
    EMULATOR = "emulator"


class StartedStreams(StrEnum):
    """What becomes of an external stream whose caller has seen bytes when internal work needs the GPU."""

    REPLAY = "replay"
    FINISH = "finish"


class UnreplayableStreams(StrEnum):
    """The same for a stream that cannot be replayed."""

    FINISH = "finish"
    ERROR = "error"


class LogLevel(StrEnum):
    """How much is logged."""

    INFO = "info"
    DEBUG = "debug"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A daily window in minutes after local midnight: start inclusive, end exclusive, crossing midnight where end <= start.

    `start_minute == end_minute` is the whole day.
    """

    start_minute: int
    end_minute: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A recurring internal task, so that the GPU is free when it comes."""

    task_type: str
    """The internal task type that comes. hot"""
    cron: str
    """When it comes: minute, hour, day of month, month, day of week, in `scheduling.time_zone`. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """When and how the queue decides."""

    active_hours: Window = Window(start_minute=6 * 60, end_minute=22 * 60)
    """Hours in which internal work preempts external work; `"HH:MM-HH:MM"`, quoted, may cross midnight. hot"""
    time_zone: str = "local"
    """IANA zone of `active_hours` and `announcements` (`Europe/Berlin`); `local` is the machine's zone. hot"""
    schedule_drain_minutes: float = 2.0
    """Minutes before an announced internal task in which no external item that would overrun it starts. hot"""
    policy: PolicyName = PolicyName.AFFINITY
    """`fifo` or `affinity`: whether a band finishes what the resident model can serve before it swaps. hot"""
    max_swap_wait_s: float = 120.0
    """Seconds after which a waiting item may force a swap away from a busy model. hot"""
    residency_factor: float = 3.0
    """A forced swap comes only after the resident model has served this many times the measured cost of the swap. hot"""
    preempt_min_remaining_s: float = 2.0
    """A running external item that is estimated to end within this many seconds is not interrupted. hot"""
    started_streams: StartedStreams = StartedStreams.REPLAY
    """`replay`: interrupt a started external stream and resume it unnoticed by verified replay; `finish`: let it end first. hot"""
    unreplayable_streams: UnreplayableStreams = UnreplayableStreams.FINISH
    """A started stream that cannot be replayed: `finish` first, or end it with a retryable `error`. hot"""
    preempt_finish_bound_s: float = 60.0
    """Seconds an internal item waits for a stream that is left to finish; then the stream ends with a retryable error. hot"""
    replay_limit_mib: float = 1.0
    """MiB of a stream that are kept to compare a replay with; a longer one cannot be replayed. hot"""
    announcements: tuple[Announcement, ...] = ()
    """Internal tasks with a known time: `task_type` and a five-field `cron` expression in `time_zone`. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How much may wait and how often it may be interrupted."""

    max_external_depth: int = 20
    """External items that may wait; one more is refused with 503. hot"""
    max_internal_depth: int = 1000
    """Internal items that may wait; one more is refused with 503. hot"""
    max_interrupt_count: int = 3
    """Interruptions of one item after which it is protected and finishes. hot"""
    max_wait_s: float = 0.0
    """Seconds an item may wait before it is given up with 503; 0 is for ever. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    """Requests of one caller per sliding window; None inherits the default."""

    requests_per_minute: int | None = None
    """Requests in any 60 seconds. hot"""
    requests_per_hour: int | None = None
    """Requests in any 3600 seconds. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitSettings:
    """How often callers may ask."""

    default: CallerLimits = CallerLimits(requests_per_minute=10, requests_per_hour=100)
    """Applies to every external caller without an entry of its own. hot"""
    callers: Mapping[str, CallerLimits] = field(default_factory=lambda: MappingProxyType({}))
    """Overrides by caller name. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Money."""

    daily_external_usd: float = 5.0
    """US dollars a day that external callers may spend on cloud models. hot"""
    alert_pct: float = 80.0
    """Percentage of the budget at which the owner is told. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAlertSettings:
    """When swapping is worth a word to the owner."""

    swaps_per_hour_warning: int = 4
    """More swaps than this in an hour. hot"""
    swap_wait_ms_warning: float = 60000.0
    """A swap longer than this many milliseconds. hot"""
    swap_overhead_pct_warning: float = 25.0
    """More than this percentage of busy time spent on swaps. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """The card and what lives on it."""

    home_model: str = "qwen2.5:32b-instruct-q6_K"
    """The model that is resident when nobody needs another one; empty for none. hot"""
    swap_timeout_s: float = 120.0
    """Seconds for a load; longer is a failure. hot"""
    restore_home_delay_s: float = 30.0
    """Idle seconds before the home model is loaded again. hot"""
    vram_gb: float | None = None
    """GPU memory in GiB, 0 for a machine without GPU (no limit); unset is unknown: one model at a time. hot"""
    parallel: int = 1
    """Requests that one model serves at once, unless `models` says otherwise; at most OLLAMA_NUM_PARALLEL. hot"""
    swap_cost_prior_s: float = 10.0
    """Assumed seconds for a swap that has not been measured yet. hot"""
    alerts: GpuAlertSettings = GpuAlertSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What is known of one model."""

    vram_gb: float | None = None
    """GPU memory it needs in GiB; unset is learned from `/api/ps`. hot"""
    parallel: int | None = None
    """Requests it serves at once; unset is `gpu.parallel`. hot"""
    num_ctx: int | None = None
    """Context length it is loaded with and every native request is sent with; unset is the model's own. The OpenAI and Anthropic routes
    cannot carry one and use the model's own, so give their callers a tag made with `PARAMETER num_ctx`. hot, from the next load"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """How model servers are treated."""

    mode: BackendMode = BackendMode.AUTO
    """`ollama`, `emulator`, or `auto`: Ollama where one answers at start, else the embedded emulator. restart"""
    wait_when_down_s: float = 10.0
    """Seconds that requests wait for a model server that is down before they get 503. hot"""
    check_interval_s: float = 5.0
    """Seconds between looks at what the model server holds in memory. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaSettings:
    """The Ollama behind Hearth."""

    url: str = "http://127.0.0.1:11434"
    """Where it listens. restart"""
    connect_timeout_s: float = 5.0
    """Seconds for a connection. restart"""
    first_byte_timeout_s: float = 60.0
    """Seconds without any byte before a model counts as stuck (prompt time is added for long prompts). hot"""
    idle_timeout_s: float = 120.0
    """Seconds between two chunks of a running answer. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveSettings:
    """Signs of life for streaming callers who wait."""

    after_s: float = 10.0
    """Seconds of waiting after which the answer begins with a sign of life; before it, real status codes are possible. hot"""
    every_s: float = 15.0
    """Seconds between further signs of life while nothing else is sent. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Hearth's own door."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs `auth.keys`. restart"""
    port: int = 8411
    """Port to listen on. restart"""
    allowed_hosts: tuple[str, ...] = ()
    """Host names callers may use besides loopback names and `host` (`gpu-box.lan`, without port). hot"""
    max_body_mib: float = 32.0
    """Largest request body in MiB. hot"""
    write_buffer_mib: float = 4.0
    """Unread bytes held for a slow reader, in MiB, before the model server is made to wait. hot"""
    write_deadline_s: float = 10.0
    """Seconds a full buffer may stand still before its reader is dropped. hot"""
    shutdown_grace_s: float = 10.0
    """Seconds that running work gets at shutdown. hot"""
    log_format: str = "auto"
    """`text`, `json`, or `auto`: text in a terminal, JSON elsewhere. restart"""
    log_level: LogLevel = LogLevel.INFO
    """`info`: one line for each finished item; `debug`: also its steps on the way. restart"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """One API key: who it names and what that caller may do. Exactly one of `sha256` and `key` is given."""

    name: str
    """The caller's name in status, limits and logs. hot"""
    sha256: str
    """SHA-256 of the key in hex (`hearth admin key new NAME` prints both); `key: ${ENV}` is hashed when the file is read. hot"""
    lane: Lane = Lane.EXTERNAL
    """`internal` goes before everything else; `external` queues in order. hot"""
    max_priority: Priority = Priority.CRITICAL
    """The highest internal priority this key may claim: critical, normal or background. hot"""
    models: tuple[str, ...] = ()
    """Models it may use, `*` as wildcard; empty is all. hot"""
    admin: bool = False
    """May preempt, cancel others' requests, reload, and manage Ollama's models. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Who may come in."""

    keys: tuple[KeySettings, ...] = ()
    """API keys; none at all means loopback callers only. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole file."""

    scheduling: SchedulingSettings = SchedulingSettings()
    queue: QueueSettings = QueueSettings()
    priority_map: Mapping[str, Priority] = field(default_factory=lambda: MappingProxyType({}))
    """Internal task types by priority; a type that is not listed is `normal`. hot"""
    rate_limits: RateLimitSettings = RateLimitSettings()
    budget: BudgetSettings = BudgetSettings()
    gpu: GpuSettings = GpuSettings()
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MappingProxyType({}))
    """Models by name as callers write it. hot"""
    backend: BackendSettings = BackendSettings()
    ollama: OllamaSettings = OllamaSettings()
    keepalive: KeepaliveSettings = KeepaliveSettings()
    clients: ClientSettings = field(default_factory=ClientSettings)
    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    storage: StorageSettings = field(default_factory=StorageSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The part of the settings that the scheduler decides by."""

    scheduling: SchedulingSettings = SchedulingSettings()
    queue: QueueSettings = QueueSettings()
    gpu: GpuSettings = GpuSettings()
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MappingProxyType({}))
    wait_when_down_s: float = 10.0

    @classmethod
    def of(cls, settings: Settings) -> SchedulerSettings:
        """The scheduler's view of a whole settings tree, models under the names that Ollama lists."""
        return cls(
            scheduling=settings.scheduling,
            queue=settings.queue,
            gpu=replace(settings.gpu, home_model=settings.gpu.home_model and canonical_model(settings.gpu.home_model)),
            models=MappingProxyType({canonical_model(name): model for name, model in settings.models.items()}),
            wait_when_down_s=settings.backend.wait_when_down_s,
        )

    def parallel(self, model: str) -> int:
        """Slots of a model."""
        chosen = self.models.get(model)
        return self.gpu.parallel if chosen is None or chosen.parallel is None else chosen.parallel


def load_options(settings: Settings, model: str) -> LoadOptions:
    """How a model is loaded, and so how every request for it must be sent; `model` in any spelling that Ollama takes."""
    if not settings.models:
        return LoadOptions()
    wanted = canonical_model(model).lower()
    pinned = (known for name, known in settings.models.items() if canonical_model(name).lower() == wanted)
    return LoadOptions(num_ctx=next((known.num_ctx for known in pinned), None))
