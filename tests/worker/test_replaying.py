"""A stream that is interrupted for the house's own work, and goes on as if nothing had happened, or says that it cannot."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import ModelSettings
from hearth.errors import BackendGone, HearthError, StreamDiverged
from hearth.events import ItemDiverged, ItemEnded, ItemInterrupted, ItemResumed, ItemStreaming
from hearth.execution.request import Ticket
from hearth.types import BackendCall, Lane, Outcome, Way
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import CallFault, Ending, Service
from tests.support.virtual_time import in_virtual_time, run_virtual, sleep_until
from tests.worker.house import House, body_of, new_item, read_into, settings_with, settle, text_of

WORDS = (" one", " two", " three", " four", " five", " six", " seven", " eight", " nine", " ten")
TEXT = "".join(WORDS)
AT_ONCE = settings_with(scheduling={"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0})


class Voice:
    """What the model says: a text for each run of a streaming request in turn, the last one from then on; internal work is short."""

    def __init__(self, *texts: tuple[str, ...]) -> None:
        self.texts = list(texts)

    def __call__(self, call: BackendCall) -> Service:
        if not json.loads(call.body)["stream"]:
            return Service(service_s=1.0)
        words = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        return Service(words=words, first_byte_s=1.0, service_s=float(len(words)))


def streaming(house: House, **wanted: Any) -> Ticket:
    return house.worker.submit(new_item("a", stream=True, ways=(Way.REPLAY,), **wanted))


async def heard(ticket: Ticket) -> tuple[bytes, HearthError | None]:
    """All that reaches the caller, and the error that it ends with."""
    parts: list[bytes] = []
    try:
        await ticket.reply.head()
        await read_into(parts, ticket)
    except HearthError as error:
        return b"".join(parts), error
    return b"".join(parts), None


async def interrupted(house: House, at: float = 4.5) -> None:
    await sleep_until(at)
    assert text_of(await body_of(house.submit("a", lane=Lane.INTERNAL)))


@in_virtual_time
async def test_an_interrupted_stream_goes_on_where_it_stopped_as_one_valid_stream():
    async with House("a", resident=("a",), service=Voice(WORDS), settings=AT_ONCE) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await interrupted(house)
        said, error = await listening
        assert error is None
        assert text_of(said) == TEXT
        assert [json.loads(line)["done"] for line in said.splitlines()].count(True) == 1
        (stopped,) = house.events.of(ItemInterrupted)
        (resumed,) = house.events.of(ItemResumed)
        assert stopped.at == 4.5
        assert resumed.verified_chars == len("".join(WORDS[:4]))
        assert [event.attempt for event in house.events.of(ItemStreaming) if event.sequence == ticket.sequence] == [1, 2]
        assert house.ollama.calls[0].ending is Ending.CLOSED
        assert house.ollama.calls[0].body == house.ollama.calls[2].body


@for_each("place", [0, 2, 3])
@in_virtual_time
async def test_nothing_of_another_answer_is_ever_sent(place: int):
    other = (*WORDS[:place], " elephants", *WORDS[place + 1 :])
    async with House("a", resident=("a",), service=Voice(WORDS, other), settings=AT_ONCE) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await interrupted(house)
        said, error = await listening
        assert isinstance(error, StreamDiverged)
        assert error.retryable
        assert text_of(said) == "".join(WORDS[:4])
        assert len(house.events.of(ItemDiverged)) == 1
        (ended,) = [event for event in house.events.of(ItemEnded) if event.sequence == ticket.sequence]
        assert (ended.outcome, ended.reason, ended.attempts) == (Outcome.FAILED, "stream_diverged", 2)


@in_virtual_time
async def test_a_second_run_that_ends_too_soon_counts_as_another_answer():
    async with House("a", resident=("a",), service=Voice(WORDS, WORDS[:3]), settings=AT_ONCE) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupted(house)
        said, error = await listening
        assert isinstance(error, StreamDiverged)
        assert text_of(said) == "".join(WORDS[:4])


@pytest.mark.parametrize("second", [7.0, 12.5])
@in_virtual_time
async def test_it_may_be_interrupted_again_while_it_catches_up_and_afterwards(second: float):
    async with House("a", resident=("a",), service=Voice(WORDS), settings=AT_ONCE) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupted(house, at=4.5)
        await interrupted(house, at=second)
        said, error = await listening
        assert error is None
        assert text_of(said) == TEXT
        assert [event.interrupt_count for event in house.events.of(ItemInterrupted)] == [1, 2]


@in_virtual_time
async def test_nothing_is_sent_while_a_replay_catches_up():
    async with House("a", resident=("a",), service=Voice(WORDS), settings=AT_ONCE) as house:
        ticket, parts = streaming(house), list[bytes]()
        listening = asyncio.ensure_future(read_into(parts, ticket))
        await interrupted(house)
        known = len(parts)
        await sleep_until(9.4)
        assert len(parts) == known
        await listening
        assert text_of(b"".join(parts)) == TEXT


@in_virtual_time
async def test_a_backend_that_dies_during_the_replay_is_asked_once_more():
    async with House("a", resident=("a",), service=Voice(WORDS), settings=AT_ONCE) as house:
        house.ollama.next_calls(None, None, CallFault.GONE_BEFORE_HEAD)
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupted(house)
        said, error = await listening
        assert error is None
        assert text_of(said) == TEXT


@in_virtual_time
async def test_a_replay_that_breaks_off_after_it_has_gone_on_ends_the_stream_with_an_error():
    async with House("a", resident=("a",), service=Voice(WORDS[:5], WORDS), settings=AT_ONCE) as house:
        house.ollama.next_calls(None, None, CallFault.NO_DONE)
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupted(house, at=2.5)
        said, error = await listening
        assert isinstance(error, BackendGone)
        assert TEXT.startswith(text_of(said))


@in_virtual_time
async def test_an_error_status_of_the_second_run_never_becomes_part_of_the_answer():
    async with House("a", resident=("a",), service=Voice(WORDS), settings=AT_ONCE) as house:
        house.ollama.next_calls(None, None, CallFault.SERVER_ERROR, CallFault.SERVER_ERROR)
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupted(house)
        said, error = await listening
        assert error is not None
        assert text_of(said) == "".join(WORDS[:4])


@in_virtual_time
async def test_no_replay_is_tried_on_a_model_that_is_loaded_in_another_way():
    async with House("a", resident=("a",), service=Voice(WORDS), settings=AT_ONCE) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await sleep_until(4.5)
        urgent = house.submit("a", lane=Lane.INTERNAL)
        settings = house.gateway.config.settings.replace(models={"a": ModelSettings(num_ctx=2048)})
        house.gateway.reload(GatewayConfig(settings=settings))
        await body_of(urgent)
        said, error = await listening
        assert isinstance(error, StreamDiverged)
        assert text_of(said) == "".join(WORDS[:4])
        assert len(house.ollama.calls) == 2


@in_virtual_time
async def test_a_stream_longer_than_what_is_kept_finishes_first():
    settings = settings_with(scheduling={"replay_limit_mib": 0.0001, "preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0})
    async with House("a", resident=("a",), service=Voice(WORDS), settings=settings) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await sleep_until(4.0)
        assert [entry.unresumable for entry in house.worker.scheduler.state.running] == [True]
        await interrupted(house)
        assert house.now == 11.0
        said, error = await listening
        assert error is None
        assert text_of(said) == TEXT
        assert house.events.of(ItemInterrupted) == []


@in_virtual_time
async def test_a_caller_who_leaves_during_the_replay_frees_the_model():
    async with House("a", resident=("a",), service=Voice(WORDS), settings=AT_ONCE) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await interrupted(house)
        await sleep_until(7.0)
        house.worker.cancel(ticket.sequence)
        await listening
        await settle()
        assert house.ollama.calls[2].ended_at == 7.0


def test_no_wrong_byte_reaches_anybody_over_many_interruptions():
    rounds = 500 * EXAMPLES
    counts = [run_virtual(lambda seed=seed: _many(10, Random(seed)), horizon_s=1e9) for seed in range(rounds // 10)]  # type: ignore[misc]
    wrong, diverged = (sum(each) for each in zip(*counts, strict=True))
    assert wrong == 0
    assert rounds * 0.1 < diverged < rounds * 0.5


@in_virtual_time
async def test_a_replay_that_catches_up_with_its_first_byte_is_told_once():
    async with House("a", resident=("a",), service=Voice((" all at once",), (" all at once",)), settings=AT_ONCE) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupted(house, at=1.0)
        said, error = await listening
        assert (text_of(said), error) == (" all at once", None)
        assert len(house.events.of(ItemResumed)) <= 1


async def _many(rounds: int, rng: Random) -> tuple[int, int]:
    """Streams interrupted at random instants, up to three times, a third of them with another answer the second time."""
    wrong = diverged = 0
    voice = Voice(WORDS)
    async with House("a", resident=("a",), service=voice, settings=AT_ONCE) as house:
        for _ in range(rounds):
            first = tuple(rng.choices(WORDS, k=rng.randint(1, 12)))
            second = first if rng.random() < 0.66 else tuple(rng.choices(WORDS, k=rng.randint(1, 12)))
            voice.texts = [first, second]
            began_at = house.now
            listening = asyncio.ensure_future(heard(streaming(house)))
            for _ in range(rng.randint(1, 3)):
                await sleep_until(began_at + rng.uniform(0.0, 2.0 * len(first)))
                await body_of(house.submit("a", lane=Lane.INTERNAL))
            said, error = await listening
            text = text_of(said)
            if error is None:
                wrong += text not in ("".join(first), "".join(second))
            else:
                diverged += 1
                wrong += not "".join(first).startswith(text)
    return wrong, diverged


@in_virtual_time
async def test_a_replay_that_keeps_coming_is_not_called_silent():
    settings = settings_with(scheduling={"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0}, ollama={"idle_timeout_s": 3.0})
    async with House("a", resident=("a",), settings=settings, service=Voice(WORDS)) as house:
        listening = asyncio.ensure_future(heard(streaming(house)))
        await interrupted(house)
        body, error = await listening
        assert (text_of(body), error) == (TEXT, None)


@in_virtual_time
async def test_a_replay_waits_for_a_reader_who_stands_still_no_longer_than_any_stream():
    server = {"write_buffer_mib": 0.0001, "write_deadline_s": 2.0}
    settings = settings_with(scheduling={"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0}, server=server)
    async with House("a", resident=("a",), settings=settings, service=Voice(WORDS)) as house:
        ticket = streaming(house)
        listening = asyncio.ensure_future(heard(ticket))
        await interrupted(house)
        listening.cancel()
        await sleep_until(60.0)
        assert (await house.end_of(ticket)).outcome is Outcome.CANCELLED
        assert house.ollama.calls[-1].ending is Ending.CLOSED
