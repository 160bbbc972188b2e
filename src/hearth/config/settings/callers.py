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


_WITH_KEYS = CallerLimits(requests_per_minute=120, requests_per_hour=2000)
"""More than any interactive program asks: Open WebUI sends three requests beside each answer, an editor one for each pause in typing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitSettings:
    """How often callers may ask."""

    default: CallerLimits = CallerLimits()
    """Applies to every external caller without an entry of its own; unset is 120 and 2000 for callers with a key, no limit without. hot"""
    callers: Mapping[str, CallerLimits] = field(default_factory=lambda: MappingProxyType({}))
    """Overrides by caller name. hot"""

    def of_caller(self, caller: str) -> tuple[int, int]:
        """Requests per minute and hour: the caller's own, else the owner's default, else ours."""
        rungs = (*self._stated(caller), _WITH_KEYS)
        return (
            next(rung.requests_per_minute for rung in rungs if rung.requests_per_minute is not None),
            next(rung.requests_per_hour for rung in rungs if rung.requests_per_hour is not None),
        )

    def are_stated(self, caller: str) -> bool:
        """Whether the owner has set any limit for this caller."""
        return any(rung != CallerLimits() for rung in self._stated(caller))

    def setting_of(self, caller: str, field: str) -> str:
        """The path of the setting that decides `requests_per_minute` or `requests_per_hour` of a caller."""
        own = self.callers.get(caller)
        return f"rate_limits.{'default' if own is None or getattr(own, field) is None else f'callers.{caller}'}.{field}"

    def _stated(self, caller: str) -> tuple[CallerLimits, ...]:
        return (*((self.callers[caller],) if caller in self.callers else ()), self.default)


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
