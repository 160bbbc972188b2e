"""The owner's orders in a running gateway, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable
from math import inf

import pytest

from hearth.config.settings import ModelSettings
from hearth.errors import Draining, OrderRefused
from hearth.events import DrainEnded, DrainStarted, OrderGiven, SwapCompleted, UnloadRequested
from hearth.types import Lane
from tests.jobs.house import JobHouse, job, with_jobs
from tests.support.house import FULL_TEXT, House, body_of, in_house, settings_with, settle, text_of
from tests.support.virtual_time import in_virtual_time, sleep_until

A = "a:latest"
B = "b:latest"


def given(house: House) -> list[tuple[str, str | None]]:
    return [(event.order, event.model) for event in house.events.of(OrderGiven)]


async def refused(order: Awaitable[object], why: str) -> None:
    with pytest.raises(OrderRefused, match=why):
        await order


@in_house("a", "b", resident="a")
async def test_a_drain_refuses_what_is_new_and_finishes_what_was_taken(house: House):
    taken = [house.submit("a", service_s=5.0), house.submit("b"), house.submit("b")]
    await sleep_until(1.0)
    seen = house.worker.decisions()
    house.gateway.orders.drain()
    assert house.worker.decisions() > seen, "who watches the status sees it"
    for lane in Lane:
        with pytest.raises(Draining) as refused:
            house.submit("a", lane=lane)
        assert (refused.value.retryable, refused.value.retry_after_s) == (True, 30.0)
    with pytest.raises(Draining):
        await house.worker.enqueue_internal("?", "a")
    assert house.gateway.ready() == (False, "draining")
    assert [text_of(await body_of(ticket)) for ticket in taken] == [FULL_TEXT] * 3
    resumed_at = house.now
    seen = house.worker.decisions()
    house.gateway.orders.resume()
    assert house.worker.decisions() > seen
    assert house.gateway.ready() == (True, "")
    await house.answer("a")
    (started,), (ended,) = house.events.of(DrainStarted), house.events.of(DrainEnded)
    assert (started.running, started.waiting, ended.drained_s) == (1, 2, resumed_at - 1.0)


@in_virtual_time
async def test_jobs_are_taken_during_a_drain_and_done_after_it():
    async with JobHouse(settings=with_jobs(max_in_queue=1)) as house:
        await house.accept(job("job_0", service_s=5.0))
        await house.accept(job("job_1"))
        await settle()
        house.gateway.orders.drain()
        await house.accept(job("job_2"))
        await house.ended("job_0")
        await sleep_until(100.0)
        assert house.jobs.status() == {"waiting": 2, "running": 0}
        house.gateway.orders.resume()
        await house.ended("job_1", "job_2")
        assert house.now < 105.0


@in_virtual_time
async def test_paused_jobs_keep_no_internal_job_from_the_queue():
    async with JobHouse(settings=with_jobs(max_in_queue=2)) as house:
        busy = house.submit("a", service_s=5.0)
        for name in ("x", "y"):
            await house.accept(job(name, lane=Lane.EXTERNAL))
        await settle()
        house.gateway.orders.pause()
        await house.accept(job("theirs", lane=Lane.EXTERNAL))
        await house.accept(job("ours", lane=Lane.INTERNAL))
        await house.ended("ours")
        assert house.jobs.status() == {"waiting": 1, "running": 2}, "two wait in the queue"
        house.gateway.orders.resume()
        await body_of(busy)
        await house.ended("x", "y", "theirs")
        assert house.now < 10.0


@in_house()
async def test_a_pause_lets_others_wait_and_internal_work_goes_on(house: House):
    house.gateway.orders.pause()
    theirs = house.submit("a")
    assert theirs.estimated_wait_s is None
    assert text_of(await body_of(house.internal("a"))) == FULL_TEXT
    assert house.state_of(theirs.sequence) == "waiting"
    assert house.gateway.ready() == (True, "")
    house.gateway.orders.resume()
    assert text_of(await body_of(theirs)) == FULL_TEXT


@in_house("a", "b", resident="a")
async def test_an_order_given_twice_is_given_once_and_a_load_can_be_taken_back(house: House):
    orders = house.gateway.orders
    running = house.submit("a", service_s=5.0)
    await orders.load("b")
    assert orders.shown()["loads"] == [B]
    await orders.unload("b")
    assert orders.shown()["loads"] == []
    await body_of(running)
    await sleep_until(60.0)
    assert house.events.of(SwapCompleted) == []
    for _ in range(2):
        orders.drain()
        orders.pause()
        await orders.pin("a")
    for _ in range(2):
        orders.resume()
        orders.unpin()
        await orders.load("b")
    await sleep_until(120.0)
    for _ in range(2):
        await orders.unload("b")
        await settle()
    await sleep_until(180.0)
    assert given(house)[2:] == [
        ("pause", None),
        ("pin", A),
        ("resume", None),
        ("unpin", A),
        ("load", B),
        ("unload", B),
    ]
    assert (len(house.events.of(DrainStarted)), len(house.events.of(DrainEnded))) == (1, 1)


@in_virtual_time
async def test_what_could_never_be_or_is_used_or_asked_for_is_refused_with_the_reason():
    sizes = {
        A: ModelSettings(vram_gb=10.0),
        B: ModelSettings(vram_gb=20.0),
        "huge:latest": ModelSettings(vram_gb=99.0),
    }
    settings = settings_with(gpu={"vram_gb": 24.0})
    async with House(
        "a", "b", "huge", resident="a", settings=settings.replace(models=sizes)
    ) as house:
        orders = house.gateway.orders
        running, *waiting = house.submit("a", service_s=5.0), house.submit("b"), house.submit("b")
        await settle()
        await refused(orders.unload("a"), "a:latest is in use: 1 request runs on it")
        await refused(orders.unload("b"), "b:latest is needed: 2 requests wait for it")
        for ticket in (running, *waiting):
            await body_of(ticket)
        await orders.unload("b")
        await sleep_until(60.0)
        assert not house.worker.scheduler.device.residency.residents
        await orders.pin("a")
        await refused(orders.load("b"), "a:latest is pinned and leaves no room for b:latest")
        await refused(orders.unload("a"), "pinned: unpin it first")
        await refused(orders.pin("huge"), "needs more memory")
        await refused(orders.load("huge"), "needs more memory")
        await sleep_until(90.0)
        await orders.load("a")
        assert given(house) == [("unload", B), ("pin", A)]


@pytest.mark.parametrize("pinned", [None, B])
@in_virtual_time
async def test_a_load_that_is_ordered_during_a_lease_comes_when_it_is_over(pinned: str | None):
    sizes = {A: ModelSettings(vram_gb=10.0), B: ModelSettings(vram_gb=10.0)}
    settings = settings_with(gpu={"vram_gb": 24.0}).replace(models=sizes)
    async with House("a", "b", settings=settings, capacity_mib=inf) as house:
        house.gateway.leases.take(reason="a game", source="api", lease_id="game")
        if pinned is not None:
            await house.gateway.orders.pin(pinned)
        await house.gateway.orders.load("a")
        await sleep_until(60.0)
        assert house.worker.runtime.view.residents == {}
        house.gateway.leases.end("game", "released")
        await sleep_until(120.0)
        assert {*house.worker.runtime.view.residents} == {A, *filter(None, [pinned])}


@in_house(
    "home",
    "a",
    "b",
    resident="home",
    settings=settings_with(gpu={"home_model": "home", "restore_home_delay_s": 1.0}),
)
async def test_a_caller_who_asks_for_an_unload_has_no_say_over_the_home_model(house: House):
    orders = house.gateway.orders
    for _ in range(3):
        assert await orders.wish_unloaded("home", "visitor") == "home model"
    await house.answer("a")
    assert await orders.wish_unloaded("home", "visitor") == ""  # not in memory
    await sleep_until(house.now + 60.0)
    assert [*house.worker.scheduler.device.residency.residents] == ["home:latest"], "it came back"
    assert house.worker.scheduler.device.home_failures == 0
    assert given(house) == []
    assert {
        (event.caller, event.model, event.kept) for event in house.events.of(UnloadRequested)
    } == {("visitor", "home:latest", "home model")}


@in_house("a", "b", resident="a")
async def test_a_claimed_model_stays_and_any_other_goes_when_a_caller_asks(house: House):
    orders = house.gateway.orders
    running = house.submit("a", service_s=5.0)
    await settle()
    assert await orders.wish_unloaded("a", "visitor") == "in use"
    waiting = house.submit("b", caller="other")
    await body_of(running)
    while "b:latest" not in house.worker.scheduler.device.residency.residents:
        await sleep_until(house.now + 0.1)
    assert await orders.wish_unloaded("b", "visitor") == "being loaded"
    await body_of(waiting)
    house.gateway.orders.pause()
    waiting = house.submit("b")
    await settle()
    assert await orders.wish_unloaded("b", "visitor") == "waited for"
    house.gateway.orders.resume()
    await body_of(waiting)
    await orders.pin("b")
    assert await orders.wish_unloaded("b", "visitor") == "pinned"
    orders.unpin()
    assert await orders.wish_unloaded("b", "visitor") == ""
    await sleep_until(house.now + 60.0)
    assert not house.worker.scheduler.device.residency.residents
    assert [order for order, _ in given(house)] == ["pause", "resume", "pin", "unpin"], (
        "a wish is no command of the owner"
    )
    assert house.events.of(UnloadRequested)[-1].kept == ""


@pytest.mark.parametrize("lane", [Lane.INTERNAL, Lane.EXTERNAL])
@in_virtual_time
async def test_a_model_held_for_returning_callers_stays_and_another_goes(lane: Lane):
    sizes = {
        A: ModelSettings(vram_gb=8.0),
        B: ModelSettings(vram_gb=8.0),
        "c:latest": ModelSettings(vram_gb=20.0),
    }
    settings = settings_with(gpu={"vram_gb": 24.0}).replace(models=sizes)
    async with House(
        "a", "b", "c", resident="a b", settings=settings, capacity_mib=24_576.0
    ) as house:
        await house.answer("a", lane=lane, caller="returns")
        waiting = house.submit("c", caller="other")
        await settle()
        orders = house.gateway.orders
        residents = house.worker.scheduler.device.residency.residents
        assert [await orders.wish_unloaded(model, "visitor") for model in ("a", "b")] == [
            "held for callers who return",
            "",
        ]
        await settle()
        assert residents["a:latest"].phase == "ready"
        assert residents["b:latest"].phase == "unloading"
        assert [(event.model, event.kept) for event in house.events.of(UnloadRequested)] == [
            (A, "held for callers who return"),
            (B, ""),
        ]
        assert text_of(await body_of(waiting)) == FULL_TEXT
