"""What is written within one turn of the loop leaves in one piece, and none of it waits for an acknowledgement."""

from __future__ import annotations

import asyncio
import socket

import pytest

from hearth.api.protocol import _COALESCED_BYTES as SEND_FROM_BYTES
from hearth.api.protocol import CoalescingTransport
from hearth.api.server import HearthServer
from tests.api.house import Caller


class Recorder(asyncio.Transport):
    """A transport that keeps what it is given; the far end takes nothing, so all of it stays in its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.end = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.end
        self.sent.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.sent))

    def is_closing(self) -> bool:
        return bool(self.end)

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def transport(recorder: Recorder) -> CoalescingTransport:
    return CoalescingTransport(recorder, asyncio.get_running_loop())


async def test_writes_of_one_turn_leave_together_and_in_order(transport, recorder):
    for data in (b"head", b"", bytearray(b" body"), memoryview(b" end")):
        transport.write(data)
    assert recorder.sent == []
    await asyncio.sleep(0)
    transport.write(b"next")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert recorder.sent == [b"head body end", b"next"]


async def test_what_is_written_to_a_connection_that_has_ended_goes_nowhere(transport, recorder):
    transport.write(b"late")
    recorder.end = "lost"
    transport.flush()
    transport.write(b"later")
    transport.flush()
    assert recorder.sent == []


async def test_a_buffer_that_its_owner_changes_afterwards_is_sent_as_it_was(transport, recorder):
    data = bytearray(b"before")
    transport.write(data)
    data[:] = b"after!"
    await asyncio.sleep(0)
    assert recorder.sent == [b"before"]


async def test_much_is_sent_at_once(transport, recorder):
    transport.write(b"a")
    transport.write(b"b" * SEND_FROM_BYTES)
    assert recorder.sent == [b"a" + b"b" * SEND_FROM_BYTES]
    await asyncio.sleep(0)
    assert len(recorder.sent) == 1


async def test_closing_sends_what_was_written_first(transport, recorder):
    transport.write(b"last words")
    transport.close()
    assert (recorder.sent, recorder.end) == ([b"last words"], "closed")


async def test_aborting_sends_nothing_more(transport, recorder):
    transport.write(b"never")
    transport.abort()
    await asyncio.sleep(0)
    assert (recorder.sent, recorder.end) == ([], "aborted")
    assert transport.get_write_buffer_size() == 0


async def test_what_is_gathered_counts_as_not_sent(transport, recorder):
    recorder.sent.append(b"stuck")
    transport.write(b"waiting")
    assert transport.get_write_buffer_size() == len(b"stuckwaiting")


async def test_small_chunks_are_not_held_back_for_an_acknowledgement(app, gateway):
    server = HearthServer(app, lambda: gateway.config.settings.server)
    caller = await Caller.to(await server.start("127.0.0.1", 0))
    await caller.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await caller.reader.readuntil(b"\r\n\r\n")
    assert server._uvicorn is not None
    (connection,) = server._uvicorn.server_state.connections
    assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    caller.leave()
    await server.stop(0.2)
