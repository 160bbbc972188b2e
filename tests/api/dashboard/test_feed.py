"""The stream of changes: what a listener pieces together is the truth, it costs next to nothing,
and it ends when it should.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import settings as sized
from hypothesis import strategies as st

from hearth.api.dashboard.feed import MIN_INTERVAL_S, DashboardFeed
from hearth.api.dashboard.view import MODELS_SHOWN, View, bare, merge_patch
from hearth.api.status_stream import HEARTBEAT_S
from hearth.types import JsonDict, Priority
from tests.api.dashboard.listening import applied, watching
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import FakeModel, LoadFault
from tests.support.house import House, body_of, settings_with, settle
from tests.support.virtual_time import in_virtual_time, sleep_until

DEEP = settings_with(queue={"max_external_depth": 20_000})
SOON_S = MIN_INTERVAL_S + 0.05
SCALARS = st.one_of(st.integers(0, 3), st.sampled_from(["", "a", "é"]), st.booleans())
LEAVES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2))
STATES = st.dictionaries(
    st.sampled_from("abcd"),
    st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
)


@sized(max_examples=200 * EXAMPLES, deadline=None)
@given(old=STATES, new=STATES)
def test_a_patch_turns_the_old_state_into_the_new_and_names_only_changes(old, new):
    assert applied(old, merge_patch(old, new)) == new
    assert merge_patch(old, dict(old)) == {}
    before: JsonDict = {"a": {"x": 1, "y": 2}, "b": [1, 2], "c": 3}
    assert merge_patch(before, {"a": {"x": 1, "y": 5}, "b": [1]}) == {
        "a": {"y": 5},
        "b": [1],
        "c": None,
    }
    assert bare({"a": None, "b": {"c": None, "d": [{"e": None, "f": 0}]}, 5: False}) == {
        "b": {"d": [{"f": 0}]},
        "5": False,
    }


@pytest.mark.parametrize("seed", range(2 * EXAMPLES))
def test_what_a_listener_pieces_together_is_what_a_new_one_is_sent(seed):
    @in_virtual_time
    async def scenario() -> None:
        rng = random.Random(seed)
        async with House("a", "b", "c", resident="a", settings=DEEP) as house:
            feed = DashboardFeed(house.gateway)
            async with watching(house.gateway, feed=feed) as page:
                for number in range(40):
                    await asyncio.sleep(rng.expovariate(0.5))
                    wanted = {
                        "service_s": rng.uniform(0.1, 8.0),
                        "request_id": f"req_{number}",
                        "caller": rng.choice("xyz"),
                    }
                    submit = house.internal if rng.random() < 0.2 else house.submit
                    ticket = submit(rng.choice("abc"), **wanted)
                    if rng.random() < 0.1:
                        house.cancel(ticket)
                await settle()
                await asyncio.sleep(3 * MIN_INTERVAL_S)
                async with watching(house.gateway, feed=feed) as late:
                    await asyncio.sleep(SOON_S)
                    # Both look at the same instant: expected starts change by time alone.
                    house.submit("a")
                    await asyncio.sleep(SOON_S)
                    assert page.state == late.state
                    assert (page.kinds[0], set(page.kinds[1:]) - {"heartbeat"}) == (
                        "state",
                        {"patch"},
                    )
                    assert bare(page.state) == page.state
            await asyncio.sleep(1000)

    scenario()


@in_virtual_time
async def test_an_idle_gateway_costs_a_heartbeat_and_nothing_else():
    async with House() as house, watching(house.gateway) as page:
        orders = house.gateway.orders
        for situation, bytes_per_s in (("idle", 10), ("commands", 10), ("running", 100)):
            await asyncio.sleep(30.1)
            ordered_at = pytest.approx(house.gateway.clock.wall(), abs=0.01)
            if situation == "commands":
                orders.pause()
                orders.drain()
                await asyncio.sleep(SOON_S)
                assert (page.state["orders"]["draining"], page.state["orders"]["paused"]) == (
                    True,
                    ["external"],
                )
                assert page.state["orders"]["since"] == {
                    "paused": ordered_at,
                    "draining": ordered_at,
                }
            if situation == "running":
                orders.resume()
                await asyncio.sleep(SOON_S)
                assert (page.state["orders"]["draining"], page.state["orders"]["paused"]) == (
                    False,
                    [],
                )
                house.submit("a", service_s=1000.0, first_byte_s=1.0)
                await asyncio.sleep(60)
            before = len(page.frames)
            await asyncio.sleep(600)
            assert set(page.kinds[before:]) == {"heartbeat"} or situation == "running"
            assert len(page.kinds[before:]) == pytest.approx(600 / HEARTBEAT_S, rel=0.2)
            assert sum(map(len, page.frames[before:])) / 600 < bytes_per_s


@in_virtual_time
async def test_ten_thousand_who_wait_are_a_number_and_a_few_rows():
    async with House(settings=DEEP) as house:
        for number in range(10_000):
            house.submit("a", service_s=1.0, request_id=f"req_{number}")
        await asyncio.sleep(0.5)
        async with watching(house.gateway) as page:
            await asyncio.sleep(10)
            assert page.state["waiting"]["external"] > 9_900
            assert len(page.state["waiting"]["rows"]) == 40
            assert len(page.frames[0]) < 40_000
            assert max(map(len, page.frames[1:])) < 4_000


@in_virtual_time
async def test_a_change_is_sent_within_250_ms_and_a_storm_in_four_frames_a_second():
    async with House() as house, watching(house.gateway) as page:
        for _ in range(200):
            house.submit("a", service_s=0.04)
            await asyncio.sleep(0.05)
        assert len(page.frames) <= 10 / MIN_INTERVAL_S + 2
        await asyncio.sleep(1)
        for number in range(20):
            house.submit("a", service_s=600.0)
            await asyncio.sleep(MIN_INTERVAL_S + 0.01)
            assert page.state["waiting"]["external"] == number
            await asyncio.sleep(0.07 * number)


@in_virtual_time
async def test_of_what_ended_a_caller_sees_its_own_and_an_admin_all():
    async with House() as house:
        feed = DashboardFeed(house.gateway)
        async with watching(house.gateway, feed=feed) as owner:
            await asyncio.sleep(1.3)
            async with watching(house.gateway, "friend", admin=False, feed=feed) as friend:
                await asyncio.sleep(0.1)
                for caller in ("friend", "stranger"):
                    house.submit("a", service_s=2.0, caller=caller)
                await asyncio.sleep(2 * MIN_INTERVAL_S + 0.1)
                for page in (owner, friend):
                    assert [run["caller"] for run in page.state["running"].values()] == ["friend"]
                await asyncio.sleep(5)
                assert {item["caller"] for item in owner.state["recent"].values()} == {
                    "friend",
                    "stranger",
                }
                assert {item["caller"] for item in friend.state["recent"].values()} == {"friend"}
                you = {"caller": "friend", "admin": False, "may_set_mode": False}
                assert friend.state["you"] == you


@in_virtual_time
async def test_a_view_serves_who_comes_within_half_a_pause():
    async with House() as house:
        for after_s, is_shared in (
            (MIN_INTERVAL_S / 2 - 0.02, True),
            (MIN_INTERVAL_S / 2 + 0.02, False),
        ):
            feed = DashboardFeed(house.gateway)
            async with watching(house.gateway, feed=feed) as first:
                await asyncio.sleep(after_s)
                async with watching(house.gateway, feed=feed) as late:
                    await settle()
                    assert (late.now == first.now) is is_shared


@pytest.mark.parametrize(
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
    async with House("a", "b", resident="a", settings=settings) as house:
        async with watching(house.gateway) as page:
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
            house.submit(
                "a" if situation == "same model" else "b",
                service_s=5.0,
                caller="asker",
                max_tokens=100_000,
            )
            await asyncio.sleep(3.1 if situation == "load failed" else 1.1)
            (row,) = page.state["waiting"]["rows"].values()
            assert (row["caller"], row["why"]["kind"]) == ("asker", kind)
            assert kind != "swap" or (row["why"]["model"], row["start"] >= page.now) == (
                "b:latest",
                True,
            )
        await asyncio.sleep(100)


@in_virtual_time
async def test_the_order_shown_is_the_order_in_which_items_should_start():
    async with House("a", "b", resident="a") as house, watching(house.gateway) as page:
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
        assert all(row["bound"] > row["start"] for row in rows)
        bounds = {row["sequence"]: row["bound"] for row in rows}
        await asyncio.sleep(2.0)
        later = page.state["waiting"]["rows"].values()
        assert {row["sequence"]: row["bound"] for row in later} == bounds, "nothing has changed"


@pytest.mark.parametrize("ending", ["server", "worker"])
@in_virtual_time
async def test_a_stream_ends_with_the_server_and_with_the_worker(ending):
    async with House("a") as house:
        feed = DashboardFeed(house.gateway)
        async with watching(house.gateway, feed=feed) as page:
            await asyncio.sleep(2)
            feed.listeners.end() if ending == "server" else await house.gateway.stop(0.0)
            await asyncio.sleep(2 * MIN_INTERVAL_S)
            assert page.reading.done()


@in_virtual_time
async def test_of_very_many_models_the_page_has_those_in_use_and_the_first_by_name():
    names = [f"m{number:05}" for number in range(2 * MODELS_SHOWN)]
    home = settings_with(gpu={"home_model": names[-1]})
    async with House(*names, resident=names[-2], settings=home) as house:
        ticket = house.submit(names[-3], service_s=1.0)
        shown = await View(house.gateway, 0.0).build(house.now)
        assert isinstance(shown["models"], dict)
        assert list(shown["models"]) == [
            f"{name}:latest" for name in (*names[-3:], *names[: MODELS_SHOWN - 3])
        ]
        await body_of(ticket)


@in_virtual_time
async def test_a_model_whose_load_is_cut_was_never_in_memory():
    slow = [FakeModel(name=name, vram_mib=20_480.0, load_s=8.0) for name in "ab"]
    settings = settings_with(gpu={"vram_gb": 24.0})
    async with House(*slow, resident="a", settings=settings) as house:
        theirs = house.submit("b")
        await sleep_until(house.now + 3.0)
        ours = house.internal("a", priority=Priority.CRITICAL)
        view = View(house.gateway, 0.0)
        kinds = set[str]()
        while "cut" not in kinds:
            await asyncio.sleep(0)
            await view.build(house.now)
            spans = house.gateway.records.timeline.spans(house.now)
            kinds = {span.kind for span in spans if span.model == "b:latest"}
            assert "resident" not in kinds
        house.cancel(theirs)
        await body_of(ours)
