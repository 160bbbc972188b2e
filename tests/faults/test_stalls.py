"""The loop stands still for longer than every timeout: what came in the meantime counts, and
nothing is given up unread.

A stopped process, a suspended machine and a blocked loop look alike from inside: time has passed
and nobody has looked.
"""

from __future__ import annotations

import asyncio

import pytest

from hearth.errors import BackendTimeout
from hearth.events import ItemResent, SwapStarted
from tests.support.fake_ollama import CallFault
from tests.support.house import (
    ALWAYS_PREEMPT,
    House,
    bodies_of,
    body_of,
    heard,
    in_house,
    settings_with,
    settle,
)
from tests.support.virtual_time import hold_up, sleep_until

TIMEOUT_S = 2.0
IMPATIENT = settings_with(
    ollama={"first_byte_timeout_s": TIMEOUT_S, "idle_timeout_s": TIMEOUT_S},
    server={"write_deadline_s": TIMEOUT_S},
    scheduling=ALWAYS_PREEMPT,
)
STREAM = {"stream": True, "service_s": 100.0, "chunks": 70}
SMALL_BUFFER = settings_with(server={"write_deadline_s": TIMEOUT_S, "write_buffer_mib": 0.0001})


@pytest.mark.parametrize(
    ("asked", "held_at", "held_s"),
    [
        ({"stream": True, "first_byte_s": 1.5, "service_s": 60.0, "chunks": 40}, 1.0, 30.0),
        *((STREAM, held_at, 30.0) for held_at in (0.3, 1.2, 2.5, 4.3, 6.5)),
        ({"service_s": 5.0, "chunks": 3}, 1.0, 3600.0),
    ],
)
@in_house(settings=IMPATIENT)
async def test_what_came_while_the_loop_stood_still_has_come(
    house: House, asked: dict[str, float], held_at: float, held_s: float
):
    ticket = house.submit("a", **asked)
    await sleep_until(held_at)
    hold_up(held_s)
    assert b" w%d" % (asked["chunks"] - 1) in await body_of(ticket)
    assert (len(house.ollama.calls), house.events.of(ItemResent), house.events.of(SwapStarted)) == (
        1,
        [],
        [],
    )


@in_house(settings=settings_with(ollama={"first_byte_timeout_s": 10.0}))
async def test_a_model_server_that_was_frozen_too_has_its_time_for_a_first_byte(house: House):
    ticket = house.submit("a", stream=True, first_byte_s=39.0, service_s=40.0)
    await sleep_until(2.0)
    hold_up(30.0)
    await body_of(ticket)
    assert house.events.of(ItemResent) == []


@in_house(settings=IMPATIENT)
async def test_a_stream_that_is_silent_after_the_hold_up_too_is_given_up_soon(house: House):
    house.ollama.next_calls(CallFault.STALL)
    ticket = house.submit("a", **STREAM)
    await sleep_until(1.0)
    hold_up(30.0)
    assert isinstance((await heard(ticket))[1], BackendTimeout)
    assert house.now <= 31.0 + 2 * TIMEOUT_S


@in_house(settings=SMALL_BUFFER)
async def test_a_reader_about_to_read_when_the_loop_stood_still_is_not_dropped(house: House):
    ticket = house.submit("a", stream=True, service_s=10.0, chunks=20)
    asyncio.get_running_loop().call_at(2.2, hold_up, 30.0)
    await sleep_until(2.5)
    assert b" w19" in await body_of(ticket)


@in_house("a", "b", resident="a", settings=IMPATIENT)
async def test_after_a_hold_up_everybody_is_served_and_nothing_is_sent_again(house: House):
    tickets = [
        house.submit(model, stream=bool(n % 2), service_s=4.0) for n, model in enumerate("aabba")
    ]
    tickets.append(house.internal("a"))
    await sleep_until(1.0)
    hold_up(30.0)
    await bodies_of(tickets)
    await settle()
    assert house.events.of(ItemResent) == []
