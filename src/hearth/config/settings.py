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

# Every choice, and every section of the other modules, is had from here too.
from hearth.config import active_hours, fields
from hearth.config.caller_settings import (
    AuthSettings,
    BackgroundRequest,
    BudgetSettings,
    CallerLimits,
    ClientSettings,
    KeySettings,
    RateLimitSettings,
)
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
from hearth.config.record_settings import (
    AlertSettings,
    ConversationSettings,
    StorageSettings,
    TelemetrySettings,
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
)
from hearth.config.work_settings import (
    BatchSettings,
    CloudPriceSettings,
    CloudSettings,
    EmbeddingSettings,
    JobSettings,
    WebhookSettings,
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
