"""How much money calls to a paid model may still take today: the worst case is set aside before a
call, and the bill replaces it.

A spend belongs to the instant of its reservation, and to every day that contains it: with another
time zone another day begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hearth.errors import BudgetExceeded, TooExpensive
from hearth.types import Lane, frozen, usd

REMEMBERED_DAYS = 4
"""A clock that is set back finds the days that it comes to again."""
Booked = tuple[str, str, Lane, int]
"""What the record says of one reservation: name, caller, lane, and what is paid, or set aside where
its end is not known, in nano-USD.
"""


@frozen
class Day:
    """A day by the owner's calendar, as instants in seconds since 1970-01-01 UTC: [start, end)."""

    start_wall_s: float
    end_wall_s: float

    def __contains__(self, wall_s: float) -> bool:
        return self.start_wall_s <= wall_s < self.end_wall_s


@frozen
class Caps:
    """What may be spent in nano-USD: on one call of anybody, in a day on the external lane
    together, in a day by this caller.
    """

    request: int
    external: int
    caller: int | None = None


@frozen
class Totals:
    """One day's money in nano-USD: paid for sure, and set aside for calls that run."""

    external_spent: int = 0
    external_reserved: int = 0
    internal_spent: int = 0
    internal_reserved: int = 0


@dataclass(slots=True)
class _Spend:
    """A reservation, and once it is not `open` any more the bill in its place, in nano-USD."""

    at_wall_s: float
    caller: str
    lane: Lane
    nano_usd: int
    open: bool = True


class Budget:
    """The open days with their sums by caller, lane, and whether they are only set aside; and what
    was reserved since they began.
    """

    def __init__(self) -> None:
        self._sums: dict[Day, Counter[tuple[str, Lane, bool]]] = {}
        self._spends: dict[str, _Spend] = {}
        self._crossed: set[Day] = set()

    def knows(self, day: Day) -> bool:
        return day in self._sums

    def open_day(self, day: Day, booked: Iterable[Booked]) -> None:
        """Begin a day with what is known to be spent, which may be out of date for what was
        reserved here; again changes nothing.
        """
        if day in self._sums:
            return
        sums: Counter[tuple[str, Lane, bool]] = Counter()
        self._sums[day] = sums
        for name, caller, lane, nano_usd in booked:
            if name not in self._spends:
                sums[caller, lane, False] += nano_usd
        for spend in self._spends.values():
            if spend.at_wall_s in day:
                sums[spend.caller, spend.lane, spend.open] += spend.nano_usd
        for old in list(self._sums)[: -REMEMBERED_DAYS - 1]:
            del self._sums[old]
        self._crossed &= self._sums.keys()
        for name, spend in list(self._spends.items()):
            if not spend.open and not any(spend.at_wall_s in each for each in self._sums):
                del self._spends[name]

    def reserve(
        self,
        name: str,
        *,
        day: Day,
        caller: str,
        lane: Lane,
        nano_usd: int,
        caps: Caps,
        now_wall_s: float,
    ) -> None:
        """Set the worst case of a call aside. The internal lane is bound by the caps of a call and
        of its caller only.

        Raises TooExpensive; BudgetExceeded, whose `retry_after_s` leads to the next day, where not
        enough is left of this one.
        """
        if nano_usd > caps.request:
            raise TooExpensive(
                f"this request could cost up to ${usd(nano_usd):.4f}, and one request may cost"
                f" ${usd(caps.request):.2f}: ask for fewer tokens, or send a shorter prompt",
                remedy="cloud.max_per_request_usd",
            )
        retry_after_s = max(1.0, day.end_wall_s - now_wall_s)
        if self.external_is_short(day, lane=lane, nano_usd=nano_usd, caps=caps):
            raise BudgetExceeded(
                _exceeded("today's budget for cloud models", caps.external, nano_usd),
                retry_after_s=retry_after_s,
            )
        if caps.caller is not None and self._of_caller(day, caller) + nano_usd > caps.caller:
            raise BudgetExceeded(
                _exceeded("this key's budget for today", caps.caller, nano_usd),
                retry_after_s=retry_after_s,
            )
        self._spends[name] = _Spend(now_wall_s, caller, lane, nano_usd)
        self._count(self._spends[name], 1)

    def external_is_short(self, day: Day, *, lane: Lane, nano_usd: int, caps: Caps) -> bool:
        """Whether what all external callers may spend has no room for a call on an open day; the
        internal lane is not bound by that.
        """
        taken = sum(self._of_lane(day, Lane.EXTERNAL, is_open=is_open) for is_open in (False, True))
        return lane is Lane.EXTERNAL and taken + nano_usd > caps.external

    def settle(self, name: str, nano_usd: int) -> bool:
        """The call has cost so much, 0 for nothing; False for a reservation that is unknown or has
        ended, which changes nothing.
        """
        spend = self._spends.get(name)
        if spend is None or not spend.open:
            return False
        self._count(spend, -1)
        spend.open = False
        spend.nano_usd = nano_usd
        self._count(spend, 1)
        return True

    def totals(self, day: Day) -> Totals:
        """What a day has cost so far; nothing for a day that is not open."""
        kinds = {"spent": False, "reserved": True}
        return Totals(
            **{
                f"{lane}_{kind}": self._of_lane(day, lane, is_open=is_open)
                for lane in Lane
                for kind, is_open in kinds.items()
            }
        )

    def by_caller(self, day: Day) -> dict[str, int]:
        """What each caller has used up of a day in nano-USD, with what is set aside for calls that
        run.
        """
        names = {
            caller
            for (caller, _, _), nano_usd in self._sums.get(day, Counter()).items()
            if nano_usd
        }
        return {caller: self._of_caller(day, caller) for caller in sorted(names)}

    def crossed(self, day: Day, threshold_nano_usd: int) -> bool:
        """True the first time that the external lane has spent so much on a day."""
        if (
            day not in self._sums
            or day in self._crossed
            or self._of_lane(day, Lane.EXTERNAL, is_open=False) < threshold_nano_usd
        ):
            return False
        self._crossed.add(day)
        return True

    def was_crossed(self, wall_s: float) -> bool:
        """Whether `crossed` has been True of a day that contains the instant."""
        return any(wall_s in day for day in self._crossed)

    @property
    def open_reservations(self) -> int:
        """How many calls have money set aside."""
        return sum(spend.open for spend in self._spends.values())

    def _count(self, spend: _Spend, sign: int) -> None:
        for day, sums in self._sums.items():
            if spend.at_wall_s in day:
                sums[spend.caller, spend.lane, spend.open] += sign * spend.nano_usd

    def _of_lane(self, day: Day, lane: Lane, *, is_open: bool) -> int:
        sums = self._sums.get(day, Counter())
        return sum(
            nano for (_, its, reserved), nano in sums.items() if its is lane and reserved is is_open
        )

    def _of_caller(self, day: Day, caller: str) -> int:
        return sum(nano for (name, _, _), nano in self._sums[day].items() if name == caller)


def _exceeded(what: str, cap: int, wanted: int) -> str:
    return (
        f"{what} (${usd(cap):.2f}) does not have enough left for this request, which could cost up"
        f" to ${usd(wanted):.4f}"
    )
