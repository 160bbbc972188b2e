"""After a large answer the next small one comes at once, on the same connection: nothing that was
held back while the large one was read may stay held back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from hearth.engines.data_path import DataPath
from hearth.engines.ollama.control import Control
from hearth.engines.port import Exchange
from hearth.types import BackendCall
from tests.engines.stub_server import (
    LAST_CHUNK,
    STREAM_HEAD,
    Peer,
    StubServer,
    backend_at,
    chunked,
    read,
)
from tests.support.patience import WITHIN_S, in_time

SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
SIZES = (300_000, 1_000_000, 10_000_000)
LARGE_PATH = "/large"

Reading = Callable[[DataPath], Awaitable[int]]


def whole(size: int) -> bytes:
    """As embeddings and lists of models come."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size


def in_one_chunk(size: int) -> bytes:
    """As a stream's single long line comes."""
    return STREAM_HEAD + chunked(b"x" * (size - 1) + b"\n") + LAST_CHUNK


def in_many_chunks(size: int) -> bytes:
    return STREAM_HEAD + chunked(*[b"x" * 199 + b"\n"] * (size // 200)) + LAST_CHUNK


def serving(large: bytes) -> Callable[[Peer], Awaitable[None]]:
    async def serve(peer: Peer) -> None:
        await peer.send(large if peer.path == LARGE_PATH else SMALL)

    return serve


async def open_large(backend: DataPath) -> Exchange:
    return await backend.open(BackendCall(method="POST", path=LARGE_PATH, body=b"{}"))


async def read_at_once(backend: DataPath) -> int:
    exchange = await open_large(backend)
    size = sum(map(len, await read(exchange)))
    exchange.close()
    return size


async def read_late(backend: DataPath) -> int:
    """Nobody reads until the server cannot send any more."""
    exchange = await open_large(backend)
    for _ in range(2000):
        await asyncio.sleep(0)
    size = sum(map(len, await read(exchange)))
    exchange.close()
    return size


async def read_now_and_then(backend: DataPath) -> int:
    exchange, size = await open_large(backend), 0
    while chunks := await exchange.take():
        size += sum(map(len, chunks))
        for _ in range(20):
            await asyncio.sleep(0)
    exchange.close()
    return size


async def small(backend: DataPath) -> list[bytes]:
    return await read(await backend.open(BackendCall(method="GET", path="/small")))


@pytest.mark.parametrize("reading", [read_at_once, read_late, read_now_and_then])
@pytest.mark.parametrize("framed", [whole, in_one_chunk, in_many_chunks])
@pytest.mark.parametrize("size", SIZES)
async def test_the_answer_after_a_large_one_comes_at_once_on_the_same_connection(
    size: int, framed: Callable[[int], bytes], reading: Reading
):
    async with (
        StubServer(serving(framed(size)), keeps=True) as server,
        backend_at(server.url) as backend,
    ):
        for _ in range(3):
            async with in_time():
                assert await reading(backend) == size
                assert await small(backend) == [b"hi"]
        assert server.connections == 1


@pytest.mark.parametrize("framed", [whole, in_one_chunk, in_many_chunks])
@pytest.mark.parametrize("size", SIZES)
async def test_a_reader_who_stops_in_a_large_answer_leaves_nothing_behind(
    size: int, framed: Callable[[int], bytes]
):
    async with (
        StubServer(serving(framed(size)), keeps=True) as server,
        backend_at(server.url) as backend,
    ):
        for _ in range(3):
            exchange = await open_large(backend)
            assert await exchange.take()
            exchange.close()
            async with in_time():
                assert await small(backend) == [b"hi"]


@pytest.mark.parametrize("size", SIZES)
async def test_the_control_path_answers_at_once_after_a_long_list_of_models(size: int):
    count = size // 100
    row = (
        b'{"name":"model-%07d:latest","model":"model-%07d:latest",'
        b'"digest":"0123456789abcdef","size":4096}'
    )
    body = b'{"models":[' + b",".join(row % (number, number) for number in range(count)) + b"]}"

    async def serve(peer: Peer) -> None:
        said = body if peer.path == "/api/tags" else b'{"version":"0.33.0"}'
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))

    async with (
        StubServer(serve, keeps=True) as server,
        aclosing(Control(server.url, timeout_s=WITHIN_S)) as control,
    ):
        for _ in range(3):
            assert len(await control.installed()) == count
            assert await control.version() == "0.33.0"
        assert server.connections == 1
