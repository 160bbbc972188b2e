"""How often each caller may ask: exact sliding windows of 60 s and 3600 s over the monotonic clock.

Pure bookkeeping: time is an argument. A window is half-open, (now - w, now]: at exactly `t + w` the place of what was admitted at `t` is
free. Fixed windows would let through twice the limit around a boundary; counting buckets would be wrong by up to a bucket.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.config.settings import RateLimitSettings


MINUTE_S = 60.0
HOUR_S = 3600.0
_NO_STAMPS = array("d")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerUsage:
    """Admissions of one caller in the last 60 s and 3600 s, each with the limit in force."""

    minute: int
    minute_limit: int
    hour: int
    hour_limit: int


def _ended(stamps: array[float], span_s: float, now: float) -> int:
    """How many stamps, of those oldest first, count no more."""
    return bisect_right(stamps, now, key=lambda at: at + span_s)


class RateLimiter:
    """Admissions per caller in any minute and any hour. `now`: seconds on the monotonic clock; one before an earlier is taken as that."""

    def __init__(self, limits: RateLimitSettings) -> None:
        self._limits = limits
        self._stamps: OrderedDict[str, array[float]] = OrderedDict()
        """Instants of admissions, 8 bytes each, since an hour may hold a hundred thousand; the least recently admitted caller first."""
        self._latest = -math.inf

    def check(self, caller: str, now: float) -> bool:
        """Whether `caller` may make one more request now. True is recorded as an admission; a refusal costs the caller nothing."""
        now = self._advance(now)
        if self._free_at(caller) > now:
            return False
        self._add(caller, now)
        return True

    def retry_after_s(self, caller: str, now: float) -> float:
        """Seconds, not rounded, until `check` would admit `caller`; 0 when it would now, 3600 where a limit is 0."""
        now = self._advance(now)
        free_at = self._free_at(caller)
        if free_at <= now:
            return 0.0
        wait_s = min(free_at - now, HOUR_S)
        while now + wait_s < free_at < math.inf:  # the subtraction may have rounded down; waiting exactly this long must be enough
            wait_s = math.nextafter(wait_s, math.inf)
        return wait_s

    def refusal(self, caller: str, now: float) -> str:
        """Which limit a refused caller has met, and the setting that raises it."""
        usage = self.get_usage(caller, now)
        used_up = usage.minute >= usage.minute_limit
        unit, limit = ("minute", usage.minute_limit) if used_up else ("hour", usage.hour_limit)
        setting = self._limits.setting_of(caller, f"requests_per_{unit}")
        return f"{caller} may make {limit} requests in any {unit} ({setting}), and has reached that limit"

    def limits(self, caller: str) -> bool:
        """Whether the owner has set a limit for this caller; without keys, only such callers are limited."""
        return self._limits.are_stated(caller)

    def get_usage(self, caller: str, now: float) -> CallerUsage:
        """The caller's counters; zeros for one that was not admitted in the last hour. Records nothing."""
        now = self._advance(now)
        stamps, (minute, hour) = self._stamps.get(caller, _NO_STAMPS), self._limits.of_caller(caller)
        counted = [len(stamps) - _ended(stamps, span_s, now) for span_s in (MINUTE_S, HOUR_S)]
        return CallerUsage(minute=counted[0], minute_limit=minute, hour=counted[1], hour_limit=hour)

    def get_all_usage(self, now: float) -> dict[str, CallerUsage]:
        """Counters of every caller admitted in the last hour, by name."""
        self._advance(now)
        return {caller: self.get_usage(caller, now) for caller in sorted(self._stamps)}

    def rebuild_from_records(self, records: Iterable[tuple[str, float]], now: float) -> None:
        """Replace all counters by past admissions, as after a restart: `(caller, admitted_at)` in any order, on the same clock as `now`."""
        now = self._advance(now)
        self._stamps.clear()
        # An instant in the future is taken as now: a clock that jumped can block nobody for longer than a window.
        for at, caller in sorted((min(at, now), caller) for caller, at in records):
            if at + HOUR_S > now:
                self._add(caller, at)

    def update_limits(self, limits: RateLimitSettings) -> None:
        """Put other limits in force from the next request on; what was admitted stays counted."""
        self._limits = limits

    def _advance(self, now: float) -> float:
        self._latest = max(self._latest, now)
        while self._stamps:
            caller, stamps = next(iter(self._stamps.items()))
            if stamps[-1] + HOUR_S > self._latest:
                break
            del self._stamps[caller]
        return self._latest

    def _free_at(self, caller: str) -> float:
        """The instant from which one more is within both limits: -inf for always, +inf for never."""
        stamps, free_at = self._stamps.get(caller, _NO_STAMPS), -math.inf
        for limit, span_s in zip(self._limits.of_caller(caller), (MINUTE_S, HOUR_S), strict=True):
            if limit == 0:
                return math.inf
            if limit <= len(stamps):
                free_at = max(free_at, stamps[-limit] + span_s)
        return free_at

    def _add(self, caller: str, at: float) -> None:
        stamps = self._stamps.setdefault(caller, array("d"))
        stamps.append(at)
        self._stamps.move_to_end(caller)
        if stamps[len(stamps) // 2] + HOUR_S <= self._latest:  # more than half of them count no more
            del stamps[: _ended(stamps, HOUR_S, self._latest)]
