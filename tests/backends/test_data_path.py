"""The data path to Ollama over real sockets: bytes go through unchanged, whatever breaks says so, and which connections are kept."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from contextlib import aclosing, suppress
from pathlib import Path

import pytest

from hearth.backends.http1 import Answer, Link
from hearth.backends.ollama import KEPT, OllamaBackend
from hearth.errors import BackendError, BackendGone, BackendProtocolError, BackendUnreachable, BadRequest, ConfigError
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
)
from tests.dialects.captured import captured
from tests.support.cases import for_each
from tests.support.patience import WITHIN_S
from tests.support.taking import chunks_of
from tests.support.virtual_time import in_virtual_time

OK = b"HTTP/1.1 200 OK\r\n"
EMPTY = OK + b"Content-Length: 0\r\n\r\n"
WHOLE = OK + b"Content-Length: 2\r\n\r\nhi"
STREAM = STREAM_HEAD + chunked(b"one\n", b"two\n") + LAST_CHUNK
CAPTURES = tuple(sorted(path.stem for path in (Path(__file__).parent.parent / "captures").glob("*.txt")))
NOT_PASSED = {"connection", "transfer-encoding"}
SMILE = "🙂".encode()
TINY = [b"%d\n" % number for number in range(50_000)]
HUGE = b"".join(b"%07d\n" % number for number in range(60_000))


def call(body: bytes = b"{}", *headers: tuple[bytes, bytes], path: str = "/api/generate", method: str = "POST") -> BackendCall:
    return BackendCall(method=method, path=path, headers=headers, body=body)


async def ask(backend: OllamaBackend, asked: BackendCall | None = None) -> list[bytes]:
    exchange = await backend.open(asked or call())
    body = await read(exchange)
    exchange.close()
    return body


async def answer_to(serve: Serve, **limits: int) -> tuple[list[bytes], BackendError | None]:
    """What came of an answer, and what broke it."""
    async with StubServer(serve) as server, backend_at(server.url, **limits) as backend:
        exchange = await backend.open(call())
        came = await read_until_broken(exchange)
        exchange.close()
    return came


async def received(*headers: tuple[bytes, bytes], body: bytes = b"{}", path: str = "/api/generate", prefix: str = "") -> Peer:
    """What the server was sent."""
    async with StubServer(saying(EMPTY)) as server, backend_at(server.url + prefix) as backend:
        await ask(backend, call(body, *headers, path=path))
        return await server.peers.get()


def raw_answer(name: str) -> bytes:
    raw = (Path(__file__).parent.parent / "captures" / f"{name}.txt").read_bytes()
    return raw.split(b"<<< RESPONSE (raw, chunked framing kept)\n", 1)[1].rsplit(b"\n--- recv timings", 1)[0]


@for_each("name", [name for name in CAPTURES if captured(name).status not in {301, 307}])
@for_each("segment_bytes", [7, 65_536])
async def test_a_recorded_answer_comes_through_byte_for_byte_and_chunk_by_chunk(name: str, segment_bytes: int) -> None:
    expected, wire = captured(name), raw_answer(name)
    segments = [wire[start : start + segment_bytes] for start in range(0, len(wire), segment_bytes)]
    async with StubServer(saying(*segments)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(BackendCall(method=expected.method, path=expected.path, body=expected.request_body))
        chunks = await read(exchange)
    assert exchange.status == expected.status
    assert b"".join(chunks) == expected.body
    if "transfer-encoding" in expected.headers:
        assert tuple(chunks) == expected.chunks
    kept = {name: value for name, value in expected.headers.items() if name not in NOT_PASSED and not name.startswith("access-control-")}
    assert {name.decode(): value.decode() for name, value in exchange.headers} == kept


@for_each(
    ("segments", "chunks"),
    [
        ([STREAM], [b"one\n", b"two\n"]),
        ([STREAM_HEAD, *(chunked(SMILE)[at : at + 1] for at in range(9)), LAST_CHUNK], [SMILE]),
        ([STREAM_HEAD, chunked(SMILE[:2]), chunked(SMILE[2:]), LAST_CHUNK], [SMILE[:2], SMILE[2:]]),
        ([STREAM_HEAD + chunked(*TINY) + LAST_CHUNK], TINY),
        ([STREAM_HEAD + chunked(b"x") * 100_000, LAST_CHUNK], [b"x"] * 100_000),
    ],
)
async def test_chunks_come_as_the_server_made_them_and_in_their_order(segments: list[bytes], chunks: list[bytes]) -> None:
    assert await answer_to(saying(*segments)) == (chunks, None)


async def test_a_huge_chunk_is_handed_on_in_order_and_whole() -> None:
    chunks, error = await answer_to(saying(STREAM_HEAD + chunked(HUGE) + LAST_CHUNK))
    assert (b"".join(chunks), error) == (HUGE, None)


async def test_the_request_carries_what_was_given_and_nothing_invented() -> None:
    odd = ((b"content-type", b"text/odd"), (b"x-custom", "grüße".encode()), (b"x-twice", b"1"), (b"x-twice", b"2"))
    peer = await received(*odd, (b"host", b"evil.example"))
    ours = ((b"accept-encoding", b"identity"), (b"content-length", b"2"), (b"host", b"127.0.0.1:%d" % peer.port))
    assert sorted(peer.fields) == sorted((*odd, *ours))


@for_each(
    "name",
    [
        *("authorization", "x-api-key", "api-key", "cookie", "proxy-authorization", "origin", "keep-alive", "te", "upgrade"),
        *("transfer-encoding", "expect", "x-hop"),
    ],
)
async def test_keys_and_hop_by_hop_fields_of_a_caller_stay_here(name: str) -> None:
    peer = await received((b"connection", b"X-Hop"), (name.encode(), b"secret"))
    assert name.encode() not in dict(peer.fields)


async def test_the_answer_loses_only_its_hop_by_hop_fields_and_what_is_hearths_to_say() -> None:
    dropped = b"Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nSet-Cookie: a=1\r\nAccess-Control-Allow-Origin: *\r\n"
    dropped += b"X-Request-Id: req_theirs\r\nX-Queue-Position: 1\r\nX-Estimated-Wait-Seconds: 1.0\r\nX-Hearth-Served-By: us\r\n"
    dropped += b"X-Estimated-Wait-Rough: true\r\n"
    head = OK + dropped + b"X-Stay: 1\r\nx-stay: 2\r\nContent-Length: 0\r\n\r\n"
    async with StubServer(saying(head)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        exchange.close()
        assert exchange.headers == ((b"x-stay", b"1"), (b"x-stay", b"2"), (b"content-length", b"0"))


@for_each("size", [0, 1, 3 * 1024**2])
async def test_a_body_of_any_size_arrives_whole(size: int) -> None:
    peer = await received(body=b"x" * size)
    assert (peer.body, dict(peer.fields)[b"content-length"]) == (b"x" * size, b"%d" % size)


@for_each("path", ["/api/show?verbose=1&x=%2F%20", "//evil.example/api", "/a/../b", "/v1/models/a%3Ab"])
async def test_the_path_is_sent_as_it_came_behind_the_prefix_of_the_configured_url(path: str) -> None:
    assert (await received(path=path)).path == path
    assert (await received(path=path, prefix="/ollama/")).path == f"/ollama{path}"


@for_each(
    "refused",
    [
        *(call(path=path) for path in ("", "api", "@evil.example/", "/a b", "/a\r\nX: 1", "/ä", "http://evil.example/")),
        call(b"{}", (b"x-a", b"1\r\nauthorization: Bearer k")),
    ],
)
async def test_what_is_no_plain_path_or_header_is_refused_and_not_sent(refused: BackendCall) -> None:
    async with StubServer(saying(EMPTY)) as server, backend_at(server.url) as backend:
        with pytest.raises(BadRequest):
            await backend.open(refused)
        assert server.connections == 0


@for_each("url", ["", "127.0.0.1:11434", "ftp://127.0.0.1", "http://", "http://[::1"])
def test_a_url_that_is_no_http_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        OllamaBackend(url, connect_timeout_s=1.0)


BROKEN: dict[str, tuple[bytes, bytes, type[BackendError]]] = {
    "last chunk missing": (STREAM_HEAD + chunked(b"one\n", b"two\n"), b"one\ntwo\n", BackendGone),
    "half a chunk": (STREAM_HEAD + chunked(b"one\n") + b'8\r\n{"ha', b'one\n{"ha', BackendGone),
    "garbage as a chunk size": (STREAM_HEAD + chunked(b"one\n") + b"zz\r\n", b"one\n", BackendProtocolError),
    "chunk longer than it says": (STREAM_HEAD + chunked(b"one\n") + b"3\r\nabcdef\r\n", b"one\nabc", BackendProtocolError),
    "absurd chunk size": (STREAM_HEAD + chunked(b"one\n") + b"ffffffffffffffffff\r\n", b"one\n", BackendProtocolError),
    "shorter than its length": (OK + b"Content-Length: 10\r\n\r\nshort", b"short", BackendGone),
    # The parser gathers a trailer at a cost that grows with the square of its length.
    "endless trailer": (STREAM_HEAD + chunked(b"one\n") + b"0\r\nx: " + b"a" * 10**6, b"one\n", BackendProtocolError),
    "endless trailers": (STREAM_HEAD + chunked(b"one\n") + b"0\r\n" + b"x: y\r\n" * 10**5, b"one\n", BackendProtocolError),
    "endless extension": (STREAM_HEAD + chunked(b"one\n") + b"1;" + b"a" * 10**6, b"one\n", BackendProtocolError),
}


@for_each("name", BROKEN)
async def test_a_body_that_breaks_its_framing_gives_what_came_and_then_an_error(name: str) -> None:
    said, came, ended_by = BROKEN[name]
    chunks, error = await answer_to(saying_and_waiting(said) if "endless" in name else saying(said))
    assert (b"".join(chunks), type(error)) == (came, ended_by)


async def test_a_reset_before_the_head_or_in_mid_body_is_gone() -> None:
    seen = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if peer.body == b"whole head":
            await peer.send(STREAM_HEAD + chunked(b"one\n"))
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


@for_each(
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
)
async def test_what_is_no_plain_answer_is_a_protocol_error(said: bytes) -> None:
    async with StubServer(saying(said)) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendProtocolError):
            await backend.open(call())


async def test_an_endless_head_is_cut_off() -> None:
    async def serve(peer: Peer) -> None:
        await peer.send(OK)
        while True:
            await peer.send(b"X-More: " + b"x" * 8_000 + b"\r\n")

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendProtocolError):
            await backend.open(call())


@for_each("status", [301, 302, 303, 307, 308])
@for_each("method", ["GET", "POST"])
async def test_a_redirect_is_refused_and_its_target_never_called(status: int, method: str) -> None:
    async with StubServer(saying(OK)) as target:
        moved = b"HTTP/1.1 %d Moved\r\nLocation: %b/api/generate\r\nContent-Length: 0\r\n\r\n" % (status, target.url.encode())
        async with StubServer(saying_and_waiting(moved)) as server, backend_at(server.url) as backend:
            with pytest.raises(BackendProtocolError):
                await backend.open(call(method=method))
            await server.all_left()
        assert target.connections == 0


async def test_a_body_larger_than_any_answer_is_cut_off() -> None:
    chunks, error = await answer_to(saying(OK + b"Content-Length: 100\r\n\r\n" + b"x" * 100), max_body_bytes=64)
    assert chunks == []
    assert isinstance(error, BackendProtocolError)


async def test_a_streamed_line_without_end_is_cut_off_and_a_long_one_of_a_whole_answer_is_not() -> None:
    chunks, error = await answer_to(saying(STREAM_HEAD + chunked(b"fine\n", *[b"x" * 10] * 20) + LAST_CHUNK), max_line_bytes=64)
    assert chunks[0] == b"fine\n"
    assert len(b"".join(chunks)) <= 69
    assert isinstance(error, BackendProtocolError)
    said = OK + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n" + b"x" * 100
    assert await answer_to(saying(said), max_line_bytes=64) == ([b"x" * 100], None)


@pytest.mark.parametrize(("size", "ending"), [(0x80, b""), (0x50, b"broken")])
async def test_a_chunk_that_breaks_off_larger_than_any_answer_ends_it(size: int, ending: bytes) -> None:
    chunks, error = await answer_to(saying(STREAM_HEAD + b"%x\r\n" % size + 0x50 * b"x" + ending), max_body_bytes=64)
    assert chunks == []
    assert "an answer that is too long" in str(error)


async def test_nobody_listening_is_unreachable_and_no_password_shows() -> None:
    async with StubServer(saying()) as server:
        server.stop_listening()
        for url in (server.url, "http://user:secret@127.0.0.1:1", "http://nowhere.invalid:1"):
            async with backend_at(url) as backend:
                with pytest.raises(BackendUnreachable) as caught:
                    await backend.open(call())
            assert url.rpartition("@")[2].removeprefix("http://") in str(caught.value)
            assert "secret" not in str(caught.value)


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


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with StubServer(saying(EMPTY)) as proxy, StubServer(saying(WHOLE)) as server, backend_at(server.url) as backend:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert await ask(backend) == [b"hi"]
        assert proxy.connections == 0


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


# Leaving.


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_leaving_is_immediate_even_when_the_server_has_stopped_reading_the_request() -> None:
    """An orderly close would keep the connection until the unsent rest of the body is gone."""
    async with StubServer(saying_and_waiting(), reads_body=False) as server, backend_at(server.url) as backend:
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


async def test_no_number_of_waiting_calls_keeps_another_one_back_and_cancelled_ones_leave_no_connection() -> None:
    async with StubServer(saying_and_waiting()) as server, backend_at(server.url) as backend:
        before = open_descriptors()
        waiting = [asyncio.ensure_future(backend.open(call())) for _ in range(150)]
        async with asyncio.timeout(WITHIN_S):
            for _ in waiting:
                await server.peers.get()
        for opening in waiting:
            opening.cancel()
        await asyncio.wait(waiting)
        await server.all_left()
        assert open_descriptors() <= before + 1


async def test_a_late_answer_to_a_cancelled_call_reaches_nobody() -> None:
    gate = asyncio.Event()

    async def serve(peer: Peer) -> None:
        if peer.body == b"first":
            await gate.wait()
        await peer.send(OK + b"Content-Length: %d\r\n\r\n" % len(peer.body) + peer.body)

    async with StubServer(serve) as server, backend_at(server.url) as backend:
        first = asyncio.ensure_future(backend.open(call(b"first")))
        await server.peers.get()
        first.cancel()
        await asyncio.wait([first])
        gate.set()
        assert await ask(backend, call(b"second")) == [b"second"]


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


@for_each("rest", [b"no chunk\r\n", b"7ffffff\r\n" + 0x180000 * b"x", None])
@in_virtual_time
async def test_an_answer_that_broke_off_is_let_go_of_by_whoever_was_told(rest):
    """The error that is raised knows the answer."""
    limits = {"max_body_bytes": 1 << 20, "max_line_bytes": 1 << 20}
    answer = Answer(Link(lambda _: None), lambda _: None, method="POST", address="here", **limits)
    answer.feed(STREAM_HEAD)
    if rest is None:
        answer.connection_ended(whole=False)
    else:
        answer.feed(rest)
    gc.disable()
    try:
        with suppress(BackendError):
            while await answer.take():
                pass
        known = weakref.ref(answer)
        del answer
        assert known() is None
    finally:
        gc.enable()


# Which connections are kept for the next call.


async def connections_for(serve: Serve, calls: int, method: str = "POST") -> int:
    async with StubServer(serve, keeps=True) as server, backend_at(server.url) as backend:
        for _ in range(calls):
            await ask(backend, call(method=method))
        return server.connections


@pytest.mark.parametrize("said", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_a_connection_whose_answer_was_read_to_the_end_carries_the_next_call(said: bytes) -> None:
    assert await connections_for(saying(said), 5) == 1


@for_each(
    ("said", "method"),
    [
        (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", "POST"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "POST"),
        (WHOLE + b"more than was asked for", "POST"),
        (WHOLE + WHOLE, "POST"),
        (OK + b"Content-Length: 2\r\n\r\n", "HEAD"),
    ],
)
async def test_a_connection_that_may_not_be_trusted_carries_no_second_call(said: bytes, method: str) -> None:
    assert await connections_for(saying(said), 3, method) == 3


@in_virtual_time
async def test_a_connection_on_which_more_comes_before_its_answer_is_left_is_not_put_back():
    class Transport(asyncio.Transport):
        def abort(self) -> None:
            aborted.append(self)

        def is_closing(self) -> bool:
            return False

        def get_write_buffer_size(self) -> int:
            return 0

    for said, kept in (((WHOLE,), 1), ((WHOLE, b"HTTP/1.1 200 OK\r\n"), 0)):
        aborted, put_back, link = list[Transport](), list[Link](), Link(lambda _: None)
        link.transport = Transport()
        answer = Answer(link, put_back.append, method="POST", address="here", max_body_bytes=9, max_line_bytes=9)
        for piece in said:
            answer.feed(piece)
        answer.close()
        assert (len(put_back), len(aborted)) == (kept, 1 - kept)


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
        assert await ask(backend, call(b"x" * 16 * 1024**2)) == [b"hi"]
        await ask(backend)
        assert server.connections == 2


async def test_an_answer_that_was_not_read_to_the_end_ends_its_connection() -> None:
    async with StubServer(saying(STREAM_HEAD + chunked(b"one\n")), keeps=True) as server, backend_at(server.url) as backend:
        exchange = await backend.open(call())
        assert await anext(chunks_of(exchange)) == b"one\n"
        exchange.close()
        await server.all_left()


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
    assert await connections_for(dying_with(b""), 3) == 3


async def test_a_call_whose_answer_has_begun_is_not_repeated_nor_one_on_a_new_connection() -> None:
    async with StubServer(dying_with(b"HTTP/1.1 2"), keeps=True) as server, backend_at(server.url) as backend:
        await ask(backend)
        with pytest.raises(BackendGone):
            await backend.open(call())
        assert server.connections == 1
    async with StubServer(saying()) as server, backend_at(server.url) as backend:
        with pytest.raises(BackendGone):
            await backend.open(call(b"", method="GET"))
        assert server.connections == 1


async def test_an_idle_connection_is_closed_after_a_while_or_with_the_backend() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server:
        async with aclosing(OllamaBackend(server.url, connect_timeout_s=30.0, kept_for_s=0.01)) as backend:
            await ask(backend)
            await server.all_left()
            assert await ask(backend) == [b"hi"]
        await server.all_left()


async def test_calls_at_the_same_time_never_share_a_connection_and_no_more_are_kept_than_a_card_has_slots() -> None:
    async with StubServer(saying(WHOLE), keeps=True) as server, backend_at(server.url) as backend:
        exchanges = [await backend.open(call()) for _ in range(KEPT + 3)]
        assert server.connections == KEPT + 3
        for exchange in exchanges:
            assert await read(exchange) == [b"hi"]
            exchange.close()
        await server.left(3)
        assert server.open_connections == KEPT
