"""Leases in the whole gateway over a scripted card: when they are granted, late, and over."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from hearth.errors import OrderRefused
from hearth.events import GpuLeaseEnded, GpuLeaseGranted, GpuLeaseLate, GpuLeaseTaken
from hearth.execution.gpu_leases import LATE_S, MAX_LEASE_S, GpuLeases, Lease
from hearth.types import GpuReading
from tests.execution.test_gpu_watch import GIB, CardHouse, FakeCard, Releasing, model
from tests.support.house import FULL_TEXT, House, heard, in_house, settle, text_of
from tests.support.staying_engine import SIZE_MIB, StayingEngine
from tests.support.virtual_time import in_virtual_time, loop_s, sleep_until


def leases_of(house: House) -> GpuLeases:
    return house.gateway.leases


def take(house: House, **wanted: Any) -> Lease:
    """As a caller of the API would."""
    return leases_of(house).take(**{"reason": "a render", "source": "api"} | wanted)


def granted(house: House) -> list[tuple[float, float]]:
    """When, and how long after it was asked for."""
    return [(event.at, event.took_s) for event in house.events.of(GpuLeaseGranted)]


def ended(house: House) -> list[tuple[str, float]]:
    return [(event.why, event.held_s) for event in house.events.of(GpuLeaseEnded)]


@in_virtual_time
async def test_with_nothing_in_memory_a_lease_is_granted_by_the_next_reading():
    async with CardHouse("a") as house:
        await sleep_until(7.0)
        lease = take(house)
        assert lease.granted_at is None
        assert await leases_of(house).wait_granted(lease.id, 1.0)
        assert granted(house) == [(7.0, 0.0)]
        assert house.card.reads == [0.0, 5.0, 7.0]


@in_house("a")
async def test_without_a_card_that_is_read_the_engines_list_counts(house: House):
    lease = take(house)
    assert await leases_of(house).wait_granted(lease.id, 1.0)
    assert house.now == 0.0


@in_virtual_time
async def test_who_watches_the_status_sees_that_a_lease_is_granted():
    async with CardHouse("a", resident="a") as house:
        await sleep_until(7.0)
        lease = take(house)
        async for _ in house.worker.changes():
            leases: Any = house.worker.get_status()["leases"]
            if leases["state"] == "yielded":
                break
        assert leases_of(house).leases[lease.id].granted_at == house.now


class Loading(FakeCard):
    """A game takes its memory as fast as it can be had."""

    want_mib = 0.0

    async def read(self) -> GpuReading:
        models_mib = sum(self.gpu.taken_mib(loop_s()))
        assert self.total_mib is not None
        self.foreign_mib = min(self.want_mib, self.total_mib - models_mib)
        return await super().read()


UNLOAD_S = 0.5
"""What the fake takes for it."""


@pytest.mark.parametrize(
    ("card_type", "card", "within_s"),
    [
        pytest.param(FakeCard, {}, 1.0, id="memory is free when the model is gone"),
        pytest.param(FakeCard, {"names": False}, 1.0, id="a driver that names no program"),
        pytest.param(
            Releasing, {"kept_until": 11.0}, 5.0, id="memory that is free three seconds later"
        ),
        pytest.param(
            Releasing,
            {"kept_until": 11.0, "names": False},
            5.0,
            id="the same where the driver names no program",
        ),
        pytest.param(Loading, {"want_mib": 20 * GIB}, 1.0, id="a game that takes it at once"),
        pytest.param(
            Loading,
            {"want_mib": 20 * GIB, "names": False},
            7.0,
            id="a game that takes it at once where the driver names no program",
        ),
    ],
)
@in_virtual_time
async def test_a_lease_is_granted_when_the_card_shows_its_memory_free(card_type, card, within_s):
    async with CardHouse(model("a", 14), resident="a", card_type=card_type, card=card) as house:
        await sleep_until(7.3)
        lease = take(house)
        assert await leases_of(house).wait_granted(lease.id, 60.0)
        gone_at = max(7.3 + UNLOAD_S, getattr(house.card, "kept_until", 0.0))
        assert gone_at <= house.now <= gone_at + within_s
        assert house.events.of(GpuLeaseLate) == []
        # the card is not asked all the time
        assert len([at for at in house.card.reads if at >= 7.3]) <= 2 + 2 * (house.now - 7.3)


@in_virtual_time
async def test_a_lost_card_grants_by_what_the_engines_list():
    async with CardHouse(model("a", 14), resident="a") as house:
        await sleep_until(6.0)
        lease = take(house)
        house.card.fault = "gpu_lost"
        assert await leases_of(house).wait_granted(lease.id, 5.0)
        house.card.fault = None
        await sleep_until(100.0)
        assert list(leases_of(house).leases) == [lease.id]
        assert ended(house) == []


@in_virtual_time
async def test_a_reading_from_before_a_lease_was_asked_for_grants_nothing():
    async with CardHouse("a") as house:
        await sleep_until(1.0)
        house.card.hangs = True
        take(house)
        await sleep_until(9.0)
        assert granted(house) == []


@in_house("a")
async def test_a_lease_ends_when_its_time_is_over(house: House):
    take(house, for_s=30.0, lease_id="x")
    await sleep_until(20.0)
    assert leases_of(house).renew("x", 30.0) is not None
    await sleep_until(49.0)
    assert "x" in leases_of(house).leases
    await sleep_until(51.0)
    assert ended(house) == [("expired", 50.0)]
    assert leases_of(house).renew("x", 30.0) is None


@in_house("a")
async def test_no_lease_lasts_longer_than_a_day_unless_it_is_taken_again(house: House):
    take(house, lease_id="x")
    take(house, lease_id="y", for_s=30 * MAX_LEASE_S)
    take(house, lease_id="z")
    await sleep_until(MAX_LEASE_S / 2)
    take(house, lease_id="z")
    await sleep_until(MAX_LEASE_S + 1.0)
    assert list(leases_of(house).leases) == ["z"]
    await sleep_until(1.5 * MAX_LEASE_S + 1.0)
    assert [why for why, _ in ended(house)] == ["expired"] * 3


@in_house("a")
async def test_taken_again_it_stays_granted_unless_it_is_to_be_more(house: House):
    first = take(house, lease_id="x", mib=4 * GIB)
    await settle()
    await sleep_until(50.0)
    for mib, is_granted in ((4 * GIB, True), (2 * GIB, True), (6 * GIB, False), (None, False)):
        assert (take(house, lease_id="x", mib=mib).granted_at is not None) is is_granted
        await sleep_until(house.now + 1.0)
    assert [took_s for _, took_s in granted(house)] == [0.0, 0.0, 0.0]
    assert len(house.events.of(GpuLeaseTaken)) == 1
    assert leases_of(house).leases["x"].taken_at == first.taken_at


@in_house("a")
async def test_taken_and_ended_at_once_nothing_is_left_of_it(house: House):
    lease = take(house)
    assert leases_of(house).end(lease.id, "released")
    assert not leases_of(house).end(lease.id, "released")
    await settle()
    assert not leases_of(house).leases
    assert house.worker.runtime.view.leased_until is None
    assert ended(house) == [("released", 0.0)]
    take(house, for_s=0.0)
    await settle()
    assert ended(house)[1:] == [("expired", 0.0)]


@in_virtual_time
async def test_who_waits_for_a_lease_that_ends_is_told():
    async with CardHouse("a") as house:
        await sleep_until(1.0)
        house.card.hangs = True
        lease = take(house)
        waiting = asyncio.ensure_future(leases_of(house).wait_granted(lease.id, 60.0))
        await sleep_until(5.0)
        leases_of(house).end(lease.id, "owner")
        assert not await waiting
        assert house.now == 5.0
        assert not await leases_of(house).wait_granted("unknown", 60.0)


@in_virtual_time
async def test_a_lease_larger_than_the_card_is_refused_also_in_place_of_another():
    async with CardHouse("a") as house:
        too_large = r"25\.0 GiB is more than the GPU has \(24\.0 GiB\)"
        with pytest.raises(OrderRefused, match=too_large):
            take(house, mib=25 * GIB)
        assert not leases_of(house).leases
        lease = take(house, mib=None, lease_id="all")
        with pytest.raises(OrderRefused, match=too_large):
            take(house, mib=25 * GIB, lease_id="all")
        assert leases_of(house).leases == {"all": lease}
        leases_of(house).end("all", "released")
        two = [take(house, mib=20 * GIB), take(house, mib=20 * GIB)]
        for lease in two:
            assert await leases_of(house).wait_granted(lease.id, 1.0)


@in_virtual_time
async def test_what_is_not_granted_in_time_is_said_once():
    async with CardHouse(model("a", 4), card={"names": False, "foreign_mib": 1 * GIB}) as house:
        await sleep_until(1.0)
        house.card.hangs = True  # the driver says nothing any more
        take(house, lease_id="x")
        await sleep_until(120.0)
        (late,) = house.events.of(GpuLeaseLate)
        assert late.waited_s == pytest.approx(LATE_S + 5.0, abs=0.5)
        for _ in range(3):
            take(house, lease_id="x")
            await sleep_until(house.now + 60.0)
        assert len(house.events.of(GpuLeaseLate)) == 1
        house.card.hangs = False


@in_virtual_time
async def test_a_part_of_the_card_takes_the_smallest_set_of_models():
    models = model("a", 12), model("b", 7)
    over = {"overhead_mib": 400.0}  # what the driver shows of each beside what Ollama says
    async with CardHouse(*models, resident="a b", card=over) as house:
        await house.answer("a")
        lease = take(house, mib=11.9 * GIB)
        assert await leases_of(house).wait_granted(lease.id, 60.0)
        assert house.orders() == ["unload b:latest"]
        assert await house.answer("a") == FULL_TEXT


@in_virtual_time
async def test_a_stream_goes_on_for_its_grace_and_after_the_lease_as_one_answer():
    async with CardHouse(model("a", 14), resident="a") as house:
        await sleep_until(7.3)
        parts: list[bytes] = []
        ticket = house.submit("a", stream=True, ways=("replayed",), service_s=20.0, chunks=20)
        reading = asyncio.ensure_future(heard(ticket, parts))
        await sleep_until(10.0)
        lease = take(house)
        assert await leases_of(house).wait_granted(lease.id, 60.0)
        assert house.now <= 10.0 + 5.0 + 2.0
        await sleep_until(100.0)
        leases_of(house).end(lease.id, "released")
        said, error = await reading
        assert error is None
        assert len(text_of(said).split()) == 20


class BesideServer(FakeCard):
    """A server has 2 GiB of the card for as long as it runs."""

    async def read(self) -> GpuReading:
        reading = await super().read()
        assert reading.used_mib is not None
        return replace(reading, used_mib=reading.used_mib + SIZE_MIB)


def beside_server(ollama: Engine) -> EngineTable:
    rows = [
        Row(name="main", engine=ollama, url="http://a", kind="ollama"),
        Row(name="other", engine=StayingEngine("stays"), url="http://b", kind="llama_server"),
    ]
    return EngineTable(rows)


@pytest.mark.parametrize(
    ("gib", "keeps"), [(None, ("stays",)), (23.0, ("stays",)), (21.5, None), (10.0, None)]
)
@in_virtual_time
async def test_a_lease_of_memory_that_a_model_keeps_is_late_once(gib, keeps):
    async with CardHouse(
        model("a", 14),
        resident="a",
        card_type=BesideServer,
        card={"names": False},
        table=beside_server,
    ) as house:
        await sleep_until(7.3)
        take(house, lease_id="x", mib=gib and gib * GIB)
        for _ in range(10):
            await sleep_until(house.now + 20.0)
            take(house, lease_id="x", mib=gib and gib * GIB)
        late = [event.keeps for event in house.events.of(GpuLeaseLate)]
        assert (late, len(granted(house))) == ([keeps] if keeps else [], 0 if keeps else 1)
        assert len(house.card.reads) < 200


@in_virtual_time
async def test_two_leases_are_granted_together_and_end_apart():
    async with CardHouse(model("a", 12), model("b", 7), resident="a b") as house:
        await sleep_until(7.3)
        first = take(house, mib=8 * GIB)
        second = take(house, mib=8 * GIB)
        for lease in (first, second):
            assert await leases_of(house).wait_granted(lease.id, 5.0)
        assert sorted(house.orders()) == ["unload a:latest"]
        leases_of(house).end(first.id, "released")
        assert await house.answer("a") == FULL_TEXT  # beside 8 GiB, and in the place of b
        assert list(leases_of(house).leases) == [second.id]
