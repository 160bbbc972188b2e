"""What lies outside of the house or outlives the process: Claude, the store, a collector of traces."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudPriceSettings:
    """What a million tokens of one Claude model cost, in US dollars."""

    input_usd: float
    """Tokens of the prompt. hot"""
    output_usd: float
    """Tokens of the answer, thinking included. hot"""
    cache_read_usd: float | None = None
    """Prompt tokens read from Claude's cache; unset is a tenth of `input_usd`. hot"""
    cache_write_usd: float | None = None
    """Prompt tokens written to it for five minutes; unset is 1.25 times `input_usd`. For an hour it is always twice `input_usd`. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """Claude, for callers whose key has `allow_cloud`: where Ollama is down, lacks the model, or would take too long."""

    api_key: str = field(default="", repr=False)
    """Anthropic's API key, as `${NAME}` from the environment; empty is no cloud at all. Needs `storage.enabled`. hot"""
    model: str = "claude-haiku-5-5"
    """The Claude model that answers in place of a local one. hot"""
    models: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Other Claude models by the local model that was asked for, `*` as wildcard; the first that matches counts. hot"""
    base_url: str = "https://api.anthropic.com"
    """Where the API is. hot"""
    when_wait_over_s: float | None = None
    """Estimated wait in seconds beyond which Claude answers instead; unset is never. hot"""
    max_per_request_usd: float = 0.5
    """US dollars that one call may cost at worst, for internal callers too. hot"""
    daily_external_usd: float | None = None
    """US dollars a day for external callers; with `budget.daily_external_usd` the smaller of the two holds. Unset is that one. hot"""
    default_max_tokens: int = 4096
    """Limit of the answer in tokens where the caller gives none; Claude insists on one. hot"""
    timeout_s: float = 300.0
    """Seconds without any piece of the answer after which the call has failed; signs of life do not count. hot"""
    max_retries: int = 2
    """Further attempts of a call that failed before its first byte. hot"""
    allow_local: bool = False
    """Without `auth.keys`: callers on this machine may use Claude. hot"""
    prices: Mapping[str, CloudPriceSettings] = field(default_factory=lambda: MappingProxyType({}))
    """Prices by Claude model, where the list that comes with Hearth (genai-prices) is wrong or lacks one. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What outlives the process: one database file."""

    enabled: bool = True
    """Keep a log of finished requests; without it, rate limits and statistics begin anew with every start. restart"""
    path: str = ""
    """The file, absolute or beginning with `~/`; empty is `$XDG_STATE_HOME/hearth/hearth.db`. restart"""
    retention_days: float = 90.0
    """Days after which an entry is forgotten. restart"""
    max_mib: float = 512.0
    """Size of the data in MiB beyond which the oldest entries are forgotten. restart"""
    reserve_mib: float = 8.0
    """MiB put aside beside the file for the day the disk is full; 0 for none. restart"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Traces of finished requests for an OpenTelemetry collector (docs/telemetry.md)."""

    otlp_endpoint: str = ""
    """Where a collector takes OTLP over HTTP, such as `http://127.0.0.1:4318`; empty sends nothing. Needs the extra `otel`. restart"""
    service_name: str = "hearth"
    """What Hearth is called in the traces. restart"""
    sample_ratio: float = 1.0
    """Share of the requests that are traced, from 0 to 1; a caller that traces itself decides for its own. restart"""
