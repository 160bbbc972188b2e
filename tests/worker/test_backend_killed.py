"""What breaks while the backend is down uses up no resend and no second load, and its return is noticed soon."""

from __future__ import annotations

import asyncio

import pytest

from hearth.errors import BackendUnreachable
from hearth.events import ItemEnded
from hearth.types import Outcome
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, settings_with, text_of


@in_virtual_time
async def test_a_backend_that_is_killed_under_a_running_call_serves_it_when_it_is_back():
    async with House("a", resident=("a",)) as house:
        ticket, waiting = house.submit("a"), house.submit("a")
        await sleep_until(0.5)
        house.ollama.go_down()
        await sleep_until(6.0)
        house.ollama.come_up()
        bodies = await asyncio.gather(body_of(ticket), body_of(waiting))
        assert list(map(text_of, bodies)) == [FULL_TEXT] * 2
        assert {event.outcome for event in house.events.of(ItemEnded)} == {Outcome.COMPLETED}


@in_virtual_time
async def test_a_backend_that_is_killed_and_stays_away_fails_everybody_when_their_patience_ends():
    async with House("a", resident=("a",)) as house:
        tickets = [house.submit("a") for _ in range(3)]
        await sleep_until(0.5)
        house.ollama.go_down()
        for ticket in tickets:
            with pytest.raises(BackendUnreachable):
                await body_of(ticket)
        assert house.now == 10.5
        ended = await house.end_of(tickets[0])
        assert (ended.backend_s, ended.queue_s) == (None, 10.5)


@in_virtual_time
async def test_a_backend_that_is_killed_during_a_load_is_loaded_again_when_it_is_back():
    async with House("a") as house:
        ticket = house.submit("a")
        await sleep_until(1.0)
        house.ollama.go_down()
        await sleep_until(5.0)
        house.ollama.come_up()
        assert text_of(await body_of(ticket)) == FULL_TEXT
        assert house.now == 5.0 + 2.0 + 1.0
        assert [(record.kind, record.at) for record in house.ollama.control] == [("load", 0.0), ("load", 3.0), ("load", 5.0)]


@in_virtual_time
async def test_a_return_is_noticed_within_a_second_of_it_though_the_watch_looks_only_every_five():
    async with House("a", resident=("a",), settings=settings_with(backend={"wait_when_down_s": 20.0})) as house:
        await sleep_until(0.5)
        house.ollama.go_down()
        ticket = house.submit("a", service_s=1.0)
        await sleep_until(1.0)
        assert house.gateway.ready()[0] is False
        house.ollama.come_up()
        assert text_of(await body_of(ticket)) == FULL_TEXT
        assert house.now == 1.5 + 2.0 + 1.0
