"""Claude as a second place where answers come from, for callers that may cost money."""

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
