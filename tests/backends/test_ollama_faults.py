"""The Ollama adapter against servers that break, lie, redirect, flood or hang, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing
from pathlib import Path

import pytest

from hearth.backends.ollama import OllamaBackend
from hearth.errors import BackendError, BackendGone, BackendProtocolError, BackendUnreachable
from hearth.types import BackendCall
from tests.backends.stub_server import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    Serve,
    StubServer,
    backend_at,
    chunked,
    read,
    read_until_broken,
    saying,
    saying_and_waiting,
    until_broken,
)
from tests.support.patience import WITHIN_S
from tests.support.taking import chunks_of

OK = b"HTTP/1.1 200 OK\r\n"


def call(method: str = "POST", body: bytes = b"{}") -> BackendCall:
    return BackendCall(method=method, path="/api/generate", body=body)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def opening_fails(*said: bytes) -> BackendError:
    async with StubServer(saying(*said)) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendError) as caught:
            await backend.open(call())
    return caught.value


async def broken_body(serve: Serve, **limits: int) -> tuple[list[bytes], BackendError | None]:
    async with StubServer(serve) as server, backend_at(server.url, **limits) as backend:
        exchange = await backend.open(call())
        came = await read_until_broken(exchange)
        exchange.close()
    return came


@pytest.mark.parametrize(
    ("rest", "came", "error"),
    [
        (chunked(b"two\n"), b"two\n", BackendGone),
        (b'8\r\n{"ha', b'{"ha', BackendGone),
        (b"zz\r\n", b"", BackendProtocolError),
        (b"3\r\nabcdef\r\n", b"abc", BackendProtocolError),
        (b"ffffffffffffffffff\r\n", b"", BackendProtocolError),
    ],
    ids=["last chunk missing", "half a chunk", "garbage as a chunk size", "chunk longer than it says", "absurd chunk size"],
)
async def test_a_body_that_breaks_its_framing_gives_what_came_and_then_an_error(
    rest: bytes, came: bytes, error: type[BackendError]
) -> None:
    seen = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.send(STREAM_HEAD + chunked(b"one\n"))
        await seen.wait()
        await peer.send(rest)

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        chunks = chunks_of(exchange)
        assert await anext(chunks) == b"one\n"
        seen.set()
        later, ended_by = await until_broken(chunks)
        exchange.close()
    assert b"".join(later) == came
    assert type(ended_by) is error


async def test_a_body_shorter_than_its_length_is_gone() -> None:
    chunks, error = await broken_body(saying(OK + b"Content-Length: 10\r\n\r\nshort"))
    assert chunks == [b"short"]
    assert isinstance(error, BackendGone)


async def test_a_reset_in_mid_body_is_gone() -> None:
    seen = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.send(STREAM_HEAD + chunked(b"one\n"))
        await seen.wait()
        peer.reset()

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        chunks = chunks_of(exchange)
        assert await anext(chunks) == b"one\n"
        seen.set()
        with pytest.raises(BackendGone):
            await anext(chunks)
        exchange.close()


async def test_a_reset_before_the_head_is_gone() -> None:
    async def serve(peer: Peer) -> None:
        peer.reset()

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendGone):
            await backend.open(call())


@pytest.mark.parametrize(
    "said",
    [
        b"<html>hello</html>\r\n\r\n",
        b"\x00\xff\x00\xff\r\n\r\n",
        OK + b"X-Big: " + b"x" * 1024**2 + b"\r\n\r\n",
        OK + b"".join(b"X-%d: 1\r\n" % number for number in range(1_000)) + b"\r\n",
        OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"Content-Length: many\r\n\r\n",
        b"HTTP/1.1 600 What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\n\x1f\x8b\x08\r\n0\r\n\r\n",
    ],
    ids=["html", "binary", "huge header", "many headers", "two framings", "bad length", "600", "999", "upgrade", "gzip", "gzip framing"],
)
async def test_what_is_no_plain_answer_is_a_protocol_error(said: bytes) -> None:
    assert type(await opening_fails(said)) is BackendProtocolError


@pytest.mark.parametrize("endless", [b"0\r\nx: " + b"a" * 10**6, b"0\r\n" + b"x: y\r\n" * 10**5, b"1;" + b"a" * 10**6])
async def test_what_is_beside_a_body_without_end_is_cut_off(endless: bytes) -> None:
    """The parser gathers a trailer at a cost that grows with the square of its length."""
    came, error = await broken_body(saying_and_waiting(STREAM_HEAD, chunked(b"one\n"), endless))
    assert came == [b"one\n"]
    assert isinstance(error, BackendProtocolError)


async def test_a_body_in_chunks_of_a_single_byte_is_whole() -> None:
    said = [chunked(b"x") * 100_000, LAST_CHUNK]
    async with StubServer(saying(STREAM_HEAD, *said)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        assert b"".join(await read(exchange)) == b"x" * 100_000
        exchange.close()


async def test_an_endless_head_is_cut_off() -> None:
    async def serve(peer: Peer) -> None:
        await peer.send(OK)
        while True:
            await peer.send(b"X-More: " + b"x" * 8_000 + b"\r\n")

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendProtocolError):
            await backend.open(call())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_redirect_is_refused_and_its_target_never_called(status: int, method: str) -> None:
    async with StubServer(saying(OK)) as target:
        moved = b"HTTP/1.1 %d Moved\r\nLocation: %b/api/generate\r\nContent-Length: 0\r\n\r\n" % (status, target.url.encode())
        async with StubServer(saying_and_waiting(moved)) as server, backend_at(server.url) as backend:
            with pytest.raises(BackendProtocolError):
                await backend.open(call(method))
            await server.all_left()
        assert target.connections == 0


async def test_a_get_whose_connection_broke_is_not_repeated() -> None:
    async with StubServer(saying()) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendGone):
            await backend.open(call("GET", b""))
        assert server.connections == 1


async def test_a_body_larger_than_any_answer_is_cut_off() -> None:
    chunks, error = await broken_body(saying(OK + b"Content-Length: 100\r\n\r\n" + b"x" * 100), max_body_bytes=64)
    assert chunks == []
    assert isinstance(error, BackendProtocolError)


async def test_a_streamed_line_without_end_is_cut_off() -> None:
    chunks, error = await broken_body(saying(STREAM_HEAD + chunked(b"fine\n", *[b"x" * 10] * 20) + LAST_CHUNK), max_line_bytes=64)
    assert chunks[0] == b"fine\n"
    assert len(b"".join(chunks)) <= 69
    assert isinstance(error, BackendProtocolError)


@pytest.mark.parametrize("ending", [b"", b"broken"])
async def test_a_chunk_that_breaks_off_larger_than_any_answer_ends_it(ending) -> None:
    size = 0x80 if not ending else 0x50
    chunks, error = await broken_body(saying(STREAM_HEAD + b"%x\r\n" % size + 0x50 * b"x" + ending), max_body_bytes=64)
    assert chunks == []
    assert isinstance(error, BackendProtocolError)
    assert "more than an answer" in str(error)


async def test_a_long_line_is_allowed_where_nothing_is_streamed() -> None:
    said = OK + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
    assert await broken_body(saying(said), max_line_bytes=64) == ([b"x" * 100], None)


async def test_nobody_listening_is_unreachable() -> None:
    async with StubServer(saying()) as server, backend_at(server.url) as backend:
        server.stop_listening()
        with pytest.raises(BackendUnreachable, match=f"127.0.0.1:{server.port}"):
            await backend.open(call())


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    async with aclosing(OllamaBackend("http://nowhere.invalid:1", connect_timeout_s=1.0)) as backend:
        with pytest.raises(BackendUnreachable):
            await backend.open(call())


async def test_a_connection_that_is_never_accepted_ends_after_the_connect_timeout() -> None:
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        async with aclosing(OllamaBackend(f"http://127.0.0.1:{listener.getsockname()[1]}", connect_timeout_s=0.1)) as backend:
            with pytest.raises(BackendUnreachable):
                await backend.open(call())


async def test_a_password_in_the_url_shows_in_no_message() -> None:
    async with backend_at("http://user:secret@127.0.0.1:1") as backend:
        with pytest.raises(BackendUnreachable) as caught:
            await backend.open(call())
    assert "secret" not in str(caught.value)


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        StubServer(saying(OK + b"Content-Length: 0\r\n\r\n")) as proxy,
        StubServer(saying(OK + b"Content-Length: 2\r\n\r\nhi")) as server,
        backend_at(server.url) as backend,
    ):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        exchange = await backend.open(call())
        assert await read(exchange) == [b"hi"]
        exchange.close()
        assert proxy.connections == 0


async def test_leaving_is_immediate_even_when_the_server_has_stopped_reading_the_request() -> None:
    """An orderly close would keep the connection until the unsent rest of the body is gone."""
    async with StubServer(saying_and_waiting(), reads_body=False) as server, backend_at(server.url) as backend:
        before = open_descriptors()
        opening = asyncio.ensure_future(backend.open(call(body=b"x" * 16 * 1024**2)))
        peer = await server.peers.get()
        peer.stop_reading()
        for _ in range(500):
            await asyncio.sleep(0)  # the client writes until the kernel takes no more
        opening.cancel()
        await asyncio.wait([opening])
        await asyncio.sleep(0)
        assert open_descriptors() == before + 1, "only the server's end may be open"


async def test_a_server_is_held_back_while_nobody_reads_its_answer() -> None:
    pieces, sent = 64, list[int]()

    async def serve(peer: Peer) -> None:
        await peer.send(OK + b"Content-Length: %d\r\n\r\n" % (pieces * 1024**2))
        for number in range(pieces):
            await peer.send(b"x" * 1024**2)
            sent.append(number)

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        for _ in range(5000):
            await asyncio.sleep(0)  # the server writes until the kernel takes no more
        assert len(sent) < pieces
        assert sum(map(len, await read(exchange))) == pieces * 1024**2


async def test_no_number_of_waiting_calls_keeps_another_one_back() -> None:
    async with StubServer(saying_and_waiting()) as server, backend_at(server.url) as backend:
        waiting = [asyncio.ensure_future(backend.open(call())) for _ in range(150)]
        async with asyncio.timeout(WITHIN_S):
            for _ in waiting:
                await server.peers.get()
        for opening in waiting:
            opening.cancel()
        await asyncio.wait(waiting)
        await server.all_left()


async def test_two_hundred_cancelled_calls_leave_no_connection_behind() -> None:
    async with StubServer(saying_and_waiting()) as server, backend_at(server.url) as backend:
        before = open_descriptors()
        for _ in range(200):
            opening = asyncio.ensure_future(backend.open(call()))
            await server.peers.get()
            opening.cancel()
            await asyncio.wait([opening])
        await server.all_left()
        assert server.connections == 200
        assert open_descriptors() <= before + 1


async def test_a_late_answer_to_a_cancelled_call_reaches_nobody() -> None:
    gate = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if peer.body == b"first":
            await gate.wait()
        await peer.send(OK + b"Content-Length: %d\r\n\r\n" % len(peer.body) + peer.body)

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        first = asyncio.ensure_future(backend.open(call(body=b"first")))
        await server.peers.get()
        first.cancel()
        await asyncio.wait([first])
        gate.set()
        exchange = await backend.open(call(body=b"second"))
        assert await read(exchange) == [b"second"]


async def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    async with StubServer(saying(OK + b"Content-Length: 2\r\n\r\nhi")) as server, backend_at(server.url) as backend:
        for _ in range(3):
            assert await read(await backend.open(call())) == [b"hi"]
        assert server.connections == 3


async def test_closing_the_backend_ends_running_answers_and_it_can_be_used_again() -> None:
    async with StubServer(saying_and_waiting(STREAM_HEAD + chunked(b"one\n"))) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        chunks = chunks_of(exchange)
        await anext(chunks)
        await backend.aclose()
        with pytest.raises(BackendGone):
            await anext(chunks)
        exchange.close()
        await server.all_left()
        (await backend.open(call())).close()


async def test_closing_a_backend_that_was_never_used_does_nothing() -> None:
    await OllamaBackend("http://127.0.0.1:1", connect_timeout_s=1.0).aclose()
