"""A caller that reads slowly, or not at all, must not hold the GPU; one that has gone holds nothing."""

from __future__ import annotations

import pytest

from hearth.config.settings import Settings
from hearth.errors import BackendTimeout, CallerGone
from hearth.execution.request import Reply, ReplyHead, Ticket
from hearth.types import Outcome
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import House, body_of, in_house, read_into, settings_with, settle

KIB = 1 / 1024
SMALL_BUFFER = settings_with(server={"write_buffer_mib": 2 * KIB, "write_deadline_s": 10.0})
HASTY = settings_with(server={"write_buffer_mib": 2 * KIB, "write_deadline_s": 10.0}, ollama={"idle_timeout_s": 3.0})
LARGEST_CHUNK_BYTES = 400


def long_stream(house: House) -> Ticket:
    """200 chunks of some 90 bytes, one a second."""
    return house.submit("a", stream=True, service_s=200.0, first_byte_s=1.0, chunks=199)


@for_each("settings", [SMALL_BUFFER, HASTY])
@in_virtual_time
async def test_a_reader_that_stands_still_is_dropped_after_the_deadline_and_its_place_goes_to_the_next(settings: Settings):
    async with House("a", resident=("a",), settings=settings) as house:
        ticket, other, most_bytes = long_stream(house), house.submit("a"), 0
        while not other.reply.complete:
            await sleep_until(house.now + 1.0)
            most_bytes = max(most_bytes, ticket.reply.unread_bytes)
        full_at = house.ollama.calls[0].ended_at
        assert full_at is not None
        assert full_at + 1.0 <= house.now < 60
        assert 2048 <= most_bytes <= 2048 + LARGEST_CHUNK_BYTES
        assert len(b"".join(await ticket.reply.take())) >= 2048
        with pytest.raises(CallerGone, match="stopped reading"):
            await ticket.reply.take()
        ended = await house.end_of(ticket)
        assert (ended.outcome, ended.reason) == (Outcome.CANCELLED, "cancelled")


@in_house("a", resident=("a",), settings=SMALL_BUFFER)
async def test_a_reader_that_catches_up_within_the_deadline_gets_everything(house: House):
    ticket, parts = house.submit("a", stream=True, service_s=50.0, first_byte_s=1.0, chunks=49), list[bytes]()
    await ticket.reply.head()
    while chunks := await ticket.reply.take():
        parts.extend(chunks)
        await sleep_until(house.now + 25.0)
    assert len(b"".join(parts).splitlines()) == 50
    assert (await house.end_of(ticket)).outcome is Outcome.COMPLETED


@in_house("a", resident=("a",))
async def test_a_reader_slower_than_the_model_does_not_keep_it_busy_while_the_buffer_has_room(house: House):
    ticket, other = long_stream(house), house.submit("a")
    await body_of(other)
    assert house.now == 201.0
    assert len((await body_of(ticket)).splitlines()) == 200


@in_virtual_time
async def test_the_first_ending_of_a_reply_counts():
    reply = Reply(limit_bytes=10)
    reply.start(ReplyHead(status=200, headers=()))
    reply.push(b"all")
    reply.finish()
    reply.fail(CallerGone())
    reply.push(b"late")
    assert (await reply.take(), await reply.take(), reply.complete) == ((b"all",), (), True)


@in_virtual_time
async def test_a_reply_that_failed_before_its_head_says_why_to_whoever_asks_late():
    reply = Reply(limit_bytes=10)
    reply.fail(CallerGone("too late"))
    reply.start(ReplyHead(status=200, headers=()))
    await settle(1)
    with pytest.raises(CallerGone, match="too late"):
        await reply.body()


@in_virtual_time
async def test_a_model_server_that_goes_on_is_not_called_silent_while_its_chunk_waits_for_the_reader():
    impatient = settings_with(server={"write_buffer_mib": 0.01 * KIB, "write_deadline_s": 10.0}, ollama={"idle_timeout_s": 30.0})
    async with House("a", resident=("a",), settings=impatient) as house:
        ticket, parts = house.submit("a", stream=True, service_s=146.0, first_byte_s=1.0, chunks=5), list[bytes]()
        for second in (30.9, 62.0, 89.0, 118.0):
            await sleep_until(second)
            parts.extend(await ticket.reply.take())
        parts.append(await ticket.reply.body())
        assert len(b"".join(parts).splitlines()) == 6
        assert (await house.end_of(ticket)).outcome is Outcome.COMPLETED


@in_house("a", resident=("a",), settings=HASTY)
async def test_a_server_that_falls_silent_while_its_reader_stood_still_is_noticed_once_there_is_room(house: House):
    ticket, read = long_stream(house), list[bytes]()
    while not ticket.reply.full:
        await sleep_until(house.now + 1.0)
    house.ollama.fall_silent()
    await sleep_until(house.now + 8.0)
    reads_at = house.now
    with pytest.raises(BackendTimeout):
        await read_into(read, ticket)
    assert 3.0 < house.now - reads_at <= 6.1
