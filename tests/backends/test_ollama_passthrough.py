"""The Ollama adapter hands bytes through: what it sends, and that nothing of an answer is lost, changed or moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.backends.ollama import OllamaBackend
from hearth.errors import BadRequest, ConfigError
from hearth.types import BackendCall
from tests.backends.stub_server import LAST_CHUNK, STREAM_HEAD, Peer, StubServer, backend_at, chunked, read, saying
from tests.dialects.captured import captured

CAPTURES = tuple(sorted(path.stem for path in (Path(__file__).parent.parent / "captures").glob("*.txt")))
EMPTY_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def raw_answer(name: str) -> bytes:
    raw = (Path(__file__).parent.parent / "captures" / f"{name}.txt").read_bytes()
    return raw.split(b"<<< RESPONSE (raw, chunked framing kept)\n", 1)[1].rsplit(b"\n--- recv timings", 1)[0]


def post(body: bytes = b"{}", *headers: tuple[bytes, bytes], path: str = "/api/generate") -> BackendCall:
    return BackendCall(method="POST", path=path, headers=headers, body=body)


async def answered(server: StubServer, call: BackendCall) -> list[bytes]:
    async with backend_at(server.url) as backend:
        exchange = await backend.open(call)
        chunks = await read(exchange)
        exchange.close()
    return chunks


async def received(*headers: tuple[bytes, bytes], body: bytes = b"{}", path: str = "/api/generate") -> Peer:
    async with StubServer(saying(EMPTY_ANSWER)) as server:
        await answered(server, post(body, *headers, path=path))
        return await server.peers.get()


NOT_PASSED = {"connection", "transfer-encoding"}


@pytest.mark.parametrize("name", [name for name in CAPTURES if captured(name).status not in {301, 307}])
@pytest.mark.parametrize("segment_bytes", [7, 65_536])
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


async def test_chunks_that_arrive_in_one_segment_stay_apart() -> None:
    async with StubServer(saying(STREAM_HEAD + chunked(b"one\n", b"two\n", b"three\n") + LAST_CHUNK)) as server:
        assert await answered(server, post()) == [b"one\n", b"two\n", b"three\n"]


async def test_one_chunk_that_arrives_in_many_segments_is_one_chunk() -> None:
    framed = chunked('{"response":"grüße 🙂"}\n'.encode())
    async with StubServer(saying(STREAM_HEAD, *(framed[index : index + 1] for index in range(len(framed))), LAST_CHUNK)) as server:
        assert await answered(server, post()) == ['{"response":"grüße 🙂"}\n'.encode()]


async def test_a_character_split_over_two_chunks_stays_split() -> None:
    smile = "🙂".encode()
    async with StubServer(saying(STREAM_HEAD, chunked(smile[:2]), chunked(smile[2:]), LAST_CHUNK)) as server:
        assert await answered(server, post()) == [smile[:2], smile[2:]]


async def test_a_huge_chunk_is_handed_on_in_order_and_whole() -> None:
    huge = b"".join(b"%07d\n" % number for number in range(60_000))
    async with StubServer(saying(STREAM_HEAD + chunked(huge) + LAST_CHUNK)) as server:
        assert b"".join(await answered(server, post())) == huge


async def test_fifty_thousand_tiny_chunks_keep_their_order() -> None:
    tiny = [b"%d\n" % number for number in range(50_000)]
    async with StubServer(saying(STREAM_HEAD + chunked(*tiny) + LAST_CHUNK)) as server:
        assert await answered(server, post()) == tiny


async def test_the_request_carries_what_was_given_and_nothing_invented() -> None:
    peer = await received((b"content-type", b"text/odd"), (b"x-custom", "grüße".encode()), (b"x-twice", b"1"), (b"x-twice", b"2"))
    sent = {name: value for name, value in peer.fields if name not in {b"host", b"x-twice"}}
    assert sent == {
        b"content-type": b"text/odd",
        b"x-custom": "grüße".encode(),
        b"accept-encoding": b"identity",
        b"content-length": b"2",
    }
    assert [value for name, value in peer.fields if name == b"x-twice"] == [b"1", b"2"]


async def test_the_host_is_the_address_of_the_model_server() -> None:
    peer = await received((b"host", b"evil.example"))
    assert [value for name, value in peer.fields if name == b"host"] == [peer_address(peer)]


def peer_address(peer: Peer) -> bytes:
    return b"127.0.0.1:%d" % peer.port


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer key"),
        (b"x-api-key", b"key"),
        (b"api-key", b"key"),
        (b"cookie", b"key=1"),
        (b"proxy-authorization", b"Basic key"),
        (b"origin", b"http://evil.example"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"upgrade", b"websocket"),
        (b"transfer-encoding", b"chunked"),
        (b"expect", b"100-continue"),
        (b"x-hop", b"named by Connection"),
    ],
    ids=lambda header: header[0].decode(),
)
async def test_keys_and_hop_by_hop_fields_of_a_caller_stay_here(header: tuple[bytes, bytes]) -> None:
    peer = await received((b"connection", b"X-Hop"), header)
    assert header[0] not in {name for name, _ in peer.fields}


async def test_the_answer_loses_only_its_hop_by_hop_fields_and_what_is_hearths_to_say() -> None:
    dropped = b"Connection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nSet-Cookie: a=1\r\nAccess-Control-Allow-Origin: *\r\n"
    dropped += b"X-Request-Id: req_theirs\r\nX-Queue-Position: 1\r\nX-Estimated-Wait-Seconds: 1.0\r\nX-Hearth-Served-By: us\r\n"
    dropped += b"X-Estimated-Wait-Rough: true\r\n"
    head = b"HTTP/1.1 200 OK\r\n" + dropped + b"X-Stay: 1\r\nx-stay: 2\r\nContent-Length: 0\r\n\r\n"
    async with StubServer(saying(head)) as server, backend_at(server.url) as backend:
        exchange = await backend.open(post())
        exchange.close()
    assert exchange.headers == ((b"x-stay", b"1"), (b"x-stay", b"2"), (b"content-length", b"0"))


async def test_cookies_of_a_model_server_are_not_sent_back_to_it() -> None:
    async with (
        StubServer(saying(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Path=/\r\nContent-Length: 0\r\n\r\n")) as server,
        backend_at(server.url) as backend,
    ):
        for _ in range(2):
            (await backend.open(post())).close()
        seen = [await server.peers.get() for _ in range(2)]
    assert b"cookie" not in {name for peer in seen for name, _ in peer.fields}


@pytest.mark.parametrize("size", [0, 1, 3 * 1024**2])
async def test_a_body_of_any_size_arrives_whole(size: int) -> None:
    body = b"x" * size
    peer = await received(body=body)
    assert peer.body == body
    assert dict(peer.fields)[b"content-length"] == b"%d" % size


@pytest.mark.parametrize("path", ["/api/show?verbose=1&x=%2F%20", "//evil.example/api", "/a/../b", "/v1/models/a%3Ab"])
async def test_the_path_is_sent_as_it_came(path: str) -> None:
    assert (await received(path=path)).path == path


async def test_a_prefix_of_the_configured_url_stays_in_front() -> None:
    async with StubServer(saying(EMPTY_ANSWER)) as server, backend_at(f"{server.url}/ollama/") as backend:
        (await backend.open(post())).close()
        assert (await server.peers.get()).path == "/ollama/api/generate"


@pytest.mark.parametrize("path", ["", "api", "@evil.example/", "/a b", "/a\r\nX: 1", "/ä", "http://evil.example/"])
async def test_what_is_no_plain_path_is_refused_and_not_sent(path: str) -> None:
    async with StubServer(saying(EMPTY_ANSWER)) as server, backend_at(server.url) as backend:
        with pytest.raises(BadRequest):
            await backend.open(post(path=path))
        assert server.connections == 0


async def test_a_header_with_a_line_break_is_refused_and_not_sent() -> None:
    async with StubServer(saying(EMPTY_ANSWER)) as server, backend_at(server.url) as backend:
        with pytest.raises(BadRequest):
            await backend.open(post(b"{}", (b"x-a", b"1\r\nauthorization: Bearer k")))
        assert server.connections == 0


@pytest.mark.parametrize("url", ["", "127.0.0.1:11434", "ftp://127.0.0.1", "http://", "http://[::1"])
def test_a_url_that_is_no_http_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError):
        OllamaBackend(url, connect_timeout_s=1.0)
