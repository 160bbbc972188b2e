"""The loop stands still for longer than every timeout: what came in the meantime counts, and nothing is given up unread.

A stopped process, a suspended machine and a blocked loop look alike from inside: time has passed and nobody has looked.
"""

from __future__ import annotations

import asyncio

from hearth.errors import BackendTimeout
from hearth.events import ItemResent, SwapStarted
from hearth.execution.request import Ticket
from tests.support.fake_ollama import CallFault
from tests.support.virtual_time import hold_up, in_virtual_time, sleep_until
from tests.worker.house import House, body_of, in_house, settings_with, settle, text_of

TIMEOUT_S = 2.0
IMPATIENT = settings_with(
    ollama={"first_byte_timeout_s": TIMEOUT_S, "idle_timeout_s": TIMEOUT_S},
    server={"write_deadline_s": TIMEOUT_S},
    scheduling={"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0},
)


@in_house("a", resident=("a",), settings=IMPATIENT)
async def test_a_first_byte_that_came_while_the_loop_stood_still_is_a_first_byte(house: House):
    ticket = house.submit("a", stream=True, first_byte_s=1.5, service_s=60.0, chunks=40)
    await sleep_until(1.0)
    hold_up(30.0)
    assert text_of(await body_of(ticket)).endswith(" w39")
    assert (house.events.of(ItemResent), house.events.of(SwapStarted)) == ([], [])


@in_virtual_time
async def test_a_stream_that_went_on_while_the_loop_stood_still_is_not_idle():
    for began_after_s in (0.3, 1.2, 2.5, 4.3, 6.5):
        async with House("a", resident=("a",), settings=IMPATIENT) as house:
            began_at = house.now
            ticket = house.submit("a", stream=True, service_s=100.0, chunks=70)
            await sleep_until(began_at + began_after_s)
            hold_up(30.0)
            assert text_of(await body_of(ticket)).endswith(" w69")


@in_house("a", resident=("a",), settings=IMPATIENT)
async def test_a_stream_that_is_silent_after_the_hold_up_too_is_given_up_soon(house: House):
    house.ollama.next_calls(CallFault.STALL)
    ticket = house.submit("a", stream=True, service_s=100.0, chunks=70)
    await sleep_until(1.0)
    hold_up(30.0)
    error = (await asyncio.gather(body_of(ticket), return_exceptions=True))[0]
    assert isinstance(error, BackendTimeout)
    assert house.now <= 31.0 + 2 * TIMEOUT_S


@in_house("a", resident=("a",), settings=IMPATIENT)
async def test_a_whole_answer_that_came_while_the_loop_stood_still_is_an_answer(house: House):
    ticket = house.submit("a", service_s=5.0)
    await sleep_until(1.0)
    hold_up(3600.0)
    await body_of(ticket)
    assert len(house.ollama.calls) == 1


@in_virtual_time
async def test_a_reader_that_was_about_to_read_when_the_loop_stood_still_is_not_dropped():
    small = settings_with(server={"write_deadline_s": TIMEOUT_S, "write_buffer_mib": 0.0001})
    async with House("a", resident=("a",), settings=small) as house:
        ticket = house.submit("a", stream=True, service_s=10.0, chunks=20)
        reading = asyncio.ensure_future(_read_from(2.5, ticket))
        await sleep_until(2.2)
        hold_up(30.0)
        assert text_of(await reading).endswith(" w19")


async def _read_from(instant: float, ticket: Ticket) -> bytes:
    await sleep_until(instant)
    return await body_of(ticket)


@in_house("a", "b", resident=("a",), settings=IMPATIENT)
async def test_after_a_hold_up_everybody_is_served_and_nothing_is_sent_again(house: House):
    tickets = [house.submit(model, stream=bool(n % 2), service_s=4.0) for n, model in enumerate("aabba")]
    tickets.append(house.internal("a"))
    await sleep_until(1.0)
    hold_up(30.0)
    await asyncio.gather(*map(body_of, tickets))
    await settle()
    assert house.events.of(ItemResent) == []
