"""The settings tree: what the owner's file says, as frozen values with the defaults in the one place where they are written.

A module per group of sections; everybody imports from here. Pure data (the scheduler imports it): no I/O, no clock, no pydantic.
`loading` turns YAML into it, `schema` turns it into the JSON Schema, `gateway_config` puts it into the `GatewayConfig` that the rest of
Hearth holds.

The docstring under a field is its documentation: effect, unit, why this default. `hot` marks what a reload applies at once; the rest
needs a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hearth.config.settings.alerts import AlertSettings, AlertType
from hearth.config.settings.callers import AuthSettings, BudgetSettings, CallerLimits, KeySettings, RateLimitSettings
from hearth.config.settings.gpu import GpuAlertSettings, GpuSettings, ModelSettings
from hearth.config.settings.jobs import BatchSettings, BatchWindow, EmbeddingSettings, JobSettings, OnRestart, WebhookSettings
from hearth.config.settings.outside import CloudPriceSettings, CloudSettings, StorageSettings, TelemetrySettings
from hearth.config.settings.scheduling import (
    AgingSettings,
    Announcement,
    CostAwareSettings,
    OnDivergence,
    PackingMode,
    PackingSettings,
    PolicyName,
    QueueSettings,
    SchedulingSettings,
    StartedStreams,
    TimeSliceSettings,
    UnreplayableStreams,
    Window,
)
from hearth.config.settings.servers import (
    BackendMode,
    BackendSettings,
    BackgroundTasks,
    ClientSettings,
    KeepaliveSettings,
    LogFormat,
    LogLevel,
    OllamaSettings,
    ServerSettings,
)
from hearth.types import LoadOptions, Priority, canonical_model

__all__ = [
    "AgingSettings",
    "AlertSettings",
    "AlertType",
    "Announcement",
    "AuthSettings",
    "BackendMode",
    "BackendSettings",
    "BackgroundTasks",
    "BatchSettings",
    "BatchWindow",
    "BudgetSettings",
    "CallerLimits",
    "ClientSettings",
    "CostAwareSettings",
    "CloudPriceSettings",
    "CloudSettings",
    "EmbeddingSettings",
    "GpuAlertSettings",
    "GpuSettings",
    "JobSettings",
    "KeepaliveSettings",
    "KeySettings",
    "LogFormat",
    "LogLevel",
    "MIB_PER_GB",
    "ModelSettings",
    "OllamaSettings",
    "OnRestart",
    "PackingMode",
    "PackingSettings",
    "PolicyName",
    "QueueSettings",
    "RateLimitSettings",
    "SchedulerSettings",
    "SchedulingSettings",
    "ServerSettings",
    "Settings",
    "StartedStreams",
    "StorageSettings",
    "TelemetrySettings",
    "TimeSliceSettings",
    "OnDivergence",
    "UnreplayableStreams",
    "WebhookSettings",
    "Window",
    "load_options",
]

MIB_PER_GB = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole file."""

    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    priority_map: Mapping[str, Priority] = field(default_factory=lambda: MappingProxyType({}))
    """Internal task types by priority; a type that is not listed is `normal`. hot"""
    rate_limits: RateLimitSettings = field(default_factory=RateLimitSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MappingProxyType({}))
    """Models by name as callers write it. hot"""
    backend: BackendSettings = field(default_factory=BackendSettings)
    ollama: OllamaSettings = field(default_factory=OllamaSettings)
    keepalive: KeepaliveSettings = field(default_factory=KeepaliveSettings)
    clients: ClientSettings = field(default_factory=ClientSettings)
    embeddings: EmbeddingSettings = field(default_factory=EmbeddingSettings)
    cloud: CloudSettings = field(default_factory=CloudSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The part of the settings that the scheduler decides by."""

    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=lambda: MappingProxyType({}))
    wait_when_down_s: float = 10.0

    @classmethod
    def of(cls, settings: Settings, find: Callable[[str], str | None] = canonical_model) -> SchedulerSettings:
        """The scheduler's view of a whole settings tree, models under the names that Ollama lists.

        Args:
            find: the one name of a model, whichever of its names or spellings the owner has used; None where it is not installed.
        """
        home = settings.gpu.home_model

        def name_of(model: str) -> str:
            return find(model) or canonical_model(model)

        others_first = sorted(settings.models.items(), key=lambda named: name_of(named[0]) == canonical_model(named[0]))
        return cls(
            scheduling=settings.scheduling,
            queue=settings.queue,
            gpu=replace(settings.gpu, home_model=home and name_of(home)),
            models=MappingProxyType({name_of(name): model for name, model in others_first}),
            wait_when_down_s=settings.backend.wait_when_down_s,
        )

    def parallel(self, model: str) -> int:
        """Slots of a model."""
        chosen = self.models.get(model)
        return self.gpu.parallel if chosen is None or chosen.parallel is None else chosen.parallel


def load_options(settings: Settings, model: str, name_of: Callable[[str], str | None] = canonical_model) -> LoadOptions:
    """How a model is loaded, and so how every request for it must be sent; `model` in any spelling that Ollama takes.

    Args:
        name_of: the one name of a model that has several, None where it is not known.
    """
    if not settings.models:
        return LoadOptions()
    wanted = canonical_model(name_of(model) or model).lower()
    pinned = (known for name, known in settings.models.items() if canonical_model(name).lower() == wanted)
    return LoadOptions(num_ctx=next((known.num_ctx for known in pinned), None))
