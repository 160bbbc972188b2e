"""Which connections to the model server are kept for the next call, and which must not be."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from hearth.backends import ollama
from hearth.backends.ollama import OllamaBackend
from hearth.errors import BackendGone
from hearth.types import BackendCall
from tests.backends.stub_server import LAST_CHUNK, STREAM_HEAD, Peer, Serve, StubServer, backend_at, chunked, read, saying
from tests.support.taking import chunks_of

OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\nhi"
STREAM = STREAM_HEAD + chunked(b"one\n", b"two\n") + LAST_CHUNK


def call(method: str = "POST") -> BackendCall:
    return BackendCall(method=method, path="/api/generate", body=b"{}" if method == "POST" else b"")


async def ask(backend: OllamaBackend, method: str = "POST") -> list[bytes]:
    exchange = await backend.open(call(method))
    body = await read(exchange)
    exchange.close()
    return body


async def connections_for(serve: Serve, calls: int, method: str = "POST") -> int:
    async with StubServer(serve, keeps=True) as server, backend_at(server.url) as backend:
        for _ in range(calls):
            await ask(backend, method)
        return server.connections


@pytest.mark.parametrize("said", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_a_connection_whose_answer_was_read_to_the_end_carries_the_next_call(said: bytes) -> None:
    assert await connections_for(saying(said), 5) == 1


@pytest.mark.parametrize(
    "said",
    [
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
        WHOLE + b"more than was asked for",
        WHOLE + WHOLE,
    ],
    ids=["the server says so", "http 1.0", "bytes after the end", "a second answer"],
)
async def test_a_connection_that_may_not_be_trusted_carries_no_second_call(said: bytes) -> None:
    assert await connections_for(saying(said), 3) == 3


async def test_a_head_without_its_body_ends_the_connection() -> None:
    assert await connections_for(saying(OK + b"Content-Length: 2\r\n\r\n"), 3, "HEAD") == 3


async def test_a_connection_on_which_the_server_speaks_unasked_is_ended() -> None:
    idle = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.send(WHOLE)
        await idle.wait()
        await peer.send(WHOLE)
        await peer.left()

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        await ask(backend)
        idle.set()
        await server.all_left()
        assert await ask(backend) == [b"hi"]


async def test_a_connection_that_has_not_taken_the_whole_request_carries_no_second_call() -> None:
    async def serve(peer: Peer) -> None:
        peer.stop_reading()
        await peer.send(WHOLE)
        await asyncio.Event().wait()

    async with StubServer(serve, reads_body=False) as server, backend_at(server.url) as backend:
        exchange = await backend.open(BackendCall(method="POST", path="/api/generate", body=b"x" * 16 * 1024**2))
        assert await read(exchange) == [b"hi"]
        exchange.close()
        await ask(backend)
        assert server.connections == 2


async def test_an_answer_that_was_not_read_to_the_end_ends_its_connection() -> None:
    async with StubServer(saying(STREAM_HEAD + chunked(b"one\n")), keeps=True) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        assert await anext(chunks_of(exchange)) == b"one\n"
        exchange.close()
        await server.all_left()


async def test_calls_at_the_same_time_never_share_a_connection() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server, backend_at(server.url) as backend:
        exchanges = [await backend.open(call()) for _ in range(4)]
        assert server.connections == 4
        for exchange in exchanges:
            assert await read(exchange) == [b"hi"]
            exchange.close()
        await ask(backend)
        assert server.connections == 4


def dying_with(last_words: bytes) -> Serve:
    """The first request of a connection is answered; at the second one it ends."""
    served: set[int] = set()

    async def serve(peer: Peer) -> None:
        if peer.connection in served:
            await peer.send(last_words)
            peer.hang_up()
        else:
            served.add(peer.connection)
            await peer.send(WHOLE)

    return serve


async def test_a_kept_connection_that_proves_dead_is_replaced_before_anybody_notices() -> None:
    async with StubServer(dying_with(b""), keeps=True) as server, backend_at(server.url) as backend:
        for _ in range(3):
            assert await ask(backend) == [b"hi"]
        assert server.connections == 3


async def test_a_call_whose_answer_has_begun_is_not_repeated() -> None:
    async with StubServer(dying_with(b"HTTP/1.1 2"), keeps=True) as server, backend_at(server.url) as backend:
        await ask(backend)
        with pytest.raises(BackendGone):
            await backend.open(call())
        assert server.connections == 1


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server:
        backend = OllamaBackend(server.url, connect_timeout_s=30.0, kept_for_s=0.01)
        async with aclosing(backend):
            await ask(backend)
            await server.all_left()
            assert await ask(backend) == [b"hi"]


async def test_no_more_idle_connections_are_kept_than_a_card_has_slots() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server, backend_at(server.url) as backend:
        exchanges = [await backend.open(call()) for _ in range(ollama.KEPT + 3)]
        for exchange in exchanges:
            await read(exchange)
            exchange.close()
        await server.left(3)
        assert server.open_connections == ollama.KEPT


async def test_closing_the_backend_ends_idle_connections() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server, backend_at(server.url) as backend:
        await ask(backend)
        await backend.aclose()
        await server.all_left()


async def test_a_kept_connection_has_the_call_before_anybody_waits_for_the_answer() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server, backend_at(server.url) as backend:
        await ask(backend)
        await server.peers.get()
        opening = backend.open(call())
        await server.peers.get()
        assert await read(await opening) == [b"hi"]


async def test_a_call_that_nobody_waits_for_ends_its_connection_when_it_is_given_up() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server, backend_at(server.url) as backend:
        await ask(backend)
        backend.open(call()).close()
        await server.all_left()
        assert await ask(backend) == [b"hi"]
