"""The way in: who is accepted, who is refused, and what a caller is told about the line."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.config.settings import GatewayConfig
from hearth.errors import BadRequest, ModelNotFound, QueueFull, ShuttingDown
from hearth.events import ItemDispatched, ItemEnded, ItemQueued
from hearth.types import Band, Lane, Priority
from tests.support.fields import Fields
from tests.support.house import (
    FULL_TEXT,
    House,
    body_of,
    heard,
    in_house,
    in_loaded_house,
    settings_with,
    settle,
)
from tests.support.virtual_time import in_virtual_time, sleep_until

ONE_EACH = settings_with(queue={"max_external_depth": 1, "max_internal_depth": 1})


@in_loaded_house
async def test_positions_count_those_ahead_within_a_tick_and_no_less_urgent_ones(house: House):
    first = house.submit("a")
    await settle()
    together = [house.submit("a") for _ in range(3)]
    urgent = [house.internal("a"), house.internal("a", priority=Priority.CRITICAL)]
    assert [first.position, *(ticket.position for ticket in (*together, *urgent))] == [
        0,
        0,
        1,
        2,
        0,
        0,
    ]
    house.cancel(together[1])
    assert [ticket.sequence for ticket in (first, *together, *urgent, house.submit("a"))] == [
        1,
        2,
        3,
        4,
        5,
        6,
        7,
    ]


@in_house("a", "b", resident="b")
async def test_an_in_process_call_gives_text_and_counts_of_its_model(house: House):
    done = await (await house.worker.enqueue_external("hello", caller="script"))
    assert (done.output, done.model, done.tokens_in, done.tokens_out, done.latency_ms) == (
        FULL_TEXT,
        "b:latest",
        10,
        3,
        1000,
    )
    assert (
        await (await house.worker.enqueue_internal("hello", "a", task_type="chat"))
    ).model == "a:latest"
    accepted = len(house.events.of(ItemQueued))
    with pytest.raises(ModelNotFound):
        await house.worker.enqueue_internal("hello", "nonsense")
    assert len(house.events.of(ItemQueued)) == accepted


@in_house("a", "b", resident="a")
async def test_a_caller_is_told_of_the_swap_and_the_line_of_its_own_model(house: House):
    assert house.submit("a", max_tokens=40).estimated_wait_s == 0.0
    await sleep_until(house.now + 0.01)
    behind_swap_s, behind_one_s = (
        house.submit(model, max_tokens=40).estimated_wait_s or 0.0 for model in "ba"
    )
    swap_s = house.worker.scheduler.device.estimates.swap_s("a:latest", "b:latest")
    assert [behind_swap_s, behind_one_s] == pytest.approx([1.0 + swap_s, 1.0], abs=0.1)


@in_house("a", "b", resident="a")
async def test_a_caller_is_told_a_bound_and_its_end_says_whether_that_held(house: House):
    first = house.submit("a", max_tokens=40, service_s=9.0)  # expected to run 1 s
    assert (first.estimated_wait_s, first.wait_bound_s) == (0.0, 0.0)
    await sleep_until(house.now + 0.5)
    second = house.submit("a", max_tokens=40)
    assert (second.estimated_wait_s, second.wait_bound_s) == pytest.approx((0.5, 2.0))
    await settle()
    (row,) = house.status["external_queue"]["next_items"]
    assert (row["estimated_start_s"], row["start_bound_s"]) == (0.5, 2.0)
    gone = house.submit("a", max_tokens=40)
    house.cancel(gone)  # before anybody could tell
    for ticket in (first, second):
        await body_of(ticket)
    await settle()
    ends = {end.sequence: end for end in house.events.of(ItemEnded)}
    kept = [
        (
            ends[ticket.sequence].bound_kept,
            ends[ticket.sequence].wait_bound_s == ticket.wait_bound_s,
        )
        for ticket in (first, second, gone)
    ]
    assert kept == [(None, True), (False, True), (None, True)]
    bound_s = house.worker.scheduler.estimates.wait_bound_s(Band.EXTERNAL, 0.5)
    assert bound_s == pytest.approx(8.5, abs=0.1), "the next is told what this one has taken"


@in_loaded_house
async def test_turns_of_a_conversation_end_with_one_salted_digest(house: House):
    tickets = [house.submit("a", conversation=each) for each in ("c0", "c0", "c1", "")]
    for ticket in tickets:
        await body_of(ticket)
    await settle()
    ends = {end.sequence: end.conversation for end in house.events.of(ItemEnded)}
    first, second, other, none = (ends[ticket.sequence] for ticket in tickets)
    assert (first == second, none) == (True, None)
    assert len({first, other, "c0", "c1"}) == 4


@in_loaded_house
async def test_a_request_that_ends_after_its_bound_was_not_kept_in_it(house: House):
    house.submit("a", max_tokens=40, service_s=9.0)
    await sleep_until(house.now + 0.5)
    late = house.submit("a", max_tokens=40)
    await sleep_until(house.now + 5.0)
    house.cancel(late)
    await settle()
    (end,) = (each for each in house.events.of(ItemEnded) if each.sequence == late.sequence)
    assert (end.attempts, end.bound_kept) == (0, False)


@in_loaded_house
async def test_estimates_are_kept_for_a_quarter_of_a_second(house: House):
    house.submit("a", max_tokens=40, service_s=9.0)  # expected to run 1 s
    waiting = house.submit("a", max_tokens=40)
    await settle()
    starts = list[object]()
    told = list[float | None]()
    for at in (0.0, 0.2, 0.25):
        await sleep_until(at)
        starts.append(house.status["external_queue"]["next_items"][0]["estimated_start_s"])
        newcomer = house.submit("a", max_tokens=40)
        told.append(newcomer.estimated_wait_s)
        house.cancel(newcomer)
    house.cancel(waiting)
    assert starts == [1.0, 1.0, 0.8]  # to a tenth
    assert told == pytest.approx([2.0, 2.8, 1.75])  # the second as if the first had not left


@pytest.mark.parametrize(("parallel", "turn_s"), [(1, 4.0), (4, 1.0)])
@in_virtual_time
async def test_of_several_at_once_only_the_first_is_told_of_the_swap(parallel: int, turn_s: float):
    settings = settings_with(queue={"max_external_depth": 9}, gpu={"parallel": parallel})
    async with House("a", "b", resident="a", settings=settings) as house:
        house.submit("a", max_tokens=40)
        await sleep_until(house.now + 0.01)
        told = [house.submit("b", max_tokens=40).estimated_wait_s or 0.0 for _ in range(5)]
        assert told[4] - told[0] == pytest.approx(turn_s, rel=0.1)


@in_house(settings=ONE_EACH)
async def test_one_more_than_may_wait_in_a_lane_is_refused_with_a_time_to_return(house: House):
    house.internal("a", priority=Priority.CRITICAL)  # runs
    await settle()
    house.submit("a")
    house.internal("a")
    before = house.worker.get_status(), len(house.events.all)
    for lane in Lane:
        with pytest.raises(QueueFull, match=lane.value) as refused:
            house.submit("a", lane=lane)
        assert (refused.value.status, (refused.value.retry_after_s or 0) >= 1) == (503, True)
    assert (house.worker.get_status(), len(house.events.all)) == before


@in_virtual_time
async def test_the_limit_holds_for_arrivals_that_no_decision_has_seen_yet():
    house = House(settings=settings_with(queue={"max_external_depth": 2}))
    accepted = [house.submit("a") for _ in range(2)]
    urgent = house.internal("a")
    assert [ticket.position for ticket in (*accepted, urgent)] == [0, 1, 0]
    house.cancel(urgent)
    with pytest.raises(QueueFull):
        house.submit("a")
    async with house:
        accepted.append(house.submit("a"))
        assert [await body_of(ticket) != b"" for ticket in accepted] == [True] * 3


@in_virtual_time
async def test_nothing_is_accepted_after_a_stop_and_the_advice_is_the_grace():
    house = House(settings=settings_with(server={"shutdown_grace_s": 7.0}))
    async with house:
        pass
    for ask in (lambda: house.submit("a"), house.worker.admission.check_open):
        with pytest.raises(ShuttingDown) as refused:
            ask()
        assert refused.value.retry_after_s == 7.0
    with pytest.raises(ShuttingDown):
        await house.worker.enqueue_internal("hello", "a")


@in_loaded_house
async def test_a_request_for_no_model_is_refused_where_there_is_none_left(house: House):
    house.ollama.go_down()
    await sleep_until(6.0)
    ticket = house.submit(None)
    house.ollama.come_up()
    error = (await heard(ticket))[1]
    assert isinstance(error, BadRequest)
    assert "none is loaded any more" in error.message
    with pytest.raises(BadRequest, match="none is loaded, and"):
        house.submit(None)


@in_loaded_house
async def test_who_left_while_waiting_and_asks_the_same_again_has_the_old_place(house: House):
    house.submit("a", service_s=400.0)
    await sleep_until(1.0)
    first = house.submit("a", digest=b"d")
    await sleep_until(2.0)
    others = [house.submit("a", caller="other", digest=b"d"), house.submit("a")]
    await sleep_until(300.0)
    house.worker.leave(first.sequence)
    await sleep_until(359.0)
    again = house.submit("a", digest=b"d")
    house.worker.leave(again.sequence)
    again = house.submit("a", digest=b"d")
    twin = house.submit("a", digest=b"d")
    assert (again.position, twin.position) == (0, 3)
    assert again.estimated_wait_s is not None
    await sleep_until(1000.0)
    order = [event.sequence for event in house.events.of(ItemDispatched)]
    assert order[1:] == [each.sequence for each in (again, *others, twin)]


def placed_at(house: House, **asked: Any) -> float:
    """When the request came whose place a new one gets."""
    sequence = house.submit(**{"model": "a", "digest": b"d", **asked}).sequence
    item = house.worker.get_item(sequence)
    assert item is not None
    house.worker.cancel(sequence)
    return house.now - float(str(item["waited_s"]))


@pytest.mark.parametrize(
    ("asked", "after_s", "at"),
    [
        ({}, 60.0, 1.0),
        ({}, 60.5, 160.5),
        *(
            (other, 1.0, 101.0)
            for other in (
                {"digest": b"e"},
                {"caller": "x"},
                {"model": "b"},
                {"lane": Lane.INTERNAL},
            )
        ),
        ({"priority": Priority.CRITICAL}, 1.0, 101.0),
    ],
)
@in_house("a", "b", resident="a")
async def test_a_place_is_kept_for_the_same_request_of_its_caller_for_a_minute(
    house: House, asked: Fields, after_s: float, at: float
):
    house.submit("a", service_s=400.0)
    await sleep_until(1.0)
    left = house.submit("a", digest=b"d")
    await sleep_until(100.0)
    house.worker.leave(left.sequence)
    await sleep_until(100.0 + after_s)
    assert placed_at(house, **asked) == at


@in_house(settings=settings_with(queue={"max_external_depth": 4}))
async def test_what_ran_or_was_cancelled_keeps_no_place_and_places_are_bounded(house: House):
    ran = house.submit("a", service_s=400.0, digest=b"ran")
    await sleep_until(1.0)
    cancelled = house.submit("a", digest=b"cancelled")
    house.cancel(cancelled)
    for sequence in (ran.sequence, cancelled.sequence):
        house.worker.leave(sequence)
    house.submit("a", service_s=400.0)
    for numbers in ((0, 1, 2), (3, 4, 5)):
        left = [house.submit("a", digest=b"%d" % number).sequence for number in numbers]
        await sleep_until(house.now + 0.5)
        for sequence in left:
            house.worker.leave(sequence)
    await sleep_until(2.5)
    others = {b"ran": 2.5, b"cancelled": 2.5, b"0": 2.5, b"1": 2.5}
    for digest, at in (others | {b"2": 1.5, b"3": 1.5, b"5": 1.5}).items():
        assert placed_at(house, digest=digest) == at, digest


@in_loaded_house
async def test_a_place_loses_the_time_its_caller_was_away_too_long(house: House):
    house.submit("a", service_s=400.0)
    await sleep_until(1.0)
    for left in range(4):  # who asks and leaves at once, over and over, has waited for nothing
        house.worker.leave(house.submit("a", digest=b"d").sequence)
        await sleep_until(1.0 + 59.0 * (left + 1))
    assert placed_at(house) == house.now
    patient = house.submit("a", digest=b"p")
    await sleep_until(house.now + 40.0)
    house.worker.leave(patient.sequence)
    await sleep_until(house.now + 50.0)
    assert placed_at(house, digest=b"p") == house.now - 80.0


def fill(house: House, caller: str) -> int:
    """How many requests of a caller are taken until one is refused."""
    for taken in range(100):
        try:
            house.submit("a", service_s=1.0, caller=caller)
        except QueueFull:
            return taken
    raise AssertionError("nothing is refused")


@in_house(settings=settings_with(queue={"max_external_depth": 8}))
async def test_a_lone_caller_may_fill_the_queue_and_half_of_it_beside_another(house: House):
    house.submit("a", service_s=1.0, caller="greedy")
    await settle()
    assert fill(house, "greedy") == 8
    with pytest.raises(QueueFull, match="the queue is full: 8 external requests are waiting"):
        house.submit("a", caller="modest")
    await sleep_until(5.5)
    assert house.worker.scheduler.gateway.waiting.external_of("greedy") == 3
    assert fill(house, "greedy") == 1
    with pytest.raises(
        QueueFull,
        match=r"4 requests of greedy are waiting, which is half of the queue",
    ):
        house.submit("a", caller="greedy")
    assert fill(house, "modest") == 4
    await sleep_until(5.5 + 600.5)
    assert fill(house, "greedy") == 9, "one of them runs at once"


@in_house(settings=settings_with(queue={"max_external_depth": 20, "sharing": "fair"}))
async def test_with_shares_nobody_waits_with_more_than_there_are_places_left(house: House):
    house.submit("a", service_s=1.0, caller="greedy")
    await settle()
    found = [fill(house, caller) for caller in ("greedy", "second", "third", "fourth")]
    assert found == [10, 5, 3, 1]
    with pytest.raises(QueueFull, match=r"10 requests of greedy are waiting and 1 places are free"):
        house.submit("a", caller="greedy")
    assert house.submit("a", caller="last").position == 3, "behind the first of each newcomer"


@in_loaded_house
async def test_a_reload_puts_what_waits_into_the_order_of_shares_and_back(house: House):
    for caller in ("greedy", "greedy", "greedy", "greedy", "modest", "modest"):
        house.submit("a", service_s=1.0, caller=caller)
    await settle()
    house.worker.reload_config(GatewayConfig(settings=settings_with(queue={"sharing": "fair"})))
    await sleep_until(1.5)
    assert [event.caller for event in house.events.of(ItemDispatched)] == ["greedy", "modest"]
    house.worker.reload_config(GatewayConfig(settings=settings_with(queue={"sharing": "fifo"})))
    await sleep_until(5.5)
    assert [event.sequence for event in house.events.of(ItemDispatched)] == [1, 5, 2, 3, 4, 6]


@in_house(settings=settings_with(queue={"max_internal_depth": 4, "internal_sharing": "fair"}))
async def test_internal_callers_who_share_leave_each_other_places(house: House):
    house.submit("a", service_s=9.0)
    await settle()
    for _ in range(2):
        house.submit("a", lane=Lane.INTERNAL, caller="one")
    with pytest.raises(QueueFull, match=r"2 requests of one are waiting"):
        house.submit("a", lane=Lane.INTERNAL, caller="one")
    house.submit("a", lane=Lane.INTERNAL, caller="two")


@in_house(settings=settings_with(queue={"max_external_depth": 100, "sharing": "fair"}))
async def test_with_shares_a_newcomer_is_told_its_own_place_and_wait(house: House):
    for _ in range(9):
        house.submit("a", caller="greedy")
    await settle()
    greedy = house.submit("a", caller="greedy")
    modest = house.submit("a", caller="modest")
    assert (greedy.position, modest.position) == (8, 0)
    assert (modest.estimated_wait_s or 0.0) < (greedy.estimated_wait_s or 0.0) / 4


@in_house(
    settings=settings_with(queue={"max_external_depth": 1, "max_internal_depth": 3}),
)
async def test_a_queue_with_one_place_has_no_shares_nor_has_the_internal_lane(house: House):
    house.submit("a", service_s=9.0)
    await settle()
    assert [fill(house, caller) for caller in ("one", "two")] == [1, 0]
    for caller in ("one", "one", "one"):
        house.submit("a", lane=Lane.INTERNAL, caller=caller)
    with pytest.raises(QueueFull, match="3 internal requests"):
        house.submit("a", lane=Lane.INTERNAL, caller="two")


@in_virtual_time
async def test_an_in_process_call_may_name_an_alias():
    settings = settings_with().replace(aliases={"coder": ("a:latest", "b:latest")})
    async with House("a", "b", resident="b", settings=settings) as house:
        for enqueue in (
            house.worker.enqueue_internal("hello", "coder"),
            house.worker.enqueue_external("hello", "coder", caller="script"),
        ):
            assert (await (await enqueue)).model == "b:latest"
        assert [event.alias for event in house.events.of(ItemEnded)] == ["coder", "coder"]


@in_virtual_time
async def test_an_alias_without_an_installed_model_is_refused_in_process():
    settings = settings_with().replace(aliases={"coder": ("x:latest",)})
    async with House("a", settings=settings) as house:
        with pytest.raises(ModelNotFound):
            await house.worker.enqueue_internal("hello", "coder")
