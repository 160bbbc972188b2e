"""The house's money for Claude: the budget of the day in memory, and every change of it in the ledger.

A call may start once its reservation is on the disk. Its end is noted in memory at once and written as soon as the disk takes it; should
Hearth die in between, the next start counts the whole reservation as spent. That most of a day's money is gone is told once, and again at
each start until a message with it has arrived somewhere. Owns the `Budget`; `service` and `calls` use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from hearth.admission.budget import Booked, Budget, Caps, Day, Totals
from hearth.clock import Clock, new_id
from hearth.cloud.routing import caps_for
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import AlertType
from hearth.errors import BudgetExceeded, StorageUnavailable
from hearth.events import AlertSent, BudgetExhausted, BudgetThresholdReached, Event
from hearth.ports import Documents, EventSink, SpendLedger
from hearth.types import Lane, nano_usd, usd

RETRY_WRITE_S = 5.0
_TOLD = "budget.told"
"""The document that says since when (`crossed_wall_s`) the owner knows that most of a day's money is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Money that was set aside for one call, at an instant that says to which day it belongs."""

    name: str
    caller: str
    lane: Lane
    model: str
    nano_usd: int
    at_wall_s: float


class Purse:
    """Must live on one event loop. `run` has to be kept running; as an `EventSink` it hears which messages have arrived."""

    def __init__(
        self, *, ledger: SpendLedger, documents: Documents, clock: Clock, events: EventSink, config: Callable[[], GatewayConfig]
    ) -> None:
        self._ledger = ledger
        self._documents = documents
        self._clock = clock
        self._events = events
        self._config = config
        self._budget = Budget()
        self._told_wall_s: float | None = None
        self._crossed_wall_s: float | None = None
        self._unwritten: dict[str, int] = {}
        self._recording: dict[str, Reservation] = {}
        self._wake = asyncio.Event()

    async def open_today(self) -> Day:
        """Today, with what the ledger knows of it. Raises StorageUnavailable."""
        while not self._budget.knows(day := self._today()):  # which may have ended, or be another one, once it is read
            if self._told_wall_s is None:
                self._told_wall_s = _instant(await self._documents.load(_TOLD))
            rows = await self._ledger.booked(start_wall_s=day.start_wall_s, end_wall_s=day.end_wall_s)
            if not self._budget.knows(day):
                self._open(day, [Booked(name=row[0], caller=row[1], lane=row[2], nano_usd=nano_usd(row[3])) for row in rows])
        return day

    def _open(self, day: Day, booked: list[Booked]) -> None:
        """A day that another time zone begins may hold so much of two days of which nothing had to be told."""
        told = self._budget.was_crossed(self._clock.wall()) or (self._told_wall_s is not None and self._told_wall_s in day)
        self._budget.open_day(day, booked)
        if self._budget.crossed(day, self._threshold()) and not told:
            self._tell_threshold(day)

    def reserve(self, day: Day, *, caller: str, lane: Lane, model: str, amount: int) -> Reservation:
        """Set the worst case of a call (nano-USD) aside, in memory; `record` makes it durable.

        Raises:
            TooExpensive, BudgetExceeded: there is no money for it.
        """
        name, caps, now = new_id("req_"), caps_for(self._config().settings, caller), self._clock.wall()
        try:
            self._budget.reserve(name, day=day, caller=caller, lane=lane, nano_usd=amount, caps=caps, now_wall_s=now)
        except BudgetExceeded:
            own = not self._budget.house_is_short(day, lane=lane, nano_usd=amount, caps=caps)
            self._tell_exhausted(day, caller, amount, caps, own=own)
            raise
        return Reservation(name=name, caller=caller, lane=lane, model=model, nano_usd=amount, at_wall_s=now)

    async def record(self, reservation: Reservation) -> None:
        """Return once the reservation is on the disk.

        Raises:
            StorageUnavailable: the money is free again, and the call must not start.
        """
        self._recording[reservation.name] = reservation
        try:
            await self._ledger.reserve(
                reservation.name,
                caller=reservation.caller,
                lane=reservation.lane,
                model=reservation.model,
                reserved_usd=usd(reservation.nano_usd),
                at_wall_s=reservation.at_wall_s,
            )
        except BaseException:
            self.close(reservation, 0)
            raise
        finally:
            del self._recording[reservation.name]

    def give_back(self) -> None:
        """Free the money of reservations that are on their way to the disk: at the end, nobody is left to use them."""
        for reservation in self._recording.values():
            self.close(reservation, 0)

    def close(self, reservation: Reservation, cost: int) -> None:
        """The call is over and has cost so much (nano-USD), 0 for nothing. Again is harmless."""
        if not self._budget.settle(reservation.name, cost):
            return
        self._unwritten[reservation.name] = cost
        self._wake.set()
        if cost:
            self._warn(self._today())

    async def run(self) -> None:
        """Know of today what the ledger knows, and write down what has ended, until cancelled."""
        while True:
            with suppress(StorageUnavailable):  # asked again with the next call
                self._warn(await self.open_today())
            await self._wake.wait()
            self._wake.clear()
            if not await self.flush():
                await asyncio.sleep(RETRY_WRITE_S)
                self._wake.set()

    def emit(self, event: Event) -> None:
        """Note for the next process what the owner knows."""
        if isinstance(event, AlertSent) and AlertType.BUDGET in event.types and self._crossed_wall_s is not None:
            self._told_wall_s, self._crossed_wall_s = self._crossed_wall_s, None
            self._documents.save(_TOLD, {"crossed_wall_s": self._told_wall_s})

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """As `SelectiveSink` says."""
        return self.emit if kind is AlertSent else None

    def look_again(self) -> None:
        """Today may be another day."""
        self._wake.set()

    async def flush(self) -> bool:
        """Write down what has ended; False where the disk does not take it."""
        try:
            for name, cost in tuple(self._unwritten.items()):
                await (self._ledger.settle(name, usd(cost)) if cost else self._ledger.release(name))
                self._unwritten.pop(name, None)
        except StorageUnavailable:
            return False
        return True

    def totals(self) -> Totals:
        """Today so far."""
        return self._budget.totals(self._today())

    def by_caller(self) -> dict[str, dict[str, float | None]]:
        """Callers who have used Claude today or have a budget of their own: `used_usd`, running calls at their worst, and `limit_usd`."""
        settings, used = self._config().settings, self._budget.by_caller(self._today())
        limits = {key.name: key.daily_usd for key in settings.auth.keys if key.allow_cloud}
        named = [name for name, limit_usd in limits.items() if limit_usd is not None]
        return {name: {"used_usd": usd(used.get(name, 0)), "limit_usd": limits.get(name)} for name in sorted({*used, *named})}

    @property
    def limit_nano_usd(self) -> int:
        """What external callers may spend in a day."""
        return caps_for(self._config().settings, "").external

    @property
    def open_reservations(self) -> int:
        """How many calls have money set aside."""
        return self._budget.open_reservations

    def _today(self) -> Day:
        start_s, end_s = self._config().day_of(self._clock.wall())
        return Day(start_wall_s=start_s, end_wall_s=end_s)

    def _threshold(self) -> int:
        """The least that is worth a word; a cap of nothing is never reached."""
        return max(1, round(self.limit_nano_usd * self._config().settings.budget.alert_pct / 100))

    def _warn(self, day: Day) -> None:
        if self._budget.crossed(day, self._threshold()):
            self._tell_threshold(day)

    def _tell_threshold(self, day: Day) -> None:
        spent, limit = self._budget.totals(day).external_spent, self.limit_nano_usd
        pct = 100.0 if not limit else 100.0 * spent / limit
        self._crossed_wall_s = self._clock.wall()
        self._events.emit(BudgetThresholdReached(at=self._clock.monotonic(), spent_usd=usd(spent), limit_usd=usd(limit), pct=round(pct, 1)))

    def _tell_exhausted(self, day: Day, caller: str, amount: int, caps: Caps, *, own: bool) -> None:
        house = self._budget.totals(day)
        taken = self._budget.by_caller(day).get(caller, 0) if own else house.external_spent + house.external_reserved
        limit = caps.caller if own and caps.caller is not None else caps.external
        self._events.emit(
            BudgetExhausted(
                at=self._clock.monotonic(),
                caller=caller,
                own=own,
                wanted_usd=usd(amount),
                spent_usd=usd(taken),
                limit_usd=usd(limit),
            )
        )


def _instant(document: dict[str, object] | None) -> float:
    found = (document or {}).get("crossed_wall_s")
    return found if isinstance(found, float) else 0.0
