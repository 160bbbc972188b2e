"""How long a caller may keep a connection waiting, to the instant: the server's protocol in virtual time, on a line without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from uvicorn.server import ServerState

from hearth.api.protocol import Deadlines, HttpConnection
from hearth.api.server import KEEP_ALIVE_S, HearthServer
from hearth.config.settings import ServerSettings
from tests.api.house import FakeGateway, Serve, hello, never
from tests.support.cases import for_each
from tests.support.line import Line, Plug
from tests.support.virtual_time import in_virtual_time, sleep_until

HEADER_S, BODY_S, WRITE_S = 10.0, 30.0, 7.0
A_MOMENT_S = 0.001
BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
_ASKING = BODY.replace(b"}]}", b'}],"stream":true}')
STREAM = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(_ASKING), _ASKING)
HEAD = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)


class Clogged(Line):
    """A line whose other end takes what the test says."""

    unsent_bytes = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    gateway: FakeGateway
    protocol: HttpConnection
    line: Clogged

    async def open_until(self, instant: float) -> bool:
        """Whether the connection ends at this instant and not before."""
        await sleep_until(instant - A_MOMENT_S)
        open_before = not self.line.ended
        await sleep_until(instant + A_MOMENT_S)
        return open_before and self.line.ended


@asynccontextmanager
async def connection(serve: Serve = hello) -> AsyncIterator[Connection]:
    """One that was made at time 0."""
    gateway, line = FakeGateway(), Clogged(Plug())
    gateway.worker.serve = serve
    deadlines = Deadlines(header_s=HEADER_S, body_s=BODY_S, write_s=lambda: WRITE_S)
    config = HearthServer(gateway.app(), ServerSettings, deadlines=deadlines)._config()
    config.load()
    protocol = HttpConnection(config, ServerState(), {})
    protocol.connection_made(line)
    yield Connection(gateway=gateway, protocol=protocol, line=line)
    protocol.connection_lost(None)
    await gateway.worker.aclose()


@for_each("beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
@in_virtual_time
async def test_headers_that_do_not_come_in_time_end_the_connection(beginning):
    async with connection() as one:
        one.protocol.data_received(beginning)
        assert await one.open_until(HEADER_S)
        assert one.line.sent == b""


@in_virtual_time
async def test_trickling_headers_do_not_move_their_deadline():
    async with connection() as one:
        one.protocol.data_received(b"GET / HTTP/1.1\r\nX: ")
        for second in range(1, int(HEADER_S)):
            await sleep_until(second)
            one.protocol.data_received(b"a")
        assert await one.open_until(HEADER_S)


@in_virtual_time
async def test_a_body_that_stops_coming_ends_the_connection_and_reaches_no_queue():
    async with connection() as one:
        one.protocol.data_received(HEAD + BODY[:1])
        await sleep_until(5.0)
        one.protocol.data_received(BODY[1:2])
        assert await one.open_until(5.0 + BODY_S)
        assert one.gateway.worker.submitted == []


@in_virtual_time
async def test_a_slow_body_that_makes_progress_may_take_longer_than_the_deadline():
    async with connection() as one:
        one.protocol.data_received(HEAD)
        for at in range(0, len(BODY), 15):
            await asyncio.sleep(BODY_S - 1.0)
            one.protocol.data_received(BODY[at : at + 15])
        await asyncio.sleep(1.0)
        assert one.line.sent.startswith(b"HTTP/1.1 200 ")


@in_virtual_time
async def test_a_waiting_caller_is_not_ended_by_the_deadlines_for_reading():
    async with connection(never) as one:
        one.protocol.data_received(HEAD + BODY)
        await asyncio.sleep(3600.0)
        assert not one.line.ended
        assert one.gateway.worker.cancelled == []


@in_virtual_time
async def test_an_answered_connection_is_kept_for_the_next_request_longer_than_headers_may_take():
    async with connection() as one:
        one.protocol.data_received(HEAD + BODY)
        assert await one.open_until(KEEP_ALIVE_S)
        assert one.line.sent.endswith(b"0\r\n\r\n")


@in_virtual_time
async def test_who_takes_nothing_of_an_answer_is_dropped_and_who_takes_a_little_of_it_is_not():
    async with connection(never) as one:
        one.protocol.data_received(HEAD + BODY)
        one.line.unsent_bytes = 1000
        one.protocol.pause_writing()
        await sleep_until(WRITE_S - 1.0)
        one.line.unsent_bytes = 999
        assert await one.open_until(2 * WRITE_S)


@in_virtual_time
async def test_who_has_taken_enough_of_an_answer_has_all_time_for_the_rest():
    async with connection(never) as one:
        one.protocol.data_received(HEAD + BODY)
        one.line.unsent_bytes = 1000
        one.protocol.pause_writing()
        await sleep_until(WRITE_S - 1.0)
        one.protocol.resume_writing()
        await sleep_until(10 * WRITE_S)
        assert not one.line.ended
