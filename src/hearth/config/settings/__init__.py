"""The settings tree: what the owner's file says, as frozen pydantic models with the defaults in the one place where they are written.

Everybody imports from here; what must stay free of pydantic has `choices`. `loading` turns YAML into it, `schema` turns it into
the JSON Schema, `gateway_config` puts it into the `GatewayConfig` that the rest of Hearth holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

from pydantic import BeforeValidator

from hearth.config.choices import (
    MIB_PER_GB,
    AlertType,
    BackendMode,
    BackgroundTasks,
    BatchWindow,
    LogFormat,
    LogLevel,
    OnDivergence,
    OnRestart,
    PackingMode,
    PolicyName,
    StartedStreams,
    UnreplayableStreams,
    Window,
)
from hearth.config.fields import MAPPING, SECTION, ModelName, Name, PriorityName, Section
from hearth.config.settings.outside import AlertSettings, CloudPriceSettings, CloudSettings, StorageSettings, TelemetrySettings
from hearth.config.settings.scheduling import (
    AgingSettings,
    Announcement,
    CostAwareSettings,
    GpuAlertSettings,
    GpuSettings,
    ModelSettings,
    PackingSettings,
    QueueSettings,
    SchedulingSettings,
    TimeSliceSettings,
)
from hearth.config.settings.serving import (
    AuthSettings,
    BackendSettings,
    BatchSettings,
    BudgetSettings,
    CallerLimits,
    ClientSettings,
    EmbeddingSettings,
    JobSettings,
    KeepaliveSettings,
    KeySettings,
    OllamaSettings,
    RateLimitSettings,
    ServerSettings,
    WebhookSettings,
)
from hearth.types import LoadOptions, canonical_model

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


def _spelled_out(value: object) -> object:
    """`backend: auto` is its mode."""
    return {"mode": value} if isinstance(value, str) else {} if value is None else value


class Settings(Section):
    """The whole file."""

    scheduling: Annotated[SchedulingSettings, SECTION] = SchedulingSettings()
    queue: Annotated[QueueSettings, SECTION] = QueueSettings()
    priority_map: Annotated[Mapping[Name, PriorityName], MAPPING] = {}
    """Internal task types by priority; a type that is not listed is `normal`."""
    rate_limits: Annotated[RateLimitSettings, SECTION] = RateLimitSettings()
    budget: Annotated[BudgetSettings, SECTION] = BudgetSettings()
    gpu: Annotated[GpuSettings, SECTION] = GpuSettings()
    models: Annotated[Mapping[ModelName, Annotated[ModelSettings, SECTION]], MAPPING] = {}
    """Models by name as callers write it."""
    backend: Annotated[BackendSettings, BeforeValidator(_spelled_out, json_schema_input_type=BackendSettings | BackendMode | None)] = (
        BackendSettings()
    )
    ollama: Annotated[OllamaSettings, SECTION] = OllamaSettings()
    keepalive: Annotated[KeepaliveSettings, SECTION] = KeepaliveSettings()
    clients: Annotated[ClientSettings, SECTION] = ClientSettings()
    embeddings: Annotated[EmbeddingSettings, SECTION] = EmbeddingSettings()
    cloud: Annotated[CloudSettings, SECTION] = CloudSettings()
    server: Annotated[ServerSettings, SECTION] = ServerSettings()
    auth: Annotated[AuthSettings, SECTION] = AuthSettings()
    storage: Annotated[StorageSettings, SECTION] = StorageSettings()
    jobs: Annotated[JobSettings, SECTION] = JobSettings()
    batches: Annotated[BatchSettings, SECTION] = BatchSettings()
    alerts: Annotated[AlertSettings, SECTION] = AlertSettings()
    telemetry: Annotated[TelemetrySettings, SECTION] = TelemetrySettings()


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
            gpu=settings.gpu.model_copy(update={"home_model": home and name_of(home)}),
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
