"""How often each caller may ask: exact sliding windows of 60 s and 3600 s over the monotonic clock.

Pure bookkeeping: time is an argument, and nothing here reads a clock, does I/O or decides who a caller is (admission hands over the name
that an API key stands for, never one from a body or header). Not thread-safe: one event loop owns it.

A window is half-open, (now - w, now]: what was admitted at `t` counts until just before `t + w`, and at exactly `t + w` its place is
free. Fixed windows would let through twice the limit around a boundary; counting buckets would be wrong by up to a bucket.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.config.settings import RateLimitSettings


MINUTE_S = 60.0
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerUsage:
    """Admissions of one caller in the last 60 s and 3600 s, each with the limit in force."""

    minute: int
    minute_limit: int
    hour: int
    hour_limit: int


class _Window:
    """Instants of admissions in one sliding window, oldest first: 8 bytes each, since an hour may hold a hundred thousand."""

    __slots__ = ("_first", "_span_s", "_stamps", "add")

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._stamps = array("d")
        self._first = 0
        self.add = self._stamps.append

    def __len__(self) -> int:
        return len(self._stamps) - self._first

    def prune(self, now: float) -> None:
        stamps, first = self._stamps, self._first
        while first < len(stamps) and stamps[first] + self._span_s <= now:
            first += 1
        if 2 * first > len(stamps):
            del stamps[:first]
            first = 0
        self._first = first

    def free_at(self, limit: int) -> float:
        """The instant from which fewer than `limit` stamps count: -inf for already, +inf for never."""
        stamps = self._stamps
        if len(stamps) - self._first < limit:
            return -math.inf
        return stamps[len(stamps) - limit] + self._span_s if limit > 0 else math.inf


class _Ledger:
    """Both windows of one caller. Holds no more stamps than the largest hour limit that admitted them."""

    __slots__ = ("hour", "last_at", "limits", "minute")

    def __init__(self, limits: tuple[int, int]) -> None:
        self.minute = _Window(MINUTE_S)
        self.hour = _Window(HOUR_S)
        self.limits = limits
        self.last_at = -math.inf

    def add(self, at: float) -> None:
        self.minute.add(at)
        self.hour.add(at)
        self.last_at = at

    def prune(self, now: float) -> None:
        self.minute.prune(now)
        self.hour.prune(now)

    def free_at(self) -> float:
        """The instant from which one more is within both limits; as of the last `prune`."""
        return max(self.minute.free_at(self.limits[0]), self.hour.free_at(self.limits[1]))


class RateLimiter:
    """Admissions per caller in any minute and any hour.

    Every `now` is in seconds on the monotonic clock; one that lies before an earlier one is taken as that earlier one. Lowering a limit
    forgets nothing, so raising it again gives no extra allowance. A caller is forgotten an hour after its last admission, when all its
    stamps have run out anyway; memory is therefore bounded by the admissions of one hour, whatever names are tried.
    """

    def __init__(self, limits: RateLimitSettings) -> None:
        self._limits = limits
        self._ledgers: OrderedDict[str, _Ledger] = OrderedDict()  # least recently admitted first, which makes eviction amortised O(1)
        self._latest = -math.inf

    def check(self, caller: str, now: float) -> bool:
        """Whether `caller` may make one more request now. True is recorded as an admission; a refusal costs the caller nothing."""
        now = self._advance(now)
        ledger = self._pruned(caller)
        if ledger.free_at() > now:
            return False
        ledger.add(now)
        self._ledgers[caller] = ledger
        self._ledgers.move_to_end(caller)
        return True

    def retry_after_s(self, caller: str, now: float) -> float:
        """Seconds until `check` would admit `caller` if nobody else took the place; 0 when it would now, 3600 where a limit is 0.

        Not rounded: a `Retry-After` header takes the next whole second, at least 1.
        """
        now = self._advance(now)
        free_at = self._pruned(caller).free_at()
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
        return f"{caller} may make {limit} requests in any {unit} ({setting}), and has made them"

    def limits(self, caller: str) -> bool:
        """Whether the owner has set a limit for this caller; without keys, only such callers are limited."""
        return self._limits.are_stated(caller)

    def get_usage(self, caller: str, now: float) -> CallerUsage:
        """The caller's counters; zeros for one that was not admitted in the last hour. Records nothing."""
        self._advance(now)
        return self._usage(caller)

    def get_all_usage(self, now: float) -> dict[str, CallerUsage]:
        """Counters of every caller admitted in the last hour, by name."""
        self._advance(now)
        return {caller: self._usage(caller) for caller in sorted(self._ledgers)}

    def rebuild_from_records(self, records: Iterable[tuple[str, float]], now: float) -> None:
        """Replace all counters by past admissions, as after a restart.

        Args:
            records: `(caller, admitted_at)` in any order, instants on the same monotonic clock as `now` (below zero for what happened
                before the machine started). One in the future is taken as `now`, so that a clock that jumped can block nobody for
                longer than a window.
        """
        now = self._advance(now)
        self._ledgers.clear()
        for at, caller in sorted((min(at, now), caller) for caller, at in records):
            if at + HOUR_S > now:
                self._ledgers.setdefault(caller, _Ledger(self._limits.of_caller(caller))).add(at)
                self._ledgers.move_to_end(caller)

    def update_limits(self, limits: RateLimitSettings) -> None:
        """Put other limits in force from the next request on; what was admitted stays counted."""
        self._limits = limits
        for caller, ledger in self._ledgers.items():
            ledger.limits = self._limits.of_caller(caller)

    def _advance(self, now: float) -> float:
        self._latest = max(self._latest, now)
        while self._ledgers:
            caller = next(iter(self._ledgers))
            if self._ledgers[caller].last_at + HOUR_S > self._latest:
                break
            del self._ledgers[caller]
        return self._latest

    def _usage(self, caller: str) -> CallerUsage:
        ledger = self._pruned(caller)
        minute_limit, hour_limit = ledger.limits
        return CallerUsage(minute=len(ledger.minute), minute_limit=minute_limit, hour=len(ledger.hour), hour_limit=hour_limit)

    def _pruned(self, caller: str) -> _Ledger:
        """The caller's ledger as of the latest instant; an empty one that is not kept for a caller without."""
        ledger = self._ledgers.get(caller)
        if ledger is None:
            return _Ledger(self._limits.of_caller(caller))
        ledger.prune(self._latest)
        return ledger
