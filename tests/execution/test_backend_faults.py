"""The model server dies, hangs, lies or comes back changed: what callers get, how often a request
is sent, and how it heals by itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from hearth.errors import (
    AnswerCut,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    FirstByteTimeout,
    HearthError,
)
from hearth.events import (
    BackendAnswerUnexpected,
    BackendCameUp,
    BackendWentDown,
    GatewayStarted,
    ItemEnded,
    ItemResent,
    ModelUnresponsive,
    ResidencyDrifted,
)
from hearth.execution.executor import PROBE_S
from hearth.execution.request import Submission
from hearth.types import Dialect, Outcome, ResidentModel
from tests.support.fake_ollama import CallFault, FakeModel, FakeOllama
from tests.support.house import (
    FULL_TEXT,
    House,
    bodies_of,
    body_of,
    heard,
    in_house,
    in_loaded_house,
    new_item,
    settings_with,
    settle,
    text_of,
)
from tests.support.virtual_time import in_virtual_time, loop_s, sleep_until

CONTEXT_TOKENS = 20_000
UNLOAD_S = 0.5
LOAD_S = 2.0
SERVICE_S = 1.0
HEALED_S = UNLOAD_S + LOAD_S + SERVICE_S
SHORT_SILENCE = settings_with(ollama={"idle_timeout_s": 10.0})
TWO_SLOTS = settings_with(gpu={"parallel": 2})


async def whole(house: House, **wanted: object) -> bool:
    """Submit a request to `a`; whether it gets its whole answer."""
    return await house.answer("a", **wanted) == FULL_TEXT


# It is away.


@in_virtual_time
async def test_a_backend_down_at_the_start_fails_the_oldest_and_is_noticed_when_up():
    house = House("a")
    house.ollama.go_down()
    async with house:
        house.gateway.announce_start("http://127.0.0.1:8411")
        assert (
            house.events.of(GatewayStarted)[0].backend
            == "Ollama at http://fake (does not answer yet)"
        )
        early = house.submit("a")
        await sleep_until(4.0)
        late = house.submit("a")
        for ticket, fails_at in ((early, 10.0), (late, 14.0)):
            error = (await heard(ticket))[1]
            assert isinstance(error, BackendUnreachable)
            assert (house.now, error.status, bool(error.retry_after_s)) == (fails_at, 503, True)
        assert (house.ollama.calls, len(house.events.of(BackendWentDown))) == ([], 1)
        waiting = house.submit("a")
        await sleep_until(19.5)
        house.ollama.come_up()
        assert text_of(await body_of(waiting)) == FULL_TEXT
        assert (house.now, [event.down_s for event in house.events.of(BackendCameUp)]) == (
            20.0 + LOAD_S + SERVICE_S,
            [20.0],
        )
        assert house.gateway.ready() == (True, "")


@in_loaded_house
async def test_a_server_that_answers_oddly_is_down_and_says_how_once(house: House):
    odd = "GET /api/ps answered 404 with HTML."
    odder = "GET /api/ps answered 200 with null."
    await sleep_until(7.0)
    for problem in (odd, odder, odd, ""):
        house.ollama.list_oddly(problem)
        await sleep_until(house.now + 10.0)
        ready = (
            False,
            (
                "the model server at http://fake does not answer as Ollama does: "
                f"{problem.rstrip('.')}"
            ),
        )
        assert house.gateway.ready() == (ready if problem else (True, ""))
        shown: Any = house.gateway.health()["backend"]
        assert shown["problem"] == (problem or None)
    assert [(event.reason, event.problem) for event in house.events.of(BackendWentDown)] == [
        ("backend_protocol", odd)
    ]
    assert [event.problem for event in house.events.of(BackendAnswerUnexpected)] == [odder]


@in_loaded_house
async def test_a_backend_that_goes_down_while_idle_is_noticed_and_reported_once(house: House):
    await sleep_until(7.0)
    house.ollama.go_down()
    await sleep_until(20.0)
    assert house.gateway.ready()[0] is False
    house.ollama.come_up()
    await sleep_until(22.0)
    assert (
        house.gateway.ready()[0],
        len(house.events.of(BackendWentDown)),
        len(house.events.of(BackendCameUp)),
    ) == (True, 1, 2)
    assert await whole(house)
    assert house.now == 22.0 + LOAD_S + SERVICE_S


@pytest.mark.parametrize("back_at", [1.0, 6.0, None])
@in_loaded_house
async def test_a_killed_backend_serves_all_soon_after_its_return_or_fails_in_time(
    house: House, back_at
):
    tickets = [house.submit("a") for _ in range(2)]
    await sleep_until(0.5)
    house.ollama.go_down()
    if back_at is None:
        assert [type(error) for _, error in await asyncio.gather(*map(heard, tickets))] == [
            BackendUnreachable
        ] * 2
        ended = await house.end_of(tickets[0])
        assert (house.now, ended.backend_s, ended.queue_s) == (10.5, None, 10.5)
        return
    await sleep_until(back_at)
    assert house.gateway.ready()[0] is False
    house.ollama.come_up()
    assert [text_of(body) for body in await bodies_of(tickets)] == [FULL_TEXT] * 2
    assert {event.outcome for event in house.events.of(ItemEnded)} == {Outcome.COMPLETED}
    assert house.now <= back_at + 1.0 + LOAD_S + 2 * SERVICE_S


@in_house("a")
async def test_a_backend_that_is_killed_during_a_load_is_loaded_again_when_it_is_back(house: House):
    ticket = house.submit("a")
    await sleep_until(1.0)
    house.ollama.go_down()
    await sleep_until(5.0)
    house.ollama.come_up()
    assert text_of(await body_of(ticket)) == FULL_TEXT
    assert house.now == 5.0 + LOAD_S + SERVICE_S
    assert [(record.kind, record.at) for record in house.ollama.control] == [
        ("load", 0.0),
        ("load", 3.0),
        ("load", 5.0),
    ]


# An answer breaks.


@pytest.mark.parametrize(
    ("fault", "stream", "error", "says"),
    [
        (CallFault.GONE_BEFORE_HEAD, False, BackendGone, None),
        (CallFault.GONE_BEFORE_HEAD, True, BackendGone, None),
        (CallFault.GONE_MID_STREAM, False, BackendGone, None),
        (CallFault.NO_DONE, False, BackendProtocolError, None),
        (CallFault.RUNNER_DIED, False, BackendGone, "unexpected EOF"),
        (CallFault.RUNNER_DIED, True, BackendGone, "unexpected EOF"),
    ],
)
@in_loaded_house
async def test_what_breaks_before_the_first_byte_is_sent_once_more_and_then_fails(
    house: House, fault: CallFault, stream: bool, error: type[HearthError], says: str | None
):
    house.ollama.next_calls(fault, None, fault, fault)
    served = house.submit("a", stream=stream)
    failed = house.submit("a", stream=stream)
    assert text_of(await body_of(served)) == FULL_TEXT
    with pytest.raises(error, match=says):
        await body_of(failed)
    ends = [await house.end_of(ticket) for ticket in (served, failed)]
    assert [(end.outcome, end.attempts, end.reason) for end in ends] == [
        (Outcome.COMPLETED, 2, ""),
        (Outcome.FAILED, 2, error.reason),
    ]
    assert [event.reason for event in house.events.of(ItemResent)] == [error.reason] * 2
    assert (len(house.ollama.calls), house.gpu_status["executions_1h"]) == (4, 4)


@pytest.mark.parametrize(
    ("fault", "kind"), [(CallFault.GONE_MID_STREAM, BackendGone), (CallFault.NO_DONE, AnswerCut)]
)
@in_loaded_house
async def test_a_stream_that_breaks_or_ends_short_fails_and_is_not_sent_again(
    house: House, fault: CallFault, kind
):
    """Where it can go on, it does: tests/execution/test_resuming.py."""
    house.ollama.next_calls(fault)
    ticket = house.submit("a", stream=True)
    said, error = await heard(ticket)
    assert (text_of(said)[:11], type(error)) == (" alpha beta", kind)
    ended = await house.end_of(ticket)
    assert (ended.outcome, ended.reason, len(house.ollama.calls)) == (
        Outcome.FAILED,
        "backend_gone",
        1,
    )


@pytest.mark.parametrize(
    ("fault", "stream", "status"),
    [(CallFault.ERROR_LINE, True, 200), (CallFault.SERVER_ERROR, False, 500)],
)
@in_loaded_house
async def test_an_error_of_the_server_reaches_the_caller_as_it_is_and_counts(
    house: House, fault: CallFault, stream: bool, status: int
):
    house.ollama.next_calls(fault, CallFault.SERVER_ERROR)
    ticket = house.submit("a", stream=stream)
    assert (await ticket.reply.head()).status == status
    assert b'{"error":' in (await ticket.reply.body()).splitlines()[-1]
    ended = await house.end_of(ticket)
    assert (ended.outcome, ended.reason, ended.status, ended.attempts) == (
        Outcome.FAILED,
        "backend_error",
        status,
        1,
    )
    with pytest.raises(HearthError, match="500"):
        await (await house.worker.enqueue_internal("hello", "a"))


# It says nothing.


@pytest.mark.parametrize(
    ("stream", "more", "healed_at"),
    [
        (True, {}, 60.0 + HEALED_S),
        (True, {"prompt_tokens": 20_000}, 60.0 + 2 * 20.0 + HEALED_S),
        (False, {"max_tokens": 1}, 30.0 + PROBE_S + HEALED_S),
    ],
)
@in_loaded_house
async def test_a_model_that_stays_silent_is_unloaded_loaded_again_and_asked_once_more(
    house: House, stream, more, healed_at
):
    house.ollama.wedge("a:latest")
    ticket = house.submit("a", stream=stream, **more)
    assert text_of(await body_of(ticket)) == FULL_TEXT
    assert (house.now, [record.kind for record in house.ollama.control]) == (
        healed_at,
        ["unload", "load"],
    )
    assert (await house.end_of(ticket)).attempts == 2


@in_loaded_house
async def test_each_reload_for_silence_is_reported_with_its_count(house: House):
    for seconds in (0.0, 300.0, 400.0, 650.0, 5_000.0):
        await sleep_until(seconds)
        house.ollama.wedge("a:latest")
        assert await house.answer("a", stream=True) == FULL_TEXT
    assert [event.reloads for event in house.events.of(ModelUnresponsive)] == [1, 2, 3, 3, 1]
    assert {event.model for event in house.events.of(ModelUnresponsive)} == {"a:latest"}


@in_loaded_house
async def test_a_model_that_stays_silent_twice_fails_the_request_and_serves_the_next(house: House):
    house.ollama.next_calls(CallFault.SILENT, CallFault.SILENT)
    ticket = house.submit("a", stream=True)
    other = house.submit("a", stream=True)
    error = (await heard(ticket))[1]
    assert isinstance(error, FirstByteTimeout)
    assert (error.status, text_of(await body_of(other)), len(house.ollama.calls)) == (
        504,
        FULL_TEXT,
        3,
    )


@pytest.mark.parametrize(
    ("max_tokens", "set_s", "limit_s"),
    [(1, None, 30.0), (500, None, 100.0), (None, None, 2 * CONTEXT_TOKENS / 10), (500, 7.0, 7.0)],
)
@in_virtual_time
async def test_a_whole_answer_gets_twice_its_longest_time_and_its_model_stays(
    max_tokens: int | None, set_s: float | None, limit_s: float
):
    model = FakeModel(name="a", context_tokens=CONTEXT_TOKENS)
    async with House(model, settings=settings_with(ollama={"answer_timeout_s": set_s})) as house:
        await house.gateway.orders.load("a")
        await sleep_until(began_at := 5.0)
        house.ollama.next_calls(CallFault.SILENT)
        assert isinstance(
            (await heard(house.submit("a", max_tokens=max_tokens)))[1], BackendTimeout
        )
        assert (house.now, [record.kind for record in house.ollama.control]) == (
            began_at + limit_s,
            ["load"],
        )


@pytest.mark.parametrize("stream", [False, True])
@in_loaded_house
async def test_a_slot_that_a_cut_stream_took_with_it_is_missed_within_10_s(
    house: House, stream: bool
):
    cut = house.submit("a", stream=True, service_s=20.0, first_byte_s=1.0, chunks=20)
    await sleep_until(5.0)
    house.cancel(cut)
    house.ollama.wedge("a:latest")
    assert await whole(house, stream=stream)
    assert house.now == 5.0 + PROBE_S + HEALED_S
    assert await whole(house, stream=stream)
    assert len(house.ollama.probes) == 1


@in_house(FakeModel(name="a", parallel=2), resident="a", settings=TWO_SLOTS)
async def test_a_model_that_others_run_on_is_not_asked_whether_it_works(house: House):
    cut, running = (
        house.submit("a", stream=True, service_s=20.0, first_byte_s=1.0, chunks=20)
        for _ in range(2)
    )
    await sleep_until(5.0)
    house.cancel(cut)
    assert await whole(house, stream=True)
    assert house.ollama.probes == []
    await body_of(running)


@in_house(settings=SHORT_SILENCE)
async def test_a_silent_stream_ends_within_twice_its_timeout_and_a_slow_one_lives(house: House):
    body = await body_of(house.submit("a", stream=True, service_s=200.0, chunks=25, max_tokens=1))
    assert (len(body.splitlines()), house.now) == (26, 200.0)
    house.ollama.next_calls(CallFault.STALL)
    assert isinstance((await heard(house.submit("a", stream=True)))[1], BackendTimeout)
    assert 210.0 < house.now <= 220.1
    assert house.ollama.calls[1].ended_at == house.now
    assert await whole(house)


class Listless(FakeOllama):
    """Answers, and says nothing about its models."""

    async def resident(self) -> tuple[ResidentModel, ...]:
        if loop_s() > 1.0:
            raise BackendTimeout
        return await super().resident()


@in_house(ollama=Listless)
async def test_a_server_that_answers_is_not_down_because_a_model_hangs(house: House):
    await sleep_until(20.0)
    assert house.gateway.ready() == (True, "")
    assert [*house.events.of(BackendWentDown), *house.events.of(ResidencyDrifted)] == []
    assert await whole(house)


# Its memory is not what it was.


def drifts(house: House) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    return [(event.appeared, event.vanished) for event in house.events.of(ResidencyDrifted)]


@in_loaded_house
async def test_a_model_that_vanishes_is_missed_at_the_check_or_after_its_work(house: House):
    ticket = house.submit("a", stream=True, service_s=12.0)
    await sleep_until(1.0)
    house.ollama.vanish("a:latest")
    await body_of(ticket)
    assert drifts(house) == []
    await sleep_until(17.0)
    assert drifts(house) == [((), ("a:latest",))]
    assert await whole(house)
    assert house.now == 17.0 + LOAD_S + SERVICE_S
    await sleep_until(21.0)
    house.ollama.vanish("a:latest")
    await sleep_until(26.0)
    assert len(drifts(house)) == 2


@in_house("a", "b", resident="a", capacity_mib=20_000.0)
async def test_a_model_that_somebody_else_loaded_is_used_as_it_is(house: House):
    assert await whole(house)
    house.ollama.appear("b:latest")
    new = new_item("a")
    expected: dict[Dialect, list[Any]] = {"ollama": [], "openai": [(("b:latest",), ())]}
    for dialect, seen in expected.items():
        await body_of(
            house.worker.submit(Submission(item=replace(new.item, dialect=dialect), call=new.call))
        )
        await settle()
        assert (drifts(house), house.now < 5.0) == (seen, True)
    await house.answer("b")
    assert house.ollama.control == []
