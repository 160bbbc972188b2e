"""The data path to Ollama over real sockets: bytes go through unchanged, whatever breaks says so,
and which connections are kept.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import sys
import weakref
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from hearth.engines.data_path import DataPath
from hearth.errors import (
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendUnreachable,
    BadRequest,
    ConfigError,
)
from hearth.types import BackendCall
from tests.dialects.captured import captured
from tests.emulator.captures import CAPTURES, read_capture
from tests.engines.stub_server import (
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
    saying_in_two,
)
from tests.support.cases import for_each
from tests.support.patience import for_ever, in_time
from tests.support.taking import chunks_of

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = OK + b"Content-Length: 0\r\n\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\nhi"
STREAM = STREAM_HEAD + chunked(b"one\n", b"two\n") + LAST_CHUNK
BEGUN = STREAM_HEAD + chunked(b"one\n")
NOT_PASSED = {"connection", "transfer-encoding"}
SMILE = "🙂".encode()
TINY = [b"%d\n" % number for number in range(50_000)]
HUGE = b"".join(b"%07d\n" % number for number in range(60_000))


def call(
    body: bytes = b"{}",
    *headers: tuple[bytes, bytes],
    path: str = "/api/generate",
    method: str = "POST",
) -> BackendCall:
    return BackendCall(method=method, path=path, headers=headers, body=body)


async def ask(backend: DataPath, asked: BackendCall | None = None) -> list[bytes]:
    exchange = await backend.open(asked or call())
    body = await read(exchange)
    exchange.close()
    return body


async def received(
    *headers: tuple[bytes, bytes],
    body: bytes = b"{}",
    path: str = "/api/generate",
    prefix: str = "",
) -> Peer:
    """What the server was sent."""
    async with StubServer(saying(EMPTY)) as server, backend_at(server.url + prefix) as backend:
        await ask(backend, call(body, *headers, path=path))
        return await server.peers.get()


# What comes back.


@for_each(
    "name",
    [
        path.stem
        for path in sorted(CAPTURES.glob("*.txt"))
        if captured(path.stem).status not in {301, 307}
    ],
)
@pytest.mark.parametrize("segment_bytes", [7, 65_536])
async def test_a_recorded_answer_comes_through_byte_for_byte_and_chunk_by_chunk(
    name: str, segment_bytes: int
):
    expected = captured(name)
    wire = read_capture(name).response
    segments = [wire[start : start + segment_bytes] for start in range(0, len(wire), segment_bytes)]
    async with StubServer(saying(*segments)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(
            BackendCall(method=expected.method, path=expected.path, body=expected.request_body)
        )
        chunks = await read(exchange)
    assert (exchange.status, b"".join(chunks)) == (expected.status, expected.body)
    if "transfer-encoding" in expected.headers:
        assert tuple(chunks) == expected.chunks
    kept = {
        name: value
        for name, value in expected.headers.items()
        if name not in NOT_PASSED and not name.startswith("access-control-")
    }
    assert {name.decode(): value.decode() for name, value in exchange.headers} == kept


LINE = {"max_line_bytes": 64}
BODY = {"max_body_bytes": 64}
OF_100 = b"Content-Length: 100\r\n\r\n" + b"x" * 100
ANSWERS: dict[
    str, tuple[list[bytes], dict[str, int], bytes | list[bytes], type[BackendError] | str | None]
] = {
    "two chunks": ([STREAM], {}, [b"one\n", b"two\n"], None),
    "a byte at a time": (
        [STREAM_HEAD, *(chunked(SMILE)[at : at + 1] for at in range(9)), LAST_CHUNK],
        {},
        [SMILE],
        None,
    ),
    "half a character": (
        [STREAM_HEAD, chunked(SMILE[:2]), chunked(SMILE[2:]), LAST_CHUNK],
        {},
        [SMILE[:2], SMILE[2:]],
        None,
    ),
    "tiny chunks": ([STREAM_HEAD + chunked(*TINY) + LAST_CHUNK], {}, TINY, None),
    "tinier chunks": (
        [STREAM_HEAD + chunked(b"x") * 100_000, LAST_CHUNK],
        {},
        [b"x"] * 100_000,
        None,
    ),
    "a huge chunk": ([STREAM_HEAD + chunked(HUGE) + LAST_CHUNK], {}, HUGE, None),
    "last chunk missing": (
        [STREAM_HEAD + chunked(b"one\n", b"two\n")],
        {},
        b"one\ntwo\n",
        BackendGone,
    ),
    "half a chunk": ([BEGUN + b'8\r\n{"ha'], {}, b'one\n{"ha', BackendGone),
    "garbage as a chunk size": ([BEGUN, b"zz\r\n"], {}, b"one\n", BackendProtocolError),
    "chunk longer than it says": (
        [BEGUN, b"3\r\nabcdef\r\n"],
        {},
        b"one\nabc",
        BackendProtocolError,
    ),
    "absurd chunk size": ([BEGUN, b"ffffffffffffffffff\r\n"], {}, b"one\n", BackendProtocolError),
    "neither chunks nor a length": (
        [OK + b"\r\nwhole, as far as anybody knows"],
        {},
        b"whole, as far as anybody knows",
        None,
    ),
    "shorter than its length": (
        [OK + b"Content-Length: 10\r\n\r\nshort"],
        {},
        b"short",
        BackendGone,
    ),
    "endless trailer": ([BEGUN, b"0\r\nx: " + b"a" * 10**6], {}, b"one\n", BackendProtocolError),
    "endless trailers": (
        [BEGUN, b"0\r\n" + b"x: y\r\n" * 10**5],
        {},
        b"one\n",
        BackendProtocolError,
    ),
    "larger than any answer": ([OK + OF_100], BODY, [], "that is too long"),
    "larger than any answer in half a chunk": (
        [STREAM_HEAD + b"80\r\n" + 0x50 * b"x"],
        BODY,
        [],
        "that is too long",
    ),
    "larger than any answer and misframed": (
        [STREAM_HEAD, b"50\r\n" + 0x50 * b"x" + b"broken"],
        BODY,
        [],
        "that is too long",
    ),
    "a streamed line without end": (
        [STREAM_HEAD + chunked(b"fine\n", *[b"x" * 10] * 20)],
        LINE,
        b"fine\n" + b"x" * 60,
        "too long",
    ),
    "a long line that is not streamed": (
        [OK + b"Content-Type: application/json\r\n" + OF_100],
        LINE,
        b"x" * 100,
        None,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_chunks_come_as_made_and_what_breaks_gives_what_came_then_an_error(name: str):
    said, limits, expected, ended_by = ANSWERS[name]
    opened = asyncio.Event()
    serve = saying_in_two(*said, opened=opened, waits="endless" in name)
    async with StubServer(serve) as server, backend_at(server.url, **limits) as backend:
        exchange = await backend.open(call())
        opened.set()
        chunks, error = await read_until_broken(exchange)
        exchange.close()
    assert (b"".join(chunks) if isinstance(expected, bytes) else chunks) == expected
    if isinstance(ended_by, str):
        assert (type(error), ended_by in str(error)) == (BackendProtocolError, True)
    else:
        assert type(error) is (ended_by or type(None))


NO_ANSWERS = [
    *(
        b"HTTP/1.1 %d Moved\r\nLocation: TARGET/api/generate\r\nContent-Length: 0\r\n\r\n" % status
        for status in (301, 302, 303, 307, 308)
    ),
    b"<html>hello</html>\r\n\r\n",
    b"\x00\xff\x00\xff\r\n\r\n",
    OK + b"X-Big: " + b"x" * 1024**2 + b"\r\n\r\n",
    OK + b"X-More: " + b"x" * 1024**2,
    OK + b"".join(b"X-%d: 1\r\n" % number for number in range(1_000)) + b"\r\n",
    OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    OK + b"Content-Length: many\r\n\r\n",
    b"HTTP/1.1 600 What\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    OK + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
    OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\n\x1f\x8b\x08\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    BEGUN + b"zz\r\n",
    WHOLE + b"more than was asked for",
]


@pytest.mark.parametrize("said", NO_ANSWERS)
async def test_what_is_no_plain_answer_is_an_error_and_no_redirect_is_followed(said: bytes):
    async with StubServer(saying(OK)) as target:
        moved = said.replace(b"TARGET", target.url.encode())
        async with (
            StubServer(saying(moved, waits=True)) as server,
            backend_at(server.url) as backend,
        ):
            with pytest.raises(BackendProtocolError):
                await backend.open(call())
            await server.all_left()
        assert target.connections == 0


async def test_the_answer_loses_only_its_hop_by_hop_fields_and_what_is_hearths_to_say():
    dropped = (
        b"Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nSet-Cookie: "
        b"a=1\r\nAccess-Control-Allow-Origin: *\r\n"
    )
    dropped += (
        b"X-Request-Id: req_theirs\r\nX-Queue-Position: 1\r\nX-Estimated-Wait-Seconds: "
        b"1.0\r\nX-Hearth-Served-By: us\r\n"
    )
    dropped += b"X-Estimated-Wait-Rough: true\r\nX-Wait-Bound-Seconds: 2.0\r\n"
    head = OK + dropped + b"X-Stay: 1\r\nx-stay: 2\r\nContent-Length: 0\r\n\r\n"
    async with StubServer(saying(head)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        exchange.close()
        assert exchange.headers == ((b"x-stay", b"1"), (b"x-stay", b"2"), (b"content-length", b"0"))


async def test_a_reset_before_the_head_or_in_mid_body_is_gone():
    seen = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if peer.body == b"whole head":
            await peer.send(OK + b"\r\none\n")
            await seen.wait()
        peer.reset()

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendGone):
            await backend.open(call())
        chunks = chunks_of(await backend.open(call(b"whole head")))
        assert await anext(chunks) == b"one\n"
        seen.set()
        with pytest.raises(BackendGone):
            await anext(chunks)


async def test_a_server_is_held_back_while_nobody_reads_its_answer():
    pieces = 64
    sent = list[int]()

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


# What is sent, and where.


HOP_BY_HOP = (
    "proxy-authorization",
    "keep-alive",
    "te",
    "upgrade",
    "transfer-encoding",
    "expect",
    "x-hop",
)


async def test_the_request_carries_what_was_given_without_key_or_invention():
    odd = (
        (b"content-type", b"text/odd"),
        (b"x-custom", "grüße".encode()),
        (b"x-twice", b"1"),
        (b"x-twice", b"2"),
    )
    stay_here = [
        (name.encode(), b"secret")
        for name in ("authorization", "x-api-key", "api-key", "cookie", "origin", *HOP_BY_HOP)
    ]
    peer = await received(*odd, (b"host", b"evil.example"), (b"connection", b"X-Hop"), *stay_here)
    ours = (
        (b"accept-encoding", b"identity"),
        (b"content-length", b"2"),
        (b"host", b"127.0.0.1:%d" % peer.port),
    )
    assert sorted(peer.fields) == sorted((*odd, *ours))


@pytest.mark.parametrize("size", [0, 1, 3 * 1024**2])
async def test_a_body_of_any_size_arrives_whole(size: int):
    peer = await received(body=b"x" * size)
    assert (peer.body, dict(peer.fields)[b"content-length"]) == (b"x" * size, b"%d" % size)


async def test_an_upload_is_sent_in_pieces_on_a_connection_that_is_used_once():
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number * 100_000

    async with (
        StubServer(saying(EMPTY), keeps=True) as server,
        backend_at(server.url) as backend,
    ):
        await ask(backend)
        first = await server.peers.get()
        await ask(backend, replace(call(b"", path="/api/blobs/sha256:a"), upload=pieces()))
        peer = await server.peers.get()
        await ask(backend)
        last = await server.peers.get()
    assert peer.body == b"".join(b"%d" % number * 100_000 for number in range(3))
    assert first.connection == last.connection != peer.connection


@pytest.mark.parametrize(
    "path", ["/api/show?verbose=1&x=%2F%20", "//evil.example/api", "/a/../b", "/v1/models/a%3Ab"]
)
async def test_the_path_is_sent_as_it_came_behind_the_prefix_of_the_configured_url(path: str):
    assert (await received(path=path)).path == path
    assert (await received(path=path, prefix="/ollama/")).path == f"/ollama{path}"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "api",
        "@evil.example/",
        "/a b",
        "/a\r\nX: 1",
        "/ä",
        "/a#b",
        "http://evil.example/",
        "header",
    ],
)
async def test_what_is_no_plain_path_or_header_is_refused_and_not_sent(path: str):
    refused = (
        call(b"{}", (b"x-a", b"1\r\nauthorization: Bearer k"))
        if path == "header"
        else call(path=path)
    )
    async with StubServer(saying(EMPTY)) as server, backend_at(server.url) as backend:
        with pytest.raises(BadRequest):
            await backend.open(refused)
        assert server.connections == 0


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:11434", "ftp://127.0.0.1", "http://", "http://[::1"]
)
def test_a_url_that_is_no_http_url_is_a_config_error(url: str):
    with pytest.raises(ConfigError):
        DataPath(url, connect_timeout_s=1.0)


async def test_nobody_listening_is_unreachable_and_no_password_shows():
    async with StubServer(saying()) as server:
        server.stop_listening()
        for url in (server.url, "http://user:secret@127.0.0.1:1", "http://nowhere.invalid:1"):
            async with backend_at(url) as backend:
                with pytest.raises(BackendUnreachable) as caught:
                    await backend.open(call())
            assert url.rpartition("@")[2].removeprefix("http://") in str(caught.value)
            assert "secret" not in str(caught.value)


async def test_a_connection_that_is_never_accepted_ends_after_the_connect_timeout():
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        async with aclosing(
            DataPath(f"http://127.0.0.1:{listener.getsockname()[1]}", connect_timeout_s=0.1)
        ) as backend:
            with pytest.raises(BackendUnreachable):
                await backend.open(call())


# Leaving.


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_leaving_is_immediate_even_when_the_server_stopped_reading():
    """An orderly close would keep the connection until the unsent rest of the body is gone."""
    async with (
        StubServer(saying(waits=True), reads_body=False) as server,
        backend_at(server.url) as backend,
    ):
        before = open_descriptors()
        opening = asyncio.ensure_future(backend.open(call(b"x" * 16 * 1024**2)))
        peer = await server.peers.get()
        peer.stop_reading()
        for _ in range(500):
            await asyncio.sleep(0)  # the client writes until the kernel takes no more
        opening.cancel()
        await asyncio.wait([opening])
        await asyncio.sleep(0)
        assert open_descriptors() == before + 1, "only the server's end may be open"


async def test_waiting_calls_keep_no_other_back_and_cancelled_ones_leave_nothing():
    async with StubServer(saying(waits=True)) as server, backend_at(server.url) as backend:
        before = open_descriptors()
        waiting = [asyncio.ensure_future(backend.open(call())) for _ in range(150)]
        async with in_time():
            for _ in waiting:
                await server.peers.get()
        for opening in waiting:
            opening.cancel()
        await asyncio.wait(waiting)
        await server.all_left()
        assert open_descriptors() <= before + 1


async def test_closing_the_backend_ends_answers_and_nothing_is_sent_afterwards():
    async with StubServer(saying(BEGUN, waits=True)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        chunks = chunks_of(exchange)
        await anext(chunks)
        await backend.aclose()
        with pytest.raises(BackendGone):
            await anext(chunks)
        exchange.close()
        await server.all_left()
        with pytest.raises(BackendGone):
            await backend.open(call())
        assert server.connections == 1


@pytest.mark.parametrize("rest", [b"no chunk\r\n", b"180000\r\n" + 0x180000 * b"x", b""])
async def test_an_answer_that_broke_off_is_let_go_of_by_whoever_was_told(rest: bytes):
    """The error that is raised knows the answer."""
    limits = {"max_body_bytes": 1 << 20, "max_line_bytes": 1 << 20}
    opened = asyncio.Event()
    async with (
        StubServer(saying_in_two(BEGUN, rest, opened=opened)) as server,
        backend_at(server.url, **limits) as backend,
    ):
        gc.disable()
        try:
            exchange = await backend.open(call())
            opened.set()
            with suppress(BackendError):
                while await exchange.take():
                    pass
            exchange.close()
            await server.all_left()
            known = weakref.ref(exchange)
            del exchange
            assert known() is None
        finally:
            gc.enable()


# Which connections are kept for the next call.


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


CONNECTIONS_FOR_3: dict[str, tuple[Serve, int]] = {
    "one whose answer was read to its end carries the next call": (saying(WHOLE), 1),
    "one whose stream was read to its end, too": (saying(STREAM), 1),
    "one that says that it closes": (
        saying(OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi"),
        3,
    ),
    "one of an old server": (saying(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi"), 3),
    "one that answered twice": (saying(WHOLE + WHOLE), 3),
    "one after a HEAD, too": (saying(OK + b"Content-Length: 2\r\n\r\n"), 1),
    "one that proves dead is replaced before anybody notices": (dying_with(b""), 3),
}


@pytest.mark.parametrize("name", CONNECTIONS_FOR_3)
async def test_a_connection_is_kept_for_the_next_call_where_it_can_be_trusted(name: str):
    serve, connections = CONNECTIONS_FOR_3[name]
    async with StubServer(serve, keeps=True) as server, backend_at(server.url) as backend:
        for _ in range(3):
            await ask(backend, call(method="HEAD" if "HEAD" in name else "POST"))
        assert server.connections == connections


@pytest.mark.parametrize("unasked", [WHOLE, b"HTTP/1.1 2", b"\0", STREAM])
@pytest.mark.parametrize("is_read", [True, False])
async def test_a_connection_on_which_the_server_speaks_unasked_is_ended(
    unasked: bytes, is_read: bool
):
    idle = asyncio.Event()

    async def serve(peer: Peer) -> None:
        await peer.send(WHOLE.replace(b"hi", b"ho") if peer.body == b"{}" else WHOLE)
        if peer.body == b"{}":
            return
        await idle.wait()
        await peer.send(unasked)
        await peer.left()

    async with StubServer(serve, keeps=True) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call(b"first"))
        if is_read:
            assert await read(exchange) == [b"hi"]
            exchange.close()
        idle.set()
        await server.all_left()
        assert await ask(backend) == [b"ho"]
        if not is_read:
            assert await read(exchange) == [b"hi"]


async def test_a_connection_that_took_half_a_request_carries_no_second_call():
    async def serve(peer: Peer) -> None:
        peer.stop_reading()
        await peer.send(WHOLE)
        await for_ever()

    async with StubServer(serve, reads_body=False) as server, backend_at(server.url) as backend:
        assert await ask(backend, call(b"x" * 16 * 1024**2)) == [b"hi"]
        await ask(backend)
        assert server.connections == 2


async def test_a_begun_answer_is_not_repeated_nor_a_call_on_a_new_connection():
    async with (
        StubServer(dying_with(b"HTTP/1.1 2"), keeps=True) as server,
        backend_at(server.url) as backend,
    ):
        await ask(backend)
        with pytest.raises(BackendGone):
            await backend.open(call())
        assert server.connections == 1
    async with StubServer(saying()) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendGone):
            await backend.open(call(b"", method="GET"))
        assert server.connections == 1


async def test_an_idle_connection_is_closed_after_a_while_or_with_the_backend():
    async with StubServer(saying(WHOLE), keeps=True) as server:
        async with aclosing(
            DataPath(server.url, connect_timeout_s=30.0, kept_for_s=0.01)
        ) as backend:
            await ask(backend)
            await server.all_left()
            assert await ask(backend) == [b"hi"]
        await server.all_left()


async def several(backend: DataPath, count: int) -> None:
    """So many calls at the same time, each answered."""
    assert await asyncio.gather(*(ask(backend) for _ in range(count))) == [[b"hi"]] * count


async def test_one_dead_kept_connection_condemns_the_others_and_the_call_is_resent():
    async with StubServer(dying_with(b""), keeps=True) as server, backend_at(server.url) as backend:
        await several(backend, 4)
        assert await ask(backend, call(b"once more")) == [b"hi"]
        asked = [server.peers.get_nowait().body for _ in range(server.peers.qsize())]
        assert asked == [b"{}"] * 4 + [b"once more"] * 2
        assert server.connections == 5


async def test_calls_at_the_same_time_never_share_a_connection_and_each_is_kept():
    async with StubServer(saying(WHOLE), keeps=True) as server, backend_at(server.url) as backend:
        for _ in range(2):
            await several(backend, 70)
        assert server.connections == 70


# What aiohttp must not do by itself.


async def test_no_proxy_of_the_environment_is_used_and_no_cookie_is_kept(
    monkeypatch: pytest.MonkeyPatch,
):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    baked = WHOLE.replace(OK, OK + b"Set-Cookie: a=1\r\n")
    async with StubServer(saying(baked), keeps=True) as server, backend_at(server.url) as backend:
        for _ in range(2):
            assert await ask(backend) == [b"hi"]
            assert b"cookie" not in dict((await server.peers.get()).fields)


async def test_informational_answers_before_the_answer_are_passed_over():
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    async with StubServer(saying(early + WHOLE)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        assert (exchange.status, exchange.headers, await read(exchange)) == (
            200,
            ((b"content-length", b"2"),),
            [b"hi"],
        )


CERTIFICATE = Path(__file__).parents[1] / "faults" / "self_signed.pem"
ASKING = """
import asyncio, sys
from hearth.engines.data_path import DataPath
from hearth.types import BackendCall

async def ask():
    backend = DataPath(sys.argv[1], connect_timeout_s=30.0)
    exchange = await backend.open(BackendCall(method="GET", path="/api/version"))
    print(exchange.status, *await exchange.take())
    await backend.aclose()

asyncio.run(ask())
"""


async def asked_by_a_process(url: str, **environment: str) -> str:
    """What another process, which has read its certificates anew, is answered, or its error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        ASKING,
        url,
        env={**os.environ, **environment},
        stdout=PIPE,
        stderr=STDOUT,
    )
    said, _ = await process.communicate()
    return said.decode().strip().splitlines()[-1]


async def test_over_tls_only_a_certificate_that_somebody_vouches_for_is_taken():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    async with StubServer(saying(WHOLE), tls=context) as server:
        async with backend_at(f"{server.url}/ollama") as backend:
            with pytest.raises(BackendUnreachable, match="certificate"):
                await ask(backend)
        assert server.peers.empty()
        assert (
            await asked_by_a_process(f"{server.url}/ollama", SSL_CERT_FILE=str(CERTIFICATE))
            == "200 b'hi'"
        )
        assert (await server.peers.get()).path == "/ollama/api/version"
