"""A caller that reads slowly, or not at all, must not hold the GPU; one that has gone holds
nothing, not even memory.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hearth.api.app import HearthApp
from hearth.api.request import DISCONNECTED
from hearth.api.streaming import Relay
from hearth.config.settings import Settings
from hearth.errors import BackendTimeout, CallerGone
from hearth.execution.request import ActiveRequest, Reply, ReplyHead, Ticket
from hearth.types import MIB, Outcome
from tests.support.fake_exchange import CallFault
from tests.support.fields import Fields
from tests.support.house import (
    House,
    body_of,
    heard,
    in_house,
    in_loaded_house,
    settings_with,
    settle,
)
from tests.support.http import http_scope
from tests.support.virtual_time import in_virtual_time, sleep_until


def narrow(buffer_bytes: int, idle_timeout_s: float = 60.0) -> Settings:
    server = {"write_buffer_mib": buffer_bytes / MIB, "write_deadline_s": 10.0}
    return settings_with(server=server, ollama={"idle_timeout_s": idle_timeout_s})


SMALL_BUFFER = narrow(2048)
HASTY = narrow(2048, 3.0)
LARGEST_CHUNK_BYTES = 400


def long_stream(house: House, seconds: int = 200) -> Ticket:
    """So many chunks of some 90 bytes, one a second."""
    return house.submit(
        "a", stream=True, service_s=float(seconds), first_byte_s=1.0, chunks=seconds - 1
    )


@pytest.mark.parametrize("settings", [SMALL_BUFFER, HASTY])
@in_virtual_time
async def test_a_reader_that_stands_still_is_dropped_and_its_place_goes_on(settings: Settings):
    async with House(settings=settings) as house:
        ticket = long_stream(house)
        other = house.submit("a")
        most_bytes = 0
        while not other.reply.complete:
            await sleep_until(house.now + 1.0)
            most_bytes = max(most_bytes, ticket.reply.unread_bytes)
        full_at = house.ollama.calls[0].ended_at
        assert full_at is not None
        assert full_at + 1.0 <= house.now < 60
        assert 2048 <= most_bytes <= 2048 + LARGEST_CHUNK_BYTES
        said, error = await heard(ticket)
        assert (len(said) >= 2048, type(error), str(error)) == (
            True,
            CallerGone,
            "the caller stopped reading",
        )
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.reason) == (Outcome.CANCELLED, "cancelled")


def test_what_comes_after_a_caller_has_gone_is_dropped():
    gone = list[str]()
    reply = Reply(limit_bytes=10, on_abandon=lambda: gone.append("told"))
    reply.push(b"some")
    reply.abandon()
    reply.push(b"and some more")
    assert (reply.ended, reply.complete, reply.unread_bytes) == (True, False, 0)
    assert gone == ["told"]


@in_house(settings=SMALL_BUFFER)
async def test_a_reader_that_catches_up_within_the_deadline_gets_everything(house: House):
    ticket = long_stream(house, 50)
    lines = 0
    await ticket.reply.head()
    while chunks := await ticket.reply.take():
        lines += len(chunks)
        await sleep_until(house.now + 25.0)
    assert (lines, (await house.end_of(ticket)).outcome) == (50, Outcome.COMPLETED)


@in_loaded_house
async def test_a_slow_reader_does_not_keep_the_model_busy_while_the_buffer_has_room(house: House):
    ticket = long_stream(house)
    other = house.submit("a")
    await body_of(other)
    assert house.now == 201.0
    assert len((await body_of(ticket)).splitlines()) == 200


@in_virtual_time
async def test_the_first_ending_of_a_reply_counts_and_is_told_to_whoever_asks_late():
    reply = Reply(limit_bytes=10)
    failed = Reply(limit_bytes=10)
    for each in (reply, failed):
        if each is failed:
            each.fail(CallerGone("too late"))
        each.start(ReplyHead(status=200, headers=()))
        each.push(b"all")
        each.finish()
        each.fail(CallerGone())
        each.push(b"late")
    assert (await reply.take(), await reply.take(), reply.complete) == ((b"all",), (), True)
    with pytest.raises(CallerGone, match="too late"):
        await failed.body()


@in_house(settings=narrow(10, 30.0))
async def test_a_server_whose_chunk_waits_for_the_reader_is_not_called_silent(house: House):
    ticket = house.submit("a", stream=True, service_s=146.0, first_byte_s=1.0, chunks=5)
    parts = list[bytes]()
    for second in (30.9, 62.0, 89.0, 118.0):
        await sleep_until(second)
        parts.extend(await ticket.reply.take())
    parts.append(await ticket.reply.body())
    assert len(b"".join(parts).splitlines()) == 6


@in_house(settings=HASTY)
async def test_a_server_falling_silent_behind_a_still_reader_is_noticed_later(house: House):
    ticket = long_stream(house)
    while not ticket.reply.full:
        await sleep_until(house.now + 1.0)
    house.ollama.fall_silent()
    await sleep_until(house.now + 8.0)
    reads_at = house.now
    assert isinstance((await heard(ticket))[1], BackendTimeout)
    assert 3.0 < house.now - reads_at <= 6.1


# A request that has ended leaves nothing to the garbage collector, however it ended: what only a
# full collection frees piles up. An error that is raised knows the frames that it came through, and
# they know the reply and the work, which know their error.

AT_MOST_S = 5000.0


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what there is already is not looked at
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    return sum(isinstance(each, Reply | Relay | ActiveRequest) for each in gc.get_objects())


async def ask(house: House, *, stream: bool, stays_s: float = AT_MOST_S) -> int:
    """Twenty chunks, one a second.

    Returns the status that was answered, 0 where the caller had left before.
    """
    asked = {
        "model": "a:latest",
        "prompt": "?",
        "stream": stream,
        "fake": {"service_s": 20.0, "first_byte_s": 1.0, "chunks": 19},
    }
    said = [0]
    scope = http_scope("POST", "/api/generate", ((b"host", b"localhost"),), "127.0.0.1")
    leaving = asyncio.get_running_loop().call_later(stays_s, scope[DISCONNECTED].set_result, None)

    async def receive() -> Fields:
        return {"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}

    async def send(message: Any) -> None:
        said.append(message.get("status", 0))

    await HearthApp(house.gateway)(scope, receive, send)
    leaving.cancel()
    await settle()
    return max(said)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("stays_s", "fault"),
    [(0.5, None), (5.5, None), (AT_MOST_S, None), *((AT_MOST_S, fault) for fault in CallFault)],
)
@in_loaded_house
async def test_nothing_is_left_of_a_request_however_it_ends(
    house: House, uncollected: None, stream: bool, stays_s: float, fault: CallFault | None
):
    before = alive()
    house.ollama.next_calls(*(fault,) * 9)
    answered = await ask(house, stream=stream, stays_s=stays_s)
    assert fault or answered == (200 if stays_s > (1.0 if stream else 20.0) else 0)
    assert alive() == before
    await house.ollama.settled()


@in_house(settings=narrow(100))
async def test_nothing_is_left_of_a_stream_whose_caller_stops_reading(
    house: House, uncollected: None
):
    before = alive()
    ticket = long_stream(house, 20)
    await sleep_until(40.0)
    assert (await house.end_of(ticket)).reason == "cancelled"
    del ticket
    assert alive() == before
