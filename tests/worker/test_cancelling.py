"""A caller leaves, or cancels, in whatever state its request is: the GPU is free at once and nobody runs for nobody."""

from __future__ import annotations

import asyncio

import pytest

from hearth.api.status import cancel_caller
from hearth.errors import CallerGone
from hearth.events import ItemEnded
from hearth.types import Outcome, RequestId, Sequence
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, heard, in_house, settle, text_of


@in_house("a", resident=("a",))
async def test_what_is_cancelled_in_the_tick_of_its_arrival_is_never_sent(house: House):
    leaving = house.submit("a")
    house.worker.cancel(leaving.sequence)
    staying = house.submit("a")
    await body_of(staying)
    assert house.now == 1.0
    assert len(house.ollama.calls) == 1


@pytest.mark.parametrize("by", ["id", "caller"])
@in_house("a")
async def test_a_load_that_others_wait_for_survives_those_that_caused_it(house: House, by: str):
    causing = [house.submit("a", caller="me") for _ in range(3)]
    await sleep_until(0.5)
    waiting = house.submit("a", caller="them")
    await sleep_until(1.0)
    cancelled = [house.worker.cancel(ticket.sequence) for ticket in causing] if by == "id" else house.worker.cancel_caller("me")
    assert len(cancelled) == 3
    assert text_of(await body_of(waiting)) == FULL_TEXT
    assert house.now == 3.0
    assert [record.kind for record in house.ollama.control] == ["load"]


@in_house("a", resident=("a",))
async def test_what_has_ended_otherwise_or_never_was_cannot_be_cancelled(house: House):
    ticket = house.submit("a")
    await body_of(ticket)
    assert house.worker.cancel(ticket.sequence) is False
    await settle()
    assert house.worker.cancel(ticket.sequence) is False
    assert house.worker.cancel(Sequence(999)) is False
    assert (await house.end_of(ticket)).outcome is Outcome.COMPLETED


@in_house("a", resident=("a",))
async def test_a_request_id_cancels_all_of_its_owners_items_and_nobody_elses(house: House):
    mine = [house.submit("a", caller="me", request_id="req_shared") for _ in range(2)]
    theirs = house.submit("a", caller="them", request_id="req_shared")
    cancel = house.worker.cancel_request
    assert cancel(RequestId("req_unknown"), caller=None) is None
    assert cancel(RequestId("req_shared"), caller="stranger") is None
    assert cancel(RequestId("req_shared"), caller="me") is True
    assert text_of(await body_of(theirs)) == FULL_TEXT
    assert [(await house.end_of(ticket)).outcome for ticket in mine] == [Outcome.CANCELLED] * 2
    assert cancel(RequestId("req_shared"), caller=None) is True
    assert cancel(RequestId("req_shared"), caller="them") is False


@for_each("at_s", [0.0, 0.2, 0.7])
@in_house("a", resident=("a",))
async def test_cancelling_the_future_of_an_in_process_call_cancels_the_item(house: House, at_s: float):
    first = await house.worker.enqueue_external("hello", "a", caller="script")
    second = await house.worker.enqueue_internal("hello", "a")
    await sleep_until(at_s)
    second.cancel()
    first.cancel()
    await asyncio.sleep(3)
    assert [event.outcome for event in house.events.of(ItemEnded)] == [Outcome.CANCELLED] * 2
    assert {call.ended_at for call in house.ollama.calls} <= {at_s}


@in_house("a", resident=("a",))
async def test_a_future_that_is_cancelled_at_once_is_never_executed(house: House):
    futures = [await house.worker.enqueue_internal("hello", "a") for _ in range(5)]
    for future in futures[:-1]:
        assert future.cancel()
    await futures[-1]
    await asyncio.sleep(5)
    assert len(house.ollama.calls) == 1


@in_house("a", resident=("a",))
async def test_an_abandoned_reply_holds_no_bytes_while_its_call_is_being_stopped(house: House):
    ticket = house.submit("a", stream=True)
    await sleep_until(0.5)
    ticket.reply.abandon()
    house.worker.cancel(ticket.sequence)
    await settle()
    assert ticket.reply.unread_bytes == 0
    assert house.ollama.calls[0].ended_at == 0.5
    with pytest.raises(CallerGone):
        await ticket.reply.take()


PHASES = {
    "arriving": ((), 0.0, True),
    "loading": ((), 0.5, False),
    "evaluating the prompt": (("a",), 0.05, True),
    "streaming": (("a",), 0.5, True),
    "answering whole": (("a",), 0.5, False),
}
"""What is resident, when it is cancelled, and whether the answer streams."""


@for_each("by", ["id", "caller"])
@for_each(("resident", "at_s", "stream"), PHASES.values())
@in_virtual_time
async def test_it_is_given_up_at_once_in_every_phase_and_again_is_no_error(resident: tuple[str, ...], at_s: float, stream: bool, by: str):
    async with House("a", resident=resident) as house:
        ticket = house.submit("a", stream=stream, caller="me", first_byte_s=0.1)
        await sleep_until(at_s)
        if by == "id":
            answers = [house.worker.cancel_request(RequestId("req_1"), caller="me") for _ in range(2)]
            assert answers == [True, True]
        else:
            assert [house.worker.cancel_caller("me") for _ in range(2)] == [["req_1"], []]
        said, error = await heard(ticket)
        assert (text_of(said), type(error)) == (" alpha beta" if stream and at_s == 0.5 else "", CallerGone)
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.at) == (Outcome.CANCELLED, at_s)
        assert {call.ended_at for call in house.ollama.calls} <= {at_s}
        assert house.worker.cancel_caller("me") == []
        assert text_of(await body_of(house.submit("a", caller="me"))) == FULL_TEXT


@in_house("a", "b", resident=("a",))
async def test_all_that_a_caller_has_is_given_up_and_nobody_elses(house: House):
    mine = [house.submit("a", caller="me", request_id="req_1"), house.submit("b", caller="me", request_id="req_2")]
    mine.append(house.internal("a", caller="me", request_id="req_3"))
    theirs = house.submit("a", caller="them", request_id="req_1")
    await sleep_until(0.5)
    assert house.worker.cancel_caller("stranger") == []
    assert house.worker.cancel_caller("me") == ["req_1", "req_2", "req_3"]
    assert text_of(await body_of(theirs)) == FULL_TEXT
    assert house.now == 1.5
    assert [(await house.end_of(ticket)).outcome for ticket in mine] == [Outcome.CANCELLED] * 3
    assert house.worker.cancel_caller("me") == []
    assert house.ollama.control == []


@in_house("a", "b", "c", resident=("a",))
async def test_nothing_is_loaded_or_started_for_items_that_are_cancelled_together(house: House):
    tickets = [house.submit(model, caller="me", request_id=f"req_{model}") for model in "abcb"]
    await sleep_until(0.5)
    assert len(house.worker.cancel_caller("me")) == 4
    await asyncio.sleep(30)
    assert house.ollama.control == []
    assert len(house.ollama.calls) == 1
    assert [(await house.end_of(ticket)).outcome for ticket in tickets] == [Outcome.CANCELLED] * 4


@for_each("at_s", [0.0, 0.2, 0.7])
@in_house("a", resident=("a",))
async def test_the_futures_of_in_process_calls_fail_where_their_caller_is_cancelled(house: House, at_s: float):
    futures = [await house.worker.enqueue_external("hello", "a", caller="script") for _ in range(2)]
    kept = await house.worker.enqueue_internal("hello", "a")
    await sleep_until(at_s)
    assert len((await cancel_caller(house.gateway, "script")).requests) == 2
    for future in futures:
        with pytest.raises(CallerGone):
            await future
    assert (await kept).output == FULL_TEXT
