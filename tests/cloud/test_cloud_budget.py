"""Money for Claude: exact, on the disk before it is spent, closed once, right on every day, and
patient with a disk that fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from hearth.cloud.budget import CloudBudget
from hearth.cloud.reservations import REMEMBERED_DAYS, Budget, Caps, Day, Totals
from hearth.config.active_hours import day_of
from hearth.config.settings import (
    AlertType,
    BudgetSettings,
    CloudSettings,
    GatewayConfig,
    KeySettings,
    SchedulingSettings,
    Settings,
)
from hearth.errors import BudgetExceeded, StorageUnavailable, TooExpensive
from hearth.events import AlertSent, BudgetExhausted, BudgetThresholdReached
from hearth.types import JsonDict, Lane, nano_usd
from tests.support.examples import EXAMPLES
from tests.support.recorder import Recorder
from tests.support.stopped_clock import StoppedClock
from tests.support.virtual_time import in_virtual_time

BERLIN = ZoneInfo("Europe/Berlin")
DIME = nano_usd(0.1)
DAY_S = 86_400.0


class MemoryLedger:
    """Keeps rows as the real one does; `broken` fails every change."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[float, str, Lane, float, float | None]] = {}
        self.documents: dict[str, JsonDict] = {}
        self.broken = False

    async def _check(self) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise StorageUnavailable("disk_full")

    async def reserve(
        self,
        reservation_id: str,
        *,
        caller: str,
        lane: Lane,
        model: str,
        reserved_usd: float,
        at_wall_s: float,
    ) -> bool:
        await self._check()
        self.rows[reservation_id] = (at_wall_s, caller, lane, reserved_usd, None)
        return True

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        await self._check()
        row = self.rows.get(reservation_id)
        if row is None or row[4] is not None:
            return False
        self.rows[reservation_id] = (*row[:4], settled_usd)
        return True

    async def release(self, reservation_id: str) -> bool:
        return await self.settle(reservation_id, 0.0)

    async def booked(
        self, *, start_wall_s: float, end_wall_s: float
    ) -> tuple[tuple[str, str, Lane, float], ...]:
        await self._check()
        rows = [
            (name, *row) for name, row in self.rows.items() if start_wall_s <= row[0] < end_wall_s
        ]
        return tuple(
            (name, caller, lane, worst if bill is None else bill)
            for name, _, caller, lane, worst, bill in rows
        )

    def save(self, name: str, document: Mapping[str, object]) -> None:
        self.documents[name] = dict(document)

    async def keep(self, name: str, document: Mapping[str, object]) -> None:
        await self._check()
        self.save(name, document)

    async def load(self, name: str) -> JsonDict | None:
        await self._check()
        return self.documents.get(name)


class Money:
    """A budget of a dollar a day in Berlin, and everything around it."""

    def __init__(self, *, month: int = 1, day: int = 5, hour: int = 12, second: int = 0) -> None:
        self.clock = StoppedClock(
            wall_s=datetime(2026, month, day, hour, tzinfo=BERLIN).timestamp() + second
        )
        self.ledger = MemoryLedger()
        self.events = Recorder()
        scheduling = SchedulingSettings(time_zone="Europe/Berlin")
        settings = Settings(
            scheduling=scheduling,
            budget=BudgetSettings(daily_external_usd=1.0),
            cloud=CloudSettings(api_key="k"),
        )
        self.config = GatewayConfig(settings=settings)
        self.restart()

    @property
    def totals(self) -> Totals:
        return self.budget.totals()

    @property
    def warnings(self) -> list[BudgetThresholdReached]:
        return self.events.of(BudgetThresholdReached)

    def restart(self) -> None:
        """The next process."""
        ledger = self.ledger
        clock = self.clock
        events = self.events
        self.budget = CloudBudget(
            ledger=ledger, documents=ledger, clock=clock, events=events, config=lambda: self.config
        )

    async def restarted(self) -> Totals:
        self.restart()
        return await self.opened()

    async def opened(self) -> Totals:
        await self.budget.open_today()
        return self.totals

    def message_arrives(self, *kinds: AlertType) -> None:
        """The owner has read of these."""
        self.budget.emit(
            AlertSent(at=0.0, target="ntfy", types=kinds, alerts=1, suppressed=0, attempts=1)
        )

    def save(self, **sections: Mapping[str, object]) -> None:
        """The owner saves other settings."""
        settings = self.config.settings
        changed = {name: getattr(settings, name).replace(**keys) for name, keys in sections.items()}
        self.config = GatewayConfig(settings=settings.replace(**changed))

    async def move_to(self, zone: str) -> Totals:
        """The owner saves another time zone."""
        self.save(scheduling={"time_zone": zone})
        return await self.opened()

    async def reserve(self, nano: int, *, caller: str = "a", lane: Lane = Lane.EXTERNAL) -> str:
        return await self.budget.reserve(
            await self.budget.open_today(), caller=caller, lane=lane, model="m", amount=nano
        )

    async def spend(
        self, nano: int, *, times: int = 1, lasting_s: float = 0.0, lane: Lane = Lane.EXTERNAL
    ) -> None:
        for _ in range(times):
            name = await self.reserve(max(nano, DIME), lane=lane)
            self.clock.advance(lasting_s)
            self.budget.close(name, nano)
            await self.budget.flush()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.budget.run())
        yield
        task.cancel()


@pytest.mark.parametrize(("month", "day", "hours"), [(3, 29, 23), (10, 25, 25), (6, 1, 24)])
def test_a_day_lasts_from_midnight_to_midnight_with_one_budget(month, day, hours):
    @in_virtual_time
    async def scenario() -> None:
        money = Money(month=month, day=day, hour=0)
        for left in range(hours, 0, -1):
            if left < hours - 9:
                with pytest.raises(BudgetExceeded) as refused:
                    await money.spend(1)
                assert refused.value.retry_after_s == left * 3600.0
            else:
                await money.spend(DIME)
            money.clock.advance(3600.0)
        assert sum(nano_usd(row[3]) for row in money.ledger.rows.values()) == 10 * DIME
        await money.spend(DIME)
        assert money.totals.external_spent == DIME

    scenario()


@in_virtual_time
async def test_a_call_over_midnight_belongs_to_the_day_it_began_also_after_a_restart():
    money = Money(hour=23)
    await money.spend(DIME, lasting_s=7200.0)
    assert money.totals == await money.restarted() == Totals()
    money.clock.advance(-7200.0)
    assert await money.opened() == Totals(external_spent=DIME)


@in_virtual_time
async def test_a_clock_that_jumps_never_opens_a_day_twice():
    money = Money()
    await money.spend(DIME, times=10)
    for jumps_days in ((1, -1, 3650, -3650), (*[1] * 11, -11)):
        for jump_days in jumps_days:
            money.clock.advance(jump_days * DAY_S)
            await money.opened()
        with pytest.raises(BudgetExceeded):
            await money.spend(1)


@in_virtual_time
async def test_calls_that_come_at_once_cannot_overspend_together():
    money = Money()
    ends = await asyncio.gather(*(money.spend(DIME) for _ in range(200)), return_exceptions=True)
    assert [ends.count(None), sum(isinstance(end, BudgetExceeded) for end in ends)] == [10, 190]
    assert money.budget.open_reservations == 0


@in_virtual_time
async def test_nothing_is_spent_before_it_is_written_and_an_end_is_written_later():
    money = Money()
    async with money.running():
        name = await money.reserve(DIME)
        money.ledger.broken = True
        with pytest.raises(StorageUnavailable):
            await money.reserve(DIME)
        assert (money.totals, money.budget.open_reservations) == (Totals(external_reserved=DIME), 1)
        for cost in (7, 0):
            money.budget.close(name, cost)
        await asyncio.sleep(20)
        assert (money.ledger.rows[name][4], money.totals.external_spent) == (None, 7)
        money.ledger.broken = False
        await asyncio.sleep(10)
        assert money.ledger.rows[name][4] == 7e-9


@in_virtual_time
async def test_the_owner_is_warned_once_a_day_also_over_restarts_and_zones():
    money = Money()
    await money.spend(DIME, times=8)
    assert [(warning.spent_usd, warning.limit_usd, warning.pct) for warning in money.warnings] == [
        (0.8, 1.0, 80.0)
    ]
    for zone in ("Asia/Tokyo", "America/Chicago", "Europe/Berlin"):
        await money.move_to(zone)
        await money.spend(nano_usd(0.01))
    money.message_arrives(AlertType.BUDGET)
    money.restart()
    await money.spend(nano_usd(0.01))
    assert len(money.warnings) == 1
    money.clock.advance(DAY_S)
    await money.spend(DIME, times=8)
    assert len(money.warnings) == 2


@in_virtual_time
async def test_a_warning_lost_with_its_process_is_emitted_by_the_next_one():
    money = Money()
    await money.spend(DIME, times=8)
    for arrived, warnings in (
        (AlertType.RATE_LIMITED, 2),
        (AlertType.RATE_LIMITED, 3),
        (AlertType.BUDGET, 3),
    ):
        money.message_arrives(arrived)
        await money.restarted()
        assert len(money.warnings) == warnings


@pytest.mark.parametrize("lane", Lane)
@in_virtual_time
async def test_every_refusal_has_the_numbers_of_the_budget_that_refused(lane):
    money = Money()
    await money.spend(nano_usd(0.5))
    await money.reserve(nano_usd(0.4))
    with pytest.raises(BudgetExceeded, match="today's budget"):
        await money.spend(nano_usd(0.2))
    money.save(auth={"keys": (KeySettings(name="b", sha256="0" * 64, lane=lane, daily_usd=0.05),)})
    with pytest.raises(BudgetExceeded, match="this key's budget"):
        await money.reserve(nano_usd(0.06), caller="b", lane=lane)
    told = [
        (event.caller, event.own, event.wanted_usd, event.spent_usd, event.limit_usd)
        for event in money.events.of(BudgetExhausted)
    ]
    assert told == [("a", False, 0.2, 0.9, 1.0), ("b", True, 0.06, 0.0, 0.05)]
    with pytest.raises(
        TooExpensive, match="one request may cost"
    ):  # one call is bound whoever asks
        await money.reserve(nano_usd(99.0), lane=lane)
    await money.spend(DIME, times=20, lane=Lane.INTERNAL)
    after = {"external_spent": 5 * DIME, "internal_spent": 20 * DIME}
    assert money.totals == Totals(**after, external_reserved=4 * DIME)
    assert await money.restarted() == Totals(**after | {"external_spent": 9 * DIME})


@in_virtual_time
async def test_a_call_in_two_time_zones_costs_its_bill_once():
    money = Money()
    await money.spend(DIME)
    names = [await money.reserve(4 * DIME) for _ in range(2)]
    money.budget.close(names[0], DIME)
    assert await money.move_to("Asia/Tokyo") == Totals(
        external_spent=2 * DIME, external_reserved=4 * DIME
    )
    money.budget.close(names[1], DIME)
    assert money.totals == Totals(external_spent=3 * DIME)
    assert money.budget.by_caller()["a"]["used_usd"] == 0.3


@in_virtual_time
async def test_a_call_that_begins_or_ends_while_the_new_day_is_read_is_counted_once():
    for step in range(6):
        money = Money()
        day, early = await money.budget.open_today(), await money.reserve(DIME)
        opening = asyncio.ensure_future(money.move_to("Asia/Tokyo"))
        for _ in range(step):
            await asyncio.sleep(0)
        late = money.budget.reserve(day, caller="a", lane=Lane.EXTERNAL, model="m", amount=2 * DIME)
        recording = asyncio.ensure_future(late)
        await asyncio.sleep(0)
        money.budget.close(early, 7)
        await asyncio.gather(opening, recording, money.budget.flush())
        assert money.totals == Totals(external_spent=7, external_reserved=2 * DIME)


@in_virtual_time
async def test_time_zones_back_and_forth_open_no_second_budget():
    money = Money()
    await money.opened()
    for zone in (
        "Asia/Tokyo",
        "Europe/Berlin",
        "America/Chicago",
        "Asia/Tokyo",
        "Europe/Berlin",
    ) * 3:
        await money.move_to(zone)
        with suppress(BudgetExceeded):
            await money.spend(DIME)
    assert sum(nano_usd(row[4] or 0.0) for row in money.ledger.rows.values()) == 10 * DIME
    assert money.totals == Totals(external_spent=10 * DIME)


@in_virtual_time
async def test_a_zone_in_which_it_is_tomorrow_has_its_own_money():
    money = Money(hour=20)
    name = await money.reserve(5 * DIME)
    money.clock.advance(3600.0)
    assert await money.move_to("Pacific/Kiritimati") == Totals(external_reserved=5 * DIME)
    money.clock.advance(DAY_S)
    assert await money.opened() == Totals()
    money.budget.close(name, DIME)
    assert money.totals == Totals()


@in_virtual_time
async def test_a_day_that_begins_during_a_read_is_the_day_of_the_next_call():
    money = Money(hour=23, second=3599)
    opening = asyncio.ensure_future(money.budget.open_today())
    await asyncio.sleep(0)
    money.clock.advance(2.0)
    assert money.clock.wall() in await opening
    money = Money(hour=23, second=3599)
    await money.opened()
    recording = asyncio.ensure_future(money.reserve(DIME))
    await asyncio.sleep(0)
    money.clock.advance(2.0)
    await recording
    assert await money.restarted() == Totals()


@in_virtual_time
async def test_todays_sum_is_known_before_the_first_call_in_every_zone():
    money = Money()
    await money.spend(DIME)
    money.restart()
    async with money.running():
        for change in ({}, {"scheduling": {"time_zone": "Asia/Tokyo"}}, {"cloud": {"api_key": ""}}):
            money.save(**change)
            money.budget.look_again()
            await asyncio.sleep(1)
            assert money.totals == Totals(external_spent=DIME)


@in_virtual_time
async def test_a_lowered_threshold_that_is_reached_is_emitted_once():
    money = Money()
    await money.spend(4 * DIME)
    async with money.running():
        for _ in range(2):
            money.save(budget={"alert_pct": 40.0})
            money.budget.look_again()
            await asyncio.sleep(1)
    assert [(told.spent_usd, told.pct) for told in money.warnings] == [(0.4, 40.0)]


@in_virtual_time
async def test_a_day_of_another_time_zone_is_emitted_when_it_has_spent_so_much_itself():
    """Also at once, where neither of the days that it holds parts of has."""
    money = Money(hour=20)
    await money.spend(4 * DIME, times=2, lasting_s=5 * 3600.0)
    assert money.warnings == []
    await money.move_to("America/Chicago")
    assert [(told.spent_usd, told.limit_usd, told.pct) for told in money.warnings] == [
        (0.8, 1.0, 80.0)
    ]
    money = Money(hour=2)
    await money.spend(DIME, times=8)
    money.clock.advance(20 * 3600.0)
    await money.move_to("Asia/Tokyo")
    for times, warnings in ((7, 1), (1, 2)):
        await money.spend(DIME, times=times)
        assert len(money.warnings) == warnings


DAYS = [Day(start_wall_s=number * DAY_S, end_wall_s=(number + 1) * DAY_S) for number in range(40)]
CAPS = Caps(request=100, external=250)


def set_aside(budget: Budget, name: str, nano: int, day: Day = DAYS[0]) -> None:
    budget.reserve(
        name,
        day=day,
        caller="a",
        lane=Lane.EXTERNAL,
        nano_usd=nano,
        caps=CAPS,
        now_wall_s=day.start_wall_s,
    )


def test_old_days_are_forgotten_and_what_their_calls_cost_is_found_again():
    budget = Budget()
    budget.open_day(DAYS[0], ())
    set_aside(budget, "endless", 100)
    for number, day in enumerate(DAYS[1:], start=1):
        budget.open_day(day, ())
        set_aside(budget, f"{number}", 1, day)
        assert [
            budget.settle(f"{number}", 1),
            budget.settle(f"{number}", 1),
            budget.settle("ghost", 1),
        ] == [True, False, False]
    assert [budget.knows(day) for day in DAYS] == [False] * (39 - REMEMBERED_DAYS) + [True] * (
        REMEMBERED_DAYS + 1
    )
    # what has ended is kept no longer than its day
    assert len(budget._spends) == REMEMBERED_DAYS + 2
    budget.open_day(DAYS[0], [("endless", "a", Lane.EXTERNAL, 100)])
    assert budget.totals(DAYS[0]) == Totals(external_reserved=100)
    assert (budget.settle("endless", 1), budget.totals(DAYS[0])) == (True, Totals(external_spent=1))


@pytest.mark.parametrize("seed", range(20 * EXAMPLES))
def test_spent_and_reserved_are_the_sum_of_what_happened_below_the_cap(seed):
    chance = random.Random(seed)
    budget = Budget()
    budget.open_day(DAYS[0], ())
    spent = 0
    opened = dict[str, int]()
    for step in range(300):
        if opened and chance.random() < 0.45:
            name = chance.choice(list(opened))
            worst = opened.pop(name)
            cost = chance.choice((0, worst, chance.randint(0, worst)))
            spent += cost
            budget.settle(name, cost)
        else:
            amount = chance.randint(1, 40)
            try:
                set_aside(budget, f"{step}", amount)
                opened[f"{step}"] = amount
            except BudgetExceeded:
                assert spent + sum(opened.values()) + amount > CAPS.external
        assert budget.totals(DAYS[0]) == Totals(
            external_spent=spent, external_reserved=sum(opened.values())
        )
        assert spent + sum(opened.values()) <= CAPS.external


@pytest.mark.parametrize(
    "zone",
    [
        "Europe/Berlin",
        "America/Sao_Paulo",
        "America/St_Johns",
        "Africa/Cairo",
        "Pacific/Apia",
        "UTC",
    ],
)
def test_days_adjoin_and_every_instant_is_in_exactly_one(zone):
    moment = datetime(2009, 12, 25, tzinfo=UTC).timestamp()
    last_s = datetime(2012, 1, 5, tzinfo=UTC).timestamp()
    start_s, end_s = day_of(ZoneInfo(zone), moment)
    while moment < last_s:
        moment += 1_753.0
        found = day_of(ZoneInfo(zone), moment)
        assert found[0] <= moment < found[1]
        if found != (start_s, end_s):
            assert found[0] == end_s
            start_s, end_s = found
            local = datetime.fromtimestamp(start_s, ZoneInfo(zone))
            assert (local.minute, local.second) == (0, 0)
            # no midnight on that day
            assert local.hour == 0 or datetime.fromtimestamp(start_s - 1, ZoneInfo(zone)).hour == 23
