"""The purse: on the disk before it is spent, closed once, right on every day, and patient with a disk that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from hearth.admission.budget import Totals
from hearth.cloud.budget import Purse
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import AlertType, AuthSettings, BudgetSettings, CloudSettings, KeySettings, SchedulingSettings, Settings
from hearth.errors import BudgetExceeded, StorageFault, StorageUnavailable
from hearth.events import AlertSent, BudgetExhausted, BudgetThresholdReached
from hearth.types import Lane, nano_usd
from tests.clients.home import Events
from tests.storage.house import StoppedClock
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time

BERLIN = ZoneInfo("Europe/Berlin")
DIME = nano_usd(0.1)


class MemoryLedger:
    """Keeps rows as the real one does; `broken` fails every change."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, str, Lane, float, float | None]] = {}
        self.documents: dict[str, dict[str, object]] = {}
        self.broken = False

    def _check(self) -> None:
        if self.broken:
            raise StorageUnavailable(StorageFault.FULL)

    async def reserve(self, reservation_id: str, *, caller: str, lane: Lane, model: str, reserved_usd: float, at_wall_s: float) -> bool:
        await asyncio.sleep(0)
        self._check()
        self.rows[reservation_id] = (at_wall_s, caller, lane, reserved_usd, None)
        return True

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        await asyncio.sleep(0)
        self._check()
        at, caller, lane, reserved, settled = self.rows[reservation_id]
        if settled is not None:
            return False
        self.rows[reservation_id] = (at, caller, lane, reserved, settled_usd)
        return True

    async def release(self, reservation_id: str) -> bool:
        return await self.settle(reservation_id, 0.0)

    async def booked(self, *, start_wall_s: float, end_wall_s: float) -> tuple[tuple[str, str, Lane, float], ...]:
        await asyncio.sleep(0)
        self._check()
        rows = [(name, *row) for name, row in self.rows.items() if start_wall_s <= row[0] < end_wall_s]
        return tuple((name, caller, lane, worst if bill is None else bill) for name, _, caller, lane, worst, bill in rows)

    def save(self, name: str, document: Mapping[str, object]) -> None:
        self.documents[name] = dict(document)

    async def load(self, name: str) -> dict[str, object] | None:
        await asyncio.sleep(0)
        self._check()
        return self.documents.get(name)


class Money:
    """A purse with a dollar a day in Berlin, and everything around it."""

    def __init__(self, *, year: int = 2026, month: int = 1, day: int = 5, hour: int = 12) -> None:
        at = datetime(year, month, day, hour, tzinfo=BERLIN).timestamp()
        self.clock = StoppedClock(wall_s=at)
        self.ledger, self.events = MemoryLedger(), Events()
        scheduling = SchedulingSettings(time_zone="Europe/Berlin")
        settings = Settings(scheduling=scheduling, budget=BudgetSettings(daily_external_usd=1.0), cloud=CloudSettings(api_key="k"))
        self.config = GatewayConfig(settings=settings)
        self.purse = self.another()

    def another(self) -> Purse:
        """As the next process would have it."""
        return Purse(ledger=self.ledger, documents=self.ledger, clock=self.clock, events=self.events, config=lambda: self.config)

    def message_arrives(self, *kinds: AlertType) -> None:
        """The owner has read of these."""
        self.purse.emit(AlertSent(at=0.0, target="ntfy", types=kinds, alerts=1, suppressed=0, attempts=1))

    def move_to(self, zone: str) -> None:
        """The owner saves another time zone."""
        settings = self.config.settings
        self.config = GatewayConfig(settings=settings.replace(scheduling=settings.scheduling.replace(time_zone=zone)))

    def warn_at(self, alert_pct: float) -> None:
        """The owner saves another threshold."""
        settings = self.config.settings
        self.config = GatewayConfig(settings=settings.replace(budget=settings.budget.replace(alert_pct=alert_pct)))

    async def spend(self, nano: int, *, lasting_s: float = 0.0, lane: Lane = Lane.EXTERNAL) -> None:
        day = await self.purse.open_today()
        reservation = self.purse.reserve(day, caller="a", lane=lane, model="m", amount=max(nano, DIME))
        await self.purse.record(reservation)
        self.clock.advance(lasting_s)
        self.purse.close(reservation, nano)
        await self.purse.flush()


@in_virtual_time
async def test_a_new_day_begins_at_local_midnight_with_all_its_money():
    money = Money(hour=23)
    for _ in range(10):
        await money.spend(DIME)
    with pytest.raises(BudgetExceeded) as refused:
        await money.spend(1)
    assert refused.value.retry_after_s == 3600.0
    money.clock.advance(3600.0)
    await money.spend(DIME)
    assert money.purse.totals().external_spent == DIME


@for_each(("month", "day", "hours"), [(3, 29, 23), (10, 25, 25), (6, 1, 24)])
def test_a_day_with_a_clock_change_has_one_budget_and_no_more(month, day, hours):
    @in_virtual_time
    async def scenario() -> None:
        money = Money(month=month, day=day, hour=0)
        for _ in range(hours):
            with suppress(BudgetExceeded):
                await money.spend(DIME)
            money.clock.advance(3600.0)
        booked = [row[3] for row in money.ledger.rows.values()]
        assert sum(map(nano_usd, booked)) == 10 * DIME
        await money.spend(DIME)
        assert money.purse.totals().external_spent == DIME

    scenario()


@in_virtual_time
async def test_a_call_over_midnight_belongs_to_the_day_it_began_also_after_a_restart():
    money = Money(hour=23)
    await money.spend(DIME, lasting_s=7200.0)
    assert money.purse.totals().external_spent == 0
    money.purse = money.another()
    await money.purse.open_today()
    assert money.purse.totals().external_spent == 0
    money.clock.advance(-7200.0)
    await money.purse.open_today()
    assert money.purse.totals().external_spent == DIME


@in_virtual_time
async def test_a_clock_that_jumps_never_opens_a_day_twice():
    money = Money()
    for _ in range(10):
        await money.spend(DIME)
    for jump_s in (86_400.0, -86_400.0, 10 * 365 * 86_400.0, -10 * 365 * 86_400.0):
        money.clock.advance(jump_s)
        await money.purse.open_today()
    with pytest.raises(BudgetExceeded):
        await money.spend(1)
    for _ in range(11):
        money.clock.advance(86_400.0)
        await money.purse.open_today()
    money.clock.advance(-11 * 86_400.0)
    with pytest.raises(BudgetExceeded):
        await money.spend(1)


@in_virtual_time
async def test_calls_that_come_at_once_cannot_overspend_together():
    money = Money()

    async def one() -> bool:
        try:
            await money.spend(DIME)
        except BudgetExceeded:
            return False
        return True

    assert sum(await asyncio.gather(*(one() for _ in range(200)))) == 10
    assert money.purse.open_reservations == 0


@in_virtual_time
async def test_nothing_is_spent_that_cannot_be_written_down_first():
    money = Money()
    day = await money.purse.open_today()
    reservation = money.purse.reserve(day, caller="a", lane=Lane.EXTERNAL, model="m", amount=DIME)
    money.ledger.broken = True
    with pytest.raises(StorageUnavailable):
        await money.purse.record(reservation)
    money.purse.close(reservation, 0)
    assert money.purse.totals() == Totals()


@in_virtual_time
async def test_an_end_that_the_disk_refuses_is_written_when_it_is_well_again():
    money = Money()
    writing = asyncio.ensure_future(money.purse.run())
    day = await money.purse.open_today()
    reservation = money.purse.reserve(day, caller="a", lane=Lane.EXTERNAL, model="m", amount=DIME)
    await money.purse.record(reservation)
    money.ledger.broken = True
    money.purse.close(reservation, 7)
    money.purse.close(reservation, 7)
    await asyncio.sleep(20)
    assert money.ledger.rows[reservation.name][4] is None
    assert money.purse.totals().external_spent == 7
    money.ledger.broken = False
    await asyncio.sleep(10)
    assert money.ledger.rows[reservation.name][4] == 7e-9
    writing.cancel()


@in_virtual_time
async def test_the_owner_is_warned_once_a_day_and_not_again_after_a_restart():
    money = Money()
    for _ in range(9):
        await money.spend(DIME)
    (warning,) = money.events.of(BudgetThresholdReached)
    assert (warning.spent_usd, warning.limit_usd, warning.pct) == (0.8, 1.0, 80.0)
    money.message_arrives(AlertType.BUDGET)
    money.purse = money.another()
    await money.spend(DIME)
    assert len(money.events.of(BudgetThresholdReached)) == 1
    money.clock.advance(86_400.0)
    for _ in range(8):
        await money.spend(DIME)
    assert len(money.events.of(BudgetThresholdReached)) == 2


@in_virtual_time
async def test_a_warning_that_did_not_arrive_before_the_process_died_is_told_by_the_next_one():
    money = Money()
    for _ in range(8):
        await money.spend(DIME)
    money.message_arrives(AlertType.RATE_LIMITED)
    for told in (2, 3, 3):
        money.purse = money.another()
        await money.purse.open_today()
        assert len(money.events.of(BudgetThresholdReached)) == told
        if told == 3:
            money.message_arrives(AlertType.BUDGET)


@in_virtual_time
async def test_every_refusal_is_told_with_its_numbers():
    money = Money()
    await money.spend(nano_usd(0.5))
    day = await money.purse.open_today()
    money.purse.reserve(day, caller="a", lane=Lane.EXTERNAL, model="m", amount=nano_usd(0.4))
    with pytest.raises(BudgetExceeded):
        await money.spend(nano_usd(0.2))
    (told,) = money.events.of(BudgetExhausted)
    assert (told.caller, told.own, told.wanted_usd, told.spent_usd, told.limit_usd) == ("a", False, 0.2, 0.9, 1.0)


@pytest.mark.parametrize("lane", Lane)
@in_virtual_time
async def test_a_refusal_by_a_callers_own_budget_is_told_with_the_numbers_of_that(lane):
    money = Money()
    own = AuthSettings(keys=(KeySettings(name="a", sha256="0" * 64, lane=lane, daily_usd=0.25),))
    money.config = GatewayConfig(settings=money.config.settings.replace(auth=own))
    await money.spend(DIME, lane=lane)
    day = await money.purse.open_today()
    money.purse.reserve(day, caller="b", lane=Lane.EXTERNAL, model="m", amount=nano_usd(0.4))
    with pytest.raises(BudgetExceeded, match="this key's budget"):
        await money.spend(nano_usd(0.2), lane=lane)
    (told,) = money.events.of(BudgetExhausted)
    assert (told.caller, told.own, told.wanted_usd, told.spent_usd, told.limit_usd) == ("a", True, 0.2, 0.1, 0.25)


@in_virtual_time
async def test_the_houses_own_money_is_counted_apart():
    money = Money()
    await money.spend(DIME, lane=Lane.INTERNAL)
    assert (money.purse.totals().internal_spent, money.purse.totals().external_spent) == (DIME, 0)
    money.purse = money.another()
    await money.purse.open_today()
    assert (money.purse.totals().internal_spent, money.purse.totals().external_spent) == (DIME, 0)


@in_virtual_time
async def test_a_call_that_ends_in_another_time_zone_than_it_began_in_costs_its_bill_and_no_more():
    money = Money()
    reservation = money.purse.reserve(await money.purse.open_today(), caller="a", lane=Lane.EXTERNAL, model="m", amount=5 * DIME)
    await money.purse.record(reservation)
    money.move_to("Asia/Tokyo")
    await money.purse.open_today()
    assert money.purse.totals() == Totals(external_reserved=5 * DIME)
    money.purse.close(reservation, DIME)
    assert money.purse.totals() == Totals(external_spent=DIME)
    assert money.purse.by_caller()["a"]["used_usd"] == 0.1


@in_virtual_time
async def test_a_bill_that_is_not_written_yet_is_known_in_another_time_zone():
    money = Money()
    await money.spend(DIME)
    reservation = money.purse.reserve(await money.purse.open_today(), caller="a", lane=Lane.EXTERNAL, model="m", amount=5 * DIME)
    await money.purse.record(reservation)
    money.purse.close(reservation, DIME)
    money.move_to("Asia/Tokyo")
    await money.purse.open_today()
    assert money.purse.totals() == Totals(external_spent=2 * DIME)


@in_virtual_time
async def test_a_call_that_begins_or_ends_while_the_new_day_is_read_is_counted_once():
    for step in range(6):
        money = Money()
        early = money.purse.reserve(day := await money.purse.open_today(), caller="a", lane=Lane.EXTERNAL, model="m", amount=DIME)
        await money.purse.record(early)
        money.move_to("Asia/Tokyo")
        opening = asyncio.ensure_future(money.purse.open_today())
        for _ in range(step):
            await asyncio.sleep(0)
        late = money.purse.reserve(day, caller="a", lane=Lane.EXTERNAL, model="m", amount=2 * DIME)
        recording = asyncio.ensure_future(money.purse.record(late))
        money.purse.close(early, 7)
        await asyncio.gather(opening, recording, money.purse.flush())
        assert money.purse.totals() == Totals(external_spent=7, external_reserved=2 * DIME)


@in_virtual_time
async def test_time_zones_back_and_forth_open_no_second_budget():
    money = Money()
    await money.purse.open_today()
    for zone in ("Asia/Tokyo", "Europe/Berlin", "America/Chicago", "Asia/Tokyo", "Europe/Berlin") * 3:
        money.move_to(zone)
        with suppress(BudgetExceeded):
            await money.spend(DIME)
    assert sum(nano_usd(row[4] or 0.0) for row in money.ledger.rows.values()) == 10 * DIME
    assert money.purse.totals() == Totals(external_spent=10 * DIME)


@in_virtual_time
async def test_a_zone_in_which_it_is_tomorrow_has_its_own_money_and_leaves_yesterdays_alone():
    money = Money(hour=20)
    reservation = money.purse.reserve(await money.purse.open_today(), caller="a", lane=Lane.EXTERNAL, model="m", amount=5 * DIME)
    await money.purse.record(reservation)
    money.clock.advance(3600.0)
    money.move_to("Pacific/Kiritimati")
    await money.purse.open_today()
    assert money.purse.totals() == Totals(external_reserved=5 * DIME)
    money.clock.advance(86_400.0)
    await money.purse.open_today()
    assert money.purse.totals() == Totals()
    money.purse.close(reservation, DIME)
    assert money.purse.totals() == Totals()


@in_virtual_time
async def test_a_day_that_begins_while_the_last_one_is_read_is_the_day_of_the_call():
    money = Money(hour=23)
    money.clock.advance(3599.0)
    opening = asyncio.ensure_future(money.purse.open_today())
    await asyncio.sleep(0)
    money.clock.advance(2.0)
    day = await opening
    assert day.start_wall_s <= money.clock.wall() < day.end_wall_s


@in_virtual_time
async def test_a_reservation_that_reaches_the_disk_after_midnight_belongs_to_the_day_that_paid_for_it():
    money = Money(hour=23)
    money.clock.advance(3599.0)
    reservation = money.purse.reserve(await money.purse.open_today(), caller="a", lane=Lane.EXTERNAL, model="m", amount=DIME)
    money.clock.advance(2.0)
    await money.purse.record(reservation)
    money.purse = money.another()
    await money.purse.open_today()
    assert money.purse.totals() == Totals()


@in_virtual_time
async def test_what_is_shown_of_today_is_known_before_the_first_call_and_after_a_change_of_the_time_zone():
    money = Money()
    await money.spend(DIME)
    money.purse = money.another()
    running = asyncio.ensure_future(money.purse.run())
    for zone in ("Europe/Berlin", "Asia/Tokyo"):
        money.move_to(zone)
        money.purse.look_again()
        await asyncio.sleep(1)
        assert money.purse.totals() == Totals(external_spent=DIME)
    running.cancel()


@in_virtual_time
async def test_what_was_spent_today_is_shown_also_without_a_key():
    money = Money()
    await money.spend(DIME)
    money.config = GatewayConfig(settings=money.config.settings.replace(cloud=CloudSettings()))
    money.purse = money.another()
    running = asyncio.ensure_future(money.purse.run())
    await asyncio.sleep(1)
    assert money.purse.totals() == Totals(external_spent=DIME)
    running.cancel()


@in_virtual_time
async def test_a_lowered_threshold_that_is_reached_already_is_told_at_once_and_once():
    money = Money()
    await money.spend(4 * DIME)
    running = asyncio.ensure_future(money.purse.run())
    for _ in range(2):
        money.warn_at(40.0)
        money.purse.look_again()
        await asyncio.sleep(1)
    running.cancel()
    (told,) = money.events.of(BudgetThresholdReached)
    assert (told.spent_usd, told.pct) == (0.4, 40.0)


@in_virtual_time
async def test_a_day_of_another_time_zone_that_has_spent_so_much_is_told_where_neither_of_its_own_days_was():
    money = Money(hour=20)
    for _ in range(2):
        await money.spend(4 * DIME)
        money.clock.advance(5 * 3600.0)
    assert money.events.of(BudgetThresholdReached) == []
    money.move_to("America/Chicago")
    await money.purse.open_today()
    (told,) = money.events.of(BudgetThresholdReached)
    assert (told.spent_usd, told.limit_usd, told.pct) == (0.8, 1.0, 80.0)


@in_virtual_time
async def test_who_was_told_of_today_is_not_told_again_because_of_another_time_zone():
    money = Money()
    for _ in range(8):
        await money.spend(DIME)
    for zone in ("Asia/Tokyo", "America/Chicago", "Europe/Berlin"):
        money.move_to(zone)
        await money.spend(nano_usd(0.01))
    assert len(money.events.of(BudgetThresholdReached)) == 1


@in_virtual_time
async def test_a_day_of_another_time_zone_is_told_when_it_has_spent_so_much_itself():
    money = Money(hour=2)
    for _ in range(8):
        await money.spend(DIME)
    money.clock.advance(20 * 3600.0)
    money.move_to("Asia/Tokyo")
    for _ in range(7):
        await money.spend(DIME)
    assert len(money.events.of(BudgetThresholdReached)) == 1
    await money.spend(DIME)
    assert len(money.events.of(BudgetThresholdReached)) == 2
