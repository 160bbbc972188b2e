"""A stream that is interrupted for internal work is run again, and goes on as if nothing had happened, or says that it cannot."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest

from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import ModelSettings
from hearth.errors import BackendGone, HearthError, StreamDiverged
from hearth.events import ItemDiverged, ItemInterrupted, ItemResumed, ItemStreaming
from hearth.execution.request import Ticket
from hearth.types import BackendCall, Outcome, Way
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import CallFault, Ending, Service
from tests.support.virtual_time import in_virtual_time, run_virtual, sleep_until
from tests.worker.house import House, heard, new_item, settings_with, settle, text_of

WORDS = (" one", " two", " three", " four", " five", " six", " seven", " eight", " nine", " ten")
TEXT, SENT = "".join(WORDS), "".join(WORDS[:4])
"""The whole answer, and what its caller has of it after 4.5 s."""
PREEMPT = {"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0}


class Voice:
    """What the model says: a text for each run of a streaming request in turn, the last one from then on; internal work is short."""

    def __init__(self, *texts: tuple[str, ...]) -> None:
        self.texts = list(texts)

    def __call__(self, call: BackendCall) -> Service:
        if not json.loads(call.body)["stream"]:
            return Service(service_s=1.0)
        words = self.texts.pop(0) if len(self.texts) > 1 else self.texts[0]
        return Service(words=words, first_byte_s=1.0, service_s=float(len(words)))


def house_saying(*texts: tuple[str, ...], **sections: dict[str, Any]) -> House:
    settings = settings_with(**{**sections, "scheduling": {**PREEMPT, **sections.get("scheduling", {})}})
    return House("a", resident=("a",), service=Voice(*texts or (WORDS,)), settings=settings)


def streaming(house: House, parts: list[bytes] | None = None) -> tuple[Ticket, asyncio.Future[tuple[bytes, HearthError | None]]]:
    ticket = house.worker.submit(new_item("a", stream=True, ways=(Way.REPLAY,)))
    return ticket, asyncio.ensure_future(heard(ticket, parts))


OTHERS = [(WORDS, (*WORDS[:place], " elephants", *WORDS[place + 1 :])) for place in (0, 2, 3)]


@for_each(
    ("runs", "faults", "interrupted_at", "error", "text"),
    [
        ((WORDS,), (), (4.5,), None, TEXT),
        ((WORDS,), (), (4.5, 7.0), None, TEXT),
        ((WORDS,), (), (4.5, 12.5), None, TEXT),
        *((runs, (), (4.5,), StreamDiverged, SENT) for runs in OTHERS),
        pytest.param((WORDS, WORDS[:3]), (), (4.5,), StreamDiverged, SENT, id="the second run ends too soon"),
        ((WORDS,), (None, None, CallFault.GONE_BEFORE_HEAD), (4.5,), None, TEXT),
        pytest.param((WORDS[:5], WORDS), (None, None, CallFault.NO_DONE), (2.5,), BackendGone, None, id="breaks off after it has gone on"),
        ((WORDS,), (None, None, CallFault.SERVER_ERROR, CallFault.SERVER_ERROR), (4.5,), HearthError, SENT),
    ],
)
@in_virtual_time
async def test_whatever_the_second_run_does_the_caller_reads_one_valid_stream_or_an_error_behind_right_text(
    runs: tuple[tuple[str, ...], ...],
    faults: tuple[CallFault | None, ...],
    interrupted_at: tuple[float, ...],
    error: type[HearthError] | None,
    text: str | None,
):
    async with house_saying(*runs) as house:
        house.ollama.next_calls(*faults)
        ticket, listening = streaming(house)
        for at in interrupted_at:
            await house.interrupt(at)
        said, failed = await listening
        assert isinstance(failed, error or type(None))
        assert TEXT.startswith(text_of(said)) if text is None else text_of(said) == text
        ended, interrupts = await house.end_of(ticket), [event.interrupt_count for event in house.events.of(ItemInterrupted)]
        assert interrupts == list(range(1, len(interrupted_at) + 1))
        assert (ended.outcome is Outcome.COMPLETED) == (failed is None)
        if isinstance(failed, StreamDiverged):
            assert failed.retryable
            assert (len(house.events.of(ItemDiverged)), ended.reason, ended.attempts) == (1, "stream_diverged", 2)


@in_virtual_time
async def test_an_interrupted_stream_goes_on_where_it_stopped_as_one_valid_stream_and_nothing_is_sent_before():
    async with house_saying() as house:
        ticket, listening = streaming(house, parts := list[bytes]())
        await house.interrupt(4.5)
        known = len(parts)
        await sleep_until(9.4)
        assert len(parts) == known
        said, _ = await listening
        assert [json.loads(line)["done"] for line in said.splitlines()].count(True) == 1
        (stopped,), (resumed,) = house.events.of(ItemInterrupted), house.events.of(ItemResumed)
        assert (stopped.at, resumed.verified_chars) == (4.5, len(SENT))
        assert [event.attempt for event in house.events.of(ItemStreaming) if event.sequence == ticket.sequence] == [1, 2]
        assert house.ollama.calls[0].ending is Ending.CLOSED
        assert house.ollama.calls[0].body == house.ollama.calls[2].body


@in_virtual_time
async def test_no_replay_is_tried_on_a_model_that_is_loaded_in_another_way():
    async with house_saying() as house:
        _, listening = streaming(house)
        await sleep_until(4.5)
        urgent = house.internal("a")
        house.gateway.reload(GatewayConfig(settings=house.gateway.config.settings.replace(models={"a": ModelSettings(num_ctx=2048)})))
        await heard(urgent)
        said, error = await listening
        assert isinstance(error, StreamDiverged)
        assert (text_of(said), len(house.ollama.calls)) == (SENT, 2)


@in_virtual_time
async def test_a_stream_longer_than_what_is_kept_finishes_first():
    async with house_saying(scheduling={"replay_limit_mib": 0.0001}) as house:
        _, listening = streaming(house)
        await sleep_until(4.0)
        assert [entry.unresumable for entry in house.worker.scheduler.state.running] == [True]
        await house.interrupt(4.5)
        assert house.now == 11.0
        said, error = await listening
        assert (text_of(said), error, house.events.of(ItemInterrupted)) == (TEXT, None, [])


@in_virtual_time
async def test_a_caller_who_leaves_during_the_replay_frees_the_model():
    async with house_saying() as house:
        ticket, listening = streaming(house)
        await house.interrupt(4.5)
        await sleep_until(7.0)
        house.worker.cancel(ticket.sequence)
        await listening
        await settle()
        assert house.ollama.calls[2].ended_at == 7.0


@in_virtual_time
async def test_a_replay_that_catches_up_with_its_first_byte_is_told_once():
    async with house_saying((" all at once",)) as house:
        _, listening = streaming(house)
        await house.interrupt(1.0)
        said, error = await listening
        assert (text_of(said), error) == (" all at once", None)
        assert len(house.events.of(ItemResumed)) <= 1


@in_virtual_time
async def test_a_replay_that_keeps_coming_is_not_called_silent():
    async with house_saying(ollama={"idle_timeout_s": 3.0}) as house:
        _, listening = streaming(house)
        await house.interrupt(4.5)
        said, error = await listening
        assert (text_of(said), error) == (TEXT, None)


@in_virtual_time
async def test_a_replay_waits_for_a_reader_who_stands_still_no_longer_than_any_stream():
    async with house_saying(server={"write_buffer_mib": 0.0001, "write_deadline_s": 2.0}) as house:
        ticket, listening = streaming(house)
        await house.interrupt(4.5)
        listening.cancel()
        await sleep_until(60.0)
        assert (await house.end_of(ticket)).outcome is Outcome.CANCELLED
        assert house.ollama.calls[-1].ending is Ending.CLOSED


async def _many(rounds: int, rng: Random) -> tuple[int, int]:
    """Streams interrupted at random instants, up to three times, a third of them with another answer the second time."""
    wrong = diverged = 0
    async with house_saying() as house:
        for _ in range(rounds):
            first = tuple(rng.choices(WORDS, k=rng.randint(1, 12)))
            second = first if rng.random() < 0.66 else tuple(rng.choices(WORDS, k=rng.randint(1, 12)))
            house.ollama._service = Voice(first, second)
            began_at = house.now
            _, listening = streaming(house)
            for _ in range(rng.randint(1, 3)):
                await house.interrupt(began_at + rng.uniform(0.0, 2.0 * len(first)))
            said, error = await listening
            text = text_of(said)
            diverged += error is not None
            is_right = text in ("".join(first), "".join(second)) if error is None else "".join(first).startswith(text)
            wrong += not is_right
    return wrong, diverged


def test_no_wrong_byte_reaches_anybody_over_many_interruptions():
    rounds = 200 if EXAMPLES == 1 else 500 * EXAMPLES
    counts = [run_virtual(lambda seed=seed: _many(10, Random(seed)), horizon_s=1e9) for seed in range(rounds // 10)]  # type: ignore[misc]
    wrong, diverged = (sum(each) for each in zip(*counts, strict=True))
    assert wrong == 0
    assert rounds * 0.1 < diverged < rounds * 0.5
