"""Money in any store: it is set aside before it is spent, and every reservation ends once."""

from __future__ import annotations

import pytest

from hearth.types import DAY_S, Lane
from tests.storage.port import Ports
from tests.support.stopped_clock import WALL


async def booked(ports: Ports, *, days_later: int = 0) -> float:
    """US dollars of one day, paid or set aside."""
    start_s = WALL + days_later * DAY_S
    return sum(
        usd
        for *_, usd in await ports.ledger.booked(start_wall_s=start_s, end_wall_s=start_s + DAY_S)
    )


async def reserve(
    ports: Ports, name: str, usd: float = 1.0, at_wall_s: float = WALL, lane: Lane = Lane.EXTERNAL
) -> bool:
    return await ports.ledger.reserve(
        name, caller="n8n", model="claude", reserved_usd=usd, at_wall_s=at_wall_s, lane=lane
    )


@pytest.mark.parametrize("first", [("settle", 0.25), ("release", 0.0)])
@pytest.mark.parametrize("second", ["settle", "release"])
async def test_a_reservation_counts_until_it_is_settled_or_released_and_ends_once(
    ports, first, second
):
    how, cost = first
    name = f"{how}-{second}"
    end = {
        "settle": lambda: ports.ledger.settle(name, 0.25),
        "release": lambda: ports.ledger.release(name),
    }
    before = await booked(ports)
    await reserve(ports, name)
    assert not await reserve(ports, name, 5.0)
    assert not await ports.ledger.settle("ghost", 1.0)
    assert not await ports.ledger.release("ghost")
    assert await booked(ports) == before + 1.0
    assert await end[how]()
    assert not await end[second]()
    assert await booked(ports) == before + cost


async def test_what_is_no_amount_of_money_is_refused(ports):
    await reserve(ports, "b")
    for usd in (-0.01, float("nan"), float("inf")):
        for refused in (reserve(ports, "a", usd), ports.ledger.settle("b", usd)):
            with pytest.raises(ValueError, match="amount"):
                await refused


async def test_a_spend_falls_into_exactly_one_of_adjoining_days(ports, clock):
    clock.wall_s = WALL + DAY_S + 1.0
    await reserve(ports, "midnight", at_wall_s=WALL + DAY_S)
    clock.advance(3600.0)
    await ports.ledger.settle("midnight", 0.5)
    assert [await booked(ports, days_later=days) for days in range(3)] == [0.0, 0.5, 0.0]


async def test_a_start_counts_what_dead_processes_left_as_spent(process):
    first = await process()
    await reserve(first, "orphan", 4.0)
    await reserve(first, "paid", 2.0, lane=Lane.INTERNAL)
    await first.ledger.settle("paid", 1.5)
    second = await process()
    found = await second.ledger.booked(start_wall_s=WALL, end_wall_s=WALL + DAY_S)
    assert sorted(found) == [
        ("orphan", "n8n", Lane.EXTERNAL, 4.0),
        ("paid", "n8n", Lane.INTERNAL, 1.5),
    ]
    assert not await second.ledger.settle("orphan", 1.0)
    await reserve(second, "mine", 1.0)
    assert await second.ledger.settle("mine", 0.5)
