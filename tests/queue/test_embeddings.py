"""When calls go together, what becomes of each, and what one of them can do to the others."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter

import pytest

from hearth.config.settings import AgingSettings
from hearth.errors import BackendGone, CallerGone, QueueFull, ShuttingDown
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
from hearth.queue.embeddings import MOST_UNDER_WAY
from hearth.types import (
    SEVERAL_CALLERS,
    BackendCall,
    Lane,
    LoadOptions,
    Outcome,
    Priority,
    RequestId,
    Sequence,
)
from tests.queue.embedding_house import (
    OPENAI,
    SERVICE_S,
    EmbeddingHouse,
    check_all,
    in_embedding_house,
    vector_in,
)
from tests.support.cases import for_each
from tests.support.fake_exchange import CallFault, CallRecord, FakeExchange
from tests.support.fake_ollama import FakeOllama
from tests.support.fields import Fields
from tests.support.house import body_of, settle
from tests.support.ollama_wire import vector_of
from tests.support.virtual_time import in_virtual_time, sleep_until

LATE = {"max_wait_ms": 1000.0}
LONG = {"max_wait_ms": 10_000.0}
ERROR = CallFault.SERVER_ERROR
GONE = CallFault.GONE_BEFORE_HEAD
SILENT = CallFault.SILENT
BANDS = {"!": Priority.CRITICAL, "^": Priority.NORMAL, "~": Priority.BACKGROUND}


class Forgetful(FakeOllama):
    """Leaves the last vector out where there are several."""

    def _exchange(
        self, call: BackendCall, body: Fields, record: CallRecord, fault: CallFault | None
    ) -> FakeExchange:
        given = body.get("input")
        return super()._exchange(
            call, {**body, "input": given[:-1]} if isinstance(given, list) else body, record, fault
        )


class Broken(FakeOllama):
    """Hangs up on whoever has a model loaded."""

    async def load(self, model: str, options: LoadOptions) -> None:
        raise BackendGone


async def lived(house: EmbeddingHouse, script: str) -> dict[str, Ticket]:
    """Each small letter of a word is a call for one model and a large one for another, internal
    with `!^~`; `+0.1` lets time pass, `-b` is the end of a caller's connection, `at_most=0` a limit
    of the queue.
    """
    tickets = dict[str, Ticket]()
    for word in script.split():
        name, _, value = word.partition("=")
        if name == "at_most":
            house.reload(queue={"max_external_depth": int(value)})
        elif word.startswith("+"):
            await sleep_until(house.now + float(word))
        elif word.startswith("-"):
            tickets[word[1:]].reply.abandon()
        elif word == "stop":
            await house.gateway.stop(1.0)
        elif word in {"down", "drain"}:
            {"down": house.ollama.go_down, "drain": house.gateway.orders.drain}[word]()
        else:
            band: Fields = (
                {"lane": Lane.INTERNAL, "priority": BANDS[word[-1]]} if word[-1] in BANDS else {}
            )
            for text in re.findall("[a-zA-Z]", word):
                tickets[text] = house.ask(text, "other" if text.isupper() else "emb", **band)
        await settle()
    return tickets


@for_each(
    ("keys", "faults", "script", "sent", "flushed", "others"),
    [
        # Held calls go when they are full, old or in the way.
        (
            {"max_inputs": 3} | LATE,
            (),
            "abcdefgh",
            "a bcd efg h",
            "alone@0 full@0 full@0 idle@0.6",
            "",
        ),
        ({}, (), "ab +0.03 c +0.03 d", "a bc d", "alone@0 timer@0.05 timer@0.11", ""),
        (LATE, (), "abC", "a b C", "alone@0 other_model@0 alone@0", ""),
        (LONG, (), "abc drain", "a bc", "alone@0 stopping@0", ""),
        (LATE, (), "abcd", "a bcd", "alone@0 idle@0.2", ""),
        # Internal bands do not mix, and critical work waits for nobody.
        (LATE, (), "ab^ cd~ ef!", "a e f b c d", None, ""),
        # Who leaves takes nobody along, and costs nothing before the call is sent; the last one
        # ends the call.
        ({"max_inputs": 3}, (), "abcd -c", "a bd", None, "c:cancelled*0"),
        ({"max_inputs": 3}, (), "abcd +0.3 -b", "a bcd", None, "b:cancelled"),
        ({"max_inputs": 2}, (), "abc +0.1 -b -c", "a", None, "b:cancelled*0 c:cancelled*0"),
        ({"max_inputs": 2}, (), "abc +0.3 -b -c d", "a bc d", None, "b:cancelled c:cancelled"),
        # What one input can spoil for all is asked again one by one; the model server's own trouble
        # is everybody's.
        (
            {},
            (None, ERROR, None, ERROR),
            "abcd",
            "a bcd b c d",
            None,
            "b*2 c:backend_error*2 d*2 parted:status_500",
        ),
        (
            {},
            (None, GONE, GONE, None, GONE, GONE),
            "abcd",
            "a bcd bcd b c c d",
            None,
            "b*3 c:backend_gone*4 d*3 parted:backend_gone",
        ),
        (
            {},
            (None, SILENT, SILENT),
            "abc",
            "a bc bc b c",
            None,
            "b*3 c*3 parted:first_byte_timeout",
        ),
        ({}, (None, GONE), "abc", "a bc bc", None, "b*2 c*2"),
        (
            {},
            (),
            "a +0.3 down bcd",
            "a b",
            None,
            "b:backend_unreachable c:backend_unreachable*0 d:backend_unreachable*0",
        ),
        ({"ollama": Forgetful}, (), "abc", "a bc b c", None, "b*2 c*2 parted:unknown_answer"),
        (
            {"ollama": Broken},
            (),
            "ABC",
            "",
            None,
            "A:backend_gone*0 B:backend_gone*0 C:backend_gone*0 parted:backend_gone",
        ),
        # Who was accepted is asked for again whatever the door says meanwhile.
        (
            {"ollama": Forgetful},
            (),
            "abc +0.3 drain",
            "a bc b c",
            None,
            "b*2 c*2 parted:unknown_answer",
        ),
        (
            {"ollama": Forgetful},
            (),
            "abc +0.3 at_most=0",
            "a bc b c",
            None,
            "b*2 c*2 parted:unknown_answer",
        ),
        # Who joins a call needs no room of their own.
        (LATE | {"max_inputs": 3}, (), "abc at_most=0 d", "a bcd", "alone@0 idle@0.2", ""),
        # Few calls that are alike are in the queue at once; who leaves before leaves nothing
        # behind.
        (
            {"max_inputs": 2} | LATE,
            (),
            "abcdefghijklm",
            "a bc de fg hi jk lm",
            "alone@0 full@0 full@0 full@0 full@0.2 full@0.4 full@0.6",
            "",
        ),
        (
            {"max_inputs": 2} | LATE,
            (),
            "abcdefghijkl -h -i -l",
            "a bc de fg jk",
            None,
            "h:cancelled*0 i:cancelled*0 l:cancelled*0",
        ),
        (
            {"max_inputs": 2, "parallel": 9} | LONG,
            (),
            "abcdefghijkl stop",
            "a bc de fg hi jk l",
            None,
            "",
        ),
        # A stop sends what is held; without a free slot they are told.
        (LONG | {"parallel": 2}, (), "abc stop", "a bc", "alone@0 stopping@0", ""),
        (LONG, (), "abc stop", "a", None, "b:shutting_down*0 c:shutting_down*0"),
    ],
)
@in_virtual_time
async def test_calls_share_a_call_of_the_model_server_and_each_gets_its_own_answer(
    keys: Fields,
    faults: tuple[CallFault | None, ...],
    script: str,
    sent: str,
    flushed: str | None,
    others: str,
):
    """`others`: those who have not simply got their answer at the first attempt, with the reason
    and the number of attempts.
    """
    async with EmbeddingHouse(**keys) as house:
        house.ollama.next_calls(*faults)
        tickets = await lived(house, script)
        await sleep_until(1000.0)
        assert " ".join("".join(inputs) for inputs in house.sent()) == sent
        ends = {end.request_id[-1]: end for end in house.events.of(ItemEnded)}
        assert ends.keys() == tickets.keys()
        await check_all(
            {
                text: ticket
                for text, ticket in tickets.items()
                if ends[text].outcome is Outcome.COMPLETED
            }
        )
        told = []
        for text, end in ends.items():
            again = f"*{end.attempts}" if end.attempts != 1 else ""
            told.append(f"{text}{end.reason and ':'}{end.reason}{again}")
        told = sorted(each for each in told if len(each) > 1) + [
            f"parted:{event.reason}" for event in house.events.of(EmbeddingsParted)
        ]
        assert " ".join(told) == others
        resent = Counter(event.request_id[-1] for event in house.events.of(ItemResent))
        for text, end in ends.items():
            assert (end.outcome is Outcome.CANCELLED) == (
                end.reason in {"cancelled", "shutting_down"}
            ), end
            assert resent[text] <= end.attempts
            assert end.outcome is not Outcome.COMPLETED or resent[text] == end.attempts - 1, (
                "it is said once for each attempt but the first"
            )
        errors = [
            ticket.reply._error for ticket in tickets.values() if ticket.reply._error is not None
        ]
        assert len(set(map(id, errors))) == len(errors), "each has an error of its own"
        calls = [
            f"{event.why}@{round(event.at, 6):g}" for event in house.events.of(EmbeddingsFlushed)
        ]
        assert flushed in {None, " ".join(calls)}, calls
        assert house.gateway.embeddings.status() == {"held": 0, "calls_under_way": 0}


@in_embedding_house(**LATE)
async def test_a_lone_call_goes_as_it_was_sent_and_a_shared_one_says_so(house: EmbeddingHouse):
    tickets = await lived(house, "abc")
    await check_all(tickets)
    alone, together = house.ollama.calls
    assert (alone.body, (b"user-agent", b"test") in alone.headers) == (
        b'{"model": "emb:latest", "input": "a"}',
        True,
    )
    assert together.headers == ((b"content-type", b"application/json"),)
    merged = [
        dict((await ticket.reply.head()).headers).get(b"x-hearth-merged")
        for ticket in tickets.values()
    ]
    assert merged == [None, b"2", b"2"]
    assert [event.held_s for event in house.events.of(EmbeddingsFlushed)] == [
        0.0,
        pytest.approx(SERVICE_S),
    ]


@pytest.mark.parametrize(
    "different",
    [
        {"dimensions": 8},
        {"truncate": False},
        {"path": OPENAI},
        {"lane": Lane.INTERNAL},
        {"task_type": "indexing"},
    ],
)
@in_embedding_house(**LATE)
async def test_calls_that_differ_in_anything_but_the_input_do_not_mix(
    house: EmbeddingHouse, different
):
    tickets = [
        house.ask("a"),
        house.ask("b"),
        house.ask("c"),
        house.ask("d", **different),
        house.ask("e", **different),
    ]
    await asyncio.gather(*(ticket.reply.head() for ticket in tickets))
    assert {tuple(sent) for sent in house.sent()} == {("a",), ("b", "c"), ("d",), ("e",)}


@in_embedding_house()
async def test_an_openai_caller_gets_an_answer_of_its_own(house: EmbeddingHouse):
    for text, ticket in {text: house.ask(text, path=OPENAI) for text in "abc"}.items():
        body = await body_of(ticket)
        assert json.loads(body)["data"] == [
            {"object": "embedding", "embedding": vector_of(text), "index": 0}
        ]
        assert dict((await ticket.reply.head()).headers)[b"content-length"] == b"%d" % len(body)


@in_embedding_house(max_wait_ms=100.0)
async def test_every_member_is_an_item_of_its_own_in_events_and_the_call_is_none(
    house: EmbeddingHouse,
):
    house.ask("a")
    await sleep_until(0.05)
    tickets = [
        house.ask("bbb", caller="one", request_id="req_one"),
        house.ask("c", caller="two", request_id="req_two"),
    ]
    await asyncio.gather(*(ticket.reply.head() for ticket in tickets))
    await settle()
    ends = house.events.of(ItemEnded)[1:]
    # the fake counts 10 tokens for any call
    told = [(end.sequence, end.caller, end.request_id, end.prompt_tokens) for end in ends]
    assert told == [
        (tickets[0].sequence, "one", "req_one", 7),
        (tickets[1].sequence, "two", "req_two", 3),
    ]
    for end in ends:
        assert (end.queue_s, end.backend_s, end.total_s) == pytest.approx(
            (SERVICE_S - 0.05, SERVICE_S, 2 * SERVICE_S - 0.05)
        )
        assert end.waited_for == pytest.approx({"batching": 0.1, "slot": SERVICE_S - 0.15})
    assert len(house.events.of(ItemQueued)) == len(house.events.of(ItemDispatched)) == 3


@pytest.mark.parametrize(("other", "shown_as"), [("two", SEVERAL_CALLERS), ("one", "one")])
@in_virtual_time
async def test_status_shows_one_item_with_its_inputs_and_each_member_can_be_looked_up(
    other, shown_as
):
    async with EmbeddingHouse(max_inputs=2) as house:
        house.ask("a")
        members = [house.ask("b", caller="one"), house.ask("c", caller=other)]
        held = house.ask("d")
        await settle()
        (shown,) = house.status["external_queue"]["next_items"]
        assert (shown["inputs"], shown["caller"], shown["prompt_tokens"]) == (2, shown_as, 2)
        found = [house.worker.get_item(ticket.sequence) or {} for ticket in (*members, held)]
        assert [(item["state"], item["carried_by"]) for item in found] == [
            ("waiting", shown["sequence"])
        ] * 2 + [("held", None)]
        assert house.gateway.embeddings.status() == {"held": 1, "calls_under_way": 2}
        await vector_in(members[0])
        await settle()
        assert (house.worker.get_item(members[0].sequence) or {})["state"] == "completed"


@in_embedding_house(max_inputs=4)
async def test_one_request_of_a_shared_call_can_be_cancelled_or_all_of_it(house: EmbeddingHouse):
    tickets = {
        text: house.ask(text, caller=caller)
        for text, caller in zip("abcde", ("one", "one", "one", "two", "two"), strict=True)
    }
    await sleep_until(1.5 * SERVICE_S)
    assert [house.worker.cancel_request(RequestId("req_b"), caller="one") for _ in range(2)] == [
        True,
        True,
    ]
    assert house.worker.cancel_request(RequestId("req_d"), caller="one") is None
    (end,) = (end for end in house.events.of(ItemEnded) if end.request_id == "req_b")
    assert (end.queue_s, end.backend_s, end.total_s) == pytest.approx(
        (SERVICE_S, 0.5 * SERVICE_S, 1.5 * SERVICE_S)
    )
    assert sum((end.waited_for or {}).values()) == pytest.approx(SERVICE_S)
    assert (await house.gateway.cancel_caller("one"))[0] == ("req_c",)
    assert [await house.gateway.cancel_item(tickets["d"].sequence) for _ in range(2)] == [
        True,
        True,
    ]
    assert not tickets["e"].reply.ended
    shared = (house.worker.get_item(tickets["e"].sequence) or {})["carried_by"]
    assert await house.gateway.cancel_item(Sequence(int(str(shared))))
    for text in "bcde":
        with pytest.raises(CallerGone):
            await tickets[text].reply.head()
    assert await house.gateway.cancel_item(tickets["a"].sequence) is False
    assert await house.gateway.cancel_item(Sequence(99)) is False


@in_embedding_house()
async def test_what_happens_to_a_call_is_said_of_each_member(house: EmbeddingHouse):
    house.reload(
        embeddings={"max_inputs": 2},
        scheduling={"aging": AgingSettings(promote_after_s=SERVICE_S / 2)},
    )
    await check_all(
        {text: house.ask(text, lane=Lane.INTERNAL, priority=Priority.BACKGROUND) for text in "abc"}
    )
    assert [(event.request_id, event.band) for event in house.events.of(ItemPromoted)] == [
        ("req_b", "normal"),
        ("req_c", "normal"),
    ]
    house.ollama.next_calls(None, CallFault.GONE_BEFORE_HEAD)
    await check_all({text: house.ask(text) for text in "def"})
    assert [(event.request_id, event.attempt) for event in house.events.of(ItemResent)] == [
        ("req_e", 1),
        ("req_f", 1),
    ]
    house.reload(
        queue={"max_interrupt_count": 1},
        embeddings={"max_inputs": 2},
        scheduling={"preempt_restart_bound_s": 0.0},
    )
    tickets = {text: house.ask(text) for text in "ghi"}
    await sleep_until(house.now + 1.5 * SERVICE_S)
    urgent = house.ask("u", lane=Lane.INTERNAL, priority=Priority.CRITICAL)
    await check_all(tickets | {"u": urgent})
    assert house.sent()[-4:] == [["g"], ["h", "i"], ["u"], ["h", "i"]]
    interrupted = house.events.of(ItemInterrupted)
    protected = house.events.of(ItemProtected)
    assert [event.request_id for event in interrupted] == ["req_h", "req_i"]
    assert [(event.request_id, event.interrupt_count) for event in protected] == [
        ("req_h", 1),
        ("req_i", 1),
    ]
    assert [
        end.interrupt_count
        for end in house.events.of(ItemEnded)
        if end.request_id in {"req_h", "req_i"}
    ] == [1, 1]


@in_embedding_house()
async def test_a_lone_call_that_is_refused_holds_nobody_back(house: EmbeddingHouse):
    house.reload(queue={"max_external_depth": 0})
    with pytest.raises(QueueFull):
        house.ask("a")
    house.reload()
    assert await vector_in(house.ask("b")) == vector_of("b")
    assert [event.why for event in house.events.of(EmbeddingsFlushed)] == ["alone"]
    running = house.ask("c")
    stopping = asyncio.ensure_future(house.gateway.stop(1.0))
    await settle()
    with pytest.raises(ShuttingDown):
        house.ask("d")
    await check_all({"c": running})
    await stopping


@in_embedding_house()
async def test_every_setting_is_in_force_with_the_next_call(house: EmbeddingHouse):
    tickets = {"a": house.ask("a"), "b": house.ask("b")}
    house.reload(embeddings={"max_inputs": 2, "max_wait_ms": 5.0})
    tickets |= {text: house.ask(text) for text in "cd"}
    house.reload(embeddings={"accumulate": False})
    tickets |= {text: house.ask(text) for text in "ef"}
    await check_all(tickets)
    flushed = [
        (event.inputs, event.why, event.held_s) for event in house.events.of(EmbeddingsFlushed)
    ]
    assert flushed == [(1, "alone", 0.0), (2, "full", 0.0), (1, "timer", pytest.approx(0.005))]


@in_embedding_house(max_inputs=4, **LATE)
async def test_inputs_that_share_a_call_count_once_for_each_caller_in_it(house: EmbeddingHouse):
    tickets = {
        text: house.ask(text, caller=caller)
        for text, caller in zip(
            "abcdefgh", ("me", *["me"] * 3, "you", "me", "you", "you"), strict=True
        )
    }
    await check_all(tickets)
    assert house.sent() == [["a"], ["b", "c", "d", "e"], ["f", "g", "h"]]
    assert house.counted == ["a", "b", "e", "f", "g"]
    ended = {event.request_id: event.counted for event in house.events.of(ItemEnded)}
    assert {name for name, counted in ended.items() if counted is None} == {
        "req_c",
        "req_d",
        "req_h",
    }
    assert sum(event.counted is None for event in house.events.of(ItemQueued)) == 3


@in_embedding_house(max_inputs=2, **LATE)
async def test_a_full_queue_refuses_who_would_be_the_first_of_a_call(house: EmbeddingHouse):
    tickets = {text: house.ask(text) for text in "abc"}
    house.reload(queue={"max_external_depth": 0}, embeddings={"max_inputs": 2})
    with pytest.raises(QueueFull):
        house.ask("d")
    await check_all(tickets)


@in_embedding_house(**LATE)
async def test_a_thousand_inputs_are_all_answered_beside_a_queue_with_room(house: EmbeddingHouse):
    house.reload(queue={"max_external_depth": 20})
    tickets = {
        f"chunk {number}": house.ask(f"chunk {number}", request_id=f"req_{number}")
        for number in range(1000)
    }
    await settle()
    assert len(house.worker.scheduler.gateway.entries) == MOST_UNDER_WAY
    other = house.submit("other", caller="somebody else")
    await check_all(tickets)
    await body_of(other)
    assert len(house.counted) == 1 + -(-999 // 8)
