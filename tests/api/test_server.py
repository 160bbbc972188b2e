"""The server on real sockets: framing, limits, starting and stopping."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from typing import cast

import pytest

from hearth.api.app import HearthApp
from hearth.api.asgi import Receive, Responder, Scope, Send
from hearth.api.protocol import Deadlines, HttpConnection
from hearth.api.server import HearthServer
from hearth.api.streaming import Relay
from hearth.config.settings import ServerSettings
from hearth.errors import AddressUnavailable, BackendGone
from hearth.execution.request import Reply, ReplyHead, Submission
from hearth.types import Headers
from tests.api.house import NDJSON, Caller, FakeGateway, hello, never
from tests.support.patience import WITHIN_S

HEALTH = b"GET /llm/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false}'
CHAT = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
STREAM = CHAT.replace(b"false", b"true ")
PATIENT = Deadlines(write_s=lambda: 10.0)


async def send_for_ever(caller: Caller) -> None:
    while True:
        await caller.send(b"a" * 65536)
        await asyncio.sleep(0)


async def answer_to(url: str, raw: bytes) -> bytes:
    caller = await Caller.to(url)
    await caller.send(raw)
    answer = await caller.until_closed()
    caller.leave()
    return answer


@pytest.mark.parametrize(
    "raw",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.test\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        b"not http at all\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA b: c\r\n\r\n",
    ],
)
async def test_what_is_not_proper_http_is_a_400_in_json_and_the_end_of_the_connection(raw, url, gateway):
    answer = await answer_to(url, raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'{"error": "' in answer
    assert gateway.backend.calls == []


async def test_headers_without_end_are_cut_off_at_the_cap(url, gateway):
    caller = await Caller.to(url)
    await caller.send(b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\nX: ")
    with pytest.raises(ConnectionError):
        await send_for_ever(caller)
    caller.leave()
    assert gateway.backend.calls == []


@pytest.mark.parametrize("fields", [[b"X: " + b"a" * 70_000], [b"X-%d: %s" % (number, b"a" * 100) for number in range(700)]])
async def test_headers_above_the_cap_are_refused_even_in_one_piece(fields, url, gateway):
    answer = await answer_to(url, b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n".join(fields) + b"\r\n\r\n")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert gateway.backend.calls == []


async def test_a_trailer_is_no_header(url, gateway):
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    head = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await answer_to(url, head + b"%x\r\n%b\r\n0\r\nHost: evil\r\nOrigin: http://evil\r\n\r\n" % (len(body), body))
    assert answer.startswith(b"HTTP/1.1 200 ")


async def ask_in_http_1_0(url: str, body: bytes) -> Caller:
    caller = await Caller.to(url)
    await caller.send(b"POST /api/chat HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return caller


async def test_a_caller_of_http_1_0_gets_each_piece_of_a_stream_as_it_comes_unframed_and_the_end_of_the_connection(url, gateway):
    go_on = asyncio.Event()

    async def in_two_halves(_: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=NDJSON))
        reply.push(b'{"n":1}\n')
        await go_on.wait()
        reply.push(b'{"n":2}\n')
        reply.push(b'{"done":true}\n')
        reply.finish()

    gateway.worker.serve = in_two_halves
    caller = await ask_in_http_1_0(url, _BODY.replace(b"false", b"true"))
    status, headers = await caller.head()
    assert (status, headers["connection"]) == (200, "close")
    assert headers.keys().isdisjoint({"transfer-encoding", "content-length"})
    assert await caller.reader.readline() == b'{"n":1}\n'
    go_on.set()
    assert await caller.until_closed() == b'{"n":2}\n{"done":true}\n'
    caller.leave()


async def test_a_caller_of_http_1_0_gets_an_answer_that_is_no_stream_with_its_length_or_an_error(url, gateway):
    async def json_in_two_chunks(_: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=((b"content-type", b"application/json"),)))
        reply.push(b'{"n":')
        await asyncio.sleep(0)
        reply.push(b"1}")
        reply.finish()

    gateway.worker.serve = json_in_two_chunks
    whole = await ask_in_http_1_0(url, _BODY)
    assert (await whole.head())[1]["content-length"] == "7"
    assert await whole.until_closed() == b'{"n":1}'

    async def half_of_it(_: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=((b"content-type", b"application/json"),)))
        reply.push(b'{"n":')
        raise BackendGone("it broke off")

    gateway.worker.serve = half_of_it
    half = await ask_in_http_1_0(url, _BODY)
    said = await half.until_closed()
    assert said.startswith(b"HTTP/1.1 500 ")
    assert b'"n"' not in said
    for caller in (whole, half):
        caller.leave()


async def test_a_stream_that_never_ends_reaches_a_caller_of_http_1_0(url):
    caller = await Caller.to(url)
    await caller.send(b"GET /llm/queue/stream HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert (await caller.head())[0] == 200
    assert (await caller.reader.readline()).startswith(b"data: ")
    caller.leave()


async def test_a_body_with_two_lengths_is_refused_and_nothing_after_it_is_answered(url, gateway):
    smuggled = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    raw = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = await answer_to(url, raw + smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert gateway.backend.calls == []
    assert gateway.worker.submitted == []


async def test_a_broken_chunk_in_a_body_ends_the_connection(url, gateway):
    raw = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    answer = await answer_to(url, raw)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    assert gateway.worker.submitted == []


async def test_no_server_header_and_no_date_of_our_own(url):
    caller = await Caller.to(url)
    await caller.send(HEALTH)
    status, headers = await caller.head()
    assert status == 200
    assert "server" not in headers
    assert "date" not in headers
    caller.leave()


async def test_a_connection_is_kept_for_the_next_request(url):
    caller = await Caller.to(url)
    for _ in range(3):
        await caller.send(HEALTH)
        status, headers = await caller.head()
        assert status == 200
        await caller.reader.readexactly(int(headers["content-length"]))
    caller.leave()


class Saying:
    """Answers everything with the same complete answer."""

    def __init__(self, headers: Headers) -> None:
        self.headers = headers

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Responder(send).whole(200, self.headers, b"hello")

    def end_streams(self) -> None:
        """There are none."""


async def said_by(app: Saying, raw: bytes) -> bytes:
    server = HearthServer(cast("HearthApp", app), ServerSettings)
    said = await answer_to(await server.start("127.0.0.1", 0), raw)
    await server.stop(0.5)
    return said


async def test_an_answer_that_ends_its_connection_does_so():
    assert (await said_by(Saying(((b"Connection", b"close"),)), 2 * HEALTH)).count(b"HTTP/1.1 200 ") == 1


async def test_a_taken_port_is_an_error_that_names_it_and_says_what_to_do(app):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HearthServer(app, ServerSettings)
        with pytest.raises(AddressUnavailable, match=rf"127\.0\.0\.1:{port}: something else listens there.*server\.port"):
            await server.start("127.0.0.1", port)
        await server.stop(0.1)


async def test_an_impossible_host_is_an_error_that_names_it(app):
    with pytest.raises(AddressUnavailable, match=r"cannot listen on 203\.0\.113\.1:0"):
        await HearthServer(app, ServerSettings).start("203.0.113.1", 0)


@pytest.mark.parametrize("host", ["no host", "a..b", "x" * 64])
async def test_a_host_name_that_nobody_has_is_an_error_that_says_what_to_correct(host, app):
    with pytest.raises(AddressUnavailable, match=rf"cannot listen on {host}:0: the host name is unknown; correct server\.host"):
        await HearthServer(app, ServerSettings).start(host, 0)


async def test_the_url_is_one_that_can_be_called_from_this_machine(app):
    server = HearthServer(app, ServerSettings)
    url = await server.start("0.0.0.0", 0)
    assert url.startswith("http://127.0.0.1:")
    assert (await answer_to(url, HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).startswith(b"HTTP/1.1 200 ")
    await server.stop(0.1)


async def test_starting_installs_no_signal_handlers(app):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = HearthServer(app, ServerSettings)
    await server.start("127.0.0.1", 0)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop(0.1)


async def test_stopping_ends_status_streams_and_idle_connections_within_the_grace(gateway, app):
    server = HearthServer(app, ServerSettings, deadlines=PATIENT)
    url = await server.start("127.0.0.1", 0)
    streaming, idle, silent = await Caller.to(url), await Caller.to(url), await Caller.to(url)
    await streaming.send(b"GET /llm/queue/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await streaming.head()
    await streaming.reader.readuntil(b"\n\n")
    await idle.send(HEALTH)
    await idle.head()
    await asyncio.wait_for(server.stop(600.0), WITHIN_S)
    assert (await streaming.until_closed()).endswith(b"0\r\n\r\n")
    for caller in (streaming, idle, silent):
        await caller.until_closed()
        caller.leave()
    await server.stop(5.0)


async def test_stopping_lets_an_answer_end_within_the_grace(gateway, app):
    finish = asyncio.Event()

    async def slowly(new, reply):
        await finish.wait()
        await hello(new, reply)

    gateway.worker.serve = slowly
    server = HearthServer(app, ServerSettings, deadlines=PATIENT)
    caller = await Caller.to(await server.start("127.0.0.1", 0))
    await caller.post("/api/chat", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    await gateway.worker.arrived.wait()
    stopping = asyncio.ensure_future(server.stop(600.0))
    await asyncio.sleep(0)
    finish.set()
    assert b'{"done":true}' in await caller.until_closed()
    await stopping
    caller.leave()


async def test_stopping_cuts_off_what_outlasts_the_grace_and_cancels_its_work(gateway, app):
    gateway.worker.serve = never
    server = HearthServer(app, ServerSettings, deadlines=PATIENT)
    caller = await Caller.to(await server.start("127.0.0.1", 0))
    await caller.post("/api/chat", b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    await gateway.worker.arrived.wait()
    await asyncio.wait_for(server.stop(0.1), WITHIN_S)
    assert gateway.worker.cancelled == [1]
    caller.leave()


async def test_nobody_is_answered_after_a_stop(gateway: FakeGateway, app):
    server = HearthServer(app, ServerSettings)
    url = await server.start("127.0.0.1", 0)
    await server.stop(0.1)
    with pytest.raises(ConnectionRefusedError):
        await Caller.to(url)


async def test_a_connection_that_has_ended_is_no_work_for_the_garbage_collector(url):
    """`hearth serve` seldom collects the old generation: what only a collection frees piles up by the connection."""

    def alive() -> int:
        return sum(isinstance(each, HttpConnection | Relay) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        for raw in (HEALTH, CHAT, STREAM):
            await answer_to(url, raw.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        async with asyncio.timeout(WITHIN_S):
            while alive() > before:  # noqa: ASYNC110 - the last callbacks of a connection tell nobody
                await asyncio.sleep(0.01)
    finally:
        gc.enable()
