"""What may still be spent on Claude today: the budget in memory, and every change of it in the
ledger.

A call may start once its reservation is on the disk. Its end is noted in memory at once and written
as soon as the disk takes it; should Hearth die in between, the next start counts the whole
reservation as spent. That most of a day's money is gone is emitted once, and again at each start
until a message with it has arrived somewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hearth.clock import Clock, new_id
from hearth.cloud.reservations import Budget, Caps, Day, Totals
from hearth.config.settings import AlertType, GatewayConfig, Settings
from hearth.errors import BudgetExceeded, StorageUnavailable
from hearth.events import AlertSent, BudgetExhausted, BudgetThresholdReached
from hearth.events.handling import HandlingSink
from hearth.ports import Documents, EventSink, SpendLedger
from hearth.types import Lane, nano_usd, usd

RETRY_WRITE_S = 5.0
_NOTIFIED = "budget.told"
"""The document that says since when (`crossed_wall_s`) the owner knows that most of a day's money
is gone.
"""


class CloudBudget(HandlingSink):
    """Must live on one event loop.

    `run` has to be kept running; as an `EventSink` it notes which messages have arrived.
    """

    def __init__(
        self,
        *,
        ledger: SpendLedger,
        documents: Documents,
        clock: Clock,
        events: EventSink,
        config: Callable[[], GatewayConfig],
    ) -> None:
        self._ledger = ledger
        self._documents = documents
        self._clock = clock
        self._events = events
        self._config = config
        self._budget = Budget()
        self._notified_wall_s: float | None = None
        self._crossed_wall_s: float | None = None
        self._unwritten: dict[str, int] = {}
        self._recording: set[str] = set()
        self._wake = asyncio.Event()
        self.look_again = self._wake.set
        """To be called where today may be another day."""
        self._handlers = {AlertSent: self._on_alert_sent}

    async def open_today(self) -> Day:
        """Today, with what the ledger knows of it. Raises StorageUnavailable."""
        # which may have ended, or be another one, once it is read
        while not self._budget.knows(day := self._today()):
            if self._notified_wall_s is None:
                crossed = (await self._documents.load(_NOTIFIED) or {}).get("crossed_wall_s")
                self._notified_wall_s = crossed if isinstance(crossed, float) else 0.0
            rows = await self._ledger.booked(
                start_wall_s=day.start_wall_s, end_wall_s=day.end_wall_s
            )
            if self._budget.knows(day):
                continue
            # A day that another time zone begins may hold so much of two days of which nothing had
            # to be emitted.
            known = self._notified_wall_s in day or self._budget.was_crossed(self._clock.wall())
            self._budget.open_day(
                day, [(name, caller, lane, nano_usd(spent)) for name, caller, lane, spent in rows]
            )
            self._check_threshold(day, known=known)
        return day

    async def reserve(self, day: Day, *, caller: str, lane: Lane, model: str, amount: int) -> str:
        """Set the worst case of a call (nano-USD) aside; returns the reservation's name once it is
        on the disk.

        Raises:
            TooExpensive, BudgetExceeded: there is no money for it.
            StorageUnavailable: the money is free again, and the call must not start.
        """
        name = new_id("req_")
        caps = caps_for(self._config().settings, caller)
        now = self._clock.wall()
        try:
            self._budget.reserve(
                name, day=day, caller=caller, lane=lane, nano_usd=amount, caps=caps, now_wall_s=now
            )
        except BudgetExceeded:
            self._emit_exhausted(day, caller, lane, amount, caps)
            raise
        self._recording.add(name)
        try:
            await self._ledger.reserve(
                name, caller=caller, lane=lane, model=model, reserved_usd=usd(amount), at_wall_s=now
            )
        except BaseException:
            self.close(name, 0)
            raise
        finally:
            self._recording.discard(name)
        return name

    def close(self, name: str, cost: int) -> None:
        """The call is over and has cost so much (nano-USD), 0 for nothing. Again is harmless."""
        if not self._budget.settle(name, cost):
            return
        self._unwritten[name] = cost
        self._wake.set()
        if cost:
            self._check_threshold(self._today())

    async def run(self) -> None:
        """Know of today what the ledger knows, and write down what has ended, until cancelled."""
        while True:
            with suppress(StorageUnavailable):  # asked again with the next call
                self._check_threshold(await self.open_today())
            await self._wake.wait()
            self._wake.clear()
            if not await self.flush():
                await asyncio.sleep(RETRY_WRITE_S)
                self._wake.set()

    def _on_alert_sent(self, event: AlertSent) -> None:
        """Note for the next process what the owner knows."""
        if AlertType.BUDGET in event.types and self._crossed_wall_s is not None:
            self._notified_wall_s = self._crossed_wall_s
            self._crossed_wall_s = None
            self._documents.save(_NOTIFIED, {"crossed_wall_s": self._notified_wall_s})

    async def flush(self) -> bool:
        """Write down what has ended; False where the disk does not take it."""
        try:
            for name, cost in tuple(self._unwritten.items()):
                await (self._ledger.settle(name, usd(cost)) if cost else self._ledger.release(name))
                self._unwritten.pop(name, None)
        except StorageUnavailable:
            return False
        return True

    async def stop(self) -> None:
        """Free what is on its way to the disk, since nobody is left to use it, and write down what
        has ended.
        """
        for name in self._recording:
            self.close(name, 0)
        await self.flush()

    def totals(self) -> Totals:
        """Today so far."""
        return self._budget.totals(self._today())

    def by_caller(self) -> dict[str, dict[str, float | None]]:
        """Callers who have used Claude today or have a budget of their own: `used_usd`, running
        calls at their worst, and `limit_usd`.
        """
        settings = self._config().settings
        used = self._budget.by_caller(self._today())
        limits = {key.name: key.daily_usd for key in settings.auth.keys if key.allow_cloud}
        named = [name for name, limit_usd in limits.items() if limit_usd is not None]
        return {
            name: {"used_usd": usd(used.get(name, 0)), "limit_usd": limits.get(name)}
            for name in sorted({*used, *named})
        }

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

    def _check_threshold(self, day: Day, *, known: bool = False) -> None:
        """Emit that most of the day's money is gone, the first time that it is; not where the owner
        has `known` it.
        """
        limit = self.limit_nano_usd
        # a cap of nothing is never reached
        threshold = max(1, round(limit * self._config().settings.budget.alert_pct / 100))
        if not self._budget.crossed(day, threshold) or known:
            return
        self._crossed_wall_s = self._clock.wall()
        spent = self._budget.totals(day).external_spent
        pct = round(100 * spent / limit, 1) if limit else 100.0
        self._events.emit(
            BudgetThresholdReached(
                at=self._clock.monotonic(), spent_usd=usd(spent), limit_usd=usd(limit), pct=pct
            )
        )

    def _emit_exhausted(self, day: Day, caller: str, lane: Lane, amount: int, caps: Caps) -> None:
        own = not self._budget.external_is_short(day, lane=lane, nano_usd=amount, caps=caps)
        totals = self._budget.totals(day)
        taken = (
            self._budget.by_caller(day).get(caller, 0)
            if own
            else totals.external_spent + totals.external_reserved
        )
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


def caps_for(settings: Settings, caller: str) -> Caps:
    """What this caller's next call may cost."""
    cloud = settings.cloud
    external_usd = settings.budget.daily_external_usd
    if cloud.daily_external_usd is not None:
        external_usd = min(external_usd, cloud.daily_external_usd)
    own_usd = next((key.daily_usd for key in settings.auth.keys if key.name == caller), None)
    return Caps(
        request=nano_usd(cloud.max_per_request_usd),
        external=nano_usd(external_usd),
        caller=None if own_usd is None else nano_usd(own_usd),
    )
