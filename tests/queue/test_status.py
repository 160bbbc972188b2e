"""What an owner sees: the shape of donna's LLM gateway page, one item, and a nudge on every change;
and what a reload changes.
"""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import pytest

from hearth.config.settings import (
    AgingSettings,
    GatewayConfig,
    ModelSettings,
    PackingSettings,
    Settings,
)
from hearth.errors import NeverFits, QueueFull
from hearth.events import BackendWentDown, HomeModelMissing, ItemDispatched, ItemPromoted
from hearth.execution.backend_watch import LONG_LIST
from hearth.queue.registry import REMEMBERED
from hearth.scheduling.views import StatusView
from hearth.types import Priority
from tests.support.fake_ollama import FakeModel
from tests.support.house import (
    House,
    bodies_of,
    body_of,
    in_house,
    in_loaded_house,
    settings_with,
    settle,
)
from tests.support.virtual_time import in_virtual_time, sleep_until

DONNA_KEYS = {
    "current_request",
    "internal_queue",
    "external_queue",
    "stats_24h",
    "rate_limits",
    "mode",
    "gpu",
}
DONNA_GPU_KEYS = {"loaded_model", "is_home", "swaps_this_hour"}


@in_house("a")
async def test_the_status_has_the_keys_of_donnas_page_also_when_nothing_has_happened(house: House):
    shown = house.status
    assert shown.keys() >= DONNA_KEYS
    assert shown["gpu"].keys() >= DONNA_GPU_KEYS
    assert (shown["current_request"], shown["mode"], shown["gpu"]["loaded_model"]) == (
        None,
        "active",
        None,
    )
    assert (shown["internal_queue"]["pending"], shown["external_queue"]["pending"]) == (0, 0)
    assert house.events.of(HomeModelMissing) == [], "none is set"


@in_loaded_house
async def test_the_status_shows_what_runs_waits_in_order_and_stops(house: House):
    house.submit("a", caller="first")
    await sleep_until(0.25)
    external = [house.submit("a") for _ in range(2)]
    background = house.internal("a", priority=Priority.BACKGROUND)
    critical = house.internal("a", priority=Priority.CRITICAL)
    await settle()
    await asyncio.sleep(0.25)
    shown = house.status
    running = shown["current_request"]
    assert (running["caller"], running["type"], running["state"], running["model"]) == (
        "test",
        "internal",
        "running",
        "a:latest",
    )
    assert (running["waited_s"], running["running_s"], running["sequence"]) == (
        0.0,
        0.25,
        critical.sequence,
    )
    assert [item["sequence"] for item in shown["internal_queue"]["next_items"]] == [
        background.sequence
    ]
    first, *others = shown["external_queue"]["next_items"]
    assert (first["caller"], first["band"], first["interrupt_count"]) == ("first", "interrupted", 1)
    assert [item["sequence"] for item in others] == [ticket.sequence for ticket in external]
    assert shown["gpu"]["loaded_model"] == "a:latest"
    house.cancel(critical)
    stopping = house.status["current_request"]
    assert (stopping["sequence"], stopping["waited_s"], stopping["running_s"]) == (
        critical.sequence,
        0.0,
        0.25,
    )
    await settle()
    assert house.status["current_request"]["sequence"] == background.sequence


@in_house("a", "b", resident="a")
async def test_each_waiting_request_has_its_place_and_what_it_waits_for(house: House):
    await house.answer("a", service_s=2.0)
    house.submit("a", service_s=8.0)
    await settle()
    other, same = house.submit("b"), house.submit("a")
    await sleep_until(house.clock.monotonic() + 1.0)
    rows = {row["sequence"]: row for row in house.status["external_queue"]["next_items"]}
    assert [rows[each.sequence]["position"] for each in (same, other)] == [1, 2]
    assert rows[same.sequence]["waits_for"] == {
        "kind": "slot",
        "model": "a:latest",
        "busy": 1,
        "parallel": 1,
    }
    why = rows[other.sequence]["waits_for"]
    assert (why["kind"], why["model"], why["cost_s"] > 0) == ("swap", "b:latest", True)
    assert "until" not in why, "no instant of a clock that nobody else has"


@in_virtual_time
async def test_one_item_can_be_asked_for_from_its_acceptance_until_after_its_end():
    house = House("a", "b", resident="a")
    first = house.submit("a", caller="me")
    assert house.state_of(first.sequence) == "accepted"
    async with house:
        second = house.submit("b")
        assert (house.state_of(first.sequence), house.state_of(second.sequence)) == (
            "running",
            "waiting",
        )
        await body_of(second)
        await settle()
        item = house.worker.get_item(first.sequence) or {}
        assert (item["state"], item["caller"], item["attempts"], item["model"]) == (
            "completed",
            "me",
            1,
            "a:latest",
        )
        assert house.worker.get_item(99) is None


@in_house(settings=settings_with(queue={"max_external_depth": REMEMBERED + 2}))
async def test_the_memory_of_ended_items_is_bounded_and_forgets_the_oldest(house: House):
    tickets = [house.submit("a", request_id=f"req_{number}") for number in range(REMEMBERED + 2)]
    for ticket in tickets:
        house.cancel(ticket)
    await settle()
    assert [house.worker.get_item(ticket.sequence) is None for ticket in tickets[:3]] == [
        True,
        True,
        False,
    ]
    assert [
        house.worker.cancel_request(tickets[each].request_id, caller=None) for each in (0, 2)
    ] == [None, True]


@in_loaded_house
async def test_the_expected_starts_are_worked_out_a_few_times_a_second_at_most(house: House):
    house.submit("a", service_s=8.0, max_tokens=40)
    house.submit("a", max_tokens=40)
    starts = []
    for at_s in (0.125, 0.25, 0.375, 0.5):
        await sleep_until(at_s)
        starts.append(house.status["external_queue"]["next_items"][0]["estimated_start_s"])
    assert (starts[0], starts[2]) == (starts[1], starts[3])
    assert starts[0] != starts[2]


@in_house("a", "b", resident="a")
async def test_swap_overhead_is_swap_time_over_swap_and_execution_time(house: House):
    await house.answer("a", service_s=1.5)
    await house.answer("b", service_s=1.0)
    await settle()
    gpu = house.gpu_status
    # 0.5 s out and 2 s in, beside 1.5 s and 1 s of work
    assert (gpu["swap_overhead_pct_1h"], gpu["swaps_this_hour"], gpu["last_swap_ms"]) == (
        50.0,
        1,
        2500.0,
    )


@in_loaded_house
async def test_changes_tell_of_everything_that_happens_and_end_with_the_worker(house: House):
    changes = house.worker.changes()
    seen = [await anext(changes)]
    ticket = house.submit("a")
    seen.append(await anext(changes))
    assert house.state_of(ticket.sequence) == "running"
    await body_of(ticket)
    await settle()
    seen.append(await anext(changes))
    assert house.state_of(ticket.sequence) == "completed"
    await house.gateway.stop(0.0)
    assert seen == sorted(set(seen))
    assert len([number async for number in changes]) <= 1


@in_house(
    settings=settings_with(scheduling={"aging": AgingSettings(promote_after_s=20.0)}),
)
async def test_a_promotion_is_told_once_and_counted_and_seen_in_the_status(house: House):
    tickets = [
        house.internal("a", priority=Priority.CRITICAL, service_s=30.0),
        house.internal("a", priority=Priority.BACKGROUND),
    ]
    await sleep_until(25.0)
    (promoted,) = house.events.of(ItemPromoted)
    assert (promoted.sequence, promoted.band, promoted.waited_s, promoted.at) == (
        tickets[1].sequence,
        "normal",
        20.0,
        20.0,
    )
    assert (
        house.status["promotions"],
        house.status["internal_queue"]["next_items"][0]["band"],
    ) == (1, "normal")
    await bodies_of(tickets)


@in_virtual_time
async def test_the_next_round_begins_with_the_first_byte_of_the_last_prompt():
    packing = PackingSettings(mode="pack", prefill_max_tokens=100)
    settings = settings_with(scheduling={"packing": packing}, gpu={"parallel": 4})
    async with House(FakeModel(name="a", parallel=4), resident="a", settings=settings) as house:
        asked = {"stream": True, "first_byte_s": 0.02, "service_s": 1.0}
        tickets = [house.submit("a", prompt_tokens=tokens, **asked) for tokens in (90, 95, 20, 30)]
        await bodies_of(tickets)
        starts = [(event.sequence, round(event.at, 2)) for event in house.events.of(ItemDispatched)]
        assert starts == [(1, 0.0), (3, 0.02), (4, 0.02), (2, 0.04)]


@in_house(
    "a",
    settings=settings_with(gpu={"vram_gb": 16.0}).replace(
        models={"a": ModelSettings(vram_gb=30.0)}
    ),
)
async def test_what_can_never_fit_is_refused_with_the_numbers(house: House):
    with pytest.raises(NeverFits, match=r"needs 30\.0 GiB of GPU memory, the GPU has 16\.0 GiB"):
        await house.answer("a")


# A new configuration takes effect at the next decision and costs nobody anything.


def put_in_force(house: House, settings: Settings) -> None:
    assert house.gateway.reload(GatewayConfig(settings=settings))


@in_house(FakeModel(name="a", parallel=2), resident="a")
async def test_a_lower_depth_drops_nobody_and_more_slots_start_who_waits_at_once(house: House):
    tickets = [house.submit("a") for _ in range(4)]
    await settle()
    put_in_force(house, settings_with(queue={"max_external_depth": 2}))
    with pytest.raises(QueueFull):
        house.submit("a")
    await body_of(tickets[1])
    await settle()
    tickets.append(house.submit("a"))
    await sleep_until(2.5)
    put_in_force(house, settings_with(gpu={"parallel": 2}))
    await asyncio.gather(*(body_of(ticket) for ticket in tickets[2:]))
    assert [event.at for event in house.events.of(ItemDispatched)] == [0.0, 1.0, 2.0, 2.5, 3.0]


@in_house(settings=settings_with(backend={"check_interval_s": 86_400.0}))
async def test_a_shorter_check_interval_does_not_wait_for_the_longer_one_to_pass(house: House):
    await sleep_until(100.0)
    put_in_force(house, settings_with(backend={"check_interval_s": 5.0}))
    await sleep_until(101.0)
    house.ollama.go_down()
    await sleep_until(106.5)
    assert len(house.events.of(BackendWentDown)) == 1
    house.ollama.come_up()


@in_virtual_time
async def test_a_long_list_of_models_is_taken_in_off_the_loop_when_it_changed():
    compared = 0

    def count(_: FrameType, event: str, called: object) -> None:
        nonlocal compared
        compared += event == "c_call" and getattr(called, "__name__", "") == "lower"

    async with House(*(f"m{number}" for number in range(2 * LONG_LIST))) as house:
        watch = house.worker.watch
        settings = settings_with(gpu={"home_model": "m7"})
        assert len(watch.installed) == 2 * LONG_LIST
        sys.setprofile(count)  # of this thread alone
        try:
            await watch.look()
            assert house.gateway.reload(GatewayConfig(settings=settings))
            house.ollama.install("new:latest")
            await watch.look()
        finally:
            sys.setprofile(None)
        assert compared < 100, "names are compared by another thread"
        assert (watch.name_of("new"), house.gpu_status["home_model"]) == ("new:latest", "m7:latest")


@in_virtual_time
async def test_a_long_list_of_models_is_shown_by_a_thread_as_it_was():
    calls = 0

    def count(_: FrameType, event: str, called: object) -> None:
        nonlocal calls
        calls += 1

    async with House(
        *(f"m{number}" for number in range(2 * LONG_LIST)), "a", resident="a"
    ) as house:
        tickets = [house.submit(f"m{number}") for number in range(3)]
        sys.setprofile(count)  # of this thread alone
        try:
            listed = await house.gateway.models()
        finally:
            sys.setprofile(None)
        assert calls < LONG_LIST
        assert [model["name"] for model in listed] == sorted(
            f"{name}:latest" for name in ("a", *(f"m{n}" for n in range(2 * LONG_LIST)))
        )
        assert [model["name"] for model in listed if model["waiting"]] == [
            "m0:latest",
            "m1:latest",
            "m2:latest",
        ]
        assert [model["name"] for model in listed if model["resident"]] == ["a:latest"]
        await bodies_of(tickets)


@in_virtual_time
async def test_the_status_shows_what_is_warm_and_never_its_text():
    async with House("a", "b", resident="a") as house:
        await house.answer("a", conversation="one", caller="agent", prompt_tokens=500)
        await house.answer("a", conversation="two", caller="agent", prompt_tokens=900)
        (resident,) = house.status["gpu"]["residents"]
        assert resident["warm_conversations"] == 2
        assert resident["warm_tokens"] > 0
        assert resident["reread_s"] >= 0.0
        await house.answer("b")
        (resident,) = house.status["gpu"]["residents"]
        assert (resident["model"], resident["warm_conversations"]) == ("b:latest", 0)
        await house.answer("a", conversation="two", caller="agent", prompt_tokens=900)
        ((model, tokens, seconds),) = StatusView(house.worker.scheduler).reread
        assert (model, tokens > 0, seconds > 0) == ("a:latest", True, True)
