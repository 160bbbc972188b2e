"""How long a caller may keep a connection waiting, to the instant."""

from __future__ import annotations

import asyncio

from hearth.api.server import KEEP_ALIVE_S
from tests.api.house import never
from tests.api.line import BODY_S, HEADER_S, WRITE_S, connection
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time, sleep_until

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
HEAD = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)


@for_each("beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
@for_each("trickles", [False, True])
@in_virtual_time
async def test_headers_that_do_not_come_in_time_end_the_connection_even_if_they_trickle(beginning, trickles):
    async with connection(sent=beginning) as one:
        for second in range(1, int(HEADER_S) if trickles and beginning else 1):
            await sleep_until(second)
            one.protocol.data_received(b"T")
        assert await one.open_until(HEADER_S)
        assert one.line.sent == b""


@in_virtual_time
async def test_a_body_that_stops_coming_ends_the_connection_and_reaches_no_queue():
    async with connection(sent=HEAD + BODY[:1]) as one:
        await sleep_until(5.0)
        one.protocol.data_received(BODY[1:2])
        assert await one.open_until(5.0 + BODY_S)
        assert one.gateway.worker.submitted == []


@in_virtual_time
async def test_a_slow_body_that_makes_progress_may_take_longer_than_the_deadline():
    async with connection(sent=HEAD) as one:
        for at in range(0, len(BODY), 15):
            await asyncio.sleep(BODY_S - 1.0)
            one.protocol.data_received(BODY[at : at + 15])
        await asyncio.sleep(1.0)
        assert one.line.sent.startswith(b"HTTP/1.1 200 ")


@in_virtual_time
async def test_a_waiting_caller_is_not_ended_by_the_deadlines_for_reading():
    async with connection(never, HEAD + BODY) as one:
        await asyncio.sleep(3600.0)
        assert not one.line.ended
        assert one.gateway.worker.cancelled == []


@in_virtual_time
async def test_an_answered_connection_is_kept_for_the_next_request_longer_than_headers_may_take():
    async with connection(sent=HEAD + BODY) as one:
        assert await one.open_until(KEEP_ALIVE_S)
        assert one.line.sent.endswith(b"0\r\n\r\n")


@in_virtual_time
async def test_who_takes_nothing_of_an_answer_is_dropped_and_who_takes_a_little_of_it_is_not():
    async with connection(never, HEAD + BODY) as one:
        one.clog()
        await sleep_until(WRITE_S - 1.0)
        one.line.unsent_bytes -= 1
        assert await one.open_until(2 * WRITE_S)


@in_virtual_time
async def test_who_has_taken_enough_of_an_answer_has_all_time_for_the_rest():
    async with connection(never, HEAD + BODY) as one:
        one.clog()
        await sleep_until(WRITE_S - 1.0)
        one.protocol.resume_writing()
        await sleep_until(10 * WRITE_S)
        assert not one.line.ended
