"""The stream of changes: what a listener pieces together is the truth, it costs next to nothing, and it ends when it should."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from hearth.api.dashboard.feed import MIN_INTERVAL_S, DashboardFeed
from hearth.api.dashboard.view import bare
from hearth.api.status_stream import HEARTBEAT_S, MAX_OF_ONE
from hearth.config.settings import KeySettings
from hearth.errors import CapacityError
from hearth.types import Priority
from tests.dashboard.listening import Listener, guest, watching
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import LoadFault
from tests.support.virtual_time import in_virtual_time
from tests.worker.house import House, settings_with, settle

DEEP = settings_with(queue={"max_external_depth": 20_000})
SOON_S = MIN_INTERVAL_S + 0.05


@in_virtual_time
async def test_the_first_frame_is_everything_and_the_next_ones_are_changes():
    async with House("a", "b", resident=("a",)) as house, watching(house.gateway) as page:
        await asyncio.sleep(1)
        house.submit("a", service_s=5.0, caller="n8n")
        house.submit("b", service_s=5.0, caller="chat")
        await asyncio.sleep(1)
        assert page.kinds[0] == "state"
        assert set(page.kinds[1:]) == {"patch"}
        assert [run["caller"] for run in page.state["running"].values()] == ["n8n"]
        (row,) = page.state["waiting"]["rows"].values()
        assert (row["caller"], row["why"]["kind"], row["why"]["model"]) == ("chat", "swap", "b:latest")
        assert row["start"] >= page.now
        assert bare(page.state) == page.state


@pytest.mark.parametrize("seed", range(2 * EXAMPLES))
def test_what_a_listener_pieces_together_is_what_a_new_one_is_told(seed):
    @in_virtual_time
    async def scenario() -> None:
        rng = random.Random(seed)
        async with House("a", "b", "c", resident=("a",), settings=DEEP) as house:
            feed = DashboardFeed(house.gateway)
            page = Listener(feed.frames(guest()))
            for number in range(40):
                await asyncio.sleep(rng.expovariate(0.5))
                wanted = {"service_s": rng.uniform(0.1, 8.0), "request_id": f"req_{number}", "caller": rng.choice("xyz")}
                ticket = house.internal(rng.choice("abc"), **wanted) if rng.random() < 0.2 else house.submit(rng.choice("abc"), **wanted)
                if rng.random() < 0.1:
                    house.worker.cancel(ticket.sequence)
            await settle()
            await asyncio.sleep(3 * MIN_INTERVAL_S)
            late = Listener(feed.frames(guest()))
            await asyncio.sleep(0.9 * MIN_INTERVAL_S)
            assert page.state == late.state
            await page.leave()
            await late.leave()
            await asyncio.sleep(1000)

    scenario()


@in_virtual_time
async def test_an_idle_house_and_a_request_that_only_takes_time_cost_a_heartbeat_and_nothing_else():
    async with House("a", resident=("a",)) as house, watching(house.gateway) as page:
        for running, bytes_per_s in ((False, 10), (True, 100)):
            if running:
                house.submit("a", service_s=1000.0, first_byte_s=1.0)
            await asyncio.sleep(60)
            told = len(page.sizes)
            await asyncio.sleep(600)
            assert set(page.kinds[told:]) == {"heartbeat"} or running
            assert len(page.kinds[told:]) == pytest.approx(600 / HEARTBEAT_S, rel=0.2)
            assert sum(page.sizes[told:]) / 600 < bytes_per_s


@in_virtual_time
async def test_ten_thousand_who_wait_are_a_number_and_a_few_rows_and_a_step_is_a_small_change():
    async with House("a", resident=("a",), settings=DEEP) as house:
        for number in range(10_000):
            house.submit("a", service_s=1.0, request_id=f"req_{number}")
        await asyncio.sleep(0.5)
        async with watching(house.gateway) as page:
            await asyncio.sleep(10)
            assert page.state["waiting"]["external"] > 9_900
            assert len(page.state["waiting"]["rows"]) == 40
            assert page.sizes[0] < 40_000
            assert max(page.sizes[1:]) < 4_000


@in_virtual_time
async def test_a_change_of_the_queue_is_told_within_a_quarter_of_a_second_and_a_storm_in_four_frames_a_second_at_most():
    async with House("a", resident=("a",)) as house, watching(house.gateway) as page:
        for _ in range(200):
            house.submit("a", service_s=0.04)
            await asyncio.sleep(0.05)
        assert len(page.sizes) <= 10 / MIN_INTERVAL_S + 2
        await asyncio.sleep(1)
        for number in range(20):
            house.submit("a", service_s=600.0)
            await asyncio.sleep(MIN_INTERVAL_S + 0.01)
            assert page.state["waiting"]["external"] == number
            await asyncio.sleep(0.07 * number)


@in_virtual_time
async def test_of_what_has_ended_a_caller_sees_only_its_own_an_admin_all_and_nobody_misses_anything_of_a_shared_view():
    async with House("a", resident=("a",)) as house:
        feed = DashboardFeed(house.gateway)
        owner = Listener(feed.frames(guest()))
        await asyncio.sleep(1.3)
        friend = Listener(feed.frames(guest("friend", admin=False)))
        await asyncio.sleep(0.1)
        for caller in ("friend", "stranger"):
            house.submit("a", service_s=2.0, caller=caller)
        await asyncio.sleep(2 * MIN_INTERVAL_S + 0.1)
        for page in (owner, friend):
            assert [run["caller"] for run in page.state["running"].values()] == ["friend"]
        await asyncio.sleep(5)
        assert {item["caller"] for item in owner.state["recent"].values()} == {"friend", "stranger"}
        assert {item["caller"] for item in friend.state["recent"].values()} == {"friend"}
        assert friend.state["you"] == {"caller": "friend", "admin": False}
        await owner.leave()
        await friend.leave()


@for_each(
    ("situation", "kind"),
    [
        ("other model", "swap"),
        ("same model", "slot"),
        ("loading", "load"),
        ("down", "backend_down"),
        ("announced", "announced"),
        ("paused", "paused"),
        ("pinned", "pinned"),
        ("load failed", "left_alone"),
    ],
)
@in_virtual_time
async def test_a_waiting_item_says_what_it_waits_for(situation, kind):
    settings = settings_with(backend={"wait_when_down_s": 60.0})
    async with House("a", "b", resident=("a",), settings=settings) as house, watching(house.gateway) as page:
        await asyncio.sleep(1)
        if situation == "down":
            house.ollama.go_down()
            await asyncio.sleep(30)
        elif situation == "paused":
            house.gateway.orders.pause()
        elif situation == "pinned":
            await house.gateway.orders.pin("a")
        elif situation == "announced":
            house.worker.announce("digest", house.gateway.clock.wall() + 10.0)
        elif situation == "load failed":
            house.ollama.next_loads(LoadFault.FAIL)
        elif situation != "loading":
            house.submit("a", service_s=30.0)
        await settle()
        house.submit("a" if situation == "same model" else "b", service_s=5.0, caller="asker", max_tokens=100_000)
        await asyncio.sleep(3.1 if situation == "load failed" else 1.1)
        (row,) = page.state["waiting"]["rows"].values()
        assert row["why"]["kind"] == kind
        await page.leave()
        await asyncio.sleep(100)


@in_virtual_time
async def test_the_orders_in_force_are_shown_at_once_and_cost_nothing_while_they_stand():
    async with House("a", resident=("a",)) as house, watching(house.gateway) as page:
        await asyncio.sleep(30.1)
        ordered_at = pytest.approx(house.gateway.clock.wall(), abs=0.01)
        house.gateway.orders.pause()
        house.gateway.orders.drain()
        await asyncio.sleep(SOON_S)
        assert (page.state["orders"]["draining"], page.state["orders"]["paused"]) == (True, ["external"])
        assert page.state["orders"]["since"] == {"paused": ordered_at, "draining": ordered_at}
        told = len(page.kinds)
        await asyncio.sleep(600)
        assert set(page.kinds[told:]) == {"heartbeat"}
        house.gateway.orders.resume()
        await asyncio.sleep(SOON_S)
        assert (page.state["orders"]["draining"], page.state["orders"]["paused"]) == (False, [])


@in_virtual_time
async def test_the_order_shown_is_the_order_in_which_items_should_start():
    async with House("a", "b", resident=("a",)) as house, watching(house.gateway) as page:
        house.submit("a", service_s=20.0)
        await asyncio.sleep(0.1)
        house.submit("b", service_s=5.0, caller="needs a swap")
        house.submit("a", service_s=5.0, caller="needs none")
        house.internal("a", service_s=5.0, caller="house", priority=Priority.BACKGROUND)
        await asyncio.sleep(1.2)
        waiting = page.state["waiting"]
        rows = [waiting["rows"][str(sequence)] for sequence in waiting["order"]]
        assert [row["caller"] for row in rows][-2:] == ["needs none", "needs a swap"]
        assert [row["start"] for row in rows] == sorted(row["start"] for row in rows)


@for_each("ending", ["server", "worker"])
@in_virtual_time
async def test_a_stream_ends_with_the_server_and_with_the_worker(ending):
    async with House("a") as house:
        feed = DashboardFeed(house.gateway)
        page = Listener(feed.frames(guest()))
        await asyncio.sleep(2)
        if ending == "server":
            feed.listeners.end()
        else:
            await house.gateway.stop(0.0)
        await asyncio.sleep(2 * MIN_INTERVAL_S)
        assert page.ended
        await page.leave()


@in_virtual_time
async def test_one_listener_too_many_is_refused_and_a_place_is_free_again_when_one_leaves():
    async with House("a") as house, AsyncExitStack() as pages:
        feed = DashboardFeed(house.gateway)
        first, *others = [Listener(feed.frames(guest())) for _ in range(MAX_OF_ONE)]
        for page in others:
            pages.push_async_callback(page.leave)
        await settle()
        with pytest.raises(CapacityError):
            feed.listeners.check_room(guest())
        await first.leave()
        feed.listeners.check_room(guest())


@in_virtual_time
async def test_no_prompt_and_no_configured_secret_is_ever_told():
    secret = "http://canary.test/424242"
    keys = (KeySettings(name="n", sha256="424242" + "0" * 58),)
    settings = settings_with(alerts={"webhook_url": secret}, cloud={"api_key": secret}, auth={"keys": keys})
    async with House("a", resident=("a",), settings=settings) as house, watching(house.gateway) as page:
        for _ in range(2):
            house.submit("a", service_s=1.0, canary=424242.0)
        await asyncio.sleep(5)
        assert len(page.state["recent"]) == 2
        assert b"424242" not in b"".join(page.said)
