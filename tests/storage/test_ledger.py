"""Money is set aside before it is spent, and every reservation ends exactly once."""

from __future__ import annotations

import pytest

from hearth.storage.store import Store
from hearth.types import Lane
from tests.storage.conftest import opened
from tests.storage.house import WALL
from tests.support.cases import for_each


async def booked(store: Store, *, days_later: int = 0) -> float:
    """US dollars of one day, paid or set aside."""
    start_s = WALL + days_later * 86_400.0
    return sum(usd for *_, usd in await store.ledger.booked(start_wall_s=start_s, end_wall_s=start_s + 86_400.0))


async def reserve(store: Store, name: str, usd: float = 1.0, caller: str = "webui", at_wall_s: float = WALL) -> bool:
    return await store.ledger.reserve(name, caller=caller, model="claude", reserved_usd=usd, at_wall_s=at_wall_s)


@for_each("first", [("settle", 0.25), ("release", 0.0)])
@for_each("second", ["settle", "release"])
async def test_a_reservation_counts_until_it_is_settled_or_released_and_ends_once(store, first, second):
    how, cost = first
    name = f"{how}-{second}"
    end = {"settle": lambda: store.ledger.settle(name, 0.25), "release": lambda: store.ledger.release(name)}
    before = await booked(store)
    await reserve(store, name)
    assert await booked(store) == before + 1.0
    assert not await reserve(store, name, 5.0)
    assert not await store.ledger.settle("ghost", 1.0)
    assert not await store.ledger.release("ghost")
    assert await booked(store) == before + 1.0
    assert await end[how]()
    assert not await end[second]()
    assert await booked(store) == before + cost


@pytest.mark.parametrize("usd", [-0.01, float("nan"), float("inf")])
async def test_what_is_no_amount_of_money_is_refused(store, usd):
    with pytest.raises(ValueError, match="amount"):
        await reserve(store, "a", usd)
    await reserve(store, "b")
    with pytest.raises(ValueError, match="amount"):
        await store.ledger.settle("b", usd)


async def test_a_spend_falls_into_exactly_one_of_adjoining_days_however_long_the_call_ran(store, clock):
    clock.wall_s = WALL + 86_401.0
    await reserve(store, "midnight", at_wall_s=WALL + 86_400.0)
    clock.advance(3600.0)
    await store.ledger.settle("midnight", 0.5)
    assert [await booked(store, days_later=days) for days in range(3)] == [0.0, 0.5, 0.0]


async def test_a_start_counts_what_dead_processes_left_as_spent_and_keeps_what_they_settled(tmp_path, clock):
    async with opened(tmp_path / "hearth.db", clock) as first:
        await reserve(first, "orphan", 4.0)
        await reserve(first, "paid", 2.0)
        await first.ledger.settle("paid", 1.5)
    async with opened(tmp_path / "hearth.db", clock) as second:
        assert await booked(second) == 5.5
        assert not await second.ledger.settle("orphan", 1.0)
        await reserve(second, "mine", 1.0)
        assert await second.ledger.settle_orphans() == 0
        assert await second.ledger.settle("mine", 0.5)


async def test_what_is_booked_is_told_with_its_caller_and_lane(store):
    await reserve(store, "open", 1.0, caller="n8n")
    await reserve(store, "cheap", 3.0, caller="n8n")
    await store.ledger.settle("cheap", 0.25)
    await reserve(store, "free", 2.0, caller="n8n")
    await store.ledger.release("free")
    await store.ledger.reserve("own", caller="house", lane=Lane.INTERNAL, model="claude", reserved_usd=0.5, at_wall_s=WALL)
    told = await store.ledger.booked(start_wall_s=WALL, end_wall_s=WALL + 86_400.0)
    assert sorted(told) == [
        ("cheap", "n8n", Lane.EXTERNAL, 0.25),
        ("free", "n8n", Lane.EXTERNAL, 0.0),
        ("open", "n8n", Lane.EXTERNAL, 1.0),
        ("own", "house", Lane.INTERNAL, 0.5),
    ]
