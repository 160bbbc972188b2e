"""Money is exact, set aside before it is spent, given back on every way out, and each day's is its own."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from hearth.admission.budget import REMEMBERED_DAYS, Booked, Budget, Caps, Day, Totals
from hearth.config.active_hours import day_of
from hearth.errors import BudgetExceeded, TooExpensive
from hearth.types import Lane
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

DAYS = [Day(start_wall_s=number * 86_400.0, end_wall_s=(number + 1) * 86_400.0) for number in range(40)]
TODAY, TOMORROW = DAYS[:2]
CAPS = Caps(request=100, external=250)


def booked(name: str, nano_usd: int, *, caller: str = "a", lane: Lane = Lane.EXTERNAL) -> Booked:
    return name, caller, lane, nano_usd


def budget_with(*rows: Booked) -> Budget:
    budget = Budget()
    budget.open_day(TODAY, rows)
    return budget


def reserve(budget: Budget, name: str, nano_usd: int, *, caller: str = "a", lane: Lane = Lane.EXTERNAL, caps: Caps = CAPS, day=TODAY):
    budget.reserve(name, day=day, caller=caller, lane=lane, nano_usd=nano_usd, caps=caps, now_wall_s=day.start_wall_s + 82_800.0)


def test_a_reservation_takes_exactly_what_is_left_and_what_it_did_not_need_is_there_for_the_next():
    budget = budget_with(booked("before", 100, caller="b"))
    reserve(budget, "one", 100)
    with pytest.raises(BudgetExceeded) as refused:
        reserve(budget, "two", 51)
    assert refused.value.retry_after_s == 3600.0
    reserve(budget, "three", 50)
    assert [budget.settle("one", 40), budget.settle("one", 40), budget.settle("ghost", 1)] == [True, False, False]
    reserve(budget, "four", 60)
    assert budget.totals(TODAY) == Totals(external_spent=140, external_reserved=110)
    assert budget.open_reservations == 2


def test_one_call_is_bound_whoever_asks_and_the_internal_lane_not_by_what_others_may_spend():
    budget = budget_with()
    with pytest.raises(TooExpensive, match="max_per_request_usd"):
        reserve(budget, "one", 101, lane=Lane.INTERNAL)
    for number in range(5):
        reserve(budget, f"own {number}", 100, lane=Lane.INTERNAL)
    reserve(budget, "other", 100)
    assert budget.totals(TODAY) == Totals(internal_reserved=500, external_reserved=100)


def test_a_day_that_is_open_is_not_opened_again_and_a_spend_belongs_to_that_of_its_reservation():
    budget = budget_with()
    reserve(budget, "late", 100)
    budget.open_day(TODAY, (booked("before", 1),))
    budget.open_day(TOMORROW, ())
    budget.settle("late", 60)
    assert [budget.totals(day) for day in (TODAY, TOMORROW)] == [Totals(external_spent=60), Totals()]


def test_old_days_are_forgotten_and_what_a_call_of_theirs_costs_is_known_where_they_come_again():
    budget = budget_with()
    reserve(budget, "endless", 100)
    for day in DAYS[1:20]:
        budget.open_day(day, ())
    assert [budget.knows(day) for day in DAYS[:20]] == [False] * (19 - REMEMBERED_DAYS) + [True] * (REMEMBERED_DAYS + 1)
    budget.open_day(TODAY, (booked("endless", 100),))
    assert budget.totals(TODAY) == Totals(external_reserved=100)
    assert budget.settle("endless", 1)
    assert budget.totals(TODAY) == Totals(external_spent=1)


def test_what_has_ended_is_kept_no_longer_than_its_day():
    budget = budget_with()
    for number, day in enumerate(DAYS):
        budget.open_day(day, ())
        reserve(budget, f"{number}", 1, day=day)
        budget.settle(f"{number}", 1)
    assert len(budget._spends) == REMEMBERED_DAYS + 1


@for_each("seed", range(20 * EXAMPLES))
def test_spent_and_reserved_are_always_the_sum_of_what_happened_and_never_above_the_cap(seed):
    chance, budget = random.Random(seed), budget_with()
    spent, opened = 0, dict[str, int]()
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
                reserve(budget, f"{step}", amount)
                opened[f"{step}"] = amount
            except BudgetExceeded:
                assert spent + sum(opened.values()) + amount > CAPS.external
        assert budget.totals(TODAY) == Totals(external_spent=spent, external_reserved=sum(opened.values()))
        assert spent + sum(opened.values()) <= CAPS.external


@for_each(
    ("zone", "date", "hours"),
    [
        ("Europe/Berlin", (2026, 3, 29), 23),
        ("Europe/Berlin", (2026, 10, 25), 25),
        ("Europe/Berlin", (2026, 7, 1), 24),
        ("America/Sao_Paulo", (2017, 10, 15), 23),  # midnight does not exist
        ("America/Sao_Paulo", (2018, 2, 17), 25),  # the last hour comes twice
        ("Asia/Kolkata", (2026, 1, 5), 24),
    ],
)
def test_a_day_lasts_from_midnight_to_midnight_on_the_wall(zone, date, hours):
    year, month, day = date
    noon = datetime(year, month, day, 12, tzinfo=ZoneInfo(zone)).timestamp()
    start_s, end_s = day_of(ZoneInfo(zone), noon)
    assert (end_s - start_s) / 3600 == hours
    assert start_s <= noon < end_s


@for_each("zone", ["Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "Africa/Cairo", "Pacific/Apia", "UTC"])
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
