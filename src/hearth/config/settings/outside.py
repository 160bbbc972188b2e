"""What lies outside or outlives the process: Claude, the store, alerts, a collector of traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from hearth.config.choices import AlertType
from hearth.config.fields import (
    LIST,
    MAPPING,
    RESTART,
    SECTION,
    ApiKey,
    Count,
    Duration,
    FilePath,
    Flag,
    HttpUrl,
    HttpUrlOrNothing,
    Integer,
    ModelName,
    Name,
    Number,
    Section,
    Text,
    Timeout,
    TokenPrice,
    Usd,
    WebhookUrl,
)


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
    models: Annotated[Mapping[ModelName, Text], MAPPING] = {}
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
    prices: Annotated[Mapping[ModelName, Annotated[CloudPriceSettings, SECTION]], MAPPING] = {}
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
    mute: Annotated[tuple[AlertType, ...], LIST] = ()
    """Types of alerts that are never sent."""
    rate_limit_alert_threshold: Annotated[Integer, Field(ge=1, le=10_000)] = 5
    """Refusals of one caller by its rate limit within 5 minutes that are worth a message."""
    queue_depth_warning: Count = 10
    """More external items than this waiting; it is over at half as many."""
    loop_lag_warning_s: Annotated[Number, Field(ge=0.05, le=3600)] = 1.0
    """Seconds that Hearth's event loop was held up, which delays everybody; less is usual while a model loads."""
    disk_free_warning_mib: Annotated[Number, Field(ge=0, le=1_000_000_000)] = 512.0
    """Less free space than this in MiB on the disk of the log file; 0 never warns."""
