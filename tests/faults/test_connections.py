"""Connections that do what HTTP clients seldom do are answered properly or ended; a stranger in
Claude's place is told nothing.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from hearth.backends.claude import ClaudeBackend
from hearth.config.settings import GatewayConfig
from hearth.errors import BackendError
from hearth.types import LOCAL_CALLER, CloudCall
from tests.emulator.callers import model
from tests.gateway.front import Front, front_settings, open_front
from tests.support.fields import Fields
from tests.support.keys import key_of
from tests.support.patience import in_time, until

VERSION = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
BODY = json.dumps(
    {"model": "quick", "prompt": "hi", "stream": False, "options": {"num_predict": 2}}
).encode()
SLOW_BODY = json.dumps(
    {"model": "slow", "prompt": "hi", "stream": True, "max_tokens": 100_000}
).encode()
POST = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SLOW = (
    POST.replace(b"/api/generate", b"/v1/completions")
    + b"Content-Length: %d\r\n\r\n" % len(SLOW_BODY)
    + SLOW_BODY
)
"""A stream that ends properly when it is cancelled, so that what was pipelined behind it is
served.
"""
SERVED = b"HTTP/1.1 200 "
CHURN = 1000
MANY = 500
"""More than Python would go into itself for."""
FAR_TOO_MANY = 400_000
"""18 MB: more than the buffers of both ends hold."""


def opened(**sections: Fields) -> Any:
    models = (model("quick"), model("slow", decode_tokens_per_s=100.0))
    return open_front(front_settings(**{"auth": {"keys": ()}, **sections}), models)


async def connect(front: Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = front.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answers_to(front: Front, *parts: bytes, ends: bool = False) -> bytes:
    """All that comes back on one connection until the other side closes it, after a last request
    that asks for that unless it `ends`.
    """
    reader, writer = await connect(front)
    for part in parts:
        writer.write(part)
        await writer.drain()
    if not ends:
        writer.write(VERSION.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    async with in_time():
        said = await reader.read()
    writer.transport.abort()
    return said


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


OFFERS = [
    b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
    b"Upgrade: websocket\r\n\r\n",
]


def post(body: bytes, head: bytes = b"") -> bytes:
    return POST + head + length(body) + b"\r\n" + body


UNKNOWN = BODY.replace(b"quick", b"nosuch")


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with opened() as front:
        yield front


@pytest.mark.parametrize(
    ("parts", "ends", "statuses", "runs"),
    [
        pytest.param((post(BODY) + VERSION,), False, {200: 3}, 1, id="two requests in one packet"),
        pytest.param(
            (post(UNKNOWN), post(BODY)), False, {404: 1, 200: 2}, 1, id="goes on after a refusal"
        ),
        pytest.param(
            (post(BODY, b"X-Request-Id: same\r\n"), post(BODY)),
            False,
            {200: 3},
            2,
            id="the same twice without a key",
        ),
        pytest.param(
            (UPGRADE + OFFERS[0],),
            False,
            {101: 0, 200: 2, 400: 0},
            0,
            id="an offer of HTTP/2 is not taken up",
        ),
        pytest.param(
            ((UPGRADE + OFFERS[0]) * MANY + VERSION,),
            False,
            {200: MANY + 2},
            0,
            id="many offers in one packet",
        ),
        pytest.param(
            (post(BODY) + b'{"more": 1}\r\n\r\n',),
            True,
            {200: 1, 400: 1},
            1,
            id="a body longer than it said",
        ),
    ],
)
async def test_what_comes_on_one_connection_is_answered_in_its_order_or_ends_it(
    front, parts: tuple[bytes, ...], ends: bool, statuses: dict[int, int], runs: int
):
    said = await answers_to(front, *parts, ends=ends)
    assert {status: said.count(b"HTTP/1.1 %d " % status) for status in statuses} == statuses
    assert (
        said.count(b'"done":true')
        == sum(b'"hi"' in one.body for one in front.emulator.requests)
        == runs
    )
    assert not runs or ends or said.rindex(b'"done":true') < said.rindex(b'"version"')
    assert SERVED in await answers_to(front)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/responses", lambda said: said["error"]["message"]),
        ("/v1/messages", lambda said: said["error"]["message"]),
        ("/api/version", lambda said: said["error"]),
    ],
)
async def test_a_websocket_offer_is_refused_with_426_so_that_codex_uses_post(
    front, path: str, message: Callable[[Any], str]
):
    said = await answers_to(
        front, UPGRADE.replace(b"/api/version", path.encode()) + OFFERS[1] + VERSION, ends=True
    )
    head, _, rest = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 ")
    assert "WebSockets are not supported" in message(json.loads(rest))


def requests_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects())


async def test_what_is_pipelined_waits_unparsed_until_the_answer_before_it(front):
    """A thousand requests behind one that runs cost their bytes, and a caller who leaves is still
    seen to leave.
    """
    _, writer = await connect(front)
    before = requests_in_memory()  # other tests may have left some
    writer.write(SLOW + VERSION * MANY)
    await until(lambda: front.emulator.in_flight)
    assert SERVED in await answers_to(front)
    assert requests_in_memory() - before <= 4
    writer.transport.abort()
    await until(lambda: not front.emulator.in_flight)


async def test_of_what_is_pipelined_without_end_no_more_is_read(front):
    reader, writer = await connect(front)
    writer.write(SLOW + VERSION * FAR_TOO_MANY)
    await until(lambda: front.emulator.in_flight)
    for _ in range(3):
        assert SERVED in await answers_to(front)
    assert writer.transport.get_write_buffer_size() > len(VERSION) * FAR_TOO_MANY // 2
    assert front.gateway.worker.cancel_caller(LOCAL_CALLER)
    assert await reader.readuntil(b"0\r\n\r\n" + SERVED)
    writer.transport.abort()


@pytest.mark.parametrize(
    ("fields", "told_first"),
    [
        (b"Connection: Upgrade, HTTP2-Settings\r\n" + OFFERS[0], b""),
        (b"Expect: 100-continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
async def test_a_body_after_its_head_is_read_also_behind_an_offer_of_http_2(
    front, fields: bytes, told_first: bytes
):
    reader, writer = await connect(front)
    writer.write(POST + length(BODY) + fields)
    await writer.drain()
    assert SERVED in await answers_to(front)  # by now the head alone has arrived
    async with in_time():
        assert await reader.readexactly(len(told_first)) == told_first
        writer.write(BODY)
        said = await reader.readuntil(b"}")
    assert said.startswith(SERVED)
    assert b'"done":true' in said
    writer.transport.abort()


async def test_a_thousand_connections_that_come_and_go_leave_nothing_behind(front):
    assert SERVED in await answers_to(front)
    before = descriptors()
    for _ in range(CHURN // 20):
        for _, writer in await asyncio.gather(*(connect(front) for _ in range(20))):
            writer.transport.abort()
    await until(lambda: descriptors() <= before)
    assert SERVED in await answers_to(front)


GUEST = "hearth_guest_of_the_tests"
WITH_GUEST = {
    "keys": (
        key_of("guest", GUEST),
        key_of("other", "hearth_other"),
    )
}
WITHOUT_GUEST = {"keys": WITH_GUEST["keys"][1:]}


async def test_a_key_that_is_taken_out_ends_nothing_and_begins_nothing():
    async with opened(auth=WITH_GUEST) as front, aiohttp.ClientSession() as session:

        async def ask(tokens: int) -> tuple[int, bytes]:
            body = {"model": "slow", "prompt": "hi", "options": {"num_predict": tokens}}
            async with session.post(
                f"{front.url}/api/generate", json=body, headers={"Authorization": f"Bearer {GUEST}"}
            ) as got:
                return got.status, await got.read()

        accepted = [asyncio.ensure_future(ask(30)) for _ in range(2)]
        await until(
            lambda: front.gateway.health()["queue"]["waiting"] == 1 and front.emulator.in_flight
        )
        assert front.gateway.reload(GatewayConfig(settings=front_settings(auth=WITHOUT_GUEST)))
        assert (await ask(1))[0] == 401
        async with in_time():
            assert all(
                status == 200 and b'"done":true' in body
                for status, body in await asyncio.gather(*accepted)
            )


CERTIFICATE = Path(__file__).with_name("self_signed.pem")
"""For localhost and 127.0.0.1, signed by itself; good for nothing but this test."""


@asynccontextmanager
async def stranger(*, tls: bool) -> AsyncIterator[tuple[int, bytearray]]:
    """Listens on loopback; the port, and what it was told."""
    told = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.extend(await reader.read(65536))
        writer.close()

    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], told


@pytest.mark.parametrize(
    ("tls", "host"), [(True, "localhost"), (True, "127.0.0.1"), (False, "localhost")]
)
async def test_without_tls_or_a_vouched_certificate_nothing_is_said(
    tls: bool, host: str, monkeypatch
):
    monkeypatch.setenv("PYTHONHTTPSVERIFY", "0")
    backend = ClaudeBackend()
    async with stranger(tls=tls) as (port, told):
        call = CloudCall(
            model="m",
            body=b'{"model": "m"}',
            base_url=f"https://{host}:{port}",
            api_key="sk-a-secret",
        )
        with pytest.raises(BackendError) as caught:
            await backend.open(call)
        assert "sk-a-secret" not in repr(caught.value)
        assert not tls or bytes(told) == b""
        assert not any(word in told for word in (b"sk-a-secret", b"model"))
    await backend.aclose()
