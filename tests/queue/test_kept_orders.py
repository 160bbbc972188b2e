"""The owner's orders and the GPU's leases over a restart, in virtual time: each house is one
process on the same disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hearth.events import (
    GpuLeaseEnded,
    GpuLeaseTaken,
    OrderDropped,
    OrdersRecalled,
    OwnerWarned,
    SwapCompleted,
)
from hearth.queue.kept_orders import DOCUMENT, HOLDER_RETURNS_S
from hearth.scheduling.inputs import GpuSampled
from hearth.types import DAY_S, HOUR_S
from tests.queue.test_modes import with_modes
from tests.storage.memory import Disk
from tests.support.fields import Fields
from tests.support.house import House, body_of, settings_with, settle
from tests.support.virtual_time import WALL_AT_START, LoopClock, in_virtual_time, sleep_until

A = "a:latest"
B = "b:latest"
HOME = settings_with(gpu={"home_model": "a", "restore_home_delay_s": 0.0})
LEASE: Fields = {
    "id": "lease-1",
    "mib": None,
    "reason": "a game",
    "source": "api",
    "taken_by": "owner",
    "grace_s": 5.0,
    "taken_wall_s": WALL_AT_START,
    "until_wall_s": WALL_AT_START + HOUR_S,
    "left_s": HOUR_S,
}
NOTHING: Fields = {
    "paused": False,
    "pinned": None,
    "ordered": {},
    "since_wall_s": {},
    "leases": [],
}


class Living(House):
    """A process on the disk, whose calendar is so far ahead of the first one's."""

    def __init__(self, disk: Disk, *models: str, ahead_s: float = 0.0, **more: Any) -> None:
        self.wall = LoopClock(wall_at_start=WALL_AT_START + ahead_s)
        self._tables = disk.tables(self.wall)
        super().__init__(*models, clock=self.wall, documents=self._tables.documents, **more)

    async def _close(self) -> None:
        await self.written()
        await super()._close()

    async def written(self) -> None:
        """What was saved is on the disk, which the real store sees to within 0.2 s."""
        await self._tables.writer.submit(lambda _: None)


def loaded(house: House) -> set[str]:
    return {model.name for model in house.ollama.gpu.resident()}


async def written(disk: Disk, document: Mapping[str, object]) -> None:
    await disk.tables(LoopClock()).documents.keep(DOCUMENT, document)


@in_virtual_time
async def test_a_pause_and_a_pin_that_were_acknowledged_outlive_a_kill():
    disk = Disk()
    async with Living(disk, "a", "b", resident="a") as house:
        await sleep_until(10.0)
        house.gateway.orders.pause()
        await house.gateway.orders.pin("b")
        house.gateway.orders.drain()
        await house.gateway.keep_orders()
        left = disk.copy()
        before: Fields = house.gateway.orders.shown()
        await sleep_until(20.0)
    async with Living(left, "a", "b") as house:
        shown = house.gateway.orders.shown()
        since: Fields = before["since"]
        del since["draining"]
        assert shown == before | {"draining": False, "loads": shown["loads"], "since": since}
        theirs = house.submit("b")
        await house.events.until(lambda: loaded(house) == {B})
        assert house.state_of(theirs.sequence) == "waiting", "the pause is in force"
        (recalled,) = house.events.of(OrdersRecalled)
        assert (recalled.paused, recalled.pinned, recalled.leases) == (True, B, 0)
        house.gateway.orders.resume()
        await body_of(theirs)
    async with Living(left, "a", "b", resident="b") as house:
        assert house.gateway.orders.shown()["paused"] == [], "the resume was kept, too"


@in_virtual_time
async def test_a_load_that_was_not_done_is_done_by_the_next_process_and_not_again():
    disk = Disk()
    async with Living(disk, "a", "b", resident="a") as house:
        running = house.submit("a", service_s=50.0)
        await settle()
        await house.gateway.orders.load("b")
        await house.gateway.keep_orders()
        left = disk.copy()
        await body_of(running)
        await sleep_until(60.0)
    async with Living(left, "a", "b", resident="a") as house:
        assert house.gateway.orders.shown()["loads"] == [B]
        await sleep_until(70.0)
        assert loaded(house) == {B}
        assert house.gateway.orders.shown()["loads"] == []
        await house.written()
        left = left.copy()
    async with Living(left, "a", "b") as house:
        await sleep_until(200.0)
        assert house.events.of(SwapCompleted) == [], "done is done"


@in_virtual_time
async def test_an_unload_that_was_not_done_is_done_by_the_next_process():
    disk = Disk()
    await written(disk, NOTHING | {"ordered": {A: False}})
    async with Living(disk, "a", resident="a") as house:
        await sleep_until(5.0)
        assert loaded(house) == set()
        assert house.gateway.orders.shown()["unloads"] == []


@in_virtual_time
async def test_a_home_model_that_was_unloaded_stays_out_after_a_restart():
    disk = Disk()
    async with Living(disk, "a", "b", resident="a", settings=HOME) as house:
        await house.gateway.orders.unload("a")
        await house.gateway.keep_orders()
        await sleep_until(5.0)
        assert loaded(house) == set()
    for _ in range(2):
        async with Living(disk, "a", "b", settings=HOME) as house:
            await sleep_until(house.now + 600.0)
            assert loaded(house) == set()
    async with Living(disk, "a", "b", settings=HOME) as house:
        await house.answer("b")
        await sleep_until(house.now + 600.0)
        assert loaded(house) == {A}, "something else was loaded"


@in_virtual_time
async def test_orders_about_models_that_are_gone_are_dropped_and_said_once():
    disk = Disk()
    await written(disk, NOTHING | {"pinned": "x:latest", "ordered": {"y:latest": True, A: True}})
    async with Living(disk, "a") as house:
        await sleep_until(3.0)
        assert loaded(house) == {A}
        dropped = [(event.order, event.model) for event in house.events.of(OrderDropped)]
        assert sorted(dropped) == [("load", "y:latest"), ("pin", "x:latest")]
        assert house.gateway.orders.shown()["pinned"] is None
        await settle()
    async with Living(disk, "a") as house:
        assert house.events.of(OrderDropped) == []


@in_virtual_time
async def test_orders_wait_for_a_model_server_that_is_down_at_the_start():
    disk = Disk()
    await written(disk, NOTHING | {"pinned": B, "ordered": {"c:latest": True}})
    house = Living(disk, "a", "b", "c")
    house.ollama.go_down()
    async with house:
        await sleep_until(30.0)
        assert house.events.of(OrderDropped) == []
        shown = house.gateway.orders.shown()
        assert (shown["pinned"], shown["loads"]) == (B, ["c:latest", B])
        house.ollama.come_up()
        await sleep_until(60.0)
        assert loaded(house) == {B}
        house.gateway.orders.unpin()
        await sleep_until(70.0)
        assert loaded(house) == {"c:latest"}


@in_virtual_time
async def test_nothing_is_loaded_under_a_lease_that_a_restart_interrupts():
    disk = Disk()
    async with Living(disk, "a", "b", resident="a", settings=HOME) as house:
        lease = house.gateway.leases.take(reason="a game", source="api", for_s=HOUR_S)
        await house.gateway.keep_orders()
        await sleep_until(600.0)
        left = disk.copy()
    async with Living(left, "a", "b", settings=HOME) as house:
        assert [(each.id, each.taken_at) for each in house.gateway.leases.leases.values()] == [
            (lease.id, lease.taken_at)
        ]
        await sleep_until(HOUR_S - 1.0)
        assert house.events.of(SwapCompleted) == []
        await house.events.until(lambda: loaded(house) == {A})
        (ended,) = house.events.of(GpuLeaseEnded)
        assert (ended.why, ended.at) == ("expired", HOUR_S), "its wall-clock end"


@in_virtual_time
async def test_what_had_room_beside_a_lease_stays_while_the_card_is_not_read_yet():
    disk = Disk()
    card = GpuSampled(capacity_mib=24 * 1024, foreign_mib=1024.0)
    async with Living(disk, "a", resident="a", capacity_mib=24 * 1024) as house:
        house.worker.post(card)
        house.gateway.leases.take(reason="a game", source="api", mib=8 * 1024, for_s=HOUR_S)
        await house.gateway.keep_orders()
        await sleep_until(60.0)
        assert loaded(house) == {A}
        left = disk.copy()
    async with Living(left, "a", resident="a", capacity_mib=24 * 1024) as house:
        await sleep_until(120.0)
        assert loaded(house) == {A}
        view = house.worker.runtime.view
        assert (view.capacity_mib, view.room_mib) == (None, 15 * 1024)
        # the game has taken 2 GiB of its 8
        house.worker.post(replace(card, foreign_mib=3 * 1024.0))
        assert view.room_mib == 15 * 1024


@pytest.mark.parametrize(
    ("ahead_s", "left_s"),
    [
        pytest.param(600.0, HOUR_S - 600.0, id="ten minutes later"),
        pytest.param(-7200.0, HOUR_S, id="the clock was set back"),
        pytest.param(HOUR_S, 0.0, id="over"),
        pytest.param(30 * DAY_S, 0.0, id="long over"),
    ],
)
@in_virtual_time
async def test_a_lease_lasts_until_its_end_by_the_calendar_and_no_longer(ahead_s, left_s):
    disk = Disk()
    await written(disk, NOTHING | {"leases": [LEASE]})
    async with Living(disk, "a", ahead_s=ahead_s) as house:
        found = [each.until for each in house.gateway.leases.leases.values()]
        assert found == ([pytest.approx(left_s)] if left_s else [])
        assert len(house.events.of(GpuLeaseTaken)) == len(found)


@in_virtual_time
async def test_no_kept_lease_is_longer_than_a_day():
    disk = Disk()
    long = LEASE | {"until_wall_s": WALL_AT_START + 9e9, "left_s": 9e9}
    await written(disk, NOTHING | {"leases": [long]})
    async with Living(disk, "a") as house:
        (lease,) = house.gateway.leases.leases.values()
        assert lease.until == DAY_S


@in_virtual_time
async def test_a_lease_of_a_holder_waits_a_moment_for_it_to_come_back():
    disk = Disk()
    async with Living(disk, "a", resident="a", settings=HOME) as house:
        for name in ("gone", "back"):
            house.gateway.leases.take(reason="", source="connection", mib=1.0, lease_id=name)
        await sleep_until(3.0)
    async with Living(disk, "a", settings=HOME) as house:
        began_at = house.now
        assert set(house.gateway.leases.leases) == {"gone", "back"}
        house.gateway.leases.take(reason="", source="connection", mib=1.0, lease_id="back")
        await sleep_until(began_at + HOLDER_RETURNS_S + 1.0)
        assert set(house.gateway.leases.leases) == {"back"}
        (ended,) = house.events.of(GpuLeaseEnded)
        assert (ended.lease_id, ended.at) == ("gone", began_at + HOLDER_RETURNS_S)


@in_virtual_time
async def test_a_clock_that_is_set_while_a_lease_runs_leaves_its_length():
    disk = Disk()
    async with Living(disk, "a") as house:
        house.gateway.leases.take(reason="", source="api", for_s=HOUR_S)
        await house.gateway.keep_orders()
        house.wall._wall_at_start += 10 * HOUR_S
        await sleep_until(600.0)
        await house.written()
        left = disk.copy()
    async with Living(left, "a", ahead_s=10 * HOUR_S) as house:
        (lease,) = house.gateway.leases.leases.values()
        assert lease.until == pytest.approx(HOUR_S)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"leases": 3},
        NOTHING | {"paused": "perhaps"},
        NOTHING | {"ordered": [A]},
        NOTHING | {"leases": [LEASE | {"left_s": "x"}]},
        NOTHING | {"leases": [LEASE | {"source": "nobody"}]},
        NOTHING | {"leases": [LEASE | {"mib": -1.0}]},
    ],
    ids=str,
)
@in_virtual_time
async def test_a_damaged_document_is_ignored_with_a_warning(document):
    disk = Disk()
    await written(disk, document)
    async with Living(disk, "a") as house:
        (warned,) = house.events.of(OwnerWarned)
        assert "give them again" in warned.text
        assert house.gateway.leases.leases == {}
        house.gateway.orders.pause()
        await house.gateway.keep_orders()
    async with Living(disk, "a") as house:
        assert house.gateway.orders.paused


@in_virtual_time
async def test_a_store_that_cannot_be_read_at_first_is_not_written_over():
    disk = Disk()
    await written(disk, NOTHING | {"paused": True, "leases": [LEASE]})
    disk.broken = True
    async with Living(disk, "a") as house:
        assert house.gateway.orders.shown()["paused"] == []
        await house.gateway.keep_orders()
        disk.broken = False
        await sleep_until(3.0)
        assert house.gateway.orders.shown()["paused"] == ["external"]
        assert set(house.gateway.leases.leases) == {"lease-1"}


@in_virtual_time
async def test_a_holder_who_is_back_before_the_store_can_be_read_keeps_its_lease():
    disk = Disk()
    held = LEASE | {"source": "connection", "until_wall_s": None, "left_s": HOLDER_RETURNS_S}
    await written(disk, NOTHING | {"leases": [held]})
    disk.broken = True
    async with Living(disk, "a") as house:
        leases = house.gateway.leases
        leases.take(reason="a game", source="connection", lease_id="lease-1", mib=1024.0)
        disk.broken = False
        await sleep_until(2.0 * HOLDER_RETURNS_S)
        assert [(each.mib, each.until) for each in leases.leases.values()] == [(1024.0, None)]


@in_virtual_time
async def test_an_order_counts_also_where_it_cannot_be_written():
    disk = Disk()
    async with Living(disk, "a") as house:
        disk.broken_writes = True
        house.gateway.orders.pause()
        await house.gateway.keep_orders()
        assert house.gateway.orders.paused
        disk.broken_writes = False
        await house.gateway.keep_orders()
    async with Living(disk, "a") as house:
        assert house.gateway.orders.paused


@in_virtual_time
async def test_without_a_store_nothing_is_kept():
    async with House("a") as house:
        house.gateway.orders.pause()
        await house.gateway.keep_orders()
    async with House("a") as house:
        assert not house.gateway.orders.paused


@pytest.mark.parametrize("chosen", ["gaming", None])
@in_virtual_time
async def test_a_mode_that_was_switched_to_outlives_a_kill(chosen: str | None):
    settings = with_modes(gaming={}, night={"when": "00:00-24:00"})
    disk = Disk()
    async with Living(disk, settings=settings) as house:
        assert house.gateway.modes.mode == "night"
        await sleep_until(10.0)
        house.gateway.modes.switch(chosen, by="boss")
        before = house.gateway.modes.shown()
        await house.gateway.keep_orders()
        left = disk.copy()
    async with Living(left, settings=settings, ahead_s=HOUR_S) as house:
        assert house.gateway.modes.shown() == before


@in_virtual_time
async def test_a_kept_mode_that_is_gone_from_the_file_is_named_in_a_warning():
    disk = Disk()
    mode = {"mode": "gaming", "since_wall_s": WALL_AT_START, "by": "boss"}
    await written(disk, NOTHING | {"mode": mode})
    async with Living(disk, settings=with_modes(night={})) as house:
        (warned,) = house.events.of(OwnerWarned)
        assert "the mode gaming, in force before the restart" in warned.text
        assert house.gateway.modes.mode is None
