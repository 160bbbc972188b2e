"""A caller leaves, or cancels, in whatever state its request is: the GPU is free at once and nobody
runs for nobody.
"""

from __future__ import annotations

import asyncio

import pytest

from hearth.errors import CallerGone
from hearth.events import ItemEnded, ItemStopped
from hearth.types import Outcome, RequestId, Sequence
from tests.support.house import (
    FULL_TEXT,
    House,
    body_of,
    heard,
    in_house,
    in_loaded_house,
    settle,
    text_of,
)
from tests.support.virtual_time import in_virtual_time, sleep_until


@in_loaded_house
async def test_what_is_cancelled_in_the_tick_of_its_arrival_is_never_sent(house: House):
    house.cancel(house.submit("a"))
    futures = [await house.worker.enqueue_internal("hello", "a") for _ in range(5)]
    for future in futures[:-1]:
        assert future.cancel()
    await futures[-1]
    await asyncio.sleep(5)
    assert len(house.ollama.calls) == 1


@pytest.mark.parametrize("by", ["id", "caller"])
@in_house("a")
async def test_a_load_that_others_wait_for_survives_those_that_caused_it(house: House, by: str):
    causing = [house.submit("a", caller="me") for _ in range(3)]
    await sleep_until(0.5)
    waiting = house.submit("a", caller="them")
    await sleep_until(1.0)
    cancelled = (
        [house.cancel(ticket) for ticket in causing]
        if by == "id"
        else house.worker.cancel_caller("me")
    )
    assert len(cancelled) == 3
    assert text_of(await body_of(waiting)) == FULL_TEXT
    assert (house.now, [record.kind for record in house.ollama.control]) == (3.0, ["load"])


@in_loaded_house
async def test_a_request_id_cancels_all_of_its_owners_items_and_nobody_elses(house: House):
    mine = [house.submit("a", caller="me", request_id="req_shared") for _ in range(2)]
    theirs = house.submit("a", caller="them", request_id="req_shared")
    cancel = house.worker.cancel_request
    shared = RequestId("req_shared")
    assert (
        cancel(RequestId("req_unknown"), caller=None) is cancel(shared, caller="stranger") is None
    )
    assert cancel(shared, caller="me") is True
    assert text_of(await body_of(theirs)) == FULL_TEXT
    assert house.cancel(theirs) is False, "its answer is complete"
    assert [(await house.end_of(ticket)).outcome for ticket in (*mine, theirs)] == [
        Outcome.CANCELLED
    ] * 2 + [Outcome.COMPLETED]
    assert cancel(shared, caller=None) is True
    assert (
        cancel(shared, caller="them")
        is house.cancel(theirs)
        is house.worker.cancel(Sequence(999))
        is False
    )


@in_loaded_house
async def test_how_long_the_slot_of_a_cancelled_request_stays_taken_is_reported(house: House):
    """What only waits has no slot, and what is interrupted is not cancelled."""
    running, waiting = (house.submit("a") for _ in range(2))
    await sleep_until(0.5)
    assert house.cancel(waiting)
    assert house.cancel(running)
    await settle()
    (stopped,) = house.events.of(ItemStopped)
    assert (stopped.sequence, stopped.model) == (running.sequence, "a:latest")
    assert (stopped.at, stopped.attempt, stopped.stop_s) == (0.5, 1, 0.0)


@pytest.mark.parametrize("by", ["future", "caller"])
@pytest.mark.parametrize("at_s", [0.0, 0.2, 0.7])
@in_loaded_house
async def test_an_in_process_call_and_its_future_end_together(house: House, at_s: float, by: str):
    futures = [await house.worker.enqueue_external("hello", "a", caller="script") for _ in range(2)]
    kept = await house.worker.enqueue_internal("hello", "a")
    await sleep_until(at_s)
    if by == "future":
        for future in futures:
            assert future.cancel()
    else:
        assert len((await house.gateway.cancel_caller("script"))[0]) == 2
    failed = await asyncio.gather(*futures, return_exceptions=True)
    assert {type(error) for error in failed} == {
        asyncio.CancelledError if by == "future" else CallerGone
    }
    assert (await kept).output == FULL_TEXT
    assert [event.outcome for event in house.events.of(ItemEnded)].count(Outcome.CANCELLED) == 2


@in_loaded_house
async def test_an_abandoned_reply_holds_no_bytes_while_its_call_is_being_stopped(house: House):
    ticket = house.submit("a", stream=True)
    await sleep_until(0.5)
    ticket.reply.abandon()
    house.cancel(ticket)
    await settle()
    assert (ticket.reply.unread_bytes, house.ollama.calls[0].ended_at) == (0, 0.5)
    assert isinstance((await heard(ticket))[1], CallerGone)


PHASES = {
    "arriving": ("", 0.0, True),
    "loading": ("", 0.5, False),
    "evaluating the prompt": ("a", 0.05, True),
    "streaming": ("a", 0.5, True),
    "answering whole": ("a", 0.5, False),
}
"""What is resident, when it is cancelled, and whether the answer streams."""


@pytest.mark.parametrize("by", ["id", "caller"])
@pytest.mark.parametrize(("resident", "at_s", "stream"), PHASES.values())
@in_virtual_time
async def test_it_is_given_up_at_once_in_every_phase_and_again_is_no_error(
    resident: str, at_s: float, stream: bool, by: str
):
    async with House("a", resident=resident) as house:
        ticket = house.submit("a", stream=stream, caller="me", first_byte_s=0.1)
        await sleep_until(at_s)
        if by == "id":
            assert [
                house.worker.cancel_request(RequestId("req_1"), caller="me") for _ in range(2)
            ] == [True, True]
        else:
            assert [house.worker.cancel_caller("me") for _ in range(2)] == [["req_1"], []]
        said, error = await heard(ticket)
        assert (text_of(said), type(error)) == (
            " alpha beta" if stream and at_s == 0.5 else "",
            CallerGone,
        )
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.at) == (Outcome.CANCELLED, at_s)
        assert {call.ended_at for call in house.ollama.calls} <= {at_s}
        assert house.worker.cancel_caller("me") == []
        assert await house.answer("a", caller="me") == FULL_TEXT


@in_house("a", "b", "c", resident="a")
async def test_all_of_a_caller_is_given_up_in_one_decision_that_loads_nothing(house: House):
    mine = [
        house.submit(model, caller="me", request_id=f"req_{number}")
        for number, model in enumerate("abcb")
    ]
    mine.append(house.internal("a", caller="me", request_id="req_4"))
    theirs = house.submit("a", caller="them", request_id="req_0")
    await sleep_until(0.5)
    assert house.worker.cancel_caller("stranger") == []
    assert house.worker.cancel_caller("me") == [f"req_{number}" for number in range(5)]
    assert text_of(await body_of(theirs)) == FULL_TEXT
    assert house.now == 1.5
    assert [(await house.end_of(ticket)).outcome for ticket in mine] == [Outcome.CANCELLED] * 5
    assert house.worker.cancel_caller("me") == []
    await asyncio.sleep(30)
    assert house.ollama.control == []
