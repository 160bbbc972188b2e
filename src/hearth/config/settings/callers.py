"""Who may come in, how often, and for how much money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hearth.types import Lane, Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    """Requests of one caller per sliding window; None inherits the default."""

    requests_per_minute: int | None = None
    """Requests in any 60 seconds. hot"""
    requests_per_hour: int | None = None
    """Requests in any 3600 seconds. hot"""


_SHIPPED = CallerLimits(requests_per_minute=10, requests_per_hour=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitSettings:
    """How often callers may ask."""

    default: CallerLimits = _SHIPPED
    """Applies to every external caller without an entry of its own. hot"""
    callers: Mapping[str, CallerLimits] = field(default_factory=lambda: MappingProxyType({}))
    """Overrides by caller name. hot"""

    def of_caller(self, caller: str) -> tuple[int, int]:
        """Requests per minute and hour: the caller's own, else the owner's default, else ours."""
        rungs = (*((self.callers[caller],) if caller in self.callers else ()), self.default, _SHIPPED)
        return (
            next(rung.requests_per_minute for rung in rungs if rung.requests_per_minute is not None),
            next(rung.requests_per_hour for rung in rungs if rung.requests_per_hour is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Money."""

    daily_external_usd: float = 5.0
    """US dollars a day that external callers may spend on cloud models, together; days begin at midnight in `scheduling.time_zone`. hot"""
    alert_pct: float = 80.0
    """Percentage of the budget at which the owner is told. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """One API key: who it names and what that caller may do. Exactly one of `sha256` and `key` is given."""

    name: str
    """The caller's name in status, limits and logs. hot"""
    sha256: str
    """SHA-256 of the key in hex (`hearth admin key new NAME` prints both); `key: ${ENV}`, 16 characters or more, is hashed. hot"""
    lane: Lane = Lane.EXTERNAL
    """`internal` goes before everything else; `external` queues in order. hot"""
    max_priority: Priority = Priority.CRITICAL
    """The highest internal priority this key may claim: critical, normal or background. hot"""
    models: tuple[str, ...] = ()
    """Models it may use, `*` as wildcard; empty is all. hot"""
    admin: bool = False
    """May preempt, cancel others' requests, reload, and manage Ollama's models. hot"""
    allow_cloud: bool = False
    """Its requests may be answered by Claude (`cloud`), which costs money and takes the prompt out of the house. hot"""
    local_only: bool = False
    """Its requests never leave the house, whatever `allow_cloud` says. hot"""
    daily_usd: float | None = None
    """US dollars a day that this caller may spend on Claude; unset is no limit of its own. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthSettings:
    """Who may come in."""

    keys: tuple[KeySettings, ...] = ()
    """API keys; none at all means loopback callers only. hot"""
