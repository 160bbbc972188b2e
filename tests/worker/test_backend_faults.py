"""The model server dies, hangs, lies or comes back changed: what callers get, how often a request is sent, and how it heals by itself."""

from __future__ import annotations

import asyncio

import pytest

from hearth.errors import BackendGone, BackendProtocolError, BackendTimeout, BackendUnreachable, FirstByteTimeout, HearthError
from hearth.events import BackendCameUp, BackendWentDown, GatewayStarted, ItemResent, ResidencyDrifted
from hearth.execution.executor import PROBE_S
from hearth.types import Outcome, ResidentModel
from tests.support.cases import for_each
from tests.support.fake_ollama import CallFault, FakeModel, FakeOllama
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, read_into, settings_with, text_of

CONTEXT_TOKENS = 20_000


@in_virtual_time
async def test_a_backend_that_is_down_at_the_start_fails_what_waited_long_enough_and_nothing_else():
    house = House("a")
    house.ollama.go_down()
    async with house:
        early = house.submit("a")
        await sleep_until(4.0)
        late = house.submit("a")
        with pytest.raises(BackendUnreachable) as refused:
            await body_of(early)
        assert (house.now, refused.value.status, bool(refused.value.retry_after_s)) == (10.0, 503, True)
        with pytest.raises(BackendUnreachable):
            await body_of(late)
        assert house.now == 14.0
        assert house.ollama.calls == []
        assert len(house.events.of(BackendWentDown)) == 1


@in_virtual_time
async def test_the_start_names_a_backend_whose_version_nobody_knows():
    house = House("a")
    house.ollama.go_down()
    async with house:
        house.gateway.announce_start("http://127.0.0.1:8411")
        assert house.events.of(GatewayStarted)[0].backend == "Ollama at http://fake"


@in_virtual_time
async def test_a_backend_that_comes_up_late_is_noticed_within_a_second_and_serves_who_still_waits():
    house = House("a")
    house.ollama.go_down()
    async with house:
        ticket = house.submit("a")
        await sleep_until(5.5)
        house.ollama.come_up()
        assert text_of(await body_of(ticket)) == FULL_TEXT
        assert house.now == 6.0 + 2.0 + 1.0
        (came_up,) = house.events.of(BackendCameUp)
        assert came_up.down_s == 6.0
        assert house.gateway.ready() == (True, "")


@in_virtual_time
async def test_a_backend_that_goes_down_while_idle_is_noticed_and_reported_once():
    async with House("a", resident=("a",)) as house:
        await sleep_until(7.0)
        house.ollama.go_down()
        await sleep_until(20.0)
        assert house.gateway.ready()[0] is False
        house.ollama.come_up()
        await sleep_until(22.0)
        assert house.gateway.ready()[0] is True
        assert (len(house.events.of(BackendWentDown)), len(house.events.of(BackendCameUp))) == (1, 2)
        await body_of(house.submit("a"))
        assert house.now == 22.0 + 2.0 + 1.0


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_an_attempt_that_breaks_before_its_first_byte_is_sent_once_more(stream: bool):
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.GONE_BEFORE_HEAD)
        ticket = house.submit("a", stream=stream)
        assert text_of(await body_of(ticket)) == FULL_TEXT
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.attempts) == (Outcome.COMPLETED, 2)
        assert [event.reason for event in house.events.of(ItemResent)] == ["backend_gone"]
        assert house.gpu_status["executions_1h"] == 2


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_an_attempt_that_breaks_twice_fails_with_what_broke_it(stream: bool):
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(*[CallFault.GONE_BEFORE_HEAD] * 2)
        ticket = house.submit("a", stream=stream)
        with pytest.raises(BackendGone):
            await body_of(ticket)
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.attempts, ended.reason) == (Outcome.FAILED, 2, "backend_gone")
        assert len(house.ollama.calls) == 2


@in_virtual_time
async def test_a_whole_answer_that_breaks_in_the_middle_is_asked_for_again_unnoticed():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.GONE_MID_STREAM)
        assert text_of(await body_of(house.submit("a"))) == FULL_TEXT
        assert len(house.ollama.calls) == 2


@pytest.mark.parametrize("fault", [CallFault.GONE_MID_STREAM, CallFault.NO_DONE])
@in_virtual_time
async def test_a_stream_that_breaks_or_ends_short_fails_after_its_chunks_and_is_not_sent_again(fault: CallFault):
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(fault)
        ticket = house.submit("a", stream=True)
        seen: list[bytes] = []
        with pytest.raises(BackendGone):
            await read_into(seen, ticket)
        assert text_of(b"".join(seen)).startswith(" alpha beta")
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.reason, len(house.ollama.calls)) == (Outcome.FAILED, "backend_gone", 1)


@in_virtual_time
async def test_a_whole_answer_without_a_body_is_no_answer_and_is_asked_for_again():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.NO_DONE, None, CallFault.NO_DONE, CallFault.NO_DONE)
        assert text_of(await body_of(house.submit("a"))) == FULL_TEXT
        with pytest.raises(BackendProtocolError):
            await body_of(house.submit("a"))
        assert len(house.ollama.calls) == 4


@in_virtual_time
async def test_an_error_line_at_the_end_of_a_stream_goes_to_the_caller_as_it_is():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.ERROR_LINE)
        ticket = house.submit("a", stream=True)
        body = await body_of(ticket)
        assert b'{"error":' in body.splitlines()[-1]
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.reason, ended.attempts) == (Outcome.FAILED, "backend_error", 1)


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_an_answer_that_the_model_died_over_is_asked_for_once_more_and_then_told_in_the_servers_words(stream: bool):
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.RUNNER_DIED, None, CallFault.RUNNER_DIED, CallFault.RUNNER_DIED)
        assert text_of(await body_of(house.submit("a", stream=stream))) == FULL_TEXT
        with pytest.raises(BackendGone, match="unexpected EOF"):
            await body_of(house.submit("a", stream=stream))
        assert len(house.ollama.calls) == 4


@in_virtual_time
async def test_an_error_status_goes_to_the_caller_as_it_is_and_counts_as_failed():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.SERVER_ERROR)
        ticket = house.submit("a")
        head = await ticket.reply.head()
        assert (head.status, b"error" in await ticket.reply.body()) == (500, True)
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.status, ended.attempts) == (Outcome.FAILED, 500, 1)


@in_virtual_time
async def test_an_error_status_becomes_an_exception_in_process():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.SERVER_ERROR)
        with pytest.raises(HearthError, match="500"):
            await (await house.worker.enqueue_internal("hello", "a"))


@in_virtual_time
async def test_a_model_that_stays_silent_is_unloaded_loaded_again_and_asked_once_more():
    async with House("a", resident=("a",)) as house:
        house.ollama.wedge("a:latest")
        ticket = house.submit("a", stream=True)
        assert text_of(await body_of(ticket)) == FULL_TEXT
        assert house.now == 60.0 + 0.5 + 2.0 + 1.0
        assert [record.kind for record in house.ollama.control] == ["unload", "load"]
        assert (await house.end_of(ticket)).attempts == 2


@in_virtual_time
async def test_a_model_that_stays_silent_twice_fails_the_request_and_serves_the_next():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.SILENT, CallFault.SILENT)
        ticket, other = house.submit("a", stream=True), house.submit("a", stream=True)
        with pytest.raises(FirstByteTimeout) as failed:
            await body_of(ticket)
        assert failed.value.status == 504
        assert text_of(await body_of(other)) == FULL_TEXT
        assert len(house.ollama.calls) == 3


@for_each(("max_tokens", "set_s", "limit_s"), [(1, None, 30.0), (500, None, 100.0), (None, None, 2 * CONTEXT_TOKENS / 10), (500, 7.0, 7.0)])
@in_virtual_time
async def test_a_whole_answer_gets_twice_the_time_that_its_length_can_take_and_its_healthy_model_stays_loaded(
    max_tokens: int | None, set_s: float | None, limit_s: float
):
    model = FakeModel(name="a", context_tokens=CONTEXT_TOKENS)
    async with House(model, settings=settings_with(ollama={"answer_timeout_s": set_s})) as house:
        await house.gateway.orders.load("a")
        await sleep_until(began_at := 5.0)
        house.ollama.next_calls(CallFault.SILENT)
        with pytest.raises(BackendTimeout):
            await body_of(house.submit("a", max_tokens=max_tokens))
        assert house.now == began_at + limit_s
        assert [record.kind for record in house.ollama.control] == ["load"]


@in_virtual_time
async def test_a_whole_answer_that_a_stuck_model_owes_is_asked_for_again_from_a_fresh_one():
    async with House("a", resident=("a",)) as house:
        house.ollama.wedge("a:latest")
        assert text_of(await body_of(house.submit("a", max_tokens=1))) == FULL_TEXT
        assert house.now == 30.0 + PROBE_S + 0.5 + 2.0 + 1.0


@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_a_slot_that_a_cut_stream_took_with_it_is_missed_within_10_s(stream: bool):
    async with House("a", resident=("a",)) as house:
        cut = house.submit("a", stream=True, service_s=20.0, first_byte_s=1.0, chunks=20)
        await sleep_until(5.0)
        house.worker.cancel(cut.sequence)
        house.ollama.wedge("a:latest")
        assert text_of(await body_of(house.submit("a", stream=stream))) == FULL_TEXT
        assert house.now == 5.0 + PROBE_S + 0.5 + 2.0 + 1.0
        assert text_of(await body_of(house.submit("a", stream=stream))) == FULL_TEXT
        assert len(house.ollama.probes) == 1


@in_virtual_time
async def test_a_stream_gets_more_time_for_its_first_byte_the_longer_its_prompt_may_take():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.SILENT)
        prompt_s = 20.0
        await body_of(house.submit("a", stream=True, prompt_tokens=20_000))
        assert house.now == 60.0 + 2 * prompt_s + 0.5 + 2.0 + 1.0


@in_virtual_time
async def test_a_stream_that_falls_silent_in_the_middle_ends_within_twice_the_idle_timeout():
    async with House("a", resident=("a",), settings=settings_with(ollama={"idle_timeout_s": 10.0})) as house:
        house.ollama.next_calls(CallFault.STALL)
        ticket = house.submit("a", stream=True)
        with pytest.raises(BackendTimeout):
            await body_of(ticket)
        assert 10.0 < house.now <= 20.1
        assert house.ollama.calls[0].ended_at == house.now
        await body_of(house.submit("a"))


@in_virtual_time
async def test_a_slow_stream_that_keeps_coming_is_left_alone():
    async with House("a", resident=("a",), settings=settings_with(ollama={"idle_timeout_s": 10.0})) as house:
        body = await body_of(house.submit("a", stream=True, service_s=200.0, chunks=25, max_tokens=1))
        assert len(body.splitlines()) == 26
        assert house.now == 200.0


class Listless(FakeOllama):
    """Answers, and says nothing about its models."""

    async def resident(self) -> tuple[ResidentModel, ...]:
        if asyncio.get_running_loop().time() > 1.0:
            raise BackendTimeout
        return await super().resident()


@in_virtual_time
async def test_a_server_that_answers_is_not_down_because_a_model_hangs_and_keeps_its_lists_to_itself():
    async with House("a", resident=("a",), ollama=Listless) as house:
        await sleep_until(20.0)
        assert house.gateway.ready() == (True, "")
        assert [*house.events.of(BackendWentDown), *house.events.of(ResidencyDrifted)] == []
        assert text_of(await body_of(house.submit("a"))) == FULL_TEXT


@in_virtual_time
async def test_a_restart_that_emptied_the_memory_is_noticed_within_the_check_interval():
    async with House("a", resident=("a",)) as house:
        await sleep_until(1.0)
        house.ollama.vanish("a:latest")
        await sleep_until(1.0 + 5.0)
        (drift,) = house.events.of(ResidencyDrifted)
        assert (drift.appeared, drift.vanished) == ((), ("a:latest",))
        await body_of(house.submit("a"))
        assert house.now == 6.0 + 2.0 + 1.0


@in_virtual_time
async def test_a_model_that_vanishes_under_running_work_is_missed_only_when_that_work_has_ended():
    async with House("a", resident=("a",)) as house:
        ticket = house.submit("a", stream=True, service_s=12.0)
        await sleep_until(1.0)
        house.ollama.vanish("a:latest")
        await body_of(ticket)
        assert house.events.of(ResidencyDrifted) == []
        await sleep_until(12.0 + 5.0)
        assert [event.vanished for event in house.events.of(ResidencyDrifted)] == [("a:latest",)]


@in_virtual_time
async def test_a_model_that_somebody_else_loaded_is_used_as_it_is():
    async with House(FakeModel(name="a"), FakeModel(name="b"), capacity_mib=20_000.0) as house:
        await sleep_until(1.0)
        house.ollama.appear("b:latest")
        await sleep_until(6.0)
        (drift,) = house.events.of(ResidencyDrifted)
        assert (drift.appeared, drift.vanished) == (("b:latest",), ())
        await body_of(house.submit("b"))
        assert house.now == 7.0
        assert house.ollama.control == []


@in_virtual_time
async def test_what_is_in_memory_at_the_start_is_adopted_without_a_word():
    async with House("a", resident=("a",)) as house:
        await body_of(house.submit("a"))
        assert house.events.of(ResidencyDrifted) == []
        assert house.ollama.control == []


@in_virtual_time
async def test_a_refused_connection_marks_the_backend_as_down_and_the_request_waits_for_it():
    async with House("a", resident=("a",)) as house:
        house.ollama.next_calls(CallFault.REFUSE)
        ticket = house.submit("a")
        assert text_of(await body_of(ticket)) == FULL_TEXT
        assert house.now <= 5.0 + 1.0
        assert (await house.end_of(ticket)).attempts == 2
