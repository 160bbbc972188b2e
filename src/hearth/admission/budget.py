"""How much money calls to a paid model may still take today: the worst case is set aside before a call, and the bill replaces it.

A spend belongs to the instant of its reservation, and to every day that contains it: with another time zone another day begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hearth.errors import BudgetExceeded, TooExpensive
from hearth.types import Lane, usd

REMEMBERED_DAYS = 4
"""A clock that is set back finds the days that it comes to again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day by the owner's calendar, as instants in seconds since 1970-01-01 UTC: [start, end)."""

    start_wall_s: float
    end_wall_s: float

    def __contains__(self, wall_s: float) -> bool:
        return self.start_wall_s <= wall_s < self.end_wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What may be spent in nano-USD: on one call of anybody, in a day on the external lane together, in a day by this caller."""

    request: int
    external: int
    caller: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """What the record says of one reservation: paid, or set aside where its end is not known there; in nano-USD."""

    name: str
    caller: str
    lane: Lane
    nano_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
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


class _Account:
    """One day's sums in nano-USD, by caller, lane, and whether they are only set aside."""

    def __init__(self) -> None:
        self.sums: Counter[tuple[str, Lane, bool]] = Counter()
        self.warned = False

    def add(self, spend: _Spend, sign: int = 1) -> None:
        """Count a spend as what it is now; `sign` -1 takes it back."""
        self.sums[spend.caller, spend.lane, spend.open] += sign * spend.nano_usd

    def of_lane(self, lane: Lane, *, is_open: bool) -> int:
        """What the callers of a lane have spent, or have set aside."""
        return sum(nano for (_, its, reserved), nano in self.sums.items() if its is lane and reserved is is_open)

    def of_caller(self, caller: str) -> int:
        """Both together."""
        return sum(nano for (name, _, _), nano in self.sums.items() if name == caller)


class Budget:
    """The open days, and what was reserved since they began."""

    def __init__(self) -> None:
        self._accounts: dict[Day, _Account] = {}
        self._spends: dict[str, _Spend] = {}

    def knows(self, day: Day) -> bool:
        """Whether the day has been opened."""
        return day in self._accounts

    def open_day(self, day: Day, booked: Iterable[Booked]) -> None:
        """Begin a day with what is known to be spent, which may be out of date for what was reserved here; again changes nothing."""
        if day in self._accounts:
            return
        account = self._accounts[day] = _Account()
        for each in booked:
            if each.name not in self._spends:
                account.sums[each.caller, each.lane, False] += each.nano_usd
        for spend in self._spends.values():
            if spend.at_wall_s in day:
                account.add(spend)
        for old in list(self._accounts)[: -REMEMBERED_DAYS - 1]:
            del self._accounts[old]
        self._spends = {name: spend for name, spend in self._spends.items() if spend.open or self._accounts_of(spend)}

    def _accounts_of(self, spend: _Spend) -> list[_Account]:
        return [account for day, account in self._accounts.items() if spend.at_wall_s in day]

    def reserve(self, name: str, *, day: Day, caller: str, lane: Lane, nano_usd: int, caps: Caps, now_wall_s: float) -> None:
        """Set the worst case of a call aside. The internal lane is bound by the caps of a call and of its caller only.

        Raises TooExpensive; BudgetExceeded, whose `retry_after_s` leads to the next day, where not enough is left of this one.
        """
        if nano_usd > caps.request:
            raise TooExpensive(
                f"this request could cost up to ${usd(nano_usd):.4f}, and cloud.max_per_request_usd is ${usd(caps.request):.2f}: "
                "ask for fewer tokens, or send a shorter prompt"
            )
        account = self._accounts[day]
        retry_after_s = max(1.0, day.end_wall_s - now_wall_s)
        if self.external_is_short(day, lane=lane, nano_usd=nano_usd, caps=caps):
            raise BudgetExceeded(_exceeded("today's budget for cloud models", caps.external, nano_usd), retry_after_s=retry_after_s)
        if caps.caller is not None and account.of_caller(caller) + nano_usd > caps.caller:
            raise BudgetExceeded(_exceeded("this key's budget for today", caps.caller, nano_usd), retry_after_s=retry_after_s)
        spend = self._spends[name] = _Spend(now_wall_s, caller, lane, nano_usd)
        for each in self._accounts_of(spend):
            each.add(spend)

    def external_is_short(self, day: Day, *, lane: Lane, nano_usd: int, caps: Caps) -> bool:
        """Whether what all external callers may spend has no room for a call on an open day; the internal lane is not bound by that."""
        account = self._accounts[day]
        taken = account.of_lane(Lane.EXTERNAL, is_open=False) + account.of_lane(Lane.EXTERNAL, is_open=True)
        return lane is Lane.EXTERNAL and taken + nano_usd > caps.external

    def settle(self, name: str, nano_usd: int) -> bool:
        """The call has cost so much, 0 for nothing; False for a reservation that is unknown or has ended, which changes nothing."""
        spend = self._spends.get(name)
        if spend is None or not spend.open:
            return False
        accounts = self._accounts_of(spend)
        for account in accounts:
            account.add(spend, -1)
        spend.open, spend.nano_usd = False, nano_usd
        for account in accounts:
            account.add(spend)
        return True

    def totals(self, day: Day) -> Totals:
        """What a day has cost so far; nothing for a day that is not open."""
        account = self._accounts.get(day) or _Account()
        kinds = {"spent": False, "reserved": True}
        return Totals(**{f"{lane}_{kind}": account.of_lane(lane, is_open=is_open) for lane in Lane for kind, is_open in kinds.items()})

    def by_caller(self, day: Day) -> dict[str, int]:
        """What each caller has used up of a day in nano-USD, with what is set aside for calls that run."""
        account = self._accounts.get(day) or _Account()
        return {caller: account.of_caller(caller) for caller in sorted({key[0] for key, nano_usd in account.sums.items() if nano_usd})}

    def crossed(self, day: Day, threshold_nano_usd: int) -> bool:
        """True the first time that the external lane has spent so much on a day."""
        account = self._accounts.get(day)
        if account is None or account.warned or account.of_lane(Lane.EXTERNAL, is_open=False) < threshold_nano_usd:
            return False
        account.warned = True
        return True

    def was_crossed(self, wall_s: float) -> bool:
        """Whether `crossed` has been True of a day that contains the instant."""
        return any(account.warned for day, account in self._accounts.items() if wall_s in day)

    @property
    def open_reservations(self) -> int:
        """How many calls have money set aside."""
        return sum(spend.open for spend in self._spends.values())


def _exceeded(what: str, cap: int, wanted: int) -> str:
    return f"{what} (${usd(cap):.2f}) does not have enough left for this request, which could cost up to ${usd(wanted):.4f}"
