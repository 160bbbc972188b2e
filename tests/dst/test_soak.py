"""A month that contains each change of the clocks in Berlin: at every rest and at the end, all accounts agree to the last item."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.dst.soak import BEFORE, BERLIN, DAYS, month


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("change", "number"),
    [(datetime(2026, 3, 29, tzinfo=BERLIN), 1), (datetime(2026, 10, 25, tzinfo=BERLIN), 2)],
    ids=["the day of 23 hours", "the day of 25 hours"],
)
def test_after_a_month_nothing_has_drifted(change: datetime, number: int) -> None:
    house = month(number, change - BEFORE)
    assert house.judged == DAYS
    assert house.changed_its_clock
    assert house.deaths >= 6 * DAYS
    assert house.reloads >= 2 * DAYS
    assert len(house.lives) > DAYS
    assert sum(life.killed for life in house.lives) >= DAYS // 3
    assert len(house.asks) > 30 * DAYS
    assert len(house.claude.bills) > 3 * DAYS
