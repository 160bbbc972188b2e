"""How often each caller may ask, how long the reading of its requests may take, in exact sliding
windows over the monotonic clock, and how many bytes of them may be held.

Pure bookkeeping: time is an argument. A window is half-open, (now - w, now]: at exactly `t + w` the
place of what was admitted at `t` is free. Fixed windows would let through twice the limit around a
boundary; counting buckets would be wrong by up to a bucket.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hearth.errors import NoRoomForBodies
from hearth.types import HOUR_S, Counted, Lane, frozen

if TYPE_CHECKING:
    from hearth.config.settings import RateLimitSettings


MINUTE_S = 60.0
COUNTED: tuple[Counted, ...] = ("requests", "embeddings")
_NO_STAMPS = array("d")
MAX_USERS = 10_000  # of all keys together, whose admissions are remembered


@frozen
class CallerUsage:
    """Admissions of one caller in the last 60 s and 3600 s, each with the limit in force."""

    minute: int
    minute_limit: int
    hour: int
    hour_limit: int


def _ended(stamps: array[float], span_s: float, now: float) -> int:
    """How many stamps, of those oldest first, count no more."""
    return bisect_right(stamps, now, key=lambda at: at + span_s)


class _Admissions:
    """Instants of admissions of one kind, by caller; the least recently admitted caller first."""

    def __init__(self) -> None:
        self.stamps: OrderedDict[str, array[float]] = OrderedDict()
        """8 bytes each, since an hour may hold a hundred thousand."""

    def of(self, caller: str) -> array[float]:
        return self.stamps.get(caller, _NO_STAMPS)

    def add(self, caller: str, at: float, latest: float) -> None:
        stamps = self.stamps.setdefault(caller, array("d"))
        stamps.append(at)
        self.stamps.move_to_end(caller)
        if stamps[len(stamps) // 2] + HOUR_S <= latest:  # more than half of them count no more
            del stamps[: _ended(stamps, HOUR_S, latest)]

    def keep(self, most: int) -> None:
        """Forget those who were not admitted for longest, of more than so many."""
        while len(self.stamps) > most:
            self.stamps.popitem(last=False)

    def forget(self, latest: float) -> None:
        """Callers none of whose admissions counts any more."""
        while self.stamps:
            caller, stamps = next(iter(self.stamps.items()))
            if stamps[-1] + HOUR_S > latest:
                break
            del self.stamps[caller]


class RateLimiter:
    """Admissions per caller in any minute and any hour, of requests and, apart from them, of
    embedding calls.

    `now`: seconds on the monotonic clock; one before an earlier is taken as that.
    """

    def __init__(self, limits: RateLimitSettings) -> None:
        self._limits = limits
        self._admissions = {kind: _Admissions() for kind in COUNTED}
        self._of_users = {kind: _Admissions() for kind in COUNTED}
        self._latest = -math.inf

    def check(self, caller: str, now: float, kind: Counted = "requests", user: str = "") -> bool:
        """Whether `caller`, or one of its users, may make one more request now. A user may use half
        of what the caller may.

        True is recorded as an admission; a refusal costs the caller nothing.
        """
        now = self._advance(now)
        if self._free_at(caller, kind, user) > now:
            return False
        self._admissions[kind].add(caller, now, now)
        if user:
            self._of_users[kind].add(_user_key(caller, user), now, now)
            self._of_users[kind].keep(MAX_USERS)
        return True

    def retry_after_s(
        self, caller: str, now: float, kind: Counted = "requests", user: str = ""
    ) -> float:
        """Seconds, not rounded, until `check` would admit `caller`; 0 when it would now, 3600 where
        a limit is 0.
        """
        now = self._advance(now)
        free_at = self._free_at(caller, kind, user)
        if free_at <= now:
            return 0.0
        return _wait_s(now, free_at)

    def refusal(
        self, caller: str, now: float, kind: Counted = "requests", user: str = ""
    ) -> tuple[str, str]:
        """Which limit a refused caller has met, and the setting that raises it."""
        if user and self._free_at(caller, kind) <= now:
            text = (
                f"{user} has made half of the requests that {caller} may make in a minute or an"
                " hour, and one of its users may make no more"
            )
            return text, "rate_limits"
        usage = self.get_usage(caller, now, kind)
        used_up = usage.minute >= usage.minute_limit
        unit, limit = ("minute", usage.minute_limit) if used_up else ("hour", usage.hour_limit)
        called = "requests" if kind == "requests" else "embedding calls"
        return (
            f"{caller} may make {limit} {called} in any {unit}, and has reached that limit",
            self._limits.setting_of(caller, f"{kind}_per_{unit}"),
        )

    def waits(self, caller: str) -> bool:
        """Whether requests of this caller that are over a limit wait until they are not."""
        return self._limits.when_exceeded(caller) == "wait"

    def limits(self, caller: str) -> bool:
        """Whether the owner has set a limit for this caller; without keys, only such callers are
        limited.
        """
        return self._limits.are_stated(caller)

    def reading_limit(self, caller: str) -> tuple[float, str]:
        """Seconds per minute that reading this caller's requests may take, and the setting that
        says so.
        """
        return self._limits.reading_s(caller), self._limits.setting_of(
            caller, "reading_s_per_minute"
        )

    def get_usage(self, caller: str, now: float, kind: Counted = "requests") -> CallerUsage:
        """The caller's counters; zeros for one that was not admitted in the last hour.

        Records nothing.
        """
        now = self._advance(now)
        stamps = self._admissions[kind].of(caller)
        minute, hour = self._limits.of_caller(caller, kind)
        counted = [len(stamps) - _ended(stamps, span_s, now) for span_s in (MINUTE_S, HOUR_S)]
        return CallerUsage(minute=counted[0], minute_limit=minute, hour=counted[1], hour_limit=hour)

    def get_all_usage(self, now: float, kind: Counted = "requests") -> dict[str, CallerUsage]:
        """Counters of every caller admitted in the last hour, by name."""
        self._advance(now)
        return {
            caller: self.get_usage(caller, now, kind)
            for caller in sorted(self._admissions[kind].stamps)
        }

    def rebuild_from_records(
        self, records: Iterable[tuple[str, float]], now: float, kind: Counted = "requests"
    ) -> None:
        """Replace all counters by past admissions, as after a restart: `(caller, admitted_at)` in
        any order, on the same clock as `now`.
        """
        now = self._advance(now)
        rebuilt = _Admissions()
        self._admissions[kind] = rebuilt
        # An instant in the future is taken as now: a clock that jumped can block nobody for longer
        # than a window.
        for at, caller in sorted((min(at, now), caller) for caller, at in records):
            if at + HOUR_S > now:
                rebuilt.add(caller, at, now)

    def update_limits(self, limits: RateLimitSettings) -> None:
        """Put other limits in force from the next request on; what was admitted stays counted."""
        self._limits = limits

    def _advance(self, now: float) -> float:
        self._latest = max(self._latest, now)
        for each in (*self._admissions.values(), *self._of_users.values()):
            each.forget(self._latest)
        return self._latest

    def _free_at(self, caller: str, kind: Counted, user: str = "") -> float:
        """The instant from which one more is within both limits: -inf for always, +inf for
        never.
        """
        limits = self._limits.of_caller(caller, kind)
        free_at = _within(self._admissions[kind].of(caller), limits)
        if not user:
            return free_at
        halves = [limit - limit // 2 for limit in limits]
        stamps = self._of_users[kind].of(_user_key(caller, user))
        return max(free_at, _within(stamps, halves))


def _within(stamps: array[float], limits: Iterable[int]) -> float:
    """The instant from which one more is within the limits of a minute and an hour."""
    free_at = -math.inf
    for limit, span_s in zip(limits, (MINUTE_S, HOUR_S), strict=True):
        if limit == 0:
            return math.inf
        if limit <= len(stamps):
            free_at = max(free_at, stamps[-limit] + span_s)
    return free_at


def _user_key(caller: str, user: str) -> str:
    """No name of a caller has a line break."""
    return f"{caller}\n{user}"


def _wait_s(now: float, free_at: float) -> float:
    """Seconds until `free_at`, an hour at most; waiting exactly this long is enough, though the
    subtraction may round down.
    """
    wait_s = min(free_at - now, HOUR_S)
    while now + wait_s < free_at < math.inf:
        wait_s = math.nextafter(wait_s, math.inf)
    return wait_s


class ReadingTime:
    """CPU time that was spent on the bodies of each caller's requests in the last 60 s.

    `now` as for `RateLimiter`.
    """

    def __init__(self) -> None:
        self._spent: dict[str, deque[tuple[float, int]]] = {}
        self._sums_us: Counter[str] = Counter()
        """Whole microseconds, so that what was added goes again to the last digit."""

    def add(self, caller: str, cpu_s: float, now: float) -> None:
        """The reading of a body has taken this long, and ended now."""
        self._forget(caller, now)
        cpu_us = round(cpu_s * 1e6)
        if cpu_us > 0:
            self._spent.setdefault(caller, deque()).append((now, cpu_us))
            self._sums_us[caller] += cpu_us

    def used_s(self, caller: str, now: float) -> float:
        """The sum of the last 60 s."""
        self._forget(caller, now)
        return self._sums_us[caller] / 1e6

    def retry_after_s(self, caller: str, limit_s: float, now: float) -> float:
        """Seconds until less than `limit_s` counts; 0 where less does now, 60 where the limit
        is 0.
        """
        self._forget(caller, now)
        left_us = self._sums_us[caller]
        limit_us = limit_s * 1e6
        if left_us < limit_us:
            return 0.0
        for at, cpu_us in self._spent.get(caller, ()):
            left_us -= cpu_us
            if left_us < limit_us:
                return _wait_s(now, at + MINUTE_S)
        return MINUTE_S

    def _forget(self, caller: str, now: float) -> None:
        spent = self._spent.get(caller)
        while spent and spent[0][0] + MINUTE_S <= now:
            self._sums_us[caller] -= spent.popleft()[1]
        if not spent:
            self._spent.pop(caller, None)
            self._sums_us.pop(caller, None)


NO_ROOM_RETRY_S = 5.0
"""Bodies are held until their requests end, and nobody knows when that is."""


class BodyRoom:
    """The bytes of request bodies that are held until their requests have ended. External callers
    together may hold three quarters, each as much as it leaves free for the others: of 256 MiB, a
    single caller has 96, and the next one half of what is left.
    """

    def __init__(self) -> None:
        self._by_lane = dict.fromkeys(Lane, 0)
        self._by_caller: dict[str, int] = {}

    def take(self, lane: Lane, caller: str, more_bytes: int, limit_bytes: int) -> None:
        """Hold more bytes, or less where `more_bytes` is negative.

        Raises NoRoomForBodies; then nothing is counted.
        """
        own_bytes = self._by_caller.get(caller, 0) + more_bytes
        free_bytes = limit_bytes - sum(self._by_lane.values()) - more_bytes
        if lane is Lane.EXTERNAL:
            external_free_bytes = limit_bytes * 3 // 4 - self._by_lane[lane] - more_bytes
            free_bytes = min(free_bytes, external_free_bytes - own_bytes)
        if free_bytes < 0 < more_bytes:
            raise NoRoomForBodies(retry_after_s=NO_ROOM_RETRY_S, remedy="server.max_bodies_mib")
        self._by_lane[lane] += more_bytes
        if lane is Lane.EXTERNAL:
            self._by_caller[caller] = own_bytes
            if not own_bytes:
                del self._by_caller[caller]
