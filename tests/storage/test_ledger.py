"""Money is set aside before it is spent, and every reservation ends exactly once."""

from __future__ import annotations

import pytest

from hearth.config.settings import StorageSettings
from hearth.storage.ledger import Spend
from hearth.storage.store import Store
from hearth.types import Lane
from tests.storage.house import WALL


async def today(store: Store, caller: str | None = None) -> Spend:
    return await store.ledger.spent(start_wall_s=WALL, end_wall_s=WALL + 86_400.0, caller=caller)


async def reserve(store: Store, name: str, usd: float = 1.0, caller: str = "webui") -> bool:
    return await store.ledger.reserve(name, caller=caller, model="claude", reserved_usd=usd)


async def test_a_reservation_counts_until_it_is_settled_at_what_it_cost(store):
    await reserve(store, "a", 1.0)
    assert await today(store) == Spend(settled_usd=0.0, reserved_usd=1.0)
    assert await store.ledger.settle("a", 0.25)
    assert await today(store) == Spend(settled_usd=0.25, reserved_usd=0.0)


async def test_a_released_reservation_costs_nothing(store):
    await reserve(store, "a")
    assert await store.ledger.release("a")
    assert await today(store) == Spend(settled_usd=0.0, reserved_usd=0.0)


async def test_an_id_is_reserved_once(store):
    assert await reserve(store, "a", 1.0)
    assert not await reserve(store, "a", 5.0)
    assert (await today(store)).reserved_usd == 1.0


@pytest.mark.parametrize("first", ["settle", "release"])
@pytest.mark.parametrize("second", ["settle", "release"])
async def test_a_reservation_ends_once(store, first, second):
    end = {"settle": lambda: store.ledger.settle("a", 0.5), "release": lambda: store.ledger.release("a")}
    await reserve(store, "a")
    assert await end[first]()
    after_first = await today(store)
    assert not await end[second]()
    assert await today(store) == after_first


async def test_what_was_never_reserved_cannot_end(store):
    assert not await store.ledger.settle("ghost", 1.0)
    assert not await store.ledger.release("ghost")
    assert (await today(store)).settled_usd == 0.0


@pytest.mark.parametrize("usd", [-0.01, float("nan"), float("inf")])
async def test_what_is_no_amount_of_money_is_refused(store, usd):
    with pytest.raises(ValueError, match="amount"):
        await reserve(store, "a", usd)
    await reserve(store, "b")
    with pytest.raises(ValueError, match="amount"):
        await store.ledger.settle("b", usd)


async def test_a_spend_falls_into_exactly_one_of_adjoining_days_however_long_the_call_ran(store, clock):
    clock.wall_s = WALL + 86_400.0
    await reserve(store, "midnight")
    clock.advance(3600.0)
    await store.ledger.settle("midnight", 0.5)
    tomorrow = await store.ledger.spent(start_wall_s=WALL + 86_400.0, end_wall_s=WALL + 2 * 86_400.0)
    assert (await today(store)).settled_usd == 0.0
    assert tomorrow.settled_usd == 0.5


async def test_spending_can_be_asked_for_one_caller(store):
    await reserve(store, "a", 1.0, caller="webui")
    await reserve(store, "b", 2.0, caller="n8n")
    assert (await today(store, caller="n8n")).reserved_usd == 2.0
    assert (await today(store)).reserved_usd == 3.0


async def test_a_start_counts_what_dead_processes_left_as_spent_and_keeps_what_they_settled(tmp_path, clock):
    path, settings = tmp_path / "hearth.db", StorageSettings(reserve_mib=0)
    first = await Store.open(path, settings, clock=clock, listener=lambda health: None)
    await reserve(first, "orphan", 4.0)
    await reserve(first, "paid", 2.0)
    await first.ledger.settle("paid", 1.5)
    await first.close(5.0)
    second = await Store.open(path, settings, clock=clock, listener=lambda health: None)
    assert await today(second) == Spend(settled_usd=5.5, reserved_usd=0.0)
    await reserve(second, "mine", 1.0)
    assert await second.ledger.settle_orphans() == 0
    assert (await today(second)).reserved_usd == 1.0
    await second.close(5.0)


async def test_what_is_booked_is_told_by_caller_and_lane(store):
    await reserve(store, "open", 1.0, caller="n8n")
    await reserve(store, "cheap", 3.0, caller="n8n")
    await store.ledger.settle("cheap", 0.25)
    await reserve(store, "free", 2.0, caller="n8n")
    await store.ledger.release("free")
    await store.ledger.reserve("own", caller="house", lane=Lane.INTERNAL, model="claude", reserved_usd=0.5)
    booked = await store.ledger.booked(start_wall_s=WALL, end_wall_s=WALL + 86_400.0)
    assert sorted(booked) == [("house", Lane.INTERNAL, 0.5), ("n8n", Lane.EXTERNAL, 1.25)]
    assert await store.ledger.booked(start_wall_s=WALL + 86_400.0, end_wall_s=WALL + 2 * 86_400.0) == ()
