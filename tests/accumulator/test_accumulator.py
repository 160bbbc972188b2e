"""When calls go together, what becomes of each, and what one of them can do to the others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from hearth.api.status import cancel_caller, cancel_item
from hearth.config.settings import AgingSettings
from hearth.errors import BackendGone, BackendUnreachable, CallerGone, FirstByteTimeout, HearthError, QueueFull, ShuttingDown
from hearth.events import (
    EmbeddingsFlushed,
    EmbeddingsParted,
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemQueued,
    ItemResent,
)
from hearth.execution.request import Ticket
from hearth.types import SEVERAL_CALLERS, BackendCall, Lane, Outcome, Priority, RequestId, Sequence
from tests.accumulator.house import OPENAI, SERVICE_S, EmbeddingHouse, check_all, in_embedding_house, vector_in
from tests.support.cases import for_each
from tests.support.fake_exchange import CallFault, CallRecord, FakeExchange
from tests.support.fake_ollama import FakeOllama
from tests.support.ollama_wire import vector_of
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import body_of, settle


@for_each(
    ("keys", "script", "flushed"),
    [
        ({"max_inputs": 3, "max_wait_ms": 1000}, "abcdefgh", [(1, "alone", 0.0), (3, "full", 0.0), (3, "full", 0.0), (1, "idle", 0.6)]),
        ({}, "ab . c . d", [(1, "alone", 0.0), (2, "timer", 0.05), (1, "timer", 0.11)]),
        ({"max_wait_ms": 1000}, "abC", [(1, "alone", 0.0), (1, "other_model", 0.0), (1, "alone", 0.0)]),
        ({"max_wait_ms": 10_000}, "abc drain", [(1, "alone", 0.0), (2, "stopping", 0.0)]),
    ],
)
@in_virtual_time
async def test_what_is_held_goes_when_it_is_full_or_old_or_in_the_way(keys: dict[str, Any], script: str, flushed: list[Any]):
    """A small letter is a call for one model and a large one for another; a dot is 0.03 s."""
    async with EmbeddingHouse(**keys) as house:
        tickets = dict[str, Ticket]()
        for word in script.split():
            if word == ".":
                await sleep_until(house.now + 0.03)
            elif word == "drain":
                house.gateway.orders.drain()
            else:
                tickets |= {text: house.ask(text, "other" if text.isupper() else "emb") for text in word}
        await check_all(tickets)
        assert [(event.inputs, event.why, pytest.approx(event.at)) for event in house.events.of(EmbeddingsFlushed)] == flushed


@in_embedding_house(max_wait_ms=1000.0)
async def test_a_lone_call_goes_at_once_as_it_was_sent_and_those_that_come_meanwhile_go_together_when_it_ends(house: EmbeddingHouse):
    tickets = {text: house.ask(text) for text in "abcd"}
    await check_all(tickets)
    assert house.sent() == [["a"], ["b", "c", "d"]]
    alone, together = house.ollama.calls
    assert (alone.body, (b"user-agent", b"test") in alone.headers) == (b'{"model": "emb:latest", "input": "a"}', True)
    assert b"x-hearth-merged" not in dict((await tickets["a"].reply.head()).headers)
    assert together.headers == ((b"content-type", b"application/json"),)
    assert house.now == pytest.approx(2 * SERVICE_S)
    flushed = house.events.of(EmbeddingsFlushed)
    assert [(event.inputs, event.why, event.held_s) for event in flushed] == [(1, "alone", 0.0), (3, "idle", pytest.approx(SERVICE_S))]


@for_each(
    "different",
    [{"dimensions": 8}, {"truncate": False}, {"path": OPENAI}, {"lane": Lane.INTERNAL}, {"task_type": "indexing"}],
)
@in_embedding_house(max_wait_ms=1000.0)
async def test_calls_that_differ_in_anything_but_the_input_do_not_mix(house: EmbeddingHouse, different):
    tickets = [house.ask("a"), house.ask("b"), house.ask("c"), house.ask("d", **different), house.ask("e", **different)]
    await asyncio.gather(*(ticket.reply.head() for ticket in tickets))
    assert {tuple(sent) for sent in house.sent()} == {("a",), ("b", "c"), ("d",), ("e",)}


@in_embedding_house(max_wait_ms=1000.0)
async def test_internal_bands_do_not_mix_and_critical_work_waits_for_nobody(house: EmbeddingHouse):
    inside = {"lane": Lane.INTERNAL}
    for text, priority in (("a", Priority.NORMAL), ("b", Priority.NORMAL), ("c", Priority.BACKGROUND), ("d", Priority.BACKGROUND)):
        house.ask(text, priority=priority, **inside)
    urgent = [house.ask(text, priority=Priority.CRITICAL, **inside) for text in "ef"]
    await asyncio.gather(*(ticket.reply.head() for ticket in urgent))
    await sleep_until(5.0)
    assert house.sent() == [["a"], ["e"], ["f"], ["b"], ["c"], ["d"]]


@in_embedding_house()
async def test_an_openai_caller_gets_an_answer_of_its_own(house: EmbeddingHouse):
    tickets = {text: house.ask(text, path=OPENAI) for text in "abc"}
    for text, ticket in tickets.items():
        said = json.loads(await body_of(ticket))
        assert said["data"] == [{"object": "embedding", "embedding": vector_of(text), "index": 0}]
    head = await tickets["b"].reply.head()
    assert dict(head.headers)[b"x-hearth-merged"] == b"2"
    assert dict(head.headers)[b"content-length"] == b"%d" % len(json.dumps(said, separators=(",", ":")) + "\n")


@in_embedding_house(max_wait_ms=100.0)
async def test_every_member_is_an_item_of_its_own_in_events_and_the_call_is_none(house: EmbeddingHouse):
    house.ask("a")
    await sleep_until(0.05)
    tickets = [house.ask("bbb", caller="one", request_id="req_one"), house.ask("c", caller="two", request_id="req_two")]
    await asyncio.gather(*(ticket.reply.head() for ticket in tickets))
    await settle()
    ends = house.events.of(ItemEnded)[1:]
    assert [(end.sequence, end.caller, end.request_id) for end in ends] == [
        (tickets[0].sequence, "one", "req_one"),
        (tickets[1].sequence, "two", "req_two"),
    ]
    assert [end.prompt_tokens for end in ends] == [7, 3]  # the fake counts 10 for any call
    for end in ends:
        assert end.outcome is Outcome.COMPLETED
        assert end.queue_s == pytest.approx(SERVICE_S - 0.05)
        assert end.total_s == pytest.approx(2 * SERVICE_S - 0.05)
        assert end.backend_s == pytest.approx(SERVICE_S)
    assert len(house.events.of(ItemQueued)) == len(house.events.of(ItemDispatched)) == 3


@in_virtual_time
@pytest.mark.parametrize(("other", "shown_as"), [("two", SEVERAL_CALLERS), ("one", "one")])
async def test_status_shows_one_item_with_its_inputs_and_each_member_can_be_looked_up(other, shown_as):
    async with EmbeddingHouse(max_inputs=2) as house:
        house.ask("a")
        members = [house.ask("b", caller="one"), house.ask("c", caller=other)]
        held = house.ask("d")
        await settle()
        queue = house.worker.get_status()["external_queue"]
        assert isinstance(queue, dict)
        (shown,) = queue["next_items"]
        assert (shown["inputs"], shown["caller"], shown["prompt_tokens"]) == (2, shown_as, 2)
        found = [house.worker.get_item(ticket.sequence) for ticket in (*members, held)]
        assert [item["state"] for item in found if item] == ["waiting", "waiting", "held"]
        assert [item["carried_by"] for item in found if item] == [shown["sequence"], shown["sequence"], None]
        assert house.gateway.embeddings.status() == {"held": 1, "calls_under_way": 2}
        await vector_in(members[0])
        await settle()
        ended = house.worker.get_item(members[0].sequence)
        assert ended is not None
        assert ended["state"] == "completed"


@in_embedding_house(max_inputs=3)
async def test_who_leaves_before_the_call_is_sent_costs_nothing(house: EmbeddingHouse):
    first = house.ask("a")
    tickets = {text: house.ask(text) for text in "bcd"}
    await settle()
    tickets.pop("c").reply.abandon()
    await check_all(tickets)
    await vector_in(first)
    assert house.sent() == [["a"], ["b", "d"]]
    assert [event.outcome for event in house.events.of(ItemEnded)].count(Outcome.CANCELLED) == 1


@in_embedding_house(max_inputs=3)
async def test_who_leaves_a_running_call_leaves_the_others_their_answers(house: EmbeddingHouse):
    house.ask("a")
    tickets = {text: house.ask(text) for text in "bcd"}
    await sleep_until(1.5 * SERVICE_S)
    assert house.worker.cancel_request(RequestId("req_b"), caller="test") is True
    assert house.worker.cancel_request(RequestId("req_b"), caller="test") is True
    assert house.worker.cancel_request(RequestId("req_c"), caller="somebody else") is None
    with pytest.raises(CallerGone):
        await tickets.pop("b").reply.head()
    (end,) = (end for end in house.events.of(ItemEnded) if end.request_id == "req_b")
    assert (end.outcome, end.reason, end.status) == (Outcome.CANCELLED, CallerGone.reason, None)
    assert (end.queue_s, end.backend_s, end.total_s) == pytest.approx((SERVICE_S, 0.5 * SERVICE_S, 1.5 * SERVICE_S))
    await check_all(tickets)
    assert len(house.ollama.calls) == 2


@pytest.mark.parametrize("at", [0.5 * SERVICE_S, 1.5 * SERVICE_S], ids=["waiting", "running"])
@in_embedding_house(max_inputs=2)
async def test_the_last_one_to_leave_ends_the_call(house: EmbeddingHouse, at):
    house.ask("a")
    tickets = [house.ask(text) for text in "bc"]
    await sleep_until(at)
    for ticket in tickets:
        ticket.reply.abandon()
    await settle()
    assert not house.worker.scheduler.state.waiting
    assert len(house.worker.scheduler.state.running) == (1 if at < SERVICE_S else 0)
    await sleep_until(1.0)
    assert house.gateway.embeddings.status() == {"held": 0, "calls_under_way": 0}


@in_embedding_house(max_inputs=3)
async def test_a_number_cancels_one_request_of_a_shared_call_or_the_call_with_all_in_it(house: EmbeddingHouse):
    alone = house.ask("a", request_id="req_x")
    gathered = [house.ask(text, request_id="req_x") for text in "bcd"]
    await sleep_until(1.5 * SERVICE_S)
    one, *others = gathered
    assert [await cancel_item(house.gateway, one.sequence) for _ in range(2)] == [True, True]
    with pytest.raises(CallerGone):
        await one.reply.head()
    assert not any(ticket.reply.ended for ticket in others)
    shared = (house.worker.get_item(others[0].sequence) or {})["carried_by"]
    assert await cancel_item(house.gateway, Sequence(int(str(shared))))
    for ticket in others:
        with pytest.raises(CallerGone):
            await ticket.reply.head()
    assert await cancel_item(house.gateway, alone.sequence) is False
    assert await cancel_item(house.gateway, Sequence(99)) is False


@in_embedding_house(max_inputs=4)
async def test_all_of_a_caller_can_be_cancelled_and_the_rest_goes_on(house: EmbeddingHouse):
    house.ask("a", caller="one")
    mine = [house.ask(text, caller="one") for text in "bc"]
    theirs = {text: house.ask(text, caller="two") for text in "de"}
    await settle()
    gone = await cancel_caller(house.gateway, "one")
    assert sorted(gone.requests) == ["req_a", "req_b", "req_c"]
    await check_all(theirs)
    for ticket in mine:
        with pytest.raises(CallerGone):
            await ticket.reply.head()


@in_embedding_house()
async def test_an_error_of_one_input_is_told_to_that_one_only(house: EmbeddingHouse):
    house.ollama.next_calls(None, CallFault.SERVER_ERROR, None, CallFault.SERVER_ERROR)
    tickets = {text: house.ask(text) for text in "abcd"}
    bad = tickets.pop("c")
    await check_all(tickets)
    head = await bad.reply.head()
    assert head.status == 500
    assert json.loads(await bad.reply.body())["error"]
    assert house.sent() == [["a"], ["b", "c", "d"], ["b"], ["c"], ["d"]]
    assert [(event.inputs, event.reason) for event in house.events.of(EmbeddingsParted)] == [(3, "status_500")]
    outcomes = {end.request_id: end.outcome for end in house.events.of(ItemEnded)}
    assert outcomes == {
        "req_a": Outcome.COMPLETED,
        "req_b": Outcome.COMPLETED,
        "req_c": Outcome.FAILED,
        "req_d": Outcome.COMPLETED,
    }


@in_virtual_time
@pytest.mark.parametrize(("fault", "error"), [(CallFault.GONE_BEFORE_HEAD, BackendGone), (CallFault.SILENT, FirstByteTimeout)])
async def test_an_input_that_kills_the_runner_or_never_ends_takes_nobody_along(fault, error):
    async with EmbeddingHouse() as house:
        house.ollama.next_calls(None, fault, fault, None, fault, fault, None)
        tickets = {text: house.ask(text) for text in "abcd"}
        bad = tickets.pop("c")
        await check_all(tickets)
        with pytest.raises(error):
            await bad.reply.head()
        assert [event.reason for event in house.events.of(EmbeddingsParted)] == [error.reason]
        assert [event.attempt for event in house.events.of(ItemDispatched) if event.request_id == "req_c"] == [1, 2, 3, 4]
        assert {end.request_id: end.attempts for end in house.events.of(ItemEnded)} == {"req_a": 1, "req_b": 3, "req_c": 4, "req_d": 3}


@in_embedding_house()
async def test_a_call_that_is_sent_again_says_so_of_each_member(house: EmbeddingHouse):
    house.ollama.next_calls(None, CallFault.GONE_BEFORE_HEAD)
    await check_all({text: house.ask(text) for text in "abc"})
    assert [(event.request_id, event.attempt) for event in house.events.of(ItemResent)] == [("req_b", 1), ("req_c", 1)]
    assert [end.attempts for end in house.events.of(ItemEnded)] == [1, 2, 2]


@in_embedding_house()
async def test_a_call_that_rises_by_its_age_says_so_of_each_member(house: EmbeddingHouse):
    house.reload(scheduling={"aging": AgingSettings(promote_after_s=SERVICE_S / 2)}, embeddings={"max_inputs": 2})
    await check_all({text: house.ask(text, lane=Lane.INTERNAL, priority=Priority.BACKGROUND) for text in "abc"})
    assert [(event.request_id, event.band) for event in house.events.of(ItemPromoted)] == [("req_b", "normal"), ("req_c", "normal")]


@in_embedding_house()
async def test_a_lone_call_that_is_refused_holds_nobody_back(house: EmbeddingHouse):
    house.reload(queue={"max_external_depth": 0})
    with pytest.raises(QueueFull):
        house.ask("a")
    house.reload()
    assert await vector_in(house.ask("b")) == vector_of("b")
    assert [event.why for event in house.events.of(EmbeddingsFlushed)] == ["alone"]


@in_embedding_house()
async def test_a_model_server_that_is_away_is_everybodys_trouble_and_not_asked_again_for_each(house: EmbeddingHouse):
    await vector_in(house.ask("a"))
    house.ollama.go_down()
    tickets = [house.ask(text) for text in "bcd"]
    errors = await asyncio.gather(*(ticket.reply.head() for ticket in tickets), return_exceptions=True)
    assert [type(error) for error in errors] == [BackendUnreachable] * 3
    assert len(set(map(id, errors))) == 3
    assert not house.events.of(EmbeddingsParted)


class Forgetful(FakeOllama):
    """Leaves the last vector out where there are several."""

    def _exchange(self, call: BackendCall, body: dict[str, Any], record: CallRecord, fault: CallFault | None) -> FakeExchange:
        given = body.get("input")
        return super()._exchange(call, {**body, "input": given[:-1]} if isinstance(given, list) else body, record, fault)


@in_embedding_house(ollama=Forgetful)
async def test_an_answer_that_cannot_be_cut_is_asked_for_one_by_one(house: EmbeddingHouse):
    tickets = {text: house.ask(text) for text in "abc"}
    await check_all(tickets)
    assert house.sent() == [["a"], ["b", "c"], ["b"], ["c"]]
    assert [event.reason for event in house.events.of(EmbeddingsParted)] == ["unknown_answer"]


@in_virtual_time
@pytest.mark.parametrize("refusing", ["drain", "depth"])
async def test_who_was_accepted_is_asked_for_again_whatever_the_door_says_meanwhile(refusing):
    async with EmbeddingHouse(ollama=Forgetful) as house:
        tickets = {text: house.ask(text) for text in "abc"}
        await sleep_until(SERVICE_S * 1.5)
        assert house.sent() == [["a"], ["b", "c"]]
        if refusing == "drain":
            house.gateway.orders.drain()
        else:
            house.reload(queue={"max_external_depth": 0})
        await check_all(tickets)
        assert house.sent() == [["a"], ["b", "c"], ["b"], ["c"]]


@in_embedding_house()
async def test_an_interrupted_call_is_made_again_and_each_member_says_so(house: EmbeddingHouse):
    house.reload(queue={"max_interrupt_count": 1}, embeddings={"max_inputs": 2}, scheduling={"preempt_restart_bound_s": 0.0})
    house.ask("a")
    tickets = {text: house.ask(text) for text in "bc"}
    await sleep_until(1.5 * SERVICE_S)
    urgent = house.ask("u", lane=Lane.INTERNAL, priority=Priority.CRITICAL)
    await check_all(tickets)
    assert house.sent() == [["a"], ["b", "c"], ["u"], ["b", "c"]]
    assert [event.request_id for event in house.events.of(ItemInterrupted)] == ["req_b", "req_c"]
    assert [(event.request_id, event.interrupt_count) for event in house.events.of(ItemProtected)] == [("req_b", 1), ("req_c", 1)]
    assert [end.interrupt_count for end in house.events.of(ItemEnded) if end.request_id in {"req_b", "req_c"}] == [1, 1]
    assert await vector_in(urgent) == vector_of("u")


@in_embedding_house(max_wait_ms=1000.0)
async def test_a_full_queue_refuses_all_who_wait_for_the_call_each_with_an_error_of_its_own(house: EmbeddingHouse):
    house.ask("a")
    tickets = [house.ask(text) for text in "bc"]
    house.reload(queue={"max_external_depth": 0}, embeddings={"max_inputs": 3})
    tickets.append(house.ask("d"))
    errors = await asyncio.gather(*(ticket.reply.head() for ticket in tickets), return_exceptions=True)
    assert [type(error) for error in errors] == [QueueFull] * 3
    assert len(set(map(id, errors))) == 3
    assert all(isinstance(error, HearthError) and error.retry_after_s for error in errors)
    await sleep_until(1.0)
    assert house.gateway.embeddings.status() == {"held": 0, "calls_under_way": 0}


@in_embedding_house(parallel=2, max_wait_ms=10_000.0)
async def test_a_stop_sends_what_is_held_and_what_runs_gets_its_grace(house: EmbeddingHouse):
    tickets = {text: house.ask(text) for text in "abc"}
    stopping = asyncio.ensure_future(house.gateway.stop(1.0))
    await settle()
    assert [event.why for event in house.events.of(EmbeddingsFlushed)] == ["alone", "stopping"]
    with pytest.raises(ShuttingDown):
        house.ask("d")
    await check_all(tickets)
    await stopping


@in_embedding_house(max_wait_ms=10_000.0)
async def test_a_stop_without_a_free_slot_tells_everybody_who_is_held(house: EmbeddingHouse):
    tickets = {text: house.ask(text) for text in "abc"}
    stopping = asyncio.ensure_future(house.gateway.stop(1.0))
    await check_all({"a": tickets.pop("a")})
    errors = await asyncio.gather(*(ticket.reply.head() for ticket in tickets.values()), return_exceptions=True)
    assert [type(error) for error in errors] == [ShuttingDown, ShuttingDown]
    await stopping


@in_embedding_house()
async def test_every_setting_is_in_force_with_the_next_call(house: EmbeddingHouse):
    tickets = {"a": house.ask("a"), "b": house.ask("b")}
    house.reload(embeddings={"max_inputs": 2, "max_wait_ms": 5.0})
    tickets |= {text: house.ask(text) for text in "cd"}
    house.reload(embeddings={"accumulate": False})
    tickets |= {text: house.ask(text) for text in "ef"}
    await check_all(tickets)
    flushed = [(event.inputs, event.why, event.held_s) for event in house.events.of(EmbeddingsFlushed)]
    assert flushed == [(1, "alone", 0.0), (2, "full", 0.0), (1, "timer", pytest.approx(0.005))]
