"""Anything may happen in any order, and still: one end for each accepted item, whole texts, and phases that add up."""

from __future__ import annotations

import asyncio
import random

import pytest

from hearth.errors import HearthError
from hearth.events import ItemDispatched, ItemEnded, ItemQueued
from hearth.execution.request import Ticket
from hearth.types import Outcome, Priority
from tests.support.cases import for_each
from tests.support.fake_ollama import CallFault, LoadFault
from tests.support.virtual_time import run_virtual
from tests.worker.house import FULL_TEXT, House, settings_with, text_of

ITEMS = 120
LEFT = "its caller left"
MODELS = ("a", "b", "c", None)
CALL_FAULTS = (None, None, None, None, CallFault.GONE_BEFORE_HEAD, CallFault.GONE_MID_STREAM, CallFault.SERVER_ERROR, CallFault.NO_DONE)


async def caller(house: House, ticket: Ticket, patience_s: float | None) -> str | None:
    """Read the answer, or leave when patience ends: LEFT. None where there was no whole answer."""
    try:
        async with asyncio.timeout(patience_s):
            head = await ticket.reply.head()
            body = await ticket.reply.body()
    except TimeoutError:
        ticket.reply.abandon()
        house.worker.cancel(ticket.sequence)
        return LEFT
    except HearthError:
        return None
    return text_of(body) if head.status == 200 else None


async def workload(seed: int, *, with_faults: bool) -> House:
    dice = random.Random(seed)
    settings = settings_with(gpu={"home_model": "a"}, queue={"max_external_depth": 1_000, "max_wait_s": 90.0 if with_faults else 0.0})
    async with House("a", "b", "c", resident=("b",), settings=settings) as house:
        callers = []
        if with_faults:
            house.ollama.next_calls(*dice.choices(CALL_FAULTS, k=ITEMS))
            house.ollama.next_loads(*dice.choices((None, None, LoadFault.FAIL, LoadFault.LIE), k=20))
        for _ in range(ITEMS):
            submit = dice.choice((house.submit, house.internal))
            ticket = submit(
                dice.choice(MODELS),
                priority=dice.choice(tuple(Priority)),
                stream=dice.random() < 0.5,
                service_s=dice.choice((0.2, 1.0, 3.0)),
            )
            patience_s = dice.choice((None, None, 0.0, 1.0, 10.0)) if with_faults else None
            callers.append((ticket, asyncio.create_task(caller(house, ticket, patience_s))))
            if dice.random() < 0.1:
                house.worker.preempt_external()
            await asyncio.sleep(dice.choice((0.0, 0.0, 0.5, 1.0, 2.0)))
        texts = {ticket.sequence: await reading for ticket, reading in callers}
        await asyncio.sleep(100.0)
        for end in house.events.of(ItemEnded):
            text = texts[end.sequence]
            assert text == LEFT or (text == FULL_TEXT) == (end.outcome is Outcome.COMPLETED), end
    return house


@for_each("seed", range(6))
def test_every_accepted_item_ends_once_with_the_whole_text_or_not_at_all_and_its_phases_add_up(seed: int):
    house = run_virtual(lambda: workload(seed, with_faults=True), seed=seed)
    ends = house.events.of(ItemEnded)
    assert len(ends) == len({end.sequence for end in ends}) == len(house.events.of(ItemQueued)) == ITEMS
    assert {end.outcome for end in ends} >= {Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED}
    for end in ends:
        assert end.queue_s + (end.backend_s or 0.0) == pytest.approx(end.total_s, abs=1e-9)
        assert 0.0 <= end.swap_s <= end.queue_s + 1e-9
        assert end.first_byte_s is None or 0.0 <= end.first_byte_s <= (end.backend_s or 0.0) + 1e-9


@for_each("seed", range(6))
def test_without_faults_everybody_is_served_and_external_work_for_one_model_in_its_order_of_arrival(seed: int):
    house = run_virtual(lambda: workload(seed, with_faults=False), seed=seed)
    ends = {end.sequence: end for end in house.events.of(ItemEnded)}
    assert {end.outcome for end in ends.values()} == {Outcome.COMPLETED}
    asked = {event.sequence: event.model for event in house.events.of(ItemQueued)}
    served: dict[str | None, list[int]] = {}
    for event in house.events.of(ItemDispatched):
        if event.attempt == 1 and ends[event.sequence].lane == "external":
            served.setdefault(asked[event.sequence], []).append(event.sequence)
    assert set(served) == {"a:latest", "b:latest", "c:latest", None}
    for order in served.values():
        assert order == sorted(order)


def test_the_same_seed_tells_the_same_story():
    stories = [run_virtual(lambda: workload(3, with_faults=True), seed=3).events.all for _ in range(2)]
    assert stories[0] == stories[1]
